"""Problems from a file, the hub or reasoning-gym, each with a stable uid and what its grader needs."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from r3_openrlhf.config import DataConfig
from r3_openrlhf.config.answer_tasks import TASKS, check_data_set, task_for
from r3_openrlhf.config.finding import Finding
from r3_openrlhf.config.no_answer import says_no_answer
from r3_openrlhf.method.errors import DataError
from r3_openrlhf.method.open_table import nearest
from r3_openrlhf.problems.label import Label as Label
from r3_openrlhf.problems.reference_checks import SUSPICIOUS, check_prompts, check_references
from r3_openrlhf.problems.references import (
    AFTER_MARKS,
    AS_IT_IS,
    INTEGERS,
    LAST_BOX,
    cells_of,
    references_of,
    without_float_tails,
)
from r3_openrlhf.problems.table import Numeral, Table, read_json

FILE_FORMATS = {".jsonl": "json", ".json": "json", ".parquet": "parquet"}
REASONING_GYM = "reasoning_gym:"
# Public data sets, DeepScaleR-Preview among them, hold a few rows without an answer and problems with two different ones.
# More than this share means that the wrong column was named.
MAX_UNUSABLE_SHARE = 0.1
# Of NuminaMath's rows a good tenth say "proof" or "notfound", and the others are as good as any.
MAX_WITHOUT_ANSWER = 0.5
MOST_REASONS = 5
MARKS = {AFTER_MARKS: "####", LAST_BOX: "\\boxed{}"}
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
# reasoning-gym repeats problems when a task is small; this many draws per wanted problem decide that there are no more.
_DRAWS_PER_PROBLEM = 50
MAX_GENERATED = 10_000_000


@dataclass(slots=True, kw_only=True)
class SourceCounts:
    """What became of the rows of one source."""

    path: str
    problem_key: str  # the column, as it was named or found
    answer_key: str
    num_rows: int = 0
    num_used: int = 0
    num_duplicates: int = 0  # rows equal to an earlier one
    left_out: dict[str, int] = field(default_factory=dict)  # why -> rows
    forms: dict[str, int] = field(default_factory=dict)  # how the answer stood in the column (references.py) -> rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Problems:
    """What a source holds, in its order."""

    labels: list[Label]  # one per uid
    num_duplicates: int  # rows equal to an earlier one
    num_unusable: int  # rows without problem or answer, and rows of a problem that has two different answers
    sources: list[SourceCounts] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)  # suspicious ones


class NoAnswer(DataError):
    """A row whose data set knows no answer: "proof", or a solution without the mark that the others have."""


def load_problems(data: DataConfig) -> Problems:
    """Every usable problem once.

    Which answer of two is right cannot be known here, so a problem with different answers is left out as a whole.
    Raises DataError with one sentence: no such file, column or task, a file that cannot be read, a uid (data.uid_key)
    with two contents, more than MAX_UNUSABLE_SHARE of unusable rows or MAX_WITHOUT_ANSWER without an answer, or
    references that cannot be meant (reference_checks.py).
    """
    counts = SourceCounts(path=data.path, problem_key=data.problem_key, answer_key=data.answer_key)
    labels: dict[str, Label] = {}
    num_rows_of: Counter[str] = Counter()
    contradictory: set[str] = set()
    reasons: Counter[str] = Counter()
    first: dict[type[DataError], str] = {}
    num_without = 0
    for place, found in _rows(data, counts):
        counts.num_rows += 1
        if isinstance(found, DataError):
            first.setdefault(type(found), f"{place}: {found}")
            num_without += isinstance(found, NoAnswer)
            reasons[str(found)] += 1
            continue
        known = labels.setdefault(found.uid, found)
        num_rows_of[found.uid] += 1
        if (known.problem, known.references) == (found.problem, found.references):
            continue
        if data.uid_key:
            raise DataError(f"{place}: the uid {found.uid} was seen before with another content; uids must be unique")
        contradictory.add(found.uid)
        first.setdefault(DataError, f"{place}: the same problem has another answer further up")
    if counts.num_rows == 0:
        raise DataError(f"data.path {data.path} has no rows")
    if contradictory:
        reasons["the same problem has several answers"] = sum(num_rows_of[uid] for uid in contradictory)
    num_unusable = reasons.total()
    for number, kind, limit in (
        (num_unusable - num_without, DataError, MAX_UNUSABLE_SHARE),
        (num_without, NoAnswer, MAX_WITHOUT_ANSWER),
    ):
        if number > limit * counts.num_rows:
            raise DataError(
                f"{first[kind]}; {number} of {counts.num_rows} rows cannot be used, so repair them or name other columns"
            )
    kept = [label for uid, label in labels.items() if uid not in contradictory]
    counts.num_used, counts.left_out = len(kept), dict(reasons.most_common(MOST_REASONS))
    counts.num_duplicates = counts.num_rows - num_unusable - len(kept)
    findings = _findings(data, counts, kept, num_unusable)
    return Problems(
        labels=kept,
        num_duplicates=counts.num_duplicates,
        num_unusable=num_unusable,
        sources=[counts],
        findings=findings,
    )


def _findings(data: DataConfig, counts: SourceCounts, labels: list[Label], num_unusable: int) -> list[Finding]:
    """The suspicious ones. Raises DataError for what is certainly wrong."""
    findings = []
    if num_unusable >= SUSPICIOUS * counts.num_rows:
        why = "; ".join(f"{number}: {reason}" for reason, number in counts.left_out.items())
        findings.append(
            Finding(f"data.path {data.path}: {num_unusable} of {counts.num_rows} rows are left out ({why})")
        )
    if not data.path.startswith(REASONING_GYM):
        findings += check_references(labels, path=data.path, answer_key=counts.answer_key)
        findings += check_prompts(
            labels, path=data.path, prompt_template=data.prompt_template, chat_template=data.chat_template
        )
    for finding in findings:
        if finding.refuses:
            raise DataError(finding.sentence)
    return findings


def check_source(data: DataConfig) -> None:
    """Everything about data.path that can be known without a tokenizer or the hub: file, columns, task, the answers.

    Raises DataError as `load_problems` does.
    """
    if is_on_the_hub(data.path):
        return
    if data.path.startswith(REASONING_GYM):
        next(iter(_reasoning_gym_rows(data)))
    else:
        load_problems(data)


def grader_of(data: DataConfig) -> str:
    """data.task, or the one that fits the source."""
    return task_for(data.task, data.path)


def problem_uid(problem: str) -> str:
    """First 16 hex digits of the SHA-256 of the problem text: stable over templates, epochs, runs and machines."""
    return hashlib.sha256(problem.encode()).hexdigest()[:16]


def _rows(data: DataConfig, counts: SourceCounts) -> Iterable[tuple[str, Label | DataError]]:
    """(where it stands, the problem or why it cannot be used) of every row."""
    return _reasoning_gym_rows(data) if data.path.startswith(REASONING_GYM) else _table_rows(data, counts)


def _table_rows(data: DataConfig, counts: SourceCounts) -> list[tuple[str, Label | DataError]]:
    table = _load_table(data)
    for option in ("problem_key", "answer_key", "uid_key"):
        column = getattr(data, option)
        if column is not None and column not in table.columns and table.columns:
            raise DataError(
                f"data.path {data.path} has no column {column!r} (data.{option}); "
                f"its columns are {', '.join(table.columns)}"
            )
    forms: list[str] = []
    rows: list[tuple[str, Label | DataError]] = []
    for place, row in table.rows:
        found, form = (row, AS_IT_IS) if isinstance(row, DataError) else _label(data, row)
        rows.append((place, found))
        forms.append(form)
    labels = [found for _, found in rows if isinstance(found, Label)]
    marked = [form for form in forms if form in (AFTER_MARKS, LAST_BOX)]
    if len(marked) > len(labels) / 2:
        reason = NoAnswer(f"the answer ({data.answer_key}) has no {MARKS[marked[0]]}, as most of this column have")
        rows = [
            (place, reason if isinstance(found, Label) and form == AS_IT_IS else found)
            for (place, found), form in zip(rows, forms, strict=True)
        ]
    elif not TASKS[grader_of(data)].of_user and without_float_tails([label.references for label in labels]):
        for index, (place, found) in enumerate(rows):
            if isinstance(found, Label):
                rows[index] = place, replace(found, references=[text[: -len(".0")] for text in found.references])
                forms[index] = INTEGERS
    counts.forms = dict(
        Counter(form for (_, found), form in zip(rows, forms, strict=True) if isinstance(found, Label)).most_common()
    )
    return rows


def _label(data: DataConfig, row: dict[str, Any]) -> tuple[Label | DataError, str]:
    """(the problem in a row or why it cannot be used, how its answer stood there)."""
    problem, answer = row[data.problem_key], row[data.answer_key]
    uid = row[data.uid_key] if data.uid_key else None
    form, task = AS_IT_IS, grader_of(data)
    try:
        if not isinstance(problem, str) or isinstance(problem, Numeral) or not problem.strip():
            raise DataError(f"the problem ({data.problem_key}) is empty or not a text")
        if TASKS[task].of_user:
            references = cells_of(answer, key=data.answer_key)
        else:
            references, form = references_of(answer, key=data.answer_key)
        if not references:
            raise DataError(f"the answer ({data.answer_key}) is empty")
        answers = [text for text in references if not says_no_answer(text)]
        if not answers:
            raise NoAnswer(f"the answer ({data.answer_key}) says that there is none, as 'proof' and 'notfound' do")
        if data.uid_key and (uid is None or not str(uid).strip()):
            raise DataError(f"the uid ({data.uid_key}) is empty")
        uid = str(uid) if data.uid_key else None
        if not all(map(_is_unicode, (problem, uid or "", *references))):
            raise DataError("it holds half of a surrogate pair, which is no Unicode text")
    except DataError as error:
        return error, form
    return Label(uid=uid or problem_uid(problem), problem=problem, references=answers, task=task), form


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
        references = cells_of(entry["answer"], key="answer")
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
