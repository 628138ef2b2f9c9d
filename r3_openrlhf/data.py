"""Problems from a file, the hub or reasoning-gym -> one JSONL of final prompts, which OpenRLHF loads as it is.

Each line is {"input": final prompt, "label": JSON of a Label, "datasource": name}. The label reaches the rollout
executor unchanged, which is how a rollout knows its uid, its references and its grader.
"""

from __future__ import annotations

import filecmp
import hashlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from r3_openrlhf.config import DataConfig, R3Config, nearest
from r3_openrlhf.core.reflection import MIN_VISIBLE_CHARACTERS, reflection_message
from r3_openrlhf.errors import ConfigError, DataError
from r3_openrlhf.prompting import count_tokens, problem_message, render

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

FILE_FORMATS = {".jsonl": "json", ".json": "json", ".parquet": "parquet"}
REASONING_GYM = "reasoning_gym:"
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
# reasoning-gym repeats problems when a task is small; this many draws per wanted problem decide that there are no more.
_DRAWS_PER_PROBLEM = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """What the rollout executor must know about a problem."""

    uid: str  # stable over epochs and runs: data.uid_key, else a hash of the problem text
    problem: str  # the bare problem, before any template
    references: list[str]  # accepted final answers; none where only the scorer of a reasoning-gym task knows
    task: str  # which grader: math | exact | reasoning_gym
    metadata: dict[str, Any] | None = None  # the reasoning-gym entry, for its own scorer

    def to_json(self) -> str:
        return json.dumps(
            {
                "uid": self.uid,
                "problem": self.problem,
                "references": self.references,
                "task": self.task,
                "metadata": self.metadata,
            },
            ensure_ascii=False,
        )

    @classmethod
    def from_json(cls, text: str) -> Label:
        return cls(**json.loads(text))


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedData:
    """The file that OpenRLHF reads, and what was left out of it."""

    path: Path
    num_problems: int
    num_dropped_overlong: int  # prompts longer than data.max_len - rollout.max_new_tokens
    num_duplicates: int  # rows equal to an earlier one
    max_prompt_tokens: int  # of the problems that were kept
    num_too_long_to_reflect: int  # kept, but a reflection prompt beside them would not fit


def prepare(config: R3Config, tokenizer: PreTrainedTokenizerBase, output: Path) -> PreparedData:
    """Load, check, render and write all problems of a run. `output` appears whole or not at all; what was left out
    stands beside it in counts.json.

    Raises DataError with one sentence: no such file, column or task, a row without problem or answer, a uid with two
    different contents, fewer problems than one batch, a prompt that is too long (data.overlong=error), an `output`
    of an earlier start with other problems. Raises ConfigError when no problem leaves room for a reflection prompt.
    """
    data = config.data
    room = data.max_len - config.rollout.max_new_tokens  # tokens of a prompt, at most
    seen: dict[str, Label] = {}
    lengths: list[int] = []
    overlong = duplicates = 0
    shortest, fewest = None, room + 1
    output.parent.mkdir(parents=True, exist_ok=True)
    unfinished = output.with_name(f".{output.name}.{os.getpid()}")
    try:
        with unfinished.open("w", encoding="utf-8") as file:
            for place, label in load_labels(data):
                if label.uid in seen:
                    _check_same(seen[label.uid], label, place)
                    duplicates += 1
                    continue
                seen[label.uid] = label
                prompt = render(tokenizer, data, problem_message(data, label.problem))
                tokens = count_tokens(tokenizer, prompt)
                if tokens > room:
                    if data.overlong == "error":
                        raise DataError(
                            f"{place}: the prompt has {tokens} tokens, but data.max_len {data.max_len} leaves {room} beside "
                            f"rollout.max_new_tokens {config.rollout.max_new_tokens}; use data.overlong=drop or a larger max_len"
                        )
                    overlong += 1
                    continue
                if tokens < fewest:
                    shortest, fewest = label, tokens
                lengths.append(tokens)
                row = {"input": prompt, "label": label.to_json(), "datasource": data.path.rpartition("/")[2]}
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
                if len(lengths) == data.max_samples:
                    break
        if len(lengths) < config.rollout.batch_size:
            dropped = f" ({overlong} were longer than {room} tokens)" if overlong else ""
            raise DataError(
                f"data.path {data.path} gives {len(lengths)} problems{dropped}, fewer than one batch: "
                f"rollout.batch_size is {config.rollout.batch_size}"
            )
        too_long = _too_long_to_reflect(config, tokenizer, shortest, lengths) if config.reflection.enabled else 0
        if output.is_file() and not filecmp.cmp(unfinished, output, shallow=False):
            raise DataError(
                f"{output} holds other problems than data.path {data.path} gives now; a run goes on with the data it was "
                "started with, so restore them or choose another run_dir"
            )
        unfinished.replace(output)
    finally:
        unfinished.unlink(missing_ok=True)
    prepared = PreparedData(
        path=output,
        num_problems=len(lengths),
        num_dropped_overlong=overlong,
        num_duplicates=duplicates,
        max_prompt_tokens=max(lengths),
        num_too_long_to_reflect=too_long,
    )
    counts = {key: value for key, value in asdict(prepared).items() if key != "path"}
    output.with_name("counts.json").write_text(json.dumps(counts) + "\n", encoding="utf-8")
    return prepared


