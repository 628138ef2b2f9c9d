"""Problems from a file, the hub or reasoning-gym, each with a stable uid and what its grader needs."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

from r3_openrlhf.config import DataConfig
from r3_openrlhf.config.answer_tasks import TASKS, check_data_set, task_for
from r3_openrlhf.method.errors import DataError
from r3_openrlhf.method.open_table import nearest
from r3_openrlhf.problems.table import Numeral, Table, read_json

FILE_FORMATS = {".jsonl": "json", ".json": "json", ".parquet": "parquet"}
REASONING_GYM = "reasoning_gym:"
# Public data sets, DeepScaleR-Preview among them, hold a few rows without an answer and problems with two different ones.
# More than this share means that the wrong column was named.
MAX_UNUSABLE_SHARE = 0.1
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
# reasoning-gym repeats problems when a task is small; this many draws per wanted problem decide that there are no more.
_DRAWS_PER_PROBLEM = 50
MAX_GENERATED = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """What the rollout executor must know about a problem."""

    uid: str  # stable over epochs and runs: data.uid_key, else a hash of the problem text
    problem: str  # the bare problem, before any template
    references: list[str]  # accepted final answers; none where only the scorer of a reasoning-gym task knows
    task: str  # which grader: math | exact | reasoning_gym
    metadata: dict[str, Any] | None = None  # the reasoning-gym entry, for its own scorer
    prefix: list[int] | None = None  # token ids that the response starts with (exploration.prefix); never in the file

    def to_json(self) -> str:
        """One JSON object: the label column of the training file."""
        fields: dict[str, Any] = {
            "uid": self.uid,
            "problem": self.problem,
            "references": self.references,
            "task": self.task,
            "metadata": self.metadata,
        }
        if self.prefix is not None:
            fields["prefix"] = self.prefix
        return json.dumps(fields, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Label:
        """Inverse of to_json."""
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
    with two contents, or more than MAX_UNUSABLE_SHARE of unusable rows.
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
    if num_unusable > MAX_UNUSABLE_SHARE * num_rows:
        raise DataError(
            f"{reasons[0]}; {num_unusable} of {num_rows} rows cannot be used, so repair them or name other columns"
        )
    kept = [label for uid, label in labels.items() if uid not in contradictory]
    return Problems(labels=kept, num_duplicates=num_rows - num_unusable - len(kept), num_unusable=num_unusable)


def check_source(data: DataConfig) -> None:
    """Everything about data.path that can be known without a tokenizer or the hub: file, columns, task, a usable row.

    Raises DataError as `load_problems` does.
    """
    if is_on_the_hub(data.path):
        return
    unusable = None
    for _, found in _rows(data):
        if isinstance(found, Label):
            return
        unusable = unusable or found
    raise DataError(f"{unusable}; no row can be used" if unusable else f"data.path {data.path} has no rows")


def grader_of(data: DataConfig) -> str:
    """data.task, or the one that fits the source."""
    return task_for(data.task, data.path)


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
        if column is not None and column not in table.columns and table.columns:
            raise DataError(
                f"data.path {data.path} has no column {column!r} (data.{option}); "
                f"its columns are {', '.join(table.columns)}"
            )
    for place, row in table.rows:
        yield place, row if isinstance(row, DataError) else _label(data, place, row)


def _label(data: DataConfig, place: str, row: dict[str, Any]) -> Label | DataError:
    """The problem in a row, or why it cannot be used."""
    problem, answer = row[data.problem_key], row[data.answer_key]
    uid = row[data.uid_key] if data.uid_key else None
    if not isinstance(problem, str) or isinstance(problem, Numeral) or not problem.strip():
        return DataError(f"{place}: the problem ({data.problem_key}) is empty or not a text")
    if not _is_answer(answer):
        return DataError(f"{place}: the answer ({data.answer_key}) is neither a text nor a number, nor a list of them")
    references = _references(answer)
    if not references:
        return DataError(f"{place}: the answer ({data.answer_key}) is empty")
    if data.uid_key and (uid is None or not str(uid).strip()):
        return DataError(f"{place}: the uid ({data.uid_key}) is empty")
    uid = str(uid) if data.uid_key else None
    if not all(map(_is_unicode, (problem, uid or "", *references))):
        return DataError(f"{place} holds half of a surrogate pair, which is no Unicode text")
    return Label(uid=uid or problem_uid(problem), problem=problem, references=references, task=grader_of(data))


def _load_table(data: DataConfig) -> Table:
    path = Path(data.path).expanduser()
    wanted = [key for key in (data.problem_key, data.answer_key, data.uid_key) if key]
    if path.suffix in FILE_FORMATS:
        if not path.is_file():
            raise DataError(f"data.path is {data.path}, but there is no such file")
        if FILE_FORMATS[path.suffix] == "json":
            try:
                return read_json(path, name=f"data.path {data.path}", wanted=wanted)
            except OSError as error:
                raise DataError(f"data.path {data.path} cannot be read: {error.strerror}") from error
    elif not path.is_dir() and not is_on_the_hub(data.path):  # a copy of a hub data set is a directory of its files
        raise DataError(
            f"data.path is {data.path}, which does not exist; use a file that ends in {', '.join(FILE_FORMATS)}, a "
            f"directory of such files, a hub name (org/name), or {REASONING_GYM}TASK"
        )
    try:
        return _load_with_datasets(data, path, wanted)
    except DataError:
        raise
    except Exception as error:  # the loaders behind this call raise almost anything; each means: not readable
        raise DataError(f"data.path {data.path} cannot be loaded: {_cause(error)}") from error


def _load_with_datasets(data: DataConfig, path: Path, wanted: list[str]) -> Table:
    """Parquet, and directories and hub data sets of any format; their JSON files are read here."""
    import datasets
    from datasets.packaged_modules.csv.csv import Csv
    from datasets.packaged_modules.json.json import Json

    if path.suffix in FILE_FORMATS:
        return _table_of(datasets.load_dataset("parquet", data_files=str(path), split="train"), data, wanted)
    options: dict[str, Any] = {"name": data.subset}
    builder = datasets.load_dataset_builder(str(path), **options)
    if isinstance(builder, Json):
        return _json_files(data, builder, wanted)
    if isinstance(builder, Csv):
        options |= {
            "converters": dict.fromkeys(wanted, str),
            "keep_default_na": False,
        }  # else 007 is 7, and the answer None is empty
    return _table_of(datasets.load_dataset(str(path), split=data.split, **options), data, wanted)


def _json_files(data: DataConfig, builder: Any, wanted: list[str]) -> Table:
    """data.split of a data set of JSON files: "train", "train[:100]", "train+test"."""
    import datasets

    files = {
        str(split): datasets.DownloadManager().download_and_extract(list(names))
        for split, names in builder.config.data_files.items()
        if str(split) in data.split
    }
    columns: dict[str, None] = {}
    rows: dict[str, list[Any]] = {}
    for split, paths in files.items():
        rows[split] = []
        for path in paths:
            table = read_json(
                Path(path), name=f"data.path {data.path}, {Path(path).name}", wanted=wanted, field=builder.config.field
            )
            columns |= dict.fromkeys(table.columns)
            rows[split] += table.rows
    parts = datasets.ReadInstruction.from_spec(data.split).to_absolute({split: len(rows[split]) for split in rows})
    return Table(list(columns), [row for part in parts for row in rows[part.splitname][part.from_ : part.to]])


def _table_of(dataset: Any, data: DataConfig, wanted: list[str]) -> Table:
    """A data set whose columns have types."""
    kept = [column for column in wanted if column in dataset.column_names]
    rows = (
        (f"data.path {data.path}, row {index + 1}", dict.fromkeys(wanted) | row)
        for index, row in enumerate(dataset.select_columns(kept))
    )
    return Table(dataset.column_names, rows)


def is_on_the_hub(path: str) -> bool:
    """Is data.path the name of a data set on the hub, and no file or directory here?"""
    return Path(path).suffix not in FILE_FORMATS and bool(_HUB_NAME.fullmatch(path)) and not Path(path).exists()


def _is_answer(answer: Any) -> bool:
    answers = answer if isinstance(answer, list) else [answer]
    return all(item is None or isinstance(item, str | int | float | Decimal | date) for item in answers)


def _references(answer: Any) -> list[str]:
    """One accepted answer, or several when the column holds a list; none when it is empty."""
    answers = answer if isinstance(answer, list) else [answer]
    there = [item for item in answers if item is not None and item == item]  # a NaN is not equal to itself
    texts = [format(item, "f") if isinstance(item, Decimal) else str(item) for item in there]
    return [text for text in texts if text.strip()]


def _is_unicode(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def _reasoning_gym_rows(data: DataConfig) -> Iterator[tuple[str, Label]]:
    """data.reasoning_gym.size different problems. The task repeats itself when it is small; repeats are not counted."""
    from r3_openrlhf.machine.no_drawing import no_drawing

    with no_drawing():
        import reasoning_gym
        from reasoning_gym.factory import DATASETS, get_score_answer_fn

    task = data.path.removeprefix(REASONING_GYM)
    if task not in DATASETS:
        raise DataError(
            f"data.path is {data.path}, but reasoning-gym has no task {task!r}; {nearest(task, list(DATASETS))}"
        )
    if TASKS[grader_of(data)].problems == REASONING_GYM:
        check_data_set(task)
    options = dict(data.reasoning_gym)
    wanted = options.pop("size", 1000)
    if type(wanted) is not int or not 1 <= wanted <= MAX_GENERATED:
        raise DataError(f"data.reasoning_gym.size is {wanted!r}; use a whole number from 1 to {MAX_GENERATED}")
    seed = options.pop("seed", 42)
    if type(seed) is not int or not 0 <= seed < 2**63:
        raise DataError(f"data.reasoning_gym.seed is {seed!r}; use a whole number, 0 or more")
    try:
        entries = reasoning_gym.create_dataset(task, size=wanted * _DRAWS_PER_PROBLEM, seed=seed, **options)
    except Exception as error:  # a task raises almost anything about its options
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
