"""What stands on each page of a run. A page is a function of what is on the disk and of its address."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any, TypeVar
from urllib.parse import urlencode

import numpy as np

from r3_openrlhf.config import LoggingConfig
from r3_openrlhf.core.reflection import ATTEMPT_BEGINS, ATTEMPT_ENDS, CUT
from r3_openrlhf.errors import R3Error
from r3_openrlhf.grading.answers.extraction import final_answer
from r3_openrlhf.grading.answers.tasks import short_answer
from r3_openrlhf.types import Context, Task, TokenEntropy, TokenLogprobs, Verdict
from r3_openrlhf.viewer.curves import curves_of
from r3_openrlhf.viewer.evaluation_reader import pairs_of
from r3_openrlhf.viewer.indexing import Indexing
from r3_openrlhf.viewer.library import Library
from r3_openrlhf.viewer.links import Links
from r3_openrlhf.viewer.problem_life import life_of
from r3_openrlhf.viewer.rendering import render
from r3_openrlhf.viewer.run_reader import Problem, Row, RunReader
from r3_openrlhf.viewer.search_index import Filter, SortKey, search_runs
from r3_openrlhf.viewer.step_groups import StepGroup, groups_of, ranked_points, reward_parts
from r3_openrlhf.viewer.token_texts import MISSING, TokenTexts, find_tokenizer
from r3_openrlhf.viewer.token_values import (
    LOST,
    TokenValues,
    as_numbers,
    peak_tokens,
    stored_rollouts,
    token_values,
)

SHORT_SHARE = 0.25  # a right response is very short below this share of the step's mean length
MAX_DIFF_WORDS = 6000  # of each response
Value = TypeVar("Value")
HITS_PER_PAGE = 30
MAX_PROBLEM_HITS = 5
_WORD = re.compile(r"\s+|[^\W\d_]+|\d+|.", re.DOTALL)
_NAMES = {Verdict.CORRECT: "right", Verdict.WRONG: "wrong", Verdict.UNGRADED: "ungraded"}


class NotThere(R3Error):
    """There is no such page."""


@dataclass(frozen=True, slots=True)
class Shown:
    """One response on a page."""

    place: int  # in the group
    at: int  # in the step's file
    row: Row
    verdict: str
    answer: str | None  # what the extraction finds in it
    parts: list[tuple[str, float]]
    age: int | None  # of a recalled row, in steps


class Pages:
    """The pages of a library, with links of one kind. Not for two threads at a time."""

    def __init__(self, library: Library, indexing: Indexing, *, is_export: bool = False) -> None:
        self.library = library
        self.indexing = indexing
        self.is_export = is_export
        self._texts: dict[str, TokenTexts | None] = {}

    def run(self, name: str) -> RunReader:
        """The run of this name. Raises NotThere."""
        if name not in self.library.runs:
            raise NotThere(f"there is no run called {name} here; the page / lists what is open")
        return self.library.runs[name]

    def _render(self, template: str, links: Links, **values: Any) -> str:
        return render(
            template,
            link=links.page,
            static=links.static,
            is_export=self.is_export,
            **values,
        )

    def message(self, links: Links, message: str) -> str:
        """One sentence in the place of a page."""
        return self._render("message.html", links, message=message)

    # ── overview ──

    def overview(
        self,
        links: Links,
        names: Sequence[str] | None = None,
        *,
        addresses: Mapping[str, Mapping[int, str | None]] | None = None,
    ) -> str:
        """The curves of some runs over each other; None: of all that are open.

        `addresses`: name of a run -> step -> where its page is, for an export; None: the server has them all.
        """
        runs = [self.run(name) for name in names] if names is not None else list(self.library.runs.values())
        evaluations = list(self.library.evaluations.values()) if names is None else []
        single = runs[0] if len(runs) == 1 else None
        return self._render(
            "overview.html",
            links,
            runs=[_summary(run) for run in runs],
            single=single,
            evaluations=evaluations,
            curves=self.curves([run.name for run in runs]) | {"addresses": addresses},
            latest=sorted(addresses[single.name] if addresses else single.steps()[-8:], reverse=True)
            if single
            else [],
        )

    def curves(self, names: Sequence[str]) -> dict[str, Any]:
        """What the overview draws."""
        return curves_of([self.run(name) for name in names], self.indexing.counted)

    def state(self) -> dict[str, dict[str, Any]]:
        """For pages that wait for news: name of each run -> its newest step, and whether it has ended."""
        counted = self.indexing.counted
        return {
            name: {
                "metrics": run.metrics()[-1]["step"] if run.metrics() else 0,
                "rollouts": run.steps()[-1] if run.steps() else 0,
                "counted": len(counted.get(name, ())),
                "finished": run.is_finished,
            }
            for name, run in self.library.runs.items()
        }

    # ── a step ──

    def step(self, links: Links, name: str, step: int) -> str:
        """A strip per group."""
        run = self.run(name)
        groups = groups_of(run.rows(step), step=step)
        steps = run.steps()
        place = steps.index(step)
        tokens = [row["num_tokens"] for group in groups for row in group.rows if row["recalled_from"] is None]
        metrics = next((line for line in run.metrics() if line["step"] == step), {})
        return self._render(
            "step.html",
            links,
            run=run,
            step=step,
            groups=groups,
            problems={group.uid: run.problem(group.uid) for group in groups},
            previous=steps[place - 1] if place else None,
            next=steps[place + 1] if place + 1 < len(steps) else None,
            first=steps[0],
            last=steps[-1],
            metrics=metrics,
            largest_share=max((group.share for group in groups), default=0.0),
            short_tokens=max(1, round(SHORT_SHARE * fmean(tokens))) if tokens else 1,
            counts=_counts(groups),
        )

    # ── a group ──

    def group(
        self, links: Links, name: str, step: int, context: str, uid: str, *, has_token_file: bool = False
    ) -> str:
        """A problem's responses side by side. `has_token_file`: an export with the values of tokens beside the page."""
        run = self.run(name)
        groups = groups_of(run.rows(step), step=step)
        place, group = _find(groups, context, uid, run, step)
        rows = self._rows_with_text(run, step, group)
        problem = run.problem(uid)
        prompt, why_no_prompt = self._prompt(run, rows, step, group.context, problem)
        shown = [
            self._shown(place, row, problem, step, light["at"])
            for place, (row, light) in enumerate(zip(rows, group.rows, strict=True))
        ]
        order = sorted(shown, key=_by_advantage)
        return self._render(
            "group.html",
            links,
            run=run,
            step=step,
            group=group,
            problem=problem,
            prompt=prompt,
            why_no_prompt=why_no_prompt,
            attempt=_attempt_in(prompt) if group.context is Context.REFLECTION else None,
            shown=order,
            points=ranked_points(rows),
            shown_at={one.place: one.at for one in shown},
            previous=groups[place - 1] if place else None,
            next=groups[place + 1] if place + 1 < len(groups) else None,
            other=next((one for one in groups if one.uid == uid and one.context is not group.context), None),
            extremes=_extremes(shown),
            has_tokens=not self.is_export or has_token_file,
            has_token_file=has_token_file,
            kinds=_kinds_of_values(run, group),
        )

    def difference(self, links: Links, name: str, step: int, context: str, uid: str, a: int, b: int) -> str:
        """Two responses of a group, word by word."""
        run = self.run(name)
        groups = groups_of(run.rows(step), step=step)
        _, group = _find(groups, context, uid, run, step)
        rows = self._rows_with_text(run, step, group)
        for one in (a, b):
            if not 0 <= one < len(rows):
                raise NotThere(f"this group has responses 0 to {len(rows) - 1}, and no {one}")
        problem = run.problem(uid)
        return self._render(
            "difference.html",
            links,
            run=run,
            step=step,
            group=group,
            problem=problem,
            a=self._shown(a, rows[a], problem, step),
            b=self._shown(b, rows[b], problem, step),
            **difference_of(rows[a]["text"] or "", rows[b]["text"] or ""),
        )

    # ── a problem ──

    def problem(self, links: Links, name: str, uid: str) -> str:
        """What happened to a problem over the steps of every open run."""
        own = self.run(name)
        runs = [own, *(run for run in self.library.runs.values() if run is not own and run.steps())]
        lives, notes = [], []
        for run in runs:
            try:
                rollouts = self.indexing.of(run).index.problem_life(uid)
            except R3Error as error:
                notes.append(str(error))
                continue
            if rollouts:
                lives.append(life_of(run, rollouts))
            if why := self.indexing.why_incomplete(run):
                notes.append(why)
        problem = own.problem(uid)
        if not lives and problem is None and not notes:
            raise NotThere(f"no open run has sampled a problem {uid}")
        return self._render("problem.html", links, run=own, uid=uid, problem=problem, lives=lives, notes=notes)

    # ── search ──

    def search(self, links: Links, asked: Mapping[str, str]) -> str:
        """Rollouts that have the words and pass the filter, over the open runs or one of them."""
        query = asked.get("q", "").strip()
        chosen = [self.run(asked["run"])] if asked.get("run") else [r for r in self.library.runs.values() if r.steps()]
        indexes, notes = [], []
        for run in chosen:
            try:
                indexes.append(self.indexing.of(run).index)
            except R3Error as error:
                notes.append(str(error))
            if why := self.indexing.why_incomplete(run):
                notes.append(why)
        page = max(1, int(asked["page"])) if asked.get("page", "").isdigit() else 1
        found, problems, fault = None, [], None
        try:
            found = search_runs(
                indexes,
                query,
                where=filter_of(asked),
                sort=asked.get("sort") or SortKey.STEP,
                descending=asked.get("order") != "up",
                limit=HITS_PER_PAGE,
                offset=(page - 1) * HITS_PER_PAGE,
            )
            if query and page == 1:
                problems = [(index, one) for index in indexes for one in index.problems(query, limit=MAX_PROBLEM_HITS)]
        except R3Error as error:
            fault = str(error)
        names = {str(run.path): run.name for run in self.library.runs.values()}
        return self._render(
            "search.html",
            links,
            asked=asked,
            query=query,
            found=found,
            problems=[(names[str(index.run.path)], one, marked(one.snippet, one.matches)) for index, one in problems],
            hits=[(names[hit.run], hit, marked(hit.snippet, hit.matches)) for hit in found.rollouts] if found else [],
            notes=notes,
            fault=fault,
            page=page,
            sorts=list(SortKey),
            runs=[run.name for run in self.library.runs.values() if run.steps()],
            has_more=found is not None and (page * HITS_PER_PAGE < found.total or found.more),
            address=_address_of(asked),
        )

    # ── evaluations ──

    def evaluation(self, links: Links, name: str) -> str:
        """The results of one `r3 eval`, and its problems."""
        reader = self.library.evaluations[name]
        asked = list(reader.asked().values())
        return self._render(
            "evaluation.html",
            links,
            evaluation=reader,
            results=reader.results(),
            asked=sorted(asked, key=lambda one: (one.benchmark, one.share if one.share is not None else -1.0)),
            statements={(one.benchmark, one.uid): self._statement(one.uid) for one in asked},
            others=[other for other in self.library.evaluations.values() if other is not reader],
        )

    def sample(self, links: Links, name: str, benchmark: str, uid: str) -> str:
        """The responses to one problem of an evaluation, and beside them those of another one."""
        readers = [self.library.evaluations[name]] + [
            other
            for other in self.library.evaluations.values()
            if other.name != name and (benchmark, uid) in other.asked()
        ]
        return self._render(
            "sample.html",
            links,
            evaluation=readers[0],
            benchmark=benchmark,
            uid=uid,
            statement=self._statement(uid),
            sides=[(reader, reader.responses(benchmark, uid)) for reader in readers[:2]],
        )

    def pairs(self, links: Links, a: str, b: str) -> str:
        """Two evaluations on the problems that both were asked."""
        for name in (a, b):
            if name not in self.library.evaluations:
                raise NotThere(f"there is no evaluation called {name} here; the page / lists what is open")
        readers = self.library.evaluations[a], self.library.evaluations[b]
        pairs = pairs_of(*readers)
        return self._render(
            "pairs.html",
            links,
            a=readers[0],
            b=readers[1],
            pairs=pairs,
            counts=Counter(pair.kind for pair in pairs),
            statements={pair.uid: self._statement(pair.uid) for pair in pairs},
        )

    def _statement(self, uid: str) -> str | None:
        """The text of a problem, where an open run has it: an evaluation keeps its hash alone."""
        for run in self.library.runs.values():
            if problem := run.problem(uid):
                return problem.label.problem
        return None

    def extremes(self, links: Links, name: str, step: int, context: str, uid: str) -> str:
        """The difference of the best and the worst response of a group."""
        run = self.run(name)
        _, group = _find(groups_of(run.rows(step), step=step), context, uid, run, step)
        shown = [
            self._shown(place, row, None, step) for place, row in enumerate(self._rows_with_text(run, step, group))
        ]
        found = _extremes(shown)
        if found is None:
            return self.message(links, "This group has no two responses with a text.")
        return self.difference(links, name, step, context, uid, *found)

    def _rows_with_text(self, run: RunReader, step: int, group: StepGroup) -> list[Row]:
        rows = _of_group(run, step, group, run.rows_with_text(step, group.uid))
        texts = None
        for row in rows:  # a recalled row is written without its text
            if not row["text"] and row["recalled_from"] is not None:
                texts = texts or self.texts_of(run)
                (stored,) = stored_rollouts(run, [row], step=step, texts=texts).found
                if stored is not None and texts is not None:
                    row["text"] = texts.text(stored.rollout.response_ids.tolist())
        return rows

    def _shown(self, place: int, row: Row, problem: Problem | None, step: int, at: int = -1) -> Shown:
        return Shown(
            place=place,
            at=at,
            row=row,
            verdict=_NAMES[Verdict(row["verdict"])],
            answer=_answer_in(row, problem),
            parts=reward_parts(row),
            age=None if row["recalled_from"] is None else step - row["recalled_from"],
        )

    def _prompt(
        self, run: RunReader, rows: Sequence[Row], step: int, context: Context, problem: Problem | None
    ) -> tuple[str | None, str | None]:
        """(the prompt as the model saw it, why there is none)."""
        if written := next((row["prompt"] for row in rows if row.get("prompt")), None):
            return written, None
        if context is Context.PLAIN and problem is not None and problem.prompt:
            return problem.prompt, None
        texts = self.texts_of(run)  # a run of an earlier version: only the history knows
        if texts is None:
            return None, MISSING
        stored = stored_rollouts(run, [row for row in rows if row["recalled_from"] is None], step=step, texts=texts)
        known = next((one for one in stored.found if one is not None), None)
        if known is None:
            return None, f"The prompt is not known any more: {stored.why or LOST}."
        return texts.whole_text(known.rollout.prompt_ids.tolist()), None

    # ── tokens ──

    def texts_of(self, run: RunReader) -> TokenTexts | None:
        """The run's tokenizer; None: there is none on this machine."""
        if run.name not in self._texts:
            path = find_tokenizer(run)
            self._texts[run.name] = None if path is None else TokenTexts(path)
        return self._texts[run.name]

    def tokens_of_group(self, name: str, step: int, context: str, uid: str, only: int | None = None) -> dict[str, Any]:
        """Values of each token of a group's responses, as plain JSON."""
        run = self.run(name)
        texts = self.texts_of(run)
        _, group = _find(groups_of(run.rows(step), step=step), context, uid, run, step)
        if only is not None and not 0 <= only < len(group.rows):
            raise NotThere(f"this group has responses 0 to {len(group.rows) - 1}, and no {only}")
        rows = self._rows_with_text(run, step, group)
        columns = _of_group(run, step, group, run.token_columns(step, uid))
        places = range(len(rows)) if only is None else [only]
        values, why = token_values(
            run, [rows[place] for place in places], [columns[place] for place in places], step=step, texts=texts
        )
        config = run.config
        found = [
            None if one is None else _as_json(place, one, config.ranking.peak_fraction if config else None)
            for place, one in zip(places, values, strict=True)
        ]
        clip = [1 - config.train.eps_clip_low, 1 + config.train.eps_clip_high] if config else None
        return {"responses": found, "why": why, "clip": clip}

    def tokens(self, links: Links, name: str, step: int, context: str, uid: str, place: int) -> str:
        """One response as a heat map."""
        run = self.run(name)
        found = self.tokens_of_group(name, step, context, uid, place)
        _, group = _find(groups_of(run.rows(step), step=step), context, uid, run, step)
        problem = run.problem(uid)
        row = self._rows_with_text(run, step, group)[place]
        return self._render(
            "tokens.html",
            links,
            run=run,
            step=step,
            group=group,
            problem=problem,
            one=self._shown(place, row, problem, step),
            tokens=found,
            num_rows=len(group.rows),
        )


