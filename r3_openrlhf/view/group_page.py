"""A problem's responses in one step side by side, and two of them word by word."""

from __future__ import annotations

import difflib
import re
from typing import Any

from r3_openrlhf.config import LoggingConfig
from r3_openrlhf.config.words import TokenValues
from r3_openrlhf.method.core.reflection import ATTEMPT_BEGINS, ATTEMPT_ENDS, CUT
from r3_openrlhf.method.types import Context
from r3_openrlhf.view.links import Links
from r3_openrlhf.view.responses import Opened, Shown, by_advantage, extremes_of, open_group
from r3_openrlhf.view.run_reader import RunReader
from r3_openrlhf.view.site import Site, groups_in
from r3_openrlhf.view.step_groups import StepGroup, ranked_points
from r3_openrlhf.view.token_values import LOST, stored_rollouts
from r3_openrlhf.view.trajectory_page import places_of

MAX_DIFF_WORDS = 6000  # of each response
_WORD = re.compile(r"\s+|[^\W\d_]+|\d+|.", re.DOTALL)


def group_page(
    site: Site, links: Links, name: str, step: int, context: str, uid: str, *, has_token_file: bool = False
) -> str:
    """A problem's responses side by side. `has_token_file`: an export with the values of tokens next to the page."""
    opened = open_group(site, name, step, context, uid)
    run, group = opened.run, opened.group
    groups = groups_in(run, step)
    place = groups.index(group)
    prompt, why_no_prompt = _prompt(site, opened)
    found = _shown(opened)
    return site.render(
        "group.html",
        links,
        **opened.names,
        prompt=prompt,
        why_no_prompt=why_no_prompt,
        attempt=_attempt_in(prompt) if group.context is Context.REFLECTION else None,
        shown=sorted(found, key=by_advantage),
        played=places_of(group.rows),
        points=ranked_points(opened.rows),
        shown_at={one.place: one.at for one in found},
        previous=groups[place - 1] if place else None,
        next=groups[place + 1] if place + 1 < len(groups) else None,
        other=next((one for one in groups if one.uid == uid and one.context is not group.context), None),
        extremes=extremes_of(found),
        has_tokens=not site.is_export or has_token_file,
        has_token_file=has_token_file,
        kinds=_kinds_of_values(run, group),
    )


def _shown(opened: Opened) -> list[Shown]:
    return [opened.shown(place) for place in range(len(opened.rows))]


def difference(site: Site, links: Links, name: str, step: int, context: str, uid: str, a: int, b: int) -> str:
    """Two responses of a group, word by word."""
    opened = open_group(site, name, step, context, uid)
    for place in (a, b):
        opened.check(place)
    texts = difference_of(*(opened.rows[place]["text"] or "" for place in (a, b)))
    return site.render("difference.html", links, **opened.names, a=opened.shown(a), b=opened.shown(b), **texts)


def extremes(site: Site, links: Links, name: str, step: int, context: str, uid: str) -> str:
    """The difference of the best and the worst response of a group."""
    found = extremes_of(_shown(open_group(site, name, step, context, uid)))
    if found is None:
        return site.message(links, "This group has no two responses with a text.")
    return difference(site, links, name, step, context, uid, *found)


def _prompt(site: Site, opened: Opened) -> tuple[str | None, str | None]:
    """(the prompt as the model saw it, why there is none)."""
    if written := next((row["prompt"] for row in opened.rows if row["prompt"]), None):
        return written, None
    if opened.group.context is Context.PLAIN and opened.problem is not None and opened.problem.prompt:
        return opened.problem.prompt, None
    run, fresh = opened.run, [row for row in opened.rows if row["recalled_from"] is None]
    texts = site.texts_of(run)  # no text in the files: only the history knows
    if texts is None:
        return None, site.why_no_texts(run)
    stored = stored_rollouts(run, fresh, step=opened.step, texts=texts)
    known = next((one for one in stored.found if one is not None), None)
    if known is None:
        return None, f"The prompt is not known any more: {stored.why or LOST}."
    return texts.whole_text(known.rollout.prompt_ids.tolist()), None


def _attempt_in(prompt: str | None) -> tuple[str, str, str, bool] | None:
    """(before, stored attempt, after, whether it was shortened) of a reflection prompt."""
    if prompt is None or ATTEMPT_BEGINS not in prompt or ATTEMPT_ENDS not in prompt:
        return None
    before, _, rest = prompt.partition(ATTEMPT_BEGINS)
    attempt, _, behind = rest.rpartition(ATTEMPT_ENDS)
    return before, attempt.strip("\n"), behind, CUT in attempt


def _kinds_of_values(run: RunReader, group: StepGroup) -> list[tuple[str, str]]:
    """What tokens of the group may be coloured by, as far as the settings say: (key of the values, name)."""
    kinds = []
    logging = run.config.logging if run.config is not None else LoggingConfig()
    in_file = logging.token_values == TokenValues.ALL or group.num_recalled
    if run.directory.history.is_file() or in_file:
        kinds.append(("logprob", "log-prob"))
    measured = run.config is not None and run.config.measures_all_entropies
    if measured or (logging.token_values != TokenValues.NONE and group.num_ranked):
        kinds.append(("entropy", "entropy"))
    if logging.token_values == TokenValues.ALL or (logging.token_values != TokenValues.NONE and group.num_recalled):
        kinds.append(("ratio", "ratio"))
    return kinds


def difference_of(a: str, b: str) -> dict[str, Any]:
    """Two texts as runs of words: equal, only in a, only in b. `is_cut`: only their first words were compared."""
    words_a, words_b = _WORD.findall(a), _WORD.findall(b)
    is_cut = max(len(words_a), len(words_b)) > MAX_DIFF_WORDS
    words_a, words_b = words_a[:MAX_DIFF_WORDS], words_b[:MAX_DIFF_WORDS]
    left: list[tuple[bool, str]] = []
    right: list[tuple[bool, str]] = []
    same = 0
    for tag, i, j, k, m in difflib.SequenceMatcher(None, words_a, words_b).get_opcodes():
        if i < j:
            left.append((tag == "equal", "".join(words_a[i:j])))
        if k < m:
            right.append((tag == "equal", "".join(words_b[k:m])))
        same += j - i if tag == "equal" else 0
    total = len(words_a) + len(words_b)
    return {"left": left, "right": right, "is_cut": is_cut, "alike": 2 * same / total if total else 1.0}
