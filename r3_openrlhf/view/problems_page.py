"""Every problem of a run: visits, how often it was right, fates, and verdicts to look at."""

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from r3_openrlhf.method.types import Verdict
from r3_openrlhf.runs import rollout_files
from r3_openrlhf.runs.step_groups import Row, fate_of
from r3_openrlhf.view.library import Library
from r3_openrlhf.view.rendering import render
from r3_openrlhf.view.search import select

MOST_ROWS = 2000  # of a page
LOOKED_AT = 20  # newest steps whose verdicts are looked at
TAIL = 400  # characters of a response that its last line is taken from
SHORT = 10  # times shorter than the median of the right responses
# a trajectory counts as one
ROLLOUT = 'count(DISTINCT coalesce(trajectory, "at"::VARCHAR)) FILTER'
VISITS = f"""uid, step, {ROLLOUT} (verdict = 'correct' AND context = 'plain') AS num_right,
    {ROLLOUT} (verdict <> 'ungraded' AND context = 'plain') AS num_graded,
    any_value(group_replay) FILTER (context = 'plain') AS group_replay,
    any_value(group_ranking) FILTER (context = 'plain') AS group_ranking, bool_or(context = 'reflection') AS reflected"""
FRESH = "recalled_from IS NULL"


@dataclass(slots=True)
class Visited:
    """A problem over the steps: its plain groups."""

    uid: str
    shares: list[float] = field(default_factory=list)  # right among the graded, by step
    visits: int = 0
    last_success: int | None = None  # step
    fates: Counter[str] = field(default_factory=Counter)
    # to look at its verdicts -> newest rollout
    reasons: dict[str, Row] = field(default_factory=dict)


def problems_page(library: Library, name: str) -> str:
    """Render the problems of a run in a table that sorts and filters."""
    run = library.run(name)
    files = rollout_files.steps_in(run.directory.rollouts)
    rows, notes = select(
        f"{FRESH} GROUP BY uid, step ORDER BY step", files.values(), {}, columns=VISITS
    )
    visited: dict[str, Visited] = {}
    for row in rows:
        one = visited.setdefault(row["uid"], Visited(row["uid"]))
        one.visits += 1
        if row["num_graded"]:
            one.shares.append(row["num_right"] / row["num_graded"])
        if row["num_right"]:
            one.last_success = row["step"]
        if fate := fate_of([row], was_reflected=row["reflected"]):
            one.fates[fate] += 1
    texts = run.problems(run.directory.data)[0]
    columns = f'uid, step, context, "at", verdict, num_tokens, answer, right(text, {TAIL}) AS tail, file'
    recent, _ = select(FRESH, list(files.values())[-LOOKED_AT:], {}, columns=columns)
    references = {uid: problem.label.references for uid, problem in texts.items()}
    for uid, reasons in suspicions(recent, references).items():
        visited[uid].reasons = reasons
    ordered = sorted(
        visited.values(), key=lambda one: (-len(one.reasons), one.shares[-1:], one.uid)
    )
    return render(
        "problems.html",
        run=run,
        problems=ordered[:MOST_ROWS],
        number=len(ordered),
        texts=texts,
        notes=notes,
        looked_at=min(LOOKED_AT, len(files)),
    )


def suspicions(
    rows: Sequence[Row], references: Mapping[str, Sequence[str]]
) -> dict[str, dict[str, Row]]:
    """uid -> reason to look at a verdict -> the newest rollout with it.

    Wrong, although a reference stands in the last line; right, SHORT times shorter than the median
    of the right ones; equal answers with different verdicts."""
    lengths = [row["num_tokens"] for row in rows if row["verdict"] == Verdict.CORRECT]
    short = median(lengths) / SHORT if lengths else 0.0
    verdicts: dict[tuple[str, str], set[str]] = defaultdict(set)
    for row in rows:
        if row["answer"] and row["verdict"] != Verdict.UNGRADED:
            verdicts[row["uid"], row["answer"]].add(row["verdict"])
    found: dict[str, dict[str, Row]] = defaultdict(dict)
    for row in rows:
        is_wrong = row["verdict"] == Verdict.WRONG
        reasons = {
            "wrong, and the reference is in its last line": is_wrong
            and _ends_with(row, references),
            "right in very few tokens": row["verdict"] == Verdict.CORRECT
            and row["num_tokens"] <= short,
            "equal answers, different verdicts": len(
                verdicts.get((row["uid"], row["answer"]), ())
            )
            > 1,
        }
        found[row["uid"]] |= {reason: row for reason, holds in reasons.items() if holds}
    return {uid: reasons for uid, reasons in found.items() if reasons}


def _ends_with(row: Row, references: Mapping[str, Sequence[str]]) -> bool:
    """Return True if a reference is by itself in the last line: 7 is not in 17."""
    last = (row["tail"] or "").rstrip().rpartition("\n")[2]
    return any(
        text.strip() and re.search(rf"(?<!\w){re.escape(text.strip())}(?!\w)", last)
        for text in references.get(row["uid"], ())
    )
