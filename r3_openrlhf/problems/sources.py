"""Problems of a file, the hub or reasoning-gym, with a stable uid and the grader's data."""

import hashlib
import itertools
import json
import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from r3_openrlhf.config import DataConfig
from r3_openrlhf.config.answer_tasks import TASKS, check_data_set, task_for
from r3_openrlhf.config.finding import Finding
from r3_openrlhf.config.no_answer import says_no_answer
from r3_openrlhf.method.errors import DataError, quoted
from r3_openrlhf.method.open_table import is_import_path, nearest
from r3_openrlhf.problems.cell_kinds import CellKinds
from r3_openrlhf.problems.code_rows import (
    Shape,
    columns_of,
    known_shape,
    problem_column,
    shape_of,
    tests_and_problem,
)
from r3_openrlhf.problems.columns import (
    ANSWER_COLUMNS,
    PROBLEM_COLUMNS,
    chosen_column,
    lettered,
    root_of,
    turns_of,
    value_at,
)
from r3_openrlhf.problems.drawing import NotDrawn, NotKept, drawn
from r3_openrlhf.problems.files import is_on_the_hub, load_table
from r3_openrlhf.problems.label import Label as Label
from r3_openrlhf.problems.prompt_checks import check_prompts, check_rows
from r3_openrlhf.problems.prompts import columns_in, filled
from r3_openrlhf.problems.reference_checks import OPTION_COLUMNS, SUSPICIOUS, check_references
from r3_openrlhf.problems.references import (
    AFTER_MARKS,
    AS_IT_IS,
    INTEGERS,
    LAST_BOX,
    PRINTED,
    NoAnswer,
    as_meant,
    cells_of,
    references_of,
    text_of,
    without_float_tails,
)
from r3_openrlhf.problems.table import WHOLE, listed, plain_row

REASONING_GYM = "reasoning_gym:"
# Public data sets, DeepScaleR-Preview among them, hold a few rows without an answer and problems
# with two different ones. More than this share means that the wrong column was named.
MAX_UNUSABLE_SHARE = 0.1
# Of NuminaMath's rows a good tenth say "proof" or "notfound", and the others are as good as any.
MAX_WITHOUT_ANSWER = 0.5
MOST_REASONS = 5
MARKS = {AFTER_MARKS: "####", LAST_BOX: "\\boxed{}"}
# reasoning-gym repeats problems of small tasks; so many draws per problem show the end.
_DRAWS_PER_PROBLEM = 50
MAX_GENERATED = 10_000_000
ORDERS = ("shuffled", "file")  # of data.order; any other word is a column
_NUMBER = re.compile(r"[-+]?\d+(\.\d*)?([eE][-+]?\d+)?")


@dataclass(slots=True, kw_only=True)
class SourceCounts:
    """Counts of the rows of one source, used and left out."""

    path: str
    name: str | None = None  # in data.sources
    problem_key: str  # the column, as it was named or found
    answer_key: str
    commit: str | None = None  # of a data set on the hub
    files: tuple[str, ...] = ()  # of a directory, a pattern or a data set on the hub
    columns: list[str] = field(default_factory=list)  # all of the file
    num_rows: int = 0
    num_used: int = 0
    num_duplicates: int = 0  # rows equal to an earlier one
    num_unusable: int = 0  # without problem or answer, or with two
    left_out: dict[str, int] = field(default_factory=dict)  # why -> rows
    problem_forms: dict[str, int] = field(default_factory=dict)  # form of the problem -> rows
    forms: dict[str, int] = field(default_factory=dict)  # answer's form (references.py) -> rows
    findings: list[Finding] = field(default_factory=list)  # about columns that are not read
    notes: list[str] = field(default_factory=list)  # columns whose cells have several types

    @property
    def how_read(self) -> str:
        """One line for the first page: the columns, and the form of the answers."""
        line = f"problem: {self.problem_key}, answer: {self.answer_key}"
        line += f", commit {self.commit}" if self.commit else ""
        line += f", read from {listed(self.files)}" if self.files else ""
        found = {**self.problem_forms, **self.forms}
        said = [f"{number:,} {form}" for form, number in found.items() if form != AS_IT_IS]
        return f"{line} ({'; '.join(said)})" if said else line

    def leave_out(self, reason: str, number: int) -> None:
        """Count `number` rows more that are left out for this reason."""
        if number:
            self.left_out[reason] = self.left_out.get(reason, 0) + number


