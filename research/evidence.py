"""Evidence: the numbers of the runs that a result rests on, and the tables made from them.

A run directory is large and is thrown away. evidence/EXPERIMENT.jsonl.zst stays with the code, with one line of JSON for each
run, so that a study continues with further seeds and arms instead of starting over. `zstdcat FILE` shows it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec
import zstandard

from r3_openrlhf.comparison.arms import ArmResult, Comparison, compare
from r3_openrlhf.comparison.intervals import SeedEstimate, estimate
from r3_openrlhf.comparison.runs import EVALUATION, SAME_IN_EVALUATIONS, Run, hash_of_lines
from r3_openrlhf.comparison.table import (
    HALF_WIDTH,
    NOTHING,
    crossing_text,
    interval_text,
    seeds_text,
)
from r3_openrlhf.config import R3Config
from r3_openrlhf.config.loading import flatten
from r3_openrlhf.method.errors import R3Error
from r3_openrlhf.runs.commit import commit_of
from r3_openrlhf.runs.directory import RunDirectory
from r3_openrlhf.runs.files import read_text, replacing

SUFFIX = ".jsonl.zst"
CURVE = ("step", "generated_tokens", "pass_at_1")
# keys of metrics.jsonl: what a step counted. Kept as sums from the first step on.
COUNTED = (
    "generated_tokens",
    "trained_tokens",
    "teacher_tokens",  # read by the teacher, without a gradient
    "sft_tokens",
    "time/step_s",  # in the lab; timing/... on the whole stack
    "time/sampling_s",
    "timing/step_total",
    "timing/generation",
    "r3/replay/hits",
    "r3/tokens/mixed",
    "r3/tokens/all_correct",
    "r3/tokens/none_correct",
    "r3/tokens/reflection",
    "r3/tokens/prefix",
    "r3/groups/mixed",
    "r3/groups/all_correct",
    "r3/groups/none_correct",
    "r3/groups/collapsed_before",
    "r3/groups/collapsed_after",
    "r3/filter/dropped_groups",
)
# what arms are compared at equal amounts of -> the counts that make it up, and their factors
EQUAL: dict[str, dict[str, float]] = {
    "generated": {"generated_tokens": 1.0},
    "trained": {"trained_tokens": 1.0},  # prompts and responses of the update
    # the teacher's pass has no gradient: a forward pass costs a third of an update's
    "computed": {"trained_tokens": 1.0, "teacher_tokens": 1 / 3},
}
SOLUTIONS = ("solved", "style", "warm_up")  # of data.reasoning_gym
# where and as which run: no part of what was computed
NOT_COMPARED = ("run_dir", "arm", "train.seed")
Numbers = list[int | float]


class Evidence(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The numbers of a run. Lists have one entry for each evaluation, the one before the first step included."""

    tuning: bool  # run to choose a learning rate, on seeds that are not reported
    arm: str
    seed: int
    # of the code that ran, with ", modified" if files were changed; several if the run was resumed with other code
    commit: str | None
    settings: dict[str, Any]  # those that are not the default
    evaluation: dict[str, Any]  # SAME_IN_EVALUATIONS
    problems: str  # a hash of the training problems and their prompts, in any order
    curve: dict[str, Numbers]  # CURVE
    sums: dict[str, Numbers]  # COUNTED, as far as the run has it: over the steps up to there

    @property
    def name(self) -> str:
        """The run's name among those of its experiment."""
        return f"{self.arm}-{self.seed}"


def evidence_of(run: RunDirectory, *, tuning: bool = False) -> Evidence:
    """Raises R3Error where the run has not finished, or was never evaluated."""
    config = run.load_config()
    if not run.finished.is_file():
        raise R3Error(
            f"{run.path} has not finished, so it is no evidence; start its command again"
        )
    lines = [
        line for line in run.read_evaluations() if line.get("name", EVALUATION) == EVALUATION
    ]
    if not lines:
        raise R3Error(
            f"{run.path} has no evaluations of held-out problems; train it with held_out.path=..."
        )
    metrics = run.read_metrics()
    sums: dict[str, Numbers] = {}
    for key in COUNTED:
        if any(line.get(key) is not None for line in metrics):
            counts = [(line["step"], line.get(key) or 0.0) for line in metrics]
            sums[key] = [
                _short(sum(count for at, count in counts if at <= line["step"]))
                for line in lines
            ]
    return Evidence(
        tuning=tuning,
        arm=config.arm or config.algo,
        seed=config.train.seed,
        commit=_commits_of(run),
        settings=settings_of(config),
        evaluation={key: lines[0].get(key) for key in SAME_IN_EVALUATIONS},
        problems=hash_of_lines(run.data),
        curve={key: [line[key] for line in lines] for key in CURVE},
        sums=sums,
    )


