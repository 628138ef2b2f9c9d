"""`r3 history import`: verified successes from elsewhere, with which a run's store begins (history.start).

Every response is encoded again for the run: its own prompt of that problem, its tokenizer, an end token, and
the verdict of its grader. What an earlier verdict or a column of the source says counts for nothing."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from r3_openrlhf.config import R3Config
from r3_openrlhf.method.errors import DataError, quoted
from r3_openrlhf.method.history.numbers import successes
from r3_openrlhf.method.history.store import HistoryStore
from r3_openrlhf.method.history.witness import record_of
from r3_openrlhf.method.types import Context, Rollout, Verdict
from r3_openrlhf.problems.files import load_table
from r3_openrlhf.problems.held_out import held_out_data
from r3_openrlhf.problems.label import Label
from r3_openrlhf.problems.prompt_checks import near
from r3_openrlhf.problems.prompts import prompt_of
from r3_openrlhf.problems.sources import load_problems
from r3_openrlhf.problems.stops import stops_of
from r3_openrlhf.problems.training_file import read_prompts
from r3_openrlhf.rewards.answers.request import GradeRequest
from r3_openrlhf.rewards.client import make_grader
from r3_openrlhf.rewards.exchange import Grade
from r3_openrlhf.rewards.thinking import as_graded, opened_thinking, response_text
from r3_openrlhf.runs.directory import RunDirectory, write_whole
from r3_openrlhf.runs.models.checks import load_tokenizer
from r3_openrlhf.runs.models.locate import resolve_model

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# `near` of a problem or its uid; the response, None where there is none or a token limit ended it
Solutions = Iterator[tuple[str | None, str | None]]


def import_successes(
    source: str,
    into: Path,
    config: R3Config,
    *,
    problem: str,
    solution: str,
    origin: str | None,
) -> dict[str, Any]:
    """Write the store of `into`, which is new, and its record. Returns what was imported, and what was
    left out and why. problem, solution: columns of a file.

    DataError: no success, a problem of held_out.path, no such column, a store that is there."""
    run, path = RunDirectory(into), Path(source)
    if run.history.exists():
        raise DataError(f"{run.history} exists; import into another directory")
    if (path / "history.sqlite").is_file():
        kind, solutions = "run", _of_run(RunDirectory(path))
    elif (path / "samples.jsonl").is_file():
        kind, solutions = "evaluation", _of_evaluation(path / "samples.jsonl")
    else:
        kind, solutions = "file", _of_file(source, config, problem, solution)
    tokenizer = _tokenizer_of(config)
    left_out: Counter[str] = Counter()
    encoded = list(
        _encoded(solutions, config, tokenizer, left_out, origin=origin or f"{kind} {path.name}")
    )
    kept = []
    for (rollout, _), grade in zip(encoded, asyncio.run(_graded(encoded, config)), strict=True):
        if grade.verdict is Verdict.CORRECT:
            kept.append(
                replace(
                    rollout, verdict=grade.verdict, reward=grade.reward, reason=grade.reason
                )
            )
        else:
            left_out[f"{grade.verdict} by the run's grader"] += 1
    if not kept:
        raise DataError(
            f"{source} gives no success for data.path {config.data.path}: {dict(left_out)}"
        )
    run.make()
    with HistoryStore.open(run.history, limits=config.history, seed=config.train.seed) as store:
        store.commit_step(0, 1, kept)
    record = record_of(run.history, 0)
    if more := len(kept) - record.rows:
        left_out["equal to another one, or beyond history.max_per_problem_and_verdict"] = more
    result = {
        "origin": kept[0].origin,
        "successes": record.rows,
        "problems": len({one.uid for one in kept}),
        "left_out": dict(left_out),
        "digest": record.digest,
    }
    write_whole(run.path / "import.json", json.dumps({"source": source, **result}) + "\n")
    return result


def _tokenizer_of(config: R3Config) -> PreTrainedTokenizerBase:
    model = resolve_model(config.model.path)
    return load_tokenizer(model, trusted=config.model.trust_remote_code, data=config.data)


def _of_run(earlier: RunDirectory) -> Solutions:
    """Yield the successes in an earlier run's history. DataError: they are trajectories, or no run's."""
    if not earlier.data.is_file():
        raise DataError(
            f"{earlier.path} has a history and no {earlier.data.name}, so it is no run; give the run's directory"
        )
    tokenizer = _tokenizer_of(earlier.load_config())
    problems = {
        label.uid: near(label) for label in map(Label.from_json, read_prompts(earlier.data)[1])
    }
    for row in successes(earlier.history):
        if row.turns is not None:
            raise DataError(
                f"{earlier.path} holds trajectories of an environment; only responses can be imported"
            )
        text = response_text(tokenizer, row.response_ids.tolist())
        yield problems.get(row.uid), None if row.truncated else text


def _of_evaluation(samples: Path) -> Solutions:
    """Yield all responses of `r3 eval`, which knows problems by uid. DataError: the file is damaged."""
    with samples.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                # a line without an end: killed while it was written
                one = json.loads(line) if line.endswith(b"\n") else {"responses": []}
                for response in one["responses"]:
                    yield (
                        str(one["uid"]),
                        response["text"] if response["finish_reason"] == "stop" else None,
                    )
            except (ValueError, KeyError, TypeError) as error:
                raise DataError(
                    f"{samples}, line {number} is no problem of an evaluation: {error!r}"
                ) from error


def _of_file(source: str, config: R3Config, problem: str, solution: str) -> Solutions:
    """Yield the responses of a data set, of which a row has one or a list. DataError: it lacks a column."""
    table = load_table(replace(config.data, path=source, sources=[]))
    for column in {problem, solution} - set(table.columns):
        raise DataError(
            f"{source} has no column {column}; name the columns with --problem and --solution"
        )
    for _, row in table.rows({problem, solution}):
        asked, found = (
            row.get(column) if isinstance(row, dict) else None for column in (problem, solution)
        )
        asked, *texts = (
            one.encode(errors="replace").decode() if isinstance(one, str) else None
            for one in (asked, *(found if isinstance(found, list) and found else [found]))
        )
        key = (
            None
            if asked is None
            else near(Label(uid="", problem=asked, references=[], task=""))
        )
        yield from ((key, text) for text in texts)


def _encoded(
    solutions: Solutions,
    config: R3Config,
    tokenizer: PreTrainedTokenizerBase,
    left_out: Counter[str],
    *,
    origin: str,
) -> Iterator[tuple[Rollout, GradeRequest]]:
    """Yield each response, encoded after the run's prompt, with the request to its grader."""
    with_rows, data = config.reward.reads_rows, held_out_data(config)
    trained, held_out = (
        {key: label for label in labels for key in (near(label), label.uid)}
        for labels in (
            load_problems(config.data, with_rows=with_rows).labels,
            load_problems(data, with_rows=with_rows).labels if data is not None else [],
        )
    )
    ends, _ = stops_of(tokenizer, config.data, config.rollout.stop)
    ends = ends or [tokenizer.eos_token_id]
    for key, text in solutions:
        if key is not None and key in held_out:
            raise DataError(
                f"{origin} holds the problem {quoted(held_out[key].problem)} of held_out.path {config.held_out.path}, which "
                "would make the evaluation worthless; leave it out of one of the two"
            )
        if (label := trained.get(key or "")) is None or text is None:
            left_out[
                "no problem of data.path"
                if label is None
                else "no response, or ended by a token limit"
            ] += 1
            continue
        prompt = prompt_of(tokenizer, config.data, label)
        # the prompt has it already
        if (mark := opened_thinking(prompt)) and text.lstrip().startswith(mark):
            text = text.lstrip().removeprefix(mark).lstrip("\n")
        prompt_ids, ids = (
            tokenizer(text=one, add_special_tokens=False)["input_ids"] for one in (prompt, text)
        )
        if tokenizer.decode(ids) != text or not {*ids}.isdisjoint(
            {*ends, tokenizer.eos_token_id}
        ):
            left_out["not restored by the tokenizer"] += 1
        elif len(ids) >= config.rollout.max_new_tokens:
            left_out["longer than rollout.max_new_tokens"] += 1
        else:
            rollout = Rollout(
                uid=label.uid,
                context=Context.IMPORTED,
                prompt_ids=np.array(prompt_ids, np.int32),
                response_ids=np.array([*ids, ends[0]], np.int32),
                response_logprobs=np.zeros(
                    0, np.float32
                ),  # the run's first policy measures them
                verdict=Verdict.UNGRADED,
                reward=None,
                truncated=False,
                finish_reason="stop",
                policy_step=0,
                epoch=1,
                origin=origin,
            )
            request = GradeRequest(
                response=as_graded(prompt, text),
                references=tuple(label.references),
                task=label.task,
                num_tokens=len(ids) + 1,
                truncated=False,
                metadata=label.metadata,
                problem=label.problem,
                prompt=prompt,
                row=label.row,
            )
            yield rollout, request


async def _graded(
    encoded: Sequence[tuple[Rollout, GradeRequest]], config: R3Config
) -> list[Grade]:
    grader = make_grader(config.reward)
    try:
        return await asyncio.gather(*(grader.grade(request) for _, request in encoded))
    finally:
        grader.close()