def _too_long_to_reflect(
    config: R3Config, tokenizer: PreTrainedTokenizerBase, shortest: Label, lengths: list[int]
) -> int:
    """How many problems leave no room for a stored attempt and its guidance. ConfigError when it is all of them."""
    data = config.data
    attempt = "attempt " * (MIN_VISIBLE_CHARACTERS // len("attempt "))
    message = reflection_message(problem_message(data, shortest.problem), attempt)
    overhead = count_tokens(tokenizer, render(tokenizer, data, message)) - min(lengths)
    room = data.max_len - config.rollout.max_new_tokens
    if min(lengths) + overhead > room:
        raise ConfigError(
            f"data.max_len {data.max_len} leaves {room} tokens for a prompt beside rollout.max_new_tokens "
            f"{config.rollout.max_new_tokens}, but the shortest reflection prompt needs {min(lengths) + overhead}; "
            "use a larger data.max_len or reflection.enabled=false"
        )
    return sum(length + overhead > room for length in lengths)


def check_source(data: DataConfig) -> None:
    """Everything about data.path that can be known without a tokenizer or the hub: file, columns, task.

    Raises DataError as `prepare` does.
    """
    if not _is_hub_name(data.path):
        next(load_labels(data))


def load_labels(data: DataConfig) -> Iterator[tuple[str, Label]]:
    """(where it stands, label) of every problem, duplicates included. Raises DataError as `prepare` does."""
    if data.path.startswith(REASONING_GYM):
        yield from _reasoning_gym_labels(data)
        return
    rows = _load_table(data)
    missing = [
        (option, column)
        for option, column in (
            ("problem_key", data.problem_key),
            ("answer_key", data.answer_key),
            ("uid_key", data.uid_key),
        )
        if column is not None and column not in rows.column_names
    ]
    if missing:
        option, column = missing[0]
        raise DataError(
            f"data.path {data.path} has no column {column!r} (data.{option}); its columns are {', '.join(rows.column_names)}"
        )
    empty = True
    for index, row in enumerate(rows):
        empty = False
        place = f"data.path {data.path}, row {index + 1}"
        problem = row[data.problem_key]
        if not isinstance(problem, str) or not problem.strip():
            raise DataError(
                f"{place}: the problem ({data.problem_key}) is empty or not a text; remove or repair the row"
            )
        uid = row[data.uid_key] if data.uid_key else problem_uid(problem)
        if uid is None or not str(uid).strip():
            raise DataError(f"{place}: the uid ({data.uid_key}) is empty; every problem needs one")
        references = _references(row[data.answer_key], place=place, key=data.answer_key)
        yield place, Label(uid=str(uid), problem=problem, references=references, task=data.task)
    if empty:
        raise DataError(f"data.path {data.path} has no rows")


def problem_uid(problem: str) -> str:
    """First 16 hex digits of the SHA-256 of the problem text: stable over templates, epochs, runs and machines."""
    return hashlib.sha256(problem.encode()).hexdigest()[:16]


def _load_table(data: DataConfig):
    import datasets

    path = Path(data.path).expanduser()
    if path.suffix in FILE_FORMATS:
        if not path.is_file():
            raise DataError(f"data.path is {data.path}, but there is no such file")
        with path.open("rb") as file:
            blank = not any(line.strip() for line in file)  # reads up to the first line with something in it
        if blank:
            raise DataError(f"data.path {data.path} has no rows")
        source, options = FILE_FORMATS[path.suffix], {"data_files": str(path), "split": "train"}
    elif path.is_dir() or _is_hub_name(data.path):  # a copy of a hub data set is a directory of its files
        source, options = str(path), {"split": data.split}
    else:
        raise DataError(
            f"data.path is {data.path}, which does not exist; use a file that ends in {', '.join(FILE_FORMATS)}, a "
            f"directory of such files, a hub name (org/name), or {REASONING_GYM}TASK"
        )
    try:
        return datasets.load_dataset(source, **options)
    except Exception as error:  # the loaders behind this call raise almost anything; each means: not readable
        raise DataError(f"data.path {data.path} cannot be loaded: {_cause(error)}") from error


def _is_hub_name(path: str) -> bool:
    return Path(path).suffix not in FILE_FORMATS and bool(_HUB_NAME.fullmatch(path)) and not Path(path).exists()


def _references(answer: Any, *, place: str, key: str) -> list[str]:
    """One accepted answer, or several when the column holds a list."""
    answers = answer if isinstance(answer, list) else [answer]
    texts = [str(item) for item in answers if item is not None and str(item).strip()]
    if not texts:
        raise DataError(f"{place}: the answer ({key}) is empty; remove or repair the row")
    return texts


def _reasoning_gym_labels(data: DataConfig) -> Iterator[tuple[str, Label]]:
    """data.reasoning_gym.size different problems. The task repeats itself when it is small; repeats are not counted."""
    import reasoning_gym
    from reasoning_gym.factory import DATASETS, get_score_answer_fn

    task = data.path.removeprefix(REASONING_GYM)
    if task not in DATASETS:
        raise DataError(
            f"data.path is {data.path}, but reasoning-gym has no task {task!r}; {nearest(task, list(DATASETS))}"
        )
    options = dict(data.reasoning_gym)
    wanted = options.pop("size", 1000)
    if not isinstance(wanted, int) or wanted < 1:
        raise DataError(f"data.reasoning_gym.size is {wanted!r}; use a whole number, 1 or more")
    try:
        entries = reasoning_gym.create_dataset(
            task, size=wanted * _DRAWS_PER_PROBLEM, seed=options.pop("seed", 42), **options
        )
    except (TypeError, AssertionError, ValueError) as error:
        raise DataError(f"data.reasoning_gym does not fit the task {task}: {_cause(error)}") from error
    score_answer = get_score_answer_fn(task)
    uids: set[str] = set()
    for index, entry in enumerate(entries):
        place = f"{data.path}, problem {index + 1}"
        problem = entry["question"]
        uid = problem_uid(problem)
        if uid in uids:
            continue
        uids.add(uid)
        # Tasks with many solutions (graph_color, rush_hour ...) have no answer: only their scorer knows.
        references = [] if entry["answer"] is None else _references(entry["answer"], place=place, key="answer")
        try:
            metadata = json.loads(json.dumps(entry))
        except TypeError as error:
            raise DataError(f"{place}: its entry cannot be kept as JSON ({error}); use another task") from error
        if references and score_answer(references[0], metadata) < 1.0:
            raise DataError(
                f"{place}: the scorer of {task} refuses its own answer once stored as JSON; use another task"
            )
        yield place, Label(uid=uid, problem=problem, references=references, task="reasoning_gym", metadata=metadata)
        if len(uids) == wanted:
            return
    raise DataError(
        f"{data.path} has only {len(uids)} different problems with these options, not {wanted}; "
        "lower data.reasoning_gym.size or make the task harder"
    )


def _check_same(first: Label, second: Label, place: str) -> None:
    if (first.problem, first.references) != (second.problem, second.references):
        raise DataError(
            f"{place}: the uid {second.uid} was seen before with another problem or answer; uids must be unique"
        )


def _cause(error: BaseException) -> str:
    """The first line of the innermost reason: what went wrong, not that something did."""
    while error.__cause__ is not None:
        error = error.__cause__
    return " ".join(str(error).split("\n")[0].split()) or type(error).__name__
