"""The strip on top of a run: its state, does it learn, is it healthy, what did R³ do, and the time that is left."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import msgspec

from r3_openrlhf.method.errors import R3Error
from r3_openrlhf.runs.display import duration, to_go_s
from r3_openrlhf.runs.effect import held_out_of
from r3_openrlhf.runs.report import quarter_means, total
from r3_openrlhf.runs.state import State, planned_steps
from r3_openrlhf.view.files_page import events_in
from r3_openrlhf.view.rendering import number
from r3_openrlhf.view.run_reader import RunReader

DID = (
    "groups/collapsed_before",
    "groups/collapsed_after",
    "replay/recalled",
    "reflection/groups",
    "ranking/groups",
)
Steps = Sequence[dict[str, Any]]
Answer = tuple[str, str]  # green, amber, red, or none where nothing is judged; and a sentence


class Check(msgspec.Struct, frozen=True):
    """A line of health.yaml."""

    key: str
    name: str
    green: tuple[float, float]
    amber: tuple[float, float]
    of: Literal["mean", "ratio"] = "mean"

    def of_steps(self, lines: Steps) -> Answer:
        """Return the state of these steps, and the value with the range that is healthy."""
        first, last = quarter_means(lines, self.key)
        value = last if self.of == "mean" or last is None else last / first if first else None
        if value is None:
            return "none", ""
        within = (low <= value <= high for low, high in (self.green, self.amber))
        state = next(
            (state for state, holds in zip(("green", "amber"), within, strict=True) if holds),
            "red",
        )
        unit = " times its beginning" if self.of == "ratio" else ""
        return (
            state,
            f"{self.name} {value:.3g}{unit} (healthy: {self.green[0]:g} to {self.green[1]:g})",
        )


CHECKS = msgspec.yaml.decode(
    Path(__file__).with_name("health.yaml").read_bytes(), type=list[Check]
)


def answers(run: RunReader) -> dict[str, Answer]:
    """Question -> answer, from the files as they are now."""
    lines, now = run.metrics(), run.state
    strip: dict[str, Answer] = {
        "State": ("red" if now.is_bad else "none", run.state_sentence())
    }
    if not lines:
        if now.state in (State.RUNNING, State.NOT_STARTED):
            strip["Learning?"] = ("none", _before_first_step(run))
        return strip
    strip["Learning?"] = _learning(run, lines)
    strip["Healthy?"] = _healthy(lines, is_bad=now.is_bad)
    strip["What did R³ do?"] = ("none", _did(run, lines))
    if now.state == State.RUNNING:
        strip["Time left"] = ("none", _left(run, lines))
    return strip


def _before_first_step(run: RunReader) -> str:
    events = events_in(run.directory.events)
    phase = f": {events[-1].phase}" if events else ""
    return f"before its first step{phase}"


def _learning(run: RunReader, lines: Steps) -> Answer:
    """By held-out accuracy, if its change has an interval; accuracy in training decides nothing."""
    held_out = None
    with suppress(R3Error):  # a damaged file, which the page names
        held_out = held_out_of(run.directory)
    if held_out is None or held_out.low is None or held_out.high is None:
        first, last = (number(mean) for mean in quarter_means(lines, "fresh/accuracy"))
        return (
            "none",
            f"not decided: no held-out accuracy with an interval; accuracy in training {first} → {last}",
        )
    state = "green" if held_out.low > 0 else "red" if held_out.high < 0 else "amber"
    word = {"green": "rises", "red": "falls", "amber": "no change beyond its noise"}[state]
    first, last = map(number, held_out.accuracies)
    return state, f"{word}: held-out accuracy {first} → {last}"


def _healthy(lines: Steps, *, is_bad: bool) -> Answer:
    """Name the checks that do not hold. is_bad: the run failed or died, and is never called good."""
    known = [answer for check in CHECKS if (answer := check.of_steps(lines))[0] != "none"]
    states = {state for state, _ in known}
    worst = next((state for state in ("red", "amber", "green") if state in states), "none")
    wrong = "; ".join(text for state, text in known if state != "green")
    if is_bad and not wrong:
        return "none", "not judged: the run did not end well"
    return worst, wrong or (
        f"all {len(known)} checks hold" if known else "the run logs nothing that is checked"
    )


def _did(run: RunReader, lines: Steps) -> str:
    if run.config is not None and not run.config.algorithm.mechanisms:
        return f"nothing: algo={run.config.algorithm_name} has none of its parts"
    counts = [total(lines, f"r3/{name}") for name in DID]
    if set(counts) == {None}:
        return "the run logs nothing of it"
    before, after, *others = ("–" if count is None else f"{count:,.0f}" for count in counts)
    return "collapsed groups {} → {}, {} recalled, {} with an error shown, {} ranked".format(
        before, after, *others
    )


def _left(run: RunReader, lines: Steps) -> str:
    num_steps = None
    with suppress(R3Error):  # a damaged first page
        num_steps = planned_steps(run.directory)
    seconds = to_go_s(
        lines,
        num_steps=num_steps,
        max_tokens=run.config.train.max_generated_tokens if run.config is not None else None,
    )
    if seconds == 0:
        return "its last step is done: it evaluates and saves"
    return "not known" if seconds is None else f"about {duration(seconds)}"
