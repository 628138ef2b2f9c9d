"""Rollouts by text, verdict and step: DuckDB reads the steps' files; none is kept."""

import glob
import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import duckdb

from r3_openrlhf.method.errors import R3Error, quoted
from r3_openrlhf.runs import rollout_files
from r3_openrlhf.runs.step_groups import Row
from r3_openrlhf.view.library import Library
from r3_openrlhf.view.rendering import render
from r3_openrlhf.view.run_reader import (
    RunReader,
    Stamp,
    check_row,
    is_count,
    read_rows,
    stamp_of,
)

HITS_PER_PAGE = 30
MAX_CHARS = 1000  # of a query
PAGE_S = 30.0  # for what one page asks
MEMORY = "400MB"
BEFORE, SNIPPET = 120, 400  # characters before the first match, and at all
HEAVY = ("text", "prompt", "answer", "extras", "state")
PLAIN = ", ".join(f'"{name}"' for name in rollout_files.COLUMNS if name not in HEAVY)
OF_FILE = 'file_row_number AS "at", filename AS file'
READ = "read_parquet($files, hive_partitioning = false, file_row_number = true, filename = true"
SAME = f"(SELECT {PLAIN}, text, {OF_FILE} FROM {READ}))"
# Where files have other columns or types than the first one: a list of files is read with the first one's, and
# float64 would become float32. With thousands of files DuckDB takes seconds for every schema.
NOTHING = ", ".join(
    f'NULL::{"double" if kind == rollout_files.NUMBER else kind} AS "{name}"'
    for name, kind in rollout_files.COLUMNS.items()
)
MIXED = f"(SELECT {NOTHING} WHERE false UNION ALL BY NAME SELECT *, {OF_FILE} FROM {READ}, union_by_name = true))"


def search_page(library: Library, form: Mapping[str, str]) -> str:
    """Rollouts that have the text and pass the filter, over the open runs or one of them."""
    query = form.get("q", "").strip()
    runs = [library.run(form["run"])] if form.get("run") else list(library.runs.values())
    page = max(1, int(form["page"])) if is_count(form.get("page", "")) else 1
    hits: list[tuple[str, Row]] = []
    faults: list[str] = []
    texts: list[str] = []
    fault = None
    try:
        texts = texts_in(query)
        hits, faults = search(runs, query, form, offset=(page - 1) * HITS_PER_PAGE)
    except R3Error as error:
        fault = str(error)
    return render(
        "search.html",
        form=form,
        query=query,
        hits=[
            (name, row, marked(" ".join((row["snippet"] or "").split()), texts))
            for name, row in hits[:HITS_PER_PAGE]
        ],
        notes=faults,
        fault=fault,
        page=page,
        runs=[run.name for run in library.runs.values() if run.steps()],
        has_more=len(hits) > HITS_PER_PAGE,
        address=urlencode(
            {key: value for key, value in form.items() if value and key != "page"}
        ),
    )


def search(
    runs: Sequence[RunReader], query: str, form: Mapping[str, str], *, offset: int = 0
) -> tuple[list[tuple[str, Row]], list[str]]:
    """Return (run's name, row with a `snippet`) of HITS_PER_PAGE + 1 hits; sentences about damaged files.

    The newest step comes first. R3Error: a form that makes no sense.
    """
    texts = texts_in(query)
    conditions, values = [], {}
    if form.get("verdict"):
        conditions, values = ["verdict = $verdict"], {"verdict": form["verdict"]}
    for number, text in enumerate(texts):
        conditions.append(f"(contains(text, $text{number}a) OR contains(text, $text{number}b))")
        values |= {f"text{number}a": text, f"text{number}b": text[0].swapcase() + text[1:]}
    where = " AND ".join(conditions) or "true"
    place = (
        "least(nullif(strpos(text, $text0a), 0), nullif(strpos(text, $text0b), 0))"
        if texts
        else "1"
    )
    snippet = f"substr(text, greatest(1, {place} - {BEFORE}), {SNIPPET}) AS snippet"
    # Files come in the order of steps: nothing is sorted, and the last need not be read.
    files = {file: (step, run.name) for run in runs for step, file in _steps_of(run, form)}
    ordered = sorted(files, key=lambda file: files[file][0], reverse=True)
    limit = f"LIMIT {HITS_PER_PAGE + 1} OFFSET {offset}"
    rows, faults = select(
        f"{where} {limit}", ordered, values, columns=f'{PLAIN}, file, "at", {snippet}'
    )
    return [(files[Path(row["file"])][1], row) for row in rows], faults