@dataclass(frozen=True, slots=True, kw_only=True)
class Problems:
    """The problems of a source, in its order."""

    labels: list[Label]  # one per uid
    sources: list[SourceCounts]
    findings: list[Finding]  # suspicious ones


def load_problems(data: DataConfig, *, seed: int = 0, with_rows: bool = False) -> Problems:
    """Every usable problem once, of all sources; with weights the largest mixture of those shares
    in which none is twice.

    A problem with different answers in two sources is left out. DataError as `load_source`.

    Args:
        seed: draws which problems of a source the mixture leaves out.
        with_rows: keep every column of a row, for a reward function."""
    if not data.sources:
        return _checked.pop(_stamp(data, with_rows=with_rows), None) or load_source(
            data, with_rows=with_rows
        )
    weights = {entry["name"]: entry["weight"] for entry in data.sources}
    found: dict[str, Label] = {}
    contradictory: set[str] = set()
    parts = {
        name: load_source(part, name=name, with_rows=with_rows)
        for name, part in data.parts.items()
    }
    for problems in parts.values():
        for label in problems.labels:
            known = found.setdefault(label.uid, label)
            if (known.problem, known.references) != (label.problem, label.references):
                contradictory.add(label.uid)
    kept: dict[str | None, list[Label]] = {}
    for name, problems in parts.items():
        (counts,), limit = problems.sources, data.parts[name].max_samples
        kept[name] = [
            label
            for label in problems.labels
            if found[label.uid] is label and label.uid not in contradictory
        ]
        both = sum(label.uid in contradictory for label in problems.labels)
        counts.leave_out("another source has another answer to the same problem", both)
        counts.num_duplicates += len(problems.labels) - len(kept[name]) - both
        counts.leave_out(
            "after the first max_samples", len(kept[name]) - len(kept[name][:limit])
        )
        kept[name] = kept[name][:limit]
    if any(weights.values()):
        # problems for a weight of 1
        size = min(len(labels) / weights[str(name)] for name, labels in kept.items())
        for name, labels in kept.items():
            number = max(1, round(size * weights[str(name)]))
            drawn = sorted(
                random.Random(f"{seed}/mixture/{name}").sample(
                    range(len(labels)), min(number, len(labels))
                )
            )
            parts[name].sources[0].leave_out(
                "beyond the share that its weight gives it", len(labels) - len(drawn)
            )
            kept[name] = [labels[place] for place in drawn]
    for name, problems in parts.items():
        problems.sources[0].num_used = len(kept[name])
    return Problems(
        labels=[label for labels in kept.values() for label in labels],
        sources=[counts for problems in parts.values() for counts in problems.sources],
        findings=[finding for problems in parts.values() for finding in problems.findings],
    )