def _commits_of(run: RunDirectory) -> str | None:
    """Read the commits in code_state.txt, in the order in which they ran; a run without that file is of this code."""
    if not run.code_state.is_file():
        return commit_of()
    lines = read_text(run.code_state).splitlines()
    commits = [line.removeprefix("commit ") for line in lines if line.startswith("commit ")]
    return ", then ".join(dict.fromkeys(commits)) or None


def settings_of(config: R3Config) -> dict[str, Any]:
    """{key: value} where the value is not the default, paths relative to the checkout that this runs in.

    A key that is added later with a default leaves old files true."""
    defaults = flatten(R3Config())
    values = {key: value for key, value in flatten(config).items() if key not in NOT_COMPARED}
    text = json.dumps(
        {key: value for key, value in sorted(values.items()) if value != defaults.get(key)}
    )
    return json.loads(text.replace(f"{Path.cwd()}/", ""))


def _short(value: float) -> float:
    """A count as a whole number, seconds to a hundredth."""
    return int(value) if value == int(value) else round(value, 2)


def read(file: Path) -> list[Evidence]:
    """Read the runs of an experiment, by name; none where there is no file. Raises R3Error where `write` wrote no such file."""
    if not file.exists():
        return []
    try:
        text = zstandard.ZstdDecompressor().decompress(file.read_bytes())
        records = msgspec.json.Decoder(Evidence).decode_lines(text)
    except (OSError, zstandard.ZstdError, msgspec.DecodeError) as error:
        raise R3Error(f"{file} is no file of evidence: {error}; restore it") from error
    for record in records:
        lengths = {len(values) for values in (*record.curve.values(), *record.sums.values())}
        if set(record.curve) != set(CURVE) or len(lengths) != 1 or lengths == {0}:
            raise R3Error(
                f"{file}: {record.name} has lists of different lengths, or lacks one of {', '.join(CURVE)}; restore the file"
            )
    return records


def write(file: Path, records: Iterable[Evidence]) -> None:
    """Write the runs of an experiment: the whole new file, or the old one stays. Raises R3Error when it cannot be written."""
    ordered = sorted(records, key=lambda record: (record.tuning, record.name))
    text = msgspec.json.Encoder().encode_lines(ordered)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(file, mode=0o644) as stream:
            stream.write(zstandard.ZstdCompressor(level=19).compress(text))
    except OSError as error:
        raise R3Error(
            f"{file} cannot be written: {error.strerror}; choose another file for --evidence"
        ) from error


def add(file: Path, run: RunDirectory, *, tuning: bool = False) -> None:
    """Add a finished run; one that is there stays. Raises R3Error as `evidence_of`, `is_in`, `read` and `write` do."""
    records = read(file)
    if not is_in(records, run.load_config(), file=file, tuning=tuning):
        write(file, [*records, evidence_of(run, tuning=tuning)])


def is_in(
    records: Iterable[Evidence], config: R3Config, *, file: Path, tuning: bool = False
) -> bool:
    """True if there is evidence of this run. Raises R3Error if it has other settings."""
    wanted = (tuning, config.arm or config.algo, config.train.seed)
    record = next(
        (known for known in records if (known.tuning, known.arm, known.seed) == wanted), None
    )
    if record is None:
        return False
    before, now = record.settings, settings_of(config)
    keys = sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))
    if keys:
        defaults = flatten(R3Config())
        old, new = (values.get(keys[0], defaults.get(keys[0])) for values in (before, now))
        raise R3Error(
            f"{file}: {record.name} is a run with {keys[0]}={old}, and now it is {new}; give the arm another name, or keep "
            "the evidence of this study in another file"
        )
    return True


# ── what tuning chose ──

_TRIED = re.compile(r"(.+?)(_c[\d.e-]+)?_lr[\d.e-]+")  # ARM_cCOEF_lrRATE
CHOSEN = ("distill.coef", "train.learning_rate")