def filter_of(asked: Mapping[str, str]) -> Filter:
    """What the form of the search says. R3Error: a number that is none."""

    def whole(name: str) -> int | None:
        text = asked.get(name, "").strip()
        if text and not text.isdigit():
            raise R3Error(f"{name.replace('_', ' ')} is {text!r}; use a whole number")
        return int(text) if text else None

    what = asked.get("what", "")
    return Filter(
        first_step=whole("first_step"),
        last_step=whole("last_step"),
        uid=asked.get("uid") or None,
        verdict=asked.get("verdict") or None,
        context=asked.get("context") or None,
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


def _address_of(asked: Mapping[str, str]) -> str:
    """The search without its page, as a query."""
    return urlencode({key: value for key, value in asked.items() if value and key != "page"})


def _as_json(place: int, values: TokenValues, peak_fraction: float | None) -> dict[str, Any]:
    found: dict[str, Any] = {"place": place, "pieces": values.pieces, "peak": []}
    if values.ids is not None:
        found["ids"] = values.ids.tolist()
    if values.logprobs is not None:
        found["logprob"] = as_numbers(values.logprobs)
    if values.entropies is not None:
        found["entropy"] = as_numbers(values.entropies)
        if peak_fraction is not None:
            found["peak"] = peak_tokens(values.entropies, peak_fraction=peak_fraction)
    if values.policy_logprobs is not None and values.logprobs is not None:
        found["ratio"] = as_numbers(values.policy_logprobs.astype(np.float32) - values.logprobs.astype(np.float32))
    return found


def _of_group(run: RunReader, step: int, group: StepGroup, values: Sequence[Value]) -> list[Value]:
    """Of something that there is for each row of a problem in a step, in the order of the file, what belongs to the group."""
    wanted = {row["at"] for row in group.rows}
    places = [row["at"] for row in run.rows(step) if row["uid"] == group.uid]
    if len(places) != len(values):
        raise R3Error(f"step {step} of {run.path} has changed while it was read; load the page again")
    return [value for place, value in zip(places, values, strict=True) if place in wanted]


def _kinds_of_values(run: RunReader, group: StepGroup) -> list[tuple[str, str]]:
    """What tokens of the group may be coloured by, as far as the settings say: (key of the values, name)."""
    kinds = []
    logging = run.config.logging if run.config is not None else LoggingConfig()
    in_file = logging.token_logprobs == TokenLogprobs.ALL or group.num_recalled
    if run.directory.history.is_file() or in_file:
        kinds.append(("logprob", "log-prob"))
    if logging.token_entropy == TokenEntropy.ALL or (
        logging.token_entropy == TokenEntropy.RANKED and group.num_ranked
    ):
        kinds.append(("entropy", "entropy"))
    if logging.token_logprobs != TokenLogprobs.NONE and group.num_recalled:
        kinds.append(("ratio", "ratio"))
    return kinds


def _by_advantage(one: Shown) -> tuple[bool, float, int]:
    """The highest first, those without one last."""
    return one.row["advantage"] is None, -(one.row["advantage"] or 0.0), one.place


def _extremes(shown: Sequence[Shown]) -> tuple[int, int] | None:
    """Places of the best and of the worst response that has a text."""
    found = [one.place for one in sorted(shown, key=_by_advantage) if one.row["text"]]
    return (found[0], found[-1]) if len(found) > 1 else None


def _find(groups: Sequence[StepGroup], context: str, uid: str, run: RunReader, step: int) -> tuple[int, StepGroup]:
    for place, group in enumerate(groups):
        if group.key == (uid, context):
            return place, group
    raise NotThere(f"step {step} of {run.name} has no {context} group of problem {uid}")


def _counts(groups: Sequence[StepGroup]) -> dict[str, int]:
    return {
        "groups": len(groups),
        "rows": sum(len(group.rows) for group in groups),
        "fresh": sum(group.num_fresh for group in groups),
        "recalled": sum(group.num_recalled for group in groups),
    }


def _answer_in(row: Row, problem: Problem | None) -> str | None:
    """The one that the grader found; of a recalled row, or in a run of an earlier version, what the extraction finds now."""
    if row.get("answer"):
        return row["answer"]
    if not row["text"]:
        return None
    if problem is not None and problem.label.task != Task.MATH:
        return short_answer(row["text"])
    found = final_answer(row["text"], truncated=row["truncated"])
    return found.text if found is not None else None


def _attempt_in(prompt: str | None) -> tuple[str, str, str, bool] | None:
    """(before, stored attempt, behind, was it shortened?) of a reflection prompt."""
    if prompt is None or ATTEMPT_BEGINS not in prompt or ATTEMPT_ENDS not in prompt:
        return None
    before, _, rest = prompt.partition(ATTEMPT_BEGINS)
    attempt, _, behind = rest.rpartition(ATTEMPT_ENDS)
    return before, attempt.strip("\n"), behind, CUT in attempt


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


def _summary(run: RunReader) -> dict[str, Any]:
    """A run in one line: first and last quarter of its steps, sums of what R³ did."""
    lines, evaluations = run.metrics(), [line for line in run.evaluations() if line.get("pass_at_1") is not None]
    quarter = max(1, len(lines) // 4)

    def mean(part: Sequence[dict[str, Any]], key: str) -> float | None:
        values = [line[key] for line in part if line.get(key) is not None]
        return fmean(values) if values else None

    def total(key: str) -> float | None:
        values = [line[key] for line in lines if line.get(key) is not None]
        return sum(values) if values else None

    return {
        "run": run,
        "config": run.config,
        "steps": lines[-1]["step"] if lines else 0,
        "epoch": lines[-1].get("epoch") if lines else None,
        "finished": run.is_finished,
        "tokens": lines[-1].get("generated_tokens_total") if lines else None,
        "reward": (mean(lines[:quarter], "reward_mean"), mean(lines[-quarter:], "reward_mean")),
        "accuracy": (mean(lines[:quarter], "accuracy"), mean(lines[-quarter:], "accuracy")),
        "held_out": (evaluations[0]["pass_at_1"], evaluations[-1]["pass_at_1"]) if evaluations else None,
        "collapsed": (total("r3/groups/collapsed_before"), total("r3/groups/collapsed_after")),
        "recalled": total("r3/replay/recalled"),
        "reflected": total("r3/reflection/groups"),
        "ranked": total("r3/ranking/groups"),
        "ungraded": total("r3/grading/ungraded"),
        "gaps": [b["step"] for a, b in pairwise(lines) if b["step"] != a["step"] + 1],
        "rollouts": len(run.steps()),
        "why_no_rollouts": run.why_no_rollouts(),
        "config_fault": run.config_fault,
        "is_old": run.is_old,
    }