def load_source(
    data: DataConfig, *, name: str | None = None, with_rows: bool = False
) -> Problems:
    """Every usable problem of one path once.

    A problem with different answers is left out as a whole. Raises DataError: no such file, column
    or task, a uid (data.uid_key) with two contents, more than MAX_UNUSABLE_SHARE of unusable rows or
    MAX_WITHOUT_ANSWER without an answer, or references that cannot be meant."""
    # of reasoning-gym
    counts = SourceCounts(
        path=data.path, name=name, problem_key="question", answer_key="answer"
    )
    labels: dict[str, Label] = {}
    num_rows_of: Counter[str] = Counter()
    contradictory: set[str] = set()
    reasons: Counter[str] = Counter()
    first: dict[type[DataError], str] = {}
    num_without = 0
    generated = data.path.startswith(REASONING_GYM)
    rows = (
        _reasoning_gym_rows(data)
        if generated
        else _table_rows(data, counts, with_rows=with_rows)
    )
    for place, found in rows:
        counts.num_rows += 1
        if isinstance(found, Label) and name is not None:
            # ids of two files may be the same
            found = replace(
                found, source=name, uid=f"{name}:{found.uid}" if data.uid_key else found.uid
            )
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
            raise DataError(
                f"{place}: the uid {found.uid} was seen before with another content; uids must be unique"
            )
        contradictory.add(found.uid)
        first.setdefault(DataError, f"{place}: the same problem has another answer further up")
    if counts.num_rows == 0:
        raise DataError(f"data.path {data.path} has no rows")
    if contradictory:
        reasons["the same problem has several answers"] = sum(
            num_rows_of[uid] for uid in contradictory
        )
    counts.num_unusable = reasons.total()
    for number, kind, limit in (
        (counts.num_unusable - num_without, DataError, MAX_UNUSABLE_SHARE),
        (num_without, NoAnswer, MAX_WITHOUT_ANSWER),
    ):
        if number > limit * counts.num_rows:
            many = (
                "no row" if number == counts.num_rows else f"{number} of {counts.num_rows} rows"
            )
            can = "can" if number == counts.num_rows else "cannot"
            hints = [
                one.sentence.removeprefix(f"data.path {data.path}: ")
                for one in counts.findings
                if contradictory
            ]
            repair = "; ".join(["so repair them or name other columns", *hints[:1]])
            raise DataError(f"{first[kind]}; {many} {can} be used, {repair}")
    kept = [label for uid, label in labels.items() if uid not in contradictory]
    counts.num_used, counts.left_out = len(kept), dict(reasons.most_common(MOST_REASONS))
    counts.num_duplicates = counts.num_rows - counts.num_unusable - len(kept)
    return Problems(
        labels=kept,
        sources=[counts],
        findings=_findings(data, counts, kept, with_rows=with_rows),
    )


def _findings(
    data: DataConfig, counts: SourceCounts, labels: list[Label], *, with_rows: bool
) -> list[Finding]:
    findings = list(counts.findings)
    if counts.num_unusable >= SUSPICIOUS * counts.num_rows:
        why = "; ".join(f"{number}: {reason}" for reason, number in counts.left_out.items())
        many = f"{counts.num_unusable} of {counts.num_rows} rows are left out"
        findings.append(Finding(f"data.path {data.path}: {many} ({why})"))
    if not TASKS[grader_of(data)].runs_programs and not data.path.startswith(REASONING_GYM):
        found = check_references(
            labels, path=data.path, answer_key=counts.answer_key, columns=counts.columns
        )
        # a reward function may compare with anything
        findings += [replace(one, refuses=False) for one in found] if with_rows else found
    if not data.path.startswith(REASONING_GYM):
        findings += check_prompts(labels, path=data.path, data=data)
    for finding in findings:
        if finding.refuses:
            raise DataError(finding.sentence)
    return findings


def is_of_function(data: DataConfig) -> bool:
    """Tell whether a function of the user's makes the problems of this source."""
    return is_import_path(data.path) and not data.path.startswith(REASONING_GYM)


def check_source(data: DataConfig, *, with_rows: bool = False, are_drawn: bool = False) -> None:
    """Everything about data.path that can be known without a tokenizer or the hub: file, columns,
    task, the answers.

    Args:
        are_drawn: a run has its problems in a file, so functions that make them are not called.

    Raises DataError as `load_problems` does."""
    for part in data.parts.values():
        if are_drawn and is_of_function(part):
            continue
        if part.path.startswith(REASONING_GYM):
            next(iter(_reasoning_gym_rows(part)))
        elif not is_on_the_hub(part.path):
            found = load_source(part, with_rows=with_rows)
            _checked.clear()
            if Path(part.path).is_file():  # the load that follows need not read it again
                _checked[_stamp(part, with_rows=with_rows)] = found


_checked: dict[str, Problems] = {}


def _stamp(data: DataConfig, *, with_rows: bool) -> str:
    state = Path(data.path).stat() if Path(data.path).is_file() else None
    return repr(
        (
            replace(data, template_date=None),
            with_rows,
            state and (state.st_mtime_ns, state.st_size),
        )
    )