def tuned(file: Path, arm: str) -> dict[str, float]:
    """Return those of CHOSEN that the arm's best tuning runs set: the highest mean over seeds of final accuracy and mean
    accuracy. R3Error: there are no runs named ARM_lrRATE or ARM_cCOEF_lrRATE."""
    scores: dict[str, list[float]] = {}
    settings: dict[str, dict[str, Any]] = {}
    for record in read(file):
        found = _TRIED.fullmatch(record.arm)
        if not record.tuning or found is None or found[1] != arm:
            continue
        accuracies = record.curve["pass_at_1"]
        scores.setdefault(record.arm, []).append((accuracies[-1] + fmean(accuracies)) / 2)
        settings[record.arm] = record.settings
    if not scores:
        raise R3Error(
            f"{file} has no tuning runs of {arm}; run research/teacher.sh with TUNE=1"
        )
    best = max(scores, key=lambda name: fmean(scores[name]))
    return {key: settings[best][key] for key in CHOSEN if key in settings[best]}


# ── tables ──


@dataclass(frozen=True, slots=True, kw_only=True)
class Regime:
    """The runs of one experiment, compared."""

    name: str
    comparison: Comparison
    collapsed: float | None  # of the reference's groups, as they were sampled
    all_wrong: float | None  # of the reference's groups
    needed: SeedEstimate | None  # of the reference's tokens: those outside its all-wrong groups
    equal: str = "generated"  # one of EQUAL


def read_regime(
    file: Path,
    *,
    tuning: bool = False,
    without: Sequence[int] = (),
    arms: Sequence[str] = (),
    reference: str | None = None,
    equal: str = "generated",
) -> Regime:
    """Compare the runs in a file, but for the seeds in `without`; of `arms` alone where any are named; at equal amounts of one of
    EQUAL. Raises R3Error as `read` and `compare` do, and where there are none."""
    records = [
        record
        for record in read(file)
        if record.tuning == tuning and record.seed not in without
    ]
    runs = [as_run(record, equal=equal) for record in records if not arms or record.arm in arms]
    if not runs:
        raise R3Error(
            f"there are no such runs in {file}; `python -m research study --evidence {file}` adds some"
        )
    comparison = compare(runs, reference=reference)
    of_reference = [run for run in runs if run.arm == comparison.reference]
    return Regime(
        name=file.name.removesuffix(SUFFIX),
        comparison=comparison,
        collapsed=_share(of_reference, "r3/groups/collapsed_before", dropped=True),
        all_wrong=_share(of_reference, "r3/groups/none_correct", dropped=False),
        needed=tokens_without_all_wrong(of_reference),
        equal=equal,
    )


def _drawn(settings: dict[str, Any]) -> dict[str, Any]:
    """Say what the problems are drawn by: the solutions to them (research/successes.py) are part of an arm."""
    key = "data.reasoning_gym"
    return {
        key: {
            name: value
            for name, value in settings.get(key, {}).items()
            if name not in SOLUTIONS
        }
    }


def _amounts(evidence: Evidence, equal: str) -> Numbers:
    """Return what the run has used of one of EQUAL, at each evaluation. R3Error: it did not count that."""
    count = len(evidence.curve["step"])
    total: Numbers = [0.0] * count
    for key, factor in EQUAL[equal].items():
        amounts = evidence.sums.get(key)
        if amounts is None and key == "teacher_tokens":
            continue  # an arm without a teacher
        if amounts is None:
            raise R3Error(
                f"{evidence.name} did not count {key}; compare at equal generated tokens"
            )
        for i, amount in enumerate(amounts):
            total[i] += factor * amount
    return total


def as_run(evidence: Evidence, *, equal: str = "generated") -> Run:
    """Convert for `compare`. The lines of `metrics` are the stretches between two evaluations, not steps: sums over them are the
    run's, means over steps are not. The tokens of its curve are those of `equal`, one of EQUAL."""
    count = len(evidence.curve["step"])
    curve = dict(evidence.curve)
    if equal != "generated":
        curve["generated_tokens"] = _amounts(evidence, equal)
    evaluations = [
        {key: values[i] for key, values in curve.items()} | evidence.evaluation
        for i in range(count)
    ]
    metrics = []
    for i in range(1, count):
        line: dict[str, Any] = {
            key: values[i] - values[i - 1] for key, values in evidence.sums.items()
        }
        line |= {
            "step": evidence.curve["step"][i],
            "generated_tokens_total": curve["generated_tokens"][i],
        }
        metrics.append(line)
    return Run(
        path=Path(evidence.name),
        arm=evidence.arm,
        seed=evidence.seed,
        finished=True,
        settings=evidence.settings | _drawn(evidence.settings),
        evaluations=evaluations,
        metrics=metrics,
        training_problems=evidence.problems,
        code_state=evidence.commit,
        commits={},
    )


