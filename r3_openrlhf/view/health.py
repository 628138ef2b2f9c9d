"""The strip on top of a run: its state, does it learn, is it healthy, what did R³ do, and the time that is left."""

import math
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import msgspec

from r3_openrlhf.config import R3Config
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
# what follows a value of each kind
UNITS = {
    "mean": "",
    "ratio": " times its beginning",
    "change": " since its beginning",
    "whole": "",
}
Steps = Sequence[dict[str, Any]]
Answer = tuple[str, str]  # green, amber, red, or none where nothing is judged; and a sentence


class Check(msgspec.Struct, frozen=True):
    """A line of health.yaml, which describes the fields."""

    key: str
    name: str
    when: str  # as the page says it
    green: tuple[float, float]
    amber: tuple[float, float]
    of: Literal["mean", "ratio", "change", "whole"] = "mean"
    per: tuple[str, ...] = ()
    less: str = ""
    where: str = ""
    from_epoch: int = 1
    min_steps: int = 1
    needs: Literal["", "groups", "replay", "reflection"] = ""
    file: Literal["metrics", "evaluations"] = "metrics"

    @property
    def healthy(self) -> str:
        """The range that is healthy: "0.3 to 3 times its beginning"."""
        low, high = self.green
        text = f"above {low:g}" if math.isinf(high) else f"{low:g} to {high:g}"
        return f"{text}{UNITS[self.of]}"

    def applies_to(self, config: R3Config | None) -> bool:
        """Return False if the run lacks what the sign is about; True if its settings are not known."""
        if config is None or not self.needs:
            return True
        if self.needs == "groups":
            return config.rollout.n_samples_per_prompt > 1
        return self.needs in config.algorithm.mechanisms

    def of_steps(self, lines: Steps) -> Answer:
        """Return the state of these steps, and the value with the range that is healthy."""
        values = [self._number(line) for line in self._counted(lines)]
        numbers = [{"value": value} for value in values]
        known = [value for value in values if value is not None]
        if len(known) < self.min_steps:
            return "none", ""
        first, last = quarter_means(numbers, "value")
        if self.of == "whole":
            return self._judged(fmean(known))
        if last is None:
            return "none", ""
        if self.of == "mean":
            return self._judged(last)
        if first is None:
            return "none", ""
        if self.of == "change":
            return self._judged(last - first)
        if first != 0:
            return self._judged(last / first)
        # a ratio to nothing: a value that stays 0 is wrong, one that came later is to be watched
        state = "red" if last == 0 else "amber"
        return (
            state,
            f"{self.name}: {last:.3g}, and 0 in the beginning (healthy: {self.healthy})",
        )

    def _counted(self, lines: Steps) -> Steps:
        """Return the steps that count: of these epochs, and with what the sign is about."""
        return [
            line
            for line in lines
            if (line.get("epoch") or 1) >= self.from_epoch
            and (not self.where or (line.get(self.where) or 0) > 0)
        ]

    def _number(self, line: dict[str, Any]) -> float | None:
        """Return the value of one step; None where it has none."""
        value = line.get(self.key)
        if value is None:
            return None
        if self.less:
            other = line.get(self.less)
            return None if other is None else value - other
        if self.per:
            total = sum(line.get(key) or 0 for key in self.per)
            return value / total if total else None
        return float(value)

    def _judged(self, value: float) -> Answer:
        state = "red"
        if _is_within(value, self.amber):
            state = "amber"
        if _is_within(value, self.green):
            state = "green"
        return state, f"{self.name} {value:.3g}{UNITS[self.of]} (healthy: {self.healthy})"


def _is_within(value: float, ends: tuple[float, float]) -> bool:
    low, high = ends
    return value > low if math.isinf(high) else low <= value <= high


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
    strip["Healthy?"] = _healthy(run, lines, is_bad=now.is_bad)
    strip["What did R³ do?"] = ("none", _did(run, lines))
    if now.state == State.RUNNING:
        strip["Time left"] = ("none", _left(run, lines))
    return strip


def health_of(run: RunReader) -> Answer:
    """Return the answer to "Healthy?" alone; none, and no sentence, before the first step."""
    lines = run.metrics()
    return _healthy(run, lines, is_bad=run.state.is_bad) if lines else ("none", "")


def _before_first_step(run: RunReader) -> str:
    events = events_in(run.directory.events)
    phase = f": {events[-1].phase}" if events else ""
    return f"before its first step{phase}"


def _learning(run: RunReader, lines: Steps) -> Answer:
    """Judge by held-out accuracy, if its change has an interval; accuracy in training decides nothing."""
    held_out = None
    with suppress(R3Error):  # a damaged file, which the page names
        held_out = held_out_of(run.directory)
    if held_out is None or held_out.steps[0] == held_out.steps[1]:
        first, last = (number(mean) for mean in quarter_means(lines, "fresh/accuracy"))
        times = "no evaluation" if held_out is None else "one evaluation"
        return (
            "none",
            f"not decided: {times} of held-out problems; accuracy in training {first} → {last}",
        )
    if held_out.low is None or held_out.high is None:
        first, last = map(number, held_out.accuracies)
        return (
            "none",
            f"not decided: held-out accuracy {first} → {last}, without an interval ({held_out.why_no_interval})",
        )
    state = "green" if held_out.low > 0 else "red" if held_out.high < 0 else "amber"
    word = {"green": "rises", "red": "falls", "amber": "no change beyond its noise"}[state]
    first, last = map(number, held_out.accuracies)
    return state, f"{word}: held-out accuracy {first} → {last}"


def _healthy(run: RunReader, lines: Steps, *, is_bad: bool) -> Answer:
    """Name the checks that do not hold. is_bad: the run failed or died, and is never called good."""
    files = {"metrics": lines, "evaluations": run.evaluations()}
    asked = [
        check.of_steps(files[check.file]) for check in CHECKS if check.applies_to(run.config)
    ]
    known = [(state, text) for state, text in asked if state != "none"]
    states = {state for state, _ in known}
    worst = next((state for state in ("red", "amber", "green") if state in states), "none")
    wrong = "; ".join(
        text for worse in ("red", "amber") for state, text in known if state == worse
    )
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
