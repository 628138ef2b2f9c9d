"""Recorded runs of the whole stack, and what happened in them. Tests that assert on *which* rollouts came up play them back.

Each NAME.npz holds every response of one run with its log-probs, the configuration, and the story of the run. The model
that answered lies beside them, because a model that is trained anew on another processor is another model.

    python -m tests.recordings            make them all anew, about a minute each; then commit the files
    python -m tests.recordings dapo       one of them
"""

import json
import tempfile
from functools import cache
from pathlib import Path

import numpy as np

from r3_openrlhf.runs.directory import RunDirectory
from r3_openrlhf.stack.recorded_rollouts import (
    PLAYBACK,
    Response,
    read_response,
    write_response,
)

HERE = Path(__file__).parent
MODEL = HERE / "tiny"
COMMAND = "python -m tests.recordings"
HELD_OUT = "size: 8, seed: 1000, min_terms: 2, max_terms: 3, min_digits: 1, max_digits: 1, operators: ['+']"
SETTINGS = {
    # 30 problems in batches of 8: epochs end with a short batch, inside and outside of checkpoints
    "r3": ["data.max_samples=30", "checkpoint.save_steps=2", "checkpoint.max_num=2"],
    "dapo": [
        "algo=dapo",
        "checkpoint.save_steps=2",
        "held_out.path=reasoning_gym:basic_arithmetic",
        f"held_out.reasoning_gym={{{HELD_OUT}, allow_parentheses: false, allow_negation: false}}",
        "held_out.every_steps=1",  # every step: the recording can then answer a run that ends anywhere
        "held_out.n_samples=2",
    ],
}
# What a step counts. Times, losses and other results of floating-point work are no part of it.
COUNTS = (
    *("step", "epoch", "generated_tokens", "generated_tokens_total", "response_tokens"),
    *(
        f"r3/groups/{name}"
        for name in (
            "all_correct",
            "none_correct",
            "mixed",
            "collapsed_before",
            "collapsed_after",
        )
    ),
    *("r3/reflection/groups", "r3/reflection/hard_prompts", "r3/grading/ungraded"),
    *(
        f"r3/filter/{what}_{unit}"
        for what in ("dropped", "left_over")
        for unit in ("groups", "tokens")
    ),
)
STORY = (
    "step",
    "uid",
    "context",
    "verdict",
    "outcome_reward",
    "recalled_from",
    "truncated",
    "text",
)


def path_of(name: str) -> Path:
    return HERE / f"{name}.npz"


def settings_of(name: str) -> list[str]:
    """What a run needs behind `experiment=cpu_smoke` to be the recorded one."""
    return [*SETTINGS[name], f"model.path={MODEL}"]


def playback_of(name: str) -> dict[str, str]:
    """The environment of a run that gets its responses from the recording."""
    return {PLAYBACK: unpacked(name).name}


@cache
def unpacked(name: str) -> tempfile.TemporaryDirectory:
    """The responses as a run records them. Deleted at the end of this process."""
    folder = tempfile.TemporaryDirectory(prefix=f"r3-{name}-")
    for key, response in recorded(name)[0].items():
        write_response(Path(folder.name) / f"{key}.npz", *response)
    return folder


@cache
def recorded(name: str) -> tuple[dict, dict]:
    """(responses by key, what is stored about them: config, story, metrics, evaluations)."""
    return read_packed(path_of(name))


def pack(directory: Path, file: Path, about: dict) -> None:
    """A compressed .npz of all responses below `directory`, sorted by key, and JSON `about`.

    token_ids and logprobs: all responses in a row; num_tokens and widths (1 + k) tell them apart."""
    found = {path.stem: read_response(path) for path in sorted(directory.glob("*.npz"))}
    np.savez_compressed(
        file,
        keys=np.array(list(found)),
        num_tokens=np.array([len(ids) for ids, _, _ in found.values()], dtype=np.int32),
        widths=np.array(
            [logprobs.shape[1] for _, logprobs, _ in found.values()], dtype=np.int32
        ),
        finish_reasons=np.array([reason for _, _, reason in found.values()]),
        token_ids=np.concatenate(
            [np.array(ids, dtype=np.int32) for ids, _, _ in found.values()]
        ),
        logprobs=np.concatenate([logprobs.ravel() for _, logprobs, _ in found.values()]).astype(
            np.float32
        ),
        about=np.array(json.dumps(about)),
    )


def read_packed(file: Path) -> tuple[dict[str, Response], dict]:
    """(responses by key, what was stored about them), as `pack` wrote them."""
    with np.load(file) as packed:
        arrays = {name: packed[name] for name in packed.files}
    tokens = np.split(arrays["token_ids"], np.cumsum(arrays["num_tokens"])[:-1])
    logprobs = np.split(
        arrays["logprobs"], np.cumsum(arrays["num_tokens"] * arrays["widths"])[:-1]
    )
    rows = zip(
        arrays["keys"],
        tokens,
        logprobs,
        arrays["widths"],
        arrays["finish_reasons"],
        strict=True,
    )
    return {
        str(key): (ids.tolist(), values.reshape(len(ids), width), str(reason))
        for key, ids, values, width, reason in rows
    }, json.loads(str(arrays["about"]))


def story(run_dir: Path) -> list[list]:
    """What happened in a run, row by row: all of it follows from the responses. Recalled rows are a step's last, wherever its
    file has them."""
    rows = sorted(
        rollouts_of(run_dir), key=lambda row: (row["step"], row["recalled_from"] is not None)
    )
    return [[row[key] for key in STORY] for row in rows]


def counts(run_dir: Path) -> list[dict]:
    """What each step counted: all of it follows from the responses."""
    return [{key: line[key] for key in COUNTS} for line in lines(run_dir / "metrics.jsonl")]


def recorded_counts(name: str) -> list[dict]:
    return [{key: line[key] for key in COUNTS} for line in recorded(name)[1]["counts"]]


def rollouts_of(run_dir: Path) -> list[dict]:
    return list(RunDirectory(run_dir).read_rollouts())


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]