def grader_of(data: DataConfig) -> str:
    """data.task, or the one that fits the source."""
    return task_for(data.task, data.path)


def problem_uid(problem: str) -> str:
    """First 16 hex digits of the problem text's SHA-256: stable over templates and machines."""
    return hashlib.sha256(problem.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a table, as they were named or found; dotted keys go into them."""

    problem: str
    answer: str | None  # None: a reward function has no need of one, or a shape has tests
    uid: str | None
    shape: Shape | None = None  # of tests of programs (code_rows.py)
    template: str = ""  # data.prompt_template, if it names further columns
    task: str | None = None  # of the rows' own tasks


def _table_rows(
    data: DataConfig, counts: SourceCounts, *, with_rows: bool
) -> list[tuple[str, Label | DataError]]:
    task, table = grader_of(data), load_table(data)
    if not table.columns:
        return [(place, row) for place, row in table.rows(None) if isinstance(row, DataError)]
    columns = _columns_of(data, table.columns, with_rows=with_rows)
    shape = columns.shape
    counts.problem_key, counts.columns, counts.commit = (
        columns.problem,
        table.columns,
        table.commit,
    )
    counts.files = table.files
    counts.answer_key = shape.tests if shape else columns.answer or "none"
    by = None if data.order in ORDERS else data.order
    keys = [
        columns.problem,
        columns.answer,
        columns.uid,
        columns.task,
        by,
        *columns_in(data.prompt_template),
    ]
    # a column may have a dot in its name
    read = (
        columns_of(keys)
        if shape
        else {name for key in keys if key for name in (key, root_of(key))}
    )
    rows: list[tuple[str, Label | DataError]] = []
    forms: list[tuple[str, str]] = []
    whole: list[tuple[dict[str, Any], Label]] = []
    ranks: list[str] = []
    kinds = CellKinds()
    counted = None if with_rows else list(dict.fromkeys(filter(None, keys)))
    for place, row in table.rows(None if with_rows else read):
        found, form = _found(columns, task, row)
        kinds.add(row, place, columns=counted)
        if isinstance(found, Label) and isinstance(row, dict):
            if len(whole) < WHOLE:
                whole.append((row, found))
            if with_rows:
                found = replace(found, row=plain_row(row))
        if by is not None:
            ranks.append(_rank(row, by, place))
        rows.append((place, found))
        forms.append(form)
    counts.notes = kinds.notes()
    counts.findings = check_rows(
        whole, read, data=data, problem="" if shape else columns.problem
    )
    if by is not None:
        values = list(map(float, ranks)) if all(map(_NUMBER.fullmatch, ranks)) else ranks
        order = sorted(range(len(rows)), key=values.__getitem__)
        rows, forms = [rows[place] for place in order], [forms[place] for place in order]
    labels = [found for _, found in rows if isinstance(found, Label)]
    marked = [form for _, form in forms if form in MARKS]
    if len(marked) > len(labels) / 2:
        reason = NoAnswer(
            f"the answer ({columns.answer}) has no {MARKS[marked[0]]}, as most of this column have"
        )
        rows = [
            (place, reason if isinstance(found, Label) and form == AS_IT_IS else found)
            for (place, found), (_, form) in zip(rows, forms, strict=True)
        ]
    elif not TASKS[task].of_user and without_float_tails(
        [label.references for label in labels]
    ):
        for index, (place, found) in enumerate(rows):
            if isinstance(found, Label):
                rows[index] = (
                    place,
                    replace(
                        found, references=[text[: -len(".0")] for text in found.references]
                    ),
                )
                forms[index] = forms[index][0], INTEGERS
    used = [
        form for (_, found), form in zip(rows, forms, strict=True) if isinstance(found, Label)
    ]
    counts.problem_forms, counts.forms = (
        (dict(Counter(each).most_common()) for each in zip(*used, strict=True))
        if used
        else ({}, {})
    )
    return rows


def _columns_of(data: DataConfig, columns: list[str], *, with_rows: bool) -> Columns:
    template = data.prompt_template if columns_in(data.prompt_template) else ""
    by = None if data.order in ORDERS else data.order
    for option, key in [
        ("uid_key", data.uid_key),
        ("task_key", data.task_key),
        ("order", by),
        *(("prompt_template", key) for key in columns_in(template)),
    ]:
        if key is not None:
            chosen_column(columns, key=key, groups=(), option=option, path=data.path)
    if TASKS[grader_of(data)].runs_programs:
        shape = shape_of(columns, path=data.path, answer_key=data.answer_key)
        problem = problem_column(shape, columns, path=data.path, problem_key=data.problem_key)
        return Columns(problem, None, data.uid_key, shape, template, data.task_key)
    try:
        problem = chosen_column(
            columns,
            key=data.problem_key,
            groups=PROBLEM_COLUMNS,
            option="problem_key",
            path=data.path,
        )
        answer = None
        if not (with_rows and may_lack_answers(data, columns)):
            answer = chosen_column(
                columns,
                key=data.answer_key,
                groups=ANSWER_COLUMNS,
                option="answer_key",
                path=data.path,
            )
    except DataError as error:
        known = known_shape(columns)
        if data.answer_key is not None or data.task is not None or known is None:
            raise
        raise DataError(
            f"{error}; or use data.task=code, if {known.tests} holds tests of programs"
        ) from error
    return Columns(problem, answer, data.uid_key, None, template, data.task_key)


def _found(
    columns: Columns, task: str, row: dict[str, Any] | DataError
) -> tuple[Label | DataError, tuple[str, str]]:
    try:
        if isinstance(row, DataError):
            raise row
        if columns.shape is None:
            return _label(columns, _task_of(columns, task, row), row)
        tests, cell, form = tests_and_problem(columns.shape, row, columns.problem)
        label, (problem_form, _) = _label(columns, task, row | {columns.problem: cell})
        return replace(label, references=[tests]), (problem_form, form)
    except DataError as error:
        return error, (AS_IT_IS, AS_IT_IS)


def _task_of(columns: Columns, task: str, row: dict[str, Any]) -> str:
    given = str(value_at(row, columns.task) or "").strip() if columns.task else ""
    own = given.lower().replace(" ", "_") or task
    known = [
        name
        for name, entry in TASKS.items()
        if entry.problems is None and not entry.runs_programs
    ]
    if given and own not in known:
        raise DataError(f"the task ({columns.task}) is {quoted(given)}; {nearest(own, known)}")
    return own


def _label(columns: Columns, task: str, row: dict[str, Any]) -> tuple[Label, tuple[str, str]]:
    turns, problem, problem_form = turns_of(value_at(row, columns.problem), key=columns.problem)
    if columns.template:
        cells = {name: value_at(row, name) for name in columns_in(columns.template)}
        options = {
            name: lettered(cell)
            for name, cell in cells.items()
            if root_of(name) in OPTION_COLUMNS
        }
        texts = {
            name: options.get(name) or text_of(cell, key=name, what="column")
            for name, cell in cells.items()
        }
        problem = filled(columns.template, texts | {"problem": problem})
    form, references, answers = AS_IT_IS, list[str](), list[str]()
    if columns.answer is not None:
        references, answers, form = _answers(columns.answer, task, row)
    uid = None
    if columns.uid is not None:
        given = value_at(row, columns.uid)
        if given is None or not str(given).strip():
            raise DataError(f"the uid ({columns.uid}) is empty")
        uid = str(given)
    if re.search(
        "[\ud800-\udfff]",
        "\n".join((problem, uid or "", *references, *(turn["content"] for turn in turns))),
    ):
        raise DataError("it holds half of a surrogate pair, which is no Unicode text")
    asked = json.dumps([*turns, problem]) if turns else problem
    label = Label(
        uid=uid or problem_uid(asked),
        problem=problem,
        references=answers,
        task=task,
        turns=turns or None,
    )
    return label, (problem_form, form)


def _answers(key: str, task: str, row: dict[str, Any]) -> tuple[list[str], list[str], str]:
    """(all texts in the answer's cell, answers among them, their form). DataError: none."""
    cell, form = value_at(row, key), AS_IT_IS
    if TASKS[task].of_user:
        references = cells_of(cell, key=key)
    else:
        written, form = references_of(cell, key=key)
        # `exact` compares what is written letter by letter
        references = written if task == "exact" else list(map(as_meant, written))
        form = PRINTED if references != written else form
    if not references:
        raise DataError(f"the answer ({key}) is empty")
    answers = (
        references
        if TASKS[task].of_user
        else [text for text in references if not says_no_answer(text)]
    )
    if not answers:
        raise NoAnswer(
            f"the answer ({key}) says that there is none, as 'proof' and 'notfound' do"
        )
    return references, answers, form


def may_lack_answers(data: DataConfig, columns: Sequence[str]) -> bool:
    """Return if no column is named like answers, which a reward function may do without."""
    known = {root_of(name, columns) for group in ANSWER_COLUMNS for name in group}
    return data.answer_key is None and not known & set(columns)


def _rank(row: dict[str, Any] | DataError, column: str, place: str) -> str:
    if isinstance(row, DataError):
        return "0"
    if text := text_of(value_at(row, column), key=column, what="column").strip():
        return text
    raise DataError(f"{place}: data.order is {column}, and the row has nothing there")


def _reasoning_gym_rows(data: DataConfig) -> Iterator[tuple[str, Label]]:
    """data.reasoning_gym.size different problems; repeats of small tasks are not counted."""
    if names := columns_in(data.prompt_template):
        raise DataError(
            f"data.prompt_template names {names[0]}, and problems of reasoning-gym have no columns"
        )
    if data.order not in ORDERS:
        raise DataError(
            f"data.order is {data.order}, and problems of reasoning-gym have no columns"
        )
    from reasoning_gym.factory import DATASETS

    task = data.path.removeprefix(REASONING_GYM)
    if task not in DATASETS:
        raise DataError(
            f"data.path is {data.path}, but reasoning-gym has no task {quoted(task)}; {nearest(task, list(DATASETS))}"
        )
    if TASKS[grader_of(data)].problems == REASONING_GYM:
        check_data_set(task)
    options = dict(data.reasoning_gym)
    wanted = options.pop("size", 1000)
    if type(wanted) is not int or not 1 <= wanted <= MAX_GENERATED:
        raise DataError(
            f"data.reasoning_gym.size is {quoted(wanted)}; use a whole number from 1 to {MAX_GENERATED}"
        )
    seed = options.pop("seed", 42)
    if type(seed) is not int or not 0 <= seed < 2**63:
        raise DataError(
            f"data.reasoning_gym.seed is {quoted(seed)}; use a whole number, 0 or more"
        )
    uids: set[str] = set()
    works = 0  # a size that would have been enough
    entries = _entries(data, task, options | {"seed": seed})
    for index, entry in enumerate(itertools.islice(entries, wanted * _DRAWS_PER_PROBLEM)):
        problem = entry["question"]
        uid = problem_uid(problem)
        if uid in uids:
            continue
        uids.add(uid)
        if index < len(uids) * _DRAWS_PER_PROBLEM:
            works = len(uids)
        yield (
            _place(data, index),
            Label(
                uid=uid,
                problem=problem,
                # Tasks with many solutions (graph_color, rush_hour ...) have no answer, only a scorer.
                references=cells_of(entry["answer"], key="answer"),
                task=grader_of(data),
                metadata=entry,
            ),
        )
        if len(uids) == wanted:
            return
    raise DataError(
        f"{data.path} has only {len(uids)} different problems with these options, not {wanted}; "
        f"use data.reasoning_gym.size={works}, or make the task harder"
    )


def _entries(data: DataConfig, task: str, options: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the library's entries. DataError: it refuses the options, or JSON does not hold an entry."""
    num_drawn = 0
    try:
        for entry in drawn(task, options):
            num_drawn += 1
            yield entry
    except NotDrawn as error:
        raise DataError(f"data.reasoning_gym does not fit the task {task}: {error}") from error
    except NotKept as error:
        raise DataError(
            f"{_place(data, num_drawn)}: its entry cannot be kept as JSON ({error}); use another task"
        ) from error


def _place(data: DataConfig, index: int) -> str:
    return f"data.path {data.path}, problem {index + 1}"