def rollouts_of_problem(run: RunReader, uid: str) -> tuple[list[Row], list[str]]:
    """Every rollout of a problem by step, without texts, and sentences about damaged files."""
    return select("uid = $uid", [file for _, file in _steps_of(run, {})], {"uid": uid})


def texts_in(query: str) -> list[str]:
    """Split a query into its words; words in quotation marks are one text."""
    query = query.encode("utf-8", "replace").decode("utf-8")  # DuckDB takes no lone surrogate
    if len(query) > MAX_CHARS:
        raise R3Error(f"the query has {len(query):,} characters; use {MAX_CHARS:,} or fewer")
    return [phrase or word for phrase, word in re.findall(r'"([^"]+)"|([^\s"]+)', query)]


def _steps_of(run: RunReader, form: Mapping[str, str]) -> list[tuple[int, Path]]:
    first, last = _whole(form, "first_step"), _whole(form, "last_step")
    return [
        (step, file)
        for step, file in rollout_files.steps_in(run.directory.rollouts).items()
        if (first is None or step >= first) and (last is None or step <= last)
    ]


def _whole(form: Mapping[str, str], name: str) -> int | None:
    text = form.get(name, "").strip()
    if text and not is_count(text):
        raise R3Error(f"{name.replace('_', ' ')} is {quoted(text)}; use a whole number")
    return int(text) if text else None


def marked(text: str, texts: Iterable[str]) -> list[tuple[bool, str]]:
    """Split a text into pieces: (was it searched for?, piece)."""
    parts = [re.escape(part) for part in sorted(texts, key=len, reverse=True)]
    pieces = re.split(f"({'|'.join(parts)})", text, flags=re.IGNORECASE) if parts else [text]
    return [(place % 2 == 1, piece) for place, piece in enumerate(pieces) if piece]


# ── DuckDB ──


@cache
def _database() -> duckdb.DuckDBPyConnection:
    """Return the process's database in memory. It writes no file and asks no host."""
    return duckdb.connect(
        config={
            "memory_limit": MEMORY,
            "temp_directory": "",
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
        }
    )


def select(
    where: str,
    files: Iterable[Path],
    values: Mapping[str, Any],
    *,
    columns: str = f'{PLAIN}, file, "at"',
) -> tuple[list[Row], list[str]]:
    """Return the rows of some files that fulfil a condition, and a sentence for each unreadable file.

    `where` may hold an order and a limit; else rows come in file order. R3Error: too slow.
    """
    stamps = {file: stamp_of(file) for file in files}
    error: Exception | None = None
    # DuckDB names no damaged file
    for rollouts, whole in (
        (SAME, False),
        (MIXED, False),
        (MIXED, True),
    ):
        faults = {file: _fault_of(file, stamp, whole) for file, stamp in stamps.items()}
        left = [file for file, fault in faults.items() if fault is None]
        if rollouts is SAME and len({_types_of(file, stamps[file]) for file in left}) > 1:
            continue
        try:
            rows = (
                _rows(f"SELECT {columns} FROM {rollouts} WHERE {where}", left, values)
                if left
                else []
            )
            return rows, [fault for fault in faults.values() if fault]
        except duckdb.InterruptException as interrupt:
            raise R3Error(
                f"the answer took more than {PAGE_S:.0f} s; ask for fewer steps"
            ) from interrupt
        except (duckdb.Error, R3Error) as failure:
            error = failure
    raise R3Error(
        f"the rollouts cannot be searched: {' '.join(str(error).split())[:200]}"
    ) from error


@lru_cache(2**16)
def _fault_of(file: Path, _stamp: Stamp, whole: bool) -> str | None:
    """Return why a file cannot be searched: no run wrote it, or it would fill the memory. None: it
    can be, as far as its head says, or its rows."""
    try:
        if whole:
            read_rows(file)
        rollout_files.read_columns(file, ("text",) if whole else ())
    except R3Error as error:
        return str(error)
    return None


@lru_cache(2**16)
def _types_of(file: Path, _stamp: Stamp) -> frozenset[tuple[str, str]]:
    """Return (column, type) of a file without a fault."""
    return frozenset(rollout_files.read_types(file).items())


def _rows(sql: str, files: Sequence[Path], values: Mapping[str, Any]) -> list[Row]:
    names = [glob.escape(str(file)) for file in files]
    with _database().cursor() as cursor:
        timer = threading.Timer(PAGE_S, cursor.interrupt)
        timer.start()
        try:
            cursor.execute(sql, {**values, "files": names})
            columns = [column[0] for column in cursor.description]
            rows = [dict(zip(columns, row, strict=True)) for row in cursor.fetchall()]
        finally:
            timer.cancel()
    for row in rows if "verdict" in columns else ():
        check_row(row, row["file"])
    return rows
