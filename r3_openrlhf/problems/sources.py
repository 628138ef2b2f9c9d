"""Problems from a file, the hub or reasoning-gym, each with a stable uid and what its grader needs."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from r3_openrlhf.config import DataConfig, nearest
from r3_openrlhf.errors import DataError

FILE_FORMATS = {".jsonl": "json", ".json": "json", ".parquet": "parquet"}
REASONING_GYM = "reasoning_gym:"
# Public data sets, DeepScaleR-Preview among them, hold a few rows without an answer and problems with two different ones.
# More than this share means that the wrong column was named.
MAX_UNUSABLE_SHARE = 0.1
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
class Problems:
    """What a source holds, in its order."""

    labels: list[Label]  # one per uid
    num_duplicates: int  # rows equal to an earlier one
    num_unusable: int  # rows without problem or answer, and rows of a problem that has two different answers


def load_problems(data: DataConfig) -> Problems:
    """Every usable problem once.

    Which answer of two is right cannot be known here, so a problem with different answers is left out as a whole.
    Raises DataError with one sentence: no such file, column or task, a file that cannot be read, a uid (data.uid_key)
    with two contents, an unusable row where data.unusable is error, or more than MAX_UNUSABLE_SHARE of them.
    """
    labels: dict[str, Label] = {}
    num_rows_of: Counter[str] = Counter()
    contradictory: dict[str, DataError] = {}
    unusable: list[DataError] = []
    for place, found in _rows(data):
        if isinstance(found, DataError):
            unusable.append(found)
            continue
        first = labels.setdefault(found.uid, found)
        num_rows_of[found.uid] += 1
        if (first.problem, first.references) == (found.problem, found.references):
            continue
        if data.uid_key:
            raise DataError(f"{place}: the uid {found.uid} was seen before with another content; uids must be unique")
        contradictory.setdefault(found.uid, DataError(f"{place}: the same problem has another answer further up"))
    num_rows = len(unusable) + num_rows_of.total()
    if num_rows == 0:
        raise DataError(f"data.path {data.path} has no rows")
    num_unusable = len(unusable) + sum(num_rows_of[uid] for uid in contradictory)
    reasons = [*unusable, *contradictory.values()]
    if reasons and (data.unusable == "error" or num_unusable > MAX_UNUSABLE_SHARE * num_rows):
        raise DataError(
            f"{reasons[0]}; {num_unusable} of {num_rows} rows cannot be used, so repair them or name other columns"
        )
    kept = [label for uid, label in labels.items() if uid not in contradictory]
    return Problems(labels=kept, num_duplicates=num_rows - num_unusable - len(kept), num_unusable=num_unusable)


def check_source(data: DataConfig) -> None:
    """Everything about data.path that can be known without a tokenizer or the hub: file, columns, task.

    Raises DataError as `load_problems` does.
    """
    if not _is_hub_name(data.path) and next(_rows(data), None) is None:
        raise DataError(f"data.path {data.path} has no rows")


def grader_of(data: DataConfig) -> str:
    """data.task, or the one that fits the source."""
    return data.task or ("reasoning_gym" if data.path.startswith(REASONING_GYM) else "math")


def problem_uid(problem: str) -> str:
    """First 16 hex digits of the SHA-256 of the problem text: stable over templates, epochs, runs and machines."""
    return hashlib.sha256(problem.encode()).hexdigest()[:16]


def _rows(data: DataConfig) -> Iterator[tuple[str, Label | DataError]]:
    """(where it stands, the problem or why it cannot be used) of every row."""
    return _reasoning_gym_rows(data) if data.path.startswith(REASONING_GYM) else _table_rows(data)


def _table_rows(data: DataConfig) -> Iterator[tuple[str, Label | DataError]]:
    table = _load_table(data)
    for option in ("problem_key", "answer_key", "uid_key"):
        column = getattr(data, option)
        if column is not None and column not in table.column_names:
            raise DataError(
                f"data.path {data.path} has no column {column!r} (data.{option}); "
                f"its columns are {', '.join(table.column_names)}"
            )
    for index, row in enumerate(table):
        place = f"data.path {data.path}, row {index + 1}"
        problem, references = row[data.problem_key], _references(row[data.answer_key])
        uid = row[data.uid_key] if data.uid_key else None
        if not isinstance(problem, str) or not problem.strip():
            yield place, DataError(f"{place}: the problem ({data.problem_key}) is empty or not a text")
        elif not references:
            yield place, DataError(f"{place}: the answer ({data.answer_key}) is empty")
        elif data.uid_key and (uid is None or not str(uid).strip()):
            yield place, DataError(f"{place}: the uid ({data.uid_key}) is empty")
        else:
            uid = str(uid) if data.uid_key else problem_uid(problem)
            yield place, Label(uid=uid, problem=problem, references=references, task=grader_of(data))


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
        source, options = str(path), {"name": data.subset, "split": data.split}
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


def _references(answer: Any) -> list[str]:
    """One accepted answer, or several when the column holds a list; none when it is empty."""
    answers = answer if isinstance(answer, list) else [answer]
    return [str(item) for item in answers if item is not None and str(item).strip()]


def _reasoning_gym_rows(data: DataConfig) -> Iterator[tuple[str, Label]]:
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
        place = f"data.path {data.path}, problem {index + 1}"
        problem = entry["question"]
        uid = problem_uid(problem)
        if uid in uids:
            continue
        uids.add(uid)
        # Tasks with many solutions (graph_color, rush_hour ...) have no answer: only their scorer knows.
        references = _references(entry["answer"])
        try:
            metadata = json.loads(json.dumps(entry))
        except TypeError as error:
            raise DataError(f"{place}: its entry cannot be kept as JSON ({error}); use another task") from error
        if references and score_answer(references[0], metadata) < 1.0:
            raise DataError(
                f"{place}: the scorer of {task} refuses its own answer once stored as JSON; use another task"
            )
        yield place, Label(uid=uid, problem=problem, references=references, task=grader_of(data), metadata=metadata)
        if len(uids) == wanted:
            return
    raise DataError(
        f"{data.path} has only {len(uids)} different problems with these options, not {wanted}; "
        "lower data.reasoning_gym.size or make the task harder"
    )


def _cause(error: BaseException) -> str:
    """The first line of the innermost reason: what went wrong, not that something did."""
    while error.__cause__ is not None:
        error = error.__cause__
    return " ".join(str(error).split("\n")[0].split()) or type(error).__name__
