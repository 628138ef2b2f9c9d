"""The problems of a run -> one JSONL of final prompts, which OpenRLHF loads as it is.

Each line is {"input": final prompt, "label": JSON of a Label, "datasource": name}. The label
reaches the rollout executor unchanged, which is how a rollout knows its uid, its references and its
grader."""

from __future__ import annotations

import itertools
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from r3_openrlhf.config import DataConfig, R3Config
from r3_openrlhf.config.finding import Finding
from r3_openrlhf.method.core.reflection import MIN_VISIBLE_CHARACTERS, reflection_message
from r3_openrlhf.method.errors import ConfigError, DataError
from r3_openrlhf.problems.prompts import (
    RunPrompts,
    count_tokens,
    problem_message,
    prompt_of,
    unknown_values,
)
from r3_openrlhf.problems.reference_checks import SUSPICIOUS
from r3_openrlhf.problems.sources import Label as Label
from r3_openrlhf.problems.sources import (
    Problems,
    SourceCounts,
    is_of_function,
    load_problems,
)
from r3_openrlhf.problems.template_checks import (
    lacks_thoughts,
    template_findings,
    template_notes,
    thought_notes,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

AT_ONCE = 256  # prompts that are tokenized together


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedData:
    """The file that OpenRLHF reads, and what was left out of it."""

    path: Path
    num_problems: int
    num_dropped_overlong: int  # prompts longer than data.max_len - rollout.max_new_tokens
    num_duplicates: int  # rows equal to an earlier one
    num_unusable: int  # rows without problem or answer, or with contradictory answers
    # the rows of each source, by outcome
    sources: list[SourceCounts] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)  # suspicions, for the first page
    notes: list[str] = field(default_factory=list)  # what a reader might not expect, no fault


def prepare(
    config: R3Config, tokenizer: PreTrainedTokenizerBase | None, output: Path
) -> PreparedData:
    """Load, check, render and write all problems of a run; what was left out is in counts.json. Without a
    tokenizer, which a plan may lack, the prompts are the problems.

    DataError: as `load_problems`, fewer problems than one batch, an `output` of an earlier start
    with other problems. ConfigError: no problem leaves room for a reflection prompt, or a teacher's."""
    data = config.data
    room = data.max_len - config.rollout.max_new_tokens  # tokens of a prompt, at most
    problems = drawn_before(data, output)
    if problems is None:
        problems = load_problems(
            data, seed=config.train.seed, with_rows=config.reward.reads_rows
        )
    counts_of = {counts.name: counts for counts in problems.sources}
    used: Counter[str | None] = Counter()
    lines: list[str] = []
    overlong = num_without_thoughts = 0
    shortest: tuple[int, Label] | None = None
    for label, prompt, tokens in rendered(problems.labels, data, tokenizer, room=room):
        if prompt is None:
            overlong += 1
            counts_of[label.source].leave_out(f"the prompt is longer than {room} tokens", 1)
            continue
        used[label.source] += 1
        num_without_thoughts += lacks_thoughts(label, prompt)
        if shortest is None or tokens < shortest[0]:
            shortest = tokens, label
        lines.append(line_of(label, prompt, label.source or data.path.rpartition("/")[2]))
        if len(lines) == data.max_samples and not data.sources:
            break
    if shortest is None or len(lines) < config.rollout.batch_size:
        dropped = f" ({overlong} were longer than {room} tokens)" if overlong else ""
        raise DataError(
            f"data.path {data.path} gives {len(lines)} problems{dropped}, fewer than one batch: "
            f"rollout.batch_size is {config.rollout.batch_size}"
        )
    if config.reflection.enabled and tokenizer is not None:
        _check_reflection(config, tokenizer, shortest[1])
    if config.distill.enabled and tokenizer is not None:
        _check_teacher(config, tokenizer, shortest[1])
    moved = write_once(output, lines, f"data.path {data.path}", problems.sources)
    for name, counts in counts_of.items():
        if not data.sources:
            counts.leave_out(
                "after the first data.max_samples", counts.num_used - overlong - used[name]
            )
        counts.num_used = used[name]
    prepared = PreparedData(
        path=output,
        num_problems=len(lines),
        num_dropped_overlong=overlong,
        num_duplicates=sum(one.num_duplicates for one in problems.sources),
        num_unusable=sum(one.num_unusable for one in problems.sources),
        sources=problems.sources,
        findings=problems.findings
        + [Finding(f"{one}; its problems are the same") for one in moved]
        + [
            Finding(
                f"data.chat_template_kwargs has {name}, and the chat template has no such variable; is it another word?"
            )
            for name in (unknown_values(tokenizer, data) if tokenizer is not None else ())
        ]
        + (template_findings(tokenizer, data, problems.labels) if tokenizer is not None else [])
        + overlong_finding(
            data, num_overlong=overlong, num_read=len(lines) + overlong, room=room
        ),
        notes=[note for counts in problems.sources for note in counts.notes]
        + (template_notes(tokenizer, data, problems.labels) if tokenizer is not None else [])
        + thought_notes(num_without_thoughts, len(lines)),
    )
    written = {
        key: value
        for key, value in asdict(prepared).items()
        if key not in ("path", "findings", "notes")
    }
    output.with_name("counts.json").write_text(json.dumps(written) + "\n", encoding="utf-8")
    return prepared