def tokens_without_all_wrong(runs: Sequence[Run]) -> SeedEstimate | None:
    """The share of its tokens that a run needs for its result if all-wrong groups are free.

        1 - (tokens in all-wrong groups) / (generated tokens), mean over runs

    Exact for an arm without replay and ranking: the rewards of an all-wrong group are equal, so that its advantages are 0 and
    the updates stay what they are. No choice of problems saves more without other updates. None where a run does not say.
    """
    shares = []
    for run in runs:
        lines = [
            (line.get("r3/tokens/none_correct"), line.get("generated_tokens"))
            for line in run.metrics
        ]
        if not lines or any(value is None for line in lines for value in line):
            return None
        wrong, generated = (sum(values) for values in zip(*lines, strict=True))
        shares.append(1 - wrong / generated)
    return estimate(shares, bounds=(0.0, 1.0))


def _share(runs: Sequence[Run], key: str, *, dropped: bool) -> float | None:
    lines = [line for run in runs for line in run.metrics]
    keys = ("r3/groups/mixed", "r3/groups/all_correct", "r3/groups/none_correct")
    groups = sum(line.get(name, 0) for line in lines for name in keys)
    left_out = sum(line.get("r3/filter/dropped_groups", 0) for line in lines) if dropped else 0
    return (
        (sum(line.get(key, 0) for line in lines) + left_out) / (groups + left_out)
        if groups
        else None
    )


def regime_table(regime: Regime) -> str:
    """A heading, one line on the regime and one row for each arm, as Markdown."""
    comparison = regime.comparison
    how, reference = comparison.evaluation, comparison.reference
    lines = [
        f"### {regime.name}",
        "",
        f"{_percent(regime.collapsed)} of `{reference}`'s groups collapse, {_percent(regime.all_wrong)} are all wrong. Held-out "
        f"accuracy on {how['num_problems']} problems x {how['n_samples']} responses, "
        f"{_start(comparison)} before training; all arms at {comparison.equal_tokens:,.0f} {regime.equal} tokens. If all-wrong "
        f"groups were free, `{reference}` would reach its final accuracy with {interval_text(regime.needed, '.2f')} of its tokens.",
        "",
        f"| arm | seeds | accuracy | vs. `{reference}`, paired | mean over the run, vs. `{reference}` | tokens to "
        f"`{reference}`'s final accuracy, mean curve | to 75% of its gain | tokens in collapsed groups | trained tokens | "
        f"seconds | seeds for ±{HALF_WIDTH} |",
        f"|{'---|' * 11}",
    ]
    lines += [f"| {' | '.join(_row(arm))} |" for arm in comparison.arms]
    return "\n".join(lines)


def _row(arm: ArmResult) -> list[str]:
    values, differences = arm.estimates, arm.differences
    return [
        f"`{arm.name}`",
        str(len(arm.runs)),
        interval_text(values["accuracy_at_equal_tokens"], ".3f"),
        interval_text(differences.get("accuracy_at_equal_tokens"), "+.3f"),
        interval_text(differences.get("mean_accuracy"), "+.3f"),
        crossing_text(arm.crossings[-1]),
        crossing_text(arm.crossings[1]) if len(arm.crossings) > 1 else NOTHING,
        _collapsed_tokens(arm),
        _mean(values["trained_tokens"]),
        _mean(values["seconds"]),
        seeds_text(differences.get("accuracy_at_equal_tokens")),
    ]


def _collapsed_tokens(arm: ArmResult) -> str:
    parts = [
        arm.estimates[name]
        for name in ("tokens_in_all_correct", "tokens_in_none_correct", "tokens_elsewhere")
    ]
    return (
        NOTHING
        if None in parts
        else f"{sum(part.mean for part in parts if part is not None):.0%}"
    )


def _start(comparison: Comparison) -> str:
    level = (
        comparison.levels[0] * 2 - comparison.target_accuracy
        if len(comparison.levels) > 1
        else math.nan
    )
    return f"{level:.3f}"


def _mean(value: SeedEstimate | None) -> str:
    return NOTHING if value is None else f"{value.mean:,.0f}"


def _percent(share: float | None) -> str:
    return NOTHING if share is None else f"{share:.0%}"
