"""Rollouts and problems that have some words and pass a filter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import urlencode

from r3_openrlhf.method.errors import R3Error, quoted
from r3_openrlhf.view.links import Links
from r3_openrlhf.view.search_index import Filter, SortKey, search_runs
from r3_openrlhf.view.site import Site, is_count

HITS_PER_PAGE = 30
MAX_PROBLEM_HITS = 5


def search(site: Site, links: Links, parameters: Mapping[str, str]) -> str:
    """Rollouts that have the words and pass the filter, over the open runs or one of them."""
    query = parameters.get("q", "").strip()
    chosen = (
        [site.run(parameters["run"])]
        if parameters.get("run")
        else [r for r in site.library.runs.values() if r.steps()]
    )
    indexes, notes = [], []
    for run in chosen:
        try:
            indexes.append(site.indexing.of(run).index)
            notes += indexes[-1].faults()
        except R3Error as error:
            notes.append(str(error))
        if why := site.indexing.why_incomplete(run):
            notes.append(why)
    page = max(1, int(parameters["page"])) if is_count(parameters.get("page", "")) else 1
    found, problems, fault = None, [], None
    try:
        found = search_runs(
            indexes,
            query,
            where=filter_of(parameters),
            sort=parameters.get("sort") or SortKey.STEP,
            descending=parameters.get("order") != "up",
            limit=HITS_PER_PAGE,
            offset=(page - 1) * HITS_PER_PAGE,
        )
        if query and page == 1:
            problems = [(index, one) for index in indexes for one in index.problems(query, limit=MAX_PROBLEM_HITS)]
    except R3Error as error:
        fault = str(error)
    names = {str(run.path): run.name for run in site.library.runs.values()}
    return site.render(
        "search.html",
        links,
        asked=parameters,
        query=query,
        found=found,
        problems=[(names[str(index.run.path)], one, marked(one.snippet, one.matches)) for index, one in problems],
        hits=[(names[hit.run], hit.row, marked(hit.snippet, hit.matches)) for hit in found.rollouts] if found else [],
        notes=notes,
        fault=fault,
        page=page,
        sorts=list(SortKey),
        runs=[run.name for run in site.library.runs.values() if run.steps()],
        has_more=found is not None and (page * HITS_PER_PAGE < found.total or found.more),
        address=_address_of(parameters),
    )


def filter_of(parameters: Mapping[str, str]) -> Filter:
    """What the form of the search says. R3Error: a number that is none."""

    def whole(name: str) -> int | None:
        text = parameters.get(name, "").strip()
        if text and not is_count(text):
            raise R3Error(f"{name.replace('_', ' ')} is {quoted(text)}; use a whole number")
        return int(text) if text else None

    what = parameters.get("what", "")
    return Filter(
        first_step=whole("first_step"),
        last_step=whole("last_step"),
        uid=parameters.get("uid") or None,
        verdict=parameters.get("verdict") or None,
        context=parameters.get("context") or None,
        truncated=True if what == "cut" else None,
        ranked=True if what == "ranked" else None,
        recalled=True if what == "recalled" else None,
        min_tokens=whole("min_tokens"),
        max_tokens=whole("max_tokens"),
    )


def marked(text: str, matches: Sequence[tuple[int, int]]) -> list[tuple[bool, str]]:
    """A text in pieces: (was it searched for?, piece)."""
    pieces, at = [], 0
    for begin, end in matches:
        pieces += [(False, text[at:begin]), (True, text[begin:end])]
        at = end
    return [piece for piece in [*pieces, (False, text[at:])] if piece[1]]


def _address_of(parameters: Mapping[str, str]) -> str:
    """The search without its page, as a query."""
    return urlencode({key: value for key, value in parameters.items() if value and key != "page"})
