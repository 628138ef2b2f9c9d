"""One small file for each run that a result rests on: docs/evidence/REGIME/ARM-SEED.json, kept with the code.

A run directory is large and is thrown away; this file stays, so that a study continues with further seeds and arms instead
of starting over. The directory that the files are in is the regime.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any

import msgspec

from r3_openrlhf.config import R3Config
from r3_openrlhf.config.loading import flatten
from r3_openrlhf.method.errors import R3Error
from r3_openrlhf.runs.commit import commit_of
from r3_openrlhf.runs.directory import RunDirectory, write_whole
from r3_openrlhf.runs.files import read_text

EVALUATION = "held_out"  # the lines of evaluations.jsonl with this name
CURVE = ("step", "generated_tokens", "pass_at_1")
ALIKE = ("num_problems", "n_samples", "temperature", "max_new_tokens", "problems_sha256")
# keys of metrics.jsonl: what a step counted. Kept as sums from the first step on.
COUNTED = (
    "generated_tokens",
    "trained_tokens",
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
# where and as which run: no part of what was computed
NOT_COMPARED = ("run_dir", "arm", "train.seed")
Numbers = list[float]


class Evidence(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=False):
    """What is left of a run. Lists have one entry for each evaluation, the one before the first step included."""

    format: Annotated[int, msgspec.Meta(ge=1, le=1)] = 1
    arm: str
    seed: int
    # of the code that ran, with ", modified" if files were changed; several if the run was resumed with other code
    commit: str | None
    settings: dict[str, Any]  # those that are not the default of config.py
    evaluation: dict[str, Any]  # ALIKE
    problems: str  # a hash of the training problems and their prompts, in any order
    curve: dict[str, Numbers]  # CURVE
    sums: dict[str, Numbers]  # COUNTED, as far as the run has it: over the steps up to there


def evidence_of(run: RunDirectory) -> Evidence:
    """Raises R3Error where the run has not finished, or was never evaluated."""
    config = run.load_config()
    if not run.finished.is_file():
        raise R3Error(f"{run.path} has not finished, so it is no evidence; start its command again")
    lines = [line for line in run.read_evaluations() if line.get("name", EVALUATION) == EVALUATION]
    if not lines:
        raise R3Error(f"{run.path} has no evaluations of held-out problems; train it with held_out.path=...")
    metrics = run.read_metrics()
    sums: dict[str, Numbers] = {}
    for key in COUNTED:
        if any(line.get(key) is not None for line in metrics):
            counts = [(line["step"], line.get(key) or 0.0) for line in metrics]
            sums[key] = [_short(sum(count for at, count in counts if at <= line["step"])) for line in lines]
    return Evidence(
        arm=config.arm or config.algo,
        seed=config.train.seed,
        commit=_commits_of(run),
        settings=settings_of(config),
        evaluation={key: lines[0].get(key) for key in ALIKE},
        problems=hash_of_lines(run.data),
        curve={key: [line[key] for line in lines] for key in CURVE},
        sums=sums,
    )


def _commits_of(run: RunDirectory) -> str | None:
    """Those that code_state.txt names, in the order in which they ran; a run without that file is of this code."""
    if not run.code_state.is_file():
        return commit_of()
    lines = [
        line.removeprefix("commit ") for line in read_text(run.code_state).splitlines() if line.startswith("commit ")
    ]
    return ", then ".join(dict.fromkeys(lines)) or None


def settings_of(config: R3Config) -> dict[str, Any]:
    """{key: value} where the value is not the default. A key that is added later with a default leaves old files true."""
    defaults = flatten(R3Config())
    values = {key: value for key, value in flatten(config).items() if key not in NOT_COMPARED}
    return json.loads(json.dumps({key: value for key, value in sorted(values.items()) if value != defaults.get(key)}))


def keep(run: Path, directory: Path) -> Path:
    """The file of a run that has finished; one that is there already stays. Raises R3Error as the functions below do."""
    found = RunDirectory.open(run)
    if is_there(directory, config := found.load_config()):
        return file_of(directory, config.arm or config.algo, config.train.seed)
    return write_evidence(evidence_of(found), directory)


def file_of(directory: Path, arm: str, seed: int) -> Path:
    """Where the evidence of this run is, or will be."""
    return directory / f"{arm}-{seed}.json"


def write_evidence(record: Evidence, directory: Path) -> Path:
    """The file appears whole or not at all. Raises R3Error when it cannot be written."""
    path = file_of(directory, record.arm, record.seed)
    fields = msgspec.to_builtins(record)
    text = "{\n" + ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in fields.items()) + "\n}\n"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        write_whole(path, text, mode=0o644)
    except OSError as error:
        raise R3Error(
            f"{path} cannot be written: {error.strerror}; choose another directory for --evidence"
        ) from error
    return path


def read_evidence(path: Path) -> Evidence:
    """Raises R3Error where the file is not what write_evidence wrote, or contradicts its name."""
    try:
        found = msgspec.json.decode(read_text(path), type=Evidence)
    except msgspec.DecodeError as error:
        raise R3Error(
            f"{path} is no evidence of a run: {error}; restore it, or delete it and run its study"
        ) from error
    if file_of(path.parent, found.arm, found.seed).name != path.name:
        raise R3Error(f"{path} holds seed {found.seed} of arm {found.arm}; name it {found.arm}-{found.seed}.json")
    lengths = {len(values) for values in (*found.curve.values(), *found.sums.values())}
    if set(found.curve) != set(CURVE) or len(lengths) != 1 or lengths == {0}:
        raise R3Error(f"{path} has lists of different lengths, or lacks one of {', '.join(CURVE)}; restore it")
    return found


def is_there(directory: Path, config: R3Config) -> bool:
    """True if there is evidence of this run. Raises R3Error if it has other settings."""
    arm, seed = config.arm or config.algo, config.train.seed
    path = file_of(directory, arm, seed)
    if not path.is_file():
        return False
    there, wanted = read_evidence(path).settings, settings_of(config)
    keys = sorted(key for key in there.keys() | wanted.keys() if there.get(key) != wanted.get(key))
    if keys:
        defaults = flatten(R3Config())
        here, now = (values.get(keys[0], defaults.get(keys[0])) for values in (there, wanted))
        raise R3Error(
            f"{path} is of a run with {keys[0]}={here}, and now it is {now}; give the arm another name, or keep the evidence "
            "of this study in another directory"
        )
    return True


def hash_of_lines(file: Path) -> str:
    """The same for the same lines in any order."""
    return hashlib.sha256(b"\n".join(sorted(file.read_bytes().splitlines()))).hexdigest()


def _short(value: float) -> float:
    """Counts as whole numbers, seconds to a hundredth: a file is read by people, too."""
    return int(value) if value == int(value) else round(value, 2)