def drawn_before(data: DataConfig, output: Path) -> Problems | None:
    """Return the problems that a function made for an earlier start of the run: it may make others now.

    None: no function makes them, or there was no such start. A file that is damaged is a DataError."""
    if not output.is_file() or not any(map(is_of_function, data.parts.values())):
        return None
    try:
        labels = [Label.from_json(label) for label in read_prompts(output)[1]]
        counts = output.with_name("counts.json")
        written = json.loads(counts.read_text(encoding="utf-8")) if counts.is_file() else {}
        sources = [
            SourceCounts(**one | {"files": tuple(one["files"])})
            for one in written.get("sources", [])
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{output} cannot be read: {error}; restore it from a copy, or choose another run_dir"
        ) from error
    if {one.name for one in sources} != set(data.parts):
        sources = [
            SourceCounts(
                path=part.path,
                name=name,
                problem_key=part.problem_key or "",
                answer_key=part.answer_key or "",
            )
            for name, part in data.parts.items()
        ]
    for one in sources:
        one.num_used = sum(label.source == one.name for label in labels)
    return Problems(labels=labels, sources=sources, findings=[])


def line_of(label: Label, prompt: str, source: str) -> str:
    """Write a line of a file of prompts."""
    row = {"input": prompt, "label": label.to_json(), "datasource": source}
    return json.dumps(row, ensure_ascii=False) + "\n"


def write_once(
    output: Path, lines: list[str], source: str, counts: Iterable[SourceCounts] = ()
) -> list[str]:
    """Write a file of prompts, whole or not at all; that of an earlier start stays.

    Its labels must be equal. Its prompts may be worded in another way: a chat template may have
    today's date. `source`: for the sentence. The commits of `counts` are kept next to the file.
    Returns a sentence for each data set of the hub that has another commit than at the earlier
    start. DataError: an `output` with other problems."""
    record, commits = (
        output.with_suffix(".commits.json"),
        {one.path: one.commit for one in counts if one.commit},
    )
    if output.is_file():
        before = json.loads(record.read_text(encoding="utf-8")) if record.is_file() else {}
        moved = [
            f"{path} is commit {commit} now, and the run was started with revision {before[path]}"
            for path, commit in commits.items()
            if before.get(path, commit) != commit
        ]
        if read_prompts(output)[1] != [json.loads(line)["label"] for line in lines]:
            raise DataError(
                f"{output} holds other problems than {source} gives now; a run continues with the problems it was "
                + "; ".join(["started with, so restore them or choose another run_dir", *moved])
            )
        return moved
    output.parent.mkdir(parents=True, exist_ok=True)
    unfinished = output.with_name(f".{output.name}.{os.getpid()}")
    unfinished.write_text("".join(lines), encoding="utf-8")
    if commits:
        record.write_text(json.dumps(commits) + "\n", encoding="utf-8")
    unfinished.replace(output)
    return []


