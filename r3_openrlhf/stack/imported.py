"""Begin a run's store with the successes of `r3 history import` (history.start)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from r3_openrlhf.config import R3Config
from r3_openrlhf.method.core.losses import bounds_imported
from r3_openrlhf.method.errors import DataError, TrainingStopped
from r3_openrlhf.method.history.numbers import successes
from r3_openrlhf.method.history.witness import record_of
from r3_openrlhf.method.types import Rollout
from r3_openrlhf.problems.label import Label
from r3_openrlhf.problems.stops import stops_of
from r3_openrlhf.problems.training_file import read_prompts
from r3_openrlhf.runs import checkpoint_record
from r3_openrlhf.runs.directory import RunDirectory, write_whole
from r3_openrlhf.runs.first_page import add_to_page

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

FOREIGN = -4.0  # nats a token: another style, which can destroy a policy (docs/lab.md)


def check_start(
    config: R3Config, run: RunDirectory, tokenizer: PreTrainedTokenizerBase
) -> list[str]:
    """Lines of the first page about the successes that the run begins, or began, with: their number and
    three of them.

    DataError: the directory is not what the import wrote, or not that with which the run began; its
    rows are of other prompts or another tokenizer than the run's."""
    began: dict[str, Any] = {"digest": None, "sentences": []}
    file, has_begun = (
        run.path / "imported.json",
        checkpoint_record.newest(run.checkpoints) is not None,
    )
    if has_begun and file.is_file():
        began = json.loads(file.read_text(encoding="utf-8"))
    if config.history.start is None:
        return list(began["sentences"])
    record = _record(config)
    rows, prompts = rows_to_begin_with(config, run)
    if has_begun and began["digest"] != record["digest"]:
        raise DataError(
            f"history.start {config.history.start} is not the import that the run began with; restore it, or start with "
            "an empty run_dir"
        )
    if not rows:
        raise DataError(
            f"history.start {config.history.start} has no success of a problem of data.path; import for this run"
        )
    ends = stops_of(tokenizer, config.data, config.rollout.stop)[0] or [tokenizer.eos_token_id]
    for one in rows:
        *response_ids, end = one.response_ids.tolist()
        texts = prompts[one.uid], tokenizer.decode(response_ids)
        encoded = [
            tokenizer(text=text, add_special_tokens=False)["input_ids"] for text in texts
        ]
        if encoded != [one.prompt_ids.tolist(), response_ids] or end not in ends:
            raise DataError(
                f"history.start {config.history.start} has another prompt of problem {one.uid} than this run, or another "
                "tokenizer; import again with the run's settings (a template with a date needs data.template_date)"
            )
    problems = len({one.uid for one in rows})
    shown = [tokenizer.decode([*one.prompt_ids, *one.response_ids]) for one in rows[:3]]
    return [
        f"{len(rows):,} successes ({record['origin']}) of {problems:,} of {len(prompts):,} problems",
        *(f"{one.verdict}: {text}" for one, text in zip(rows, shown, strict=False)),
        *began["sentences"],
    ]


def _record(config: R3Config) -> dict[str, Any]:
    begin = RunDirectory(config.history.start or "")
    try:
        record = json.loads((begin.path / "import.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(
            f"history.start {begin.path} is no import: {error}; see r3 history import --help"
        ) from error
    if (
        not isinstance(record, dict)
        or record.get("digest") != record_of(begin.history, 0).digest
    ):
        raise DataError(
            f"the store of history.start {begin.path} is not what the import wrote; import again"
        )
    return record


def rows_to_begin_with(
    config: R3Config, run: RunDirectory
) -> tuple[list[Rollout], dict[str, str]]:
    """Return the imported successes of problems that the run trains on, and the prompts of all its problems by uid."""
    prompts = {
        Label.from_json(label).uid: prompt
        for prompt, label in zip(*read_prompts(run.data), strict=True)
    }
    rows = successes(RunDirectory(config.history.start or "").history)
    return [one for one in rows if one.uid in prompts], prompts


def measured(
    config: R3Config, rows: Sequence[Rollout], logprobs: Sequence[np.ndarray]
) -> tuple[list[Rollout], str, dict[str, list[float]]]:
    """Return the rows with their log-probs under the first policy, float32 [response tokens] each,
    without those that it finds too unlikely (replay.imported.min_logprob); a sentence for the first
    page; uid -> mean log-probs of its rows that are set aside.

    TrainingStopped: none is left, or a foreign style would enter an update that nothing bounds."""
    settings = config.replay.imported
    means = [float(found_T.mean(dtype=np.float64)) for found_T in logprobs]
    kept, aside = list[int](), dict[str, list[float]]()
    for i, mean in enumerate(means):
        if settings.min_logprob is None or mean >= settings.min_logprob:
            kept.append(i)
        else:
            aside.setdefault(rows[i].uid, []).append(round(mean, 3))
    sentence = (
        f"imported successes have {np.mean(means):.2f} nats a token under the first policy, those shown "
        f"{', '.join(f'{mean:.2f}' for mean in means[:3])} (its own rows: minus fresh/entropy); {len(means) - len(kept)} of "
        f"{len(means)} are below replay.imported.min_logprob={settings.min_logprob} and set aside"
    )
    if not kept:
        raise TrainingStopped(
            f"{sentence}: none is left; use others, or a lower limit on your own responsibility"
        )
    foreign = sum(means[i] < FOREIGN for i in kept)
    bounded = bounds_imported(
        config.loss, str(settings.weight), config.loss_settings, foreign=FOREIGN
    )
    if foreign and (settings.warm_start or not bounded) and not settings.foreign:
        raise TrainingStopped(
            f"{foreign} imported successes are below {FOREIGN} nats a token, and replay.imported.warm_start="
            f"{settings.warm_start} with weight={settings.weight} and the loss {config.loss_name} would train on them "
            f"without a bound; use replay.imported.min_logprob={FOREIGN}, or replay.imported.foreign=true if you mean it"
        )
    return [replace(rows[i], response_logprobs=logprobs[i]) for i in kept], sentence, aside


def write_beginning(
    config: R3Config, run: RunDirectory, sentences: list[str], aside: dict[str, list[float]]
) -> None:
    """Keep in imported.json how the run began, and add it to the first page."""
    digest = None if config.history.start is None else _record(config)["digest"]
    facts = {"digest": digest, "set_aside": aside, "sentences": sentences}
    write_whole(run.path / "imported.json", json.dumps(facts) + "\n")
    add_to_page(run, "imported", sentences)