def overlong_finding(
    data: DataConfig, *, num_overlong: int, num_read: int, room: int
) -> list[Finding]:
    """Warn before training about prompts that are left out as too long."""
    if num_overlong < max(1, SUSPICIOUS * num_read):
        return []
    return [
        Finding(
            f"data.path {data.path}: {num_overlong} of {num_read} problems are left out, as their prompts are longer than {room} "
            "tokens (data.max_len - rollout.max_new_tokens); raise data.max_len or lower rollout.max_new_tokens"
        )
    ]


def rendered(
    labels: Iterable[Label],
    data: DataConfig,
    tokenizer: PreTrainedTokenizerBase | None,
    *,
    room: int,
) -> Iterator[tuple[Label, str | None, int]]:
    """(problem, its final prompt, tokens of that) for each problem. The prompt is None where it has
    more than `room` tokens. Without a tokenizer: the user's turn, 0 tokens."""
    if tokenizer is None:
        yield from (
            (label, problem_message(data.parts[label.source], label.problem), 0)
            for label in labels
        )
        return
    pending = iter(labels)
    while some := list(itertools.islice(pending, AT_ONCE)):
        prompts = [prompt_of(tokenizer, data, label) for label in some]
        for label, prompt, count in zip(
            some, prompts, _counts(tokenizer, prompts), strict=True
        ):
            yield label, prompt if count <= room else None, count


def _counts(tokenizer: PreTrainedTokenizerBase, prompts: list[str]) -> list[int]:
    if tokenizer.is_fast:
        backend = tokenizer.backend_tokenizer
        backend.no_truncation()  # which a tokenizer.json may ask for; as `tokenizer(...)` does
        backend.no_padding()
        found = backend.encode_batch_fast(prompts, add_special_tokens=False)
    else:
        found = tokenizer(text=prompts, add_special_tokens=False, return_attention_mask=False)[
            "input_ids"
        ]
    return [len(one) for one in found]


def _check_reflection(
    config: R3Config, tokenizer: PreTrainedTokenizerBase, shortest: Label
) -> None:
    """ConfigError: not even the shortest prompt leaves space for a stored attempt and guidance."""
    data = config.data
    attempt = "attempt " * (MIN_VISIBLE_CHARACTERS // len("attempt "))
    message = reflection_message(
        problem_message(data.parts[shortest.source], shortest.problem), attempt
    )
    needed = count_tokens(tokenizer, prompt_of(tokenizer, data, shortest, message))
    room = data.max_len - config.rollout.max_new_tokens
    if needed > room:
        raise ConfigError(
            f"data.max_len {data.max_len} leaves {room} tokens for a prompt in addition to rollout.max_new_tokens "
            f"{config.rollout.max_new_tokens}, but the shortest reflection prompt needs {needed}; "
            "use a larger data.max_len or reflection.enabled=false"
        )


def _check_teacher(
    config: R3Config, tokenizer: PreTrainedTokenizerBase, shortest: Label
) -> None:
    """ConfigError: not even the shortest teacher's prompt leaves space for a right response."""
    solution = "solution " * (MIN_VISIBLE_CHARACTERS // len("solution "))
    if RunPrompts(config, tokenizer).teacher_of_text(shortest, solution) is None:
        raise ConfigError(
            f"a teacher's prompt may have {config.max_teacher_prompt_tokens} tokens (data.max_len less "
            "rollout.max_new_tokens, and the shown success), but the shortest problem leaves no space for a right "
            "response in it; use a larger data.max_len or distill.max_prompt_tokens, or distill.coef=0"
        )


def read_prompts(path: Path) -> tuple[list[str], list[str]]:
    """(prompts, labels) of a file that `write_once` wrote."""
    with path.open(encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    return [row["input"] for row in rows], [row["label"] for row in rows]
