"""What every page needs: the open runs and evaluations, the templates, and a sentence where there is no page."""

from __future__ import annotations

from typing import Any

from r3_openrlhf.method.errors import R3Error
from r3_openrlhf.view.evaluation_reader import EvaluationReader
from r3_openrlhf.view.indexing import Indexing
from r3_openrlhf.view.library import Library
from r3_openrlhf.view.links import Links
from r3_openrlhf.view.rendering import render
from r3_openrlhf.view.run_reader import RunReader
from r3_openrlhf.view.step_groups import StepGroup, groups_of
from r3_openrlhf.view.token_texts import MISSING, TokenTexts, find_tokenizer


class NotThere(R3Error):
    """There is no such page."""


def is_count(text: str) -> bool:
    """A whole number of at most twelve digits: more are none that SQLite or a file name takes."""
    return text.isascii() and text.isdigit() and len(text) <= 12


class Site:
    """A library, its indexes and its templates. For any number of threads."""

    def __init__(self, library: Library, indexing: Indexing, *, is_export: bool = False) -> None:
        self.library = library
        self.indexing = indexing
        self.is_export = is_export
        self.effects: dict[Any, Any] = {}  # effect_page.py
        self._texts: dict[str, TokenTexts | None] = {}
        self._no_texts: dict[str, str] = {}

    def run(self, name: str) -> RunReader:
        """The run of this name. Raises NotThere."""
        if name not in self.library.runs:
            raise NotThere(f"there is no run called {name} here; the page / lists what is open")
        return self.library.runs[name]

    def evaluation(self, name: str) -> EvaluationReader:
        """The evaluation of this name. Raises NotThere."""
        if name not in self.library.evaluations:
            raise NotThere(f"there is no evaluation called {name} here; the page / lists what is open")
        return self.library.evaluations[name]

    def render(self, template: str, links: Links, **values: Any) -> str:
        """A page of this site."""
        return render(template, link=links.page, static=links.static, is_export=self.is_export, **values)

    def message(self, links: Links, message: str) -> str:
        """One sentence in the place of a page."""
        return self.render("message.html", links, message=message)

    def texts_of(self, run: RunReader) -> TokenTexts | None:
        """The run's tokenizer; None: there is none on this machine."""
        if run.name not in self._texts:
            path = find_tokenizer(run)
            if path is None:  # it may come yet
                return None
            try:
                self._texts[run.name] = TokenTexts(path)
            except R3Error as error:
                self._texts[run.name] = None
                self._no_texts[run.name] = f"Tokens cannot be shown as text: {error}."
        return self._texts[run.name]

    def has_looked_for_texts(self, name: str) -> bool:
        """True if `texts_of` was called for the run of this name."""
        return name in self._texts

    def why_no_texts(self, run: RunReader) -> str:
        """Where `texts_of` gives None."""
        return self._no_texts.get(run.name, MISSING)

    def statement(self, uid: str) -> str | None:
        """The text of a problem, where an open run has it: an evaluation keeps its hash alone."""
        for run in self.library.runs.values():
            if problem := run.problem(uid):
                return problem.label.problem
        return None


def groups_in(run: RunReader, step: int) -> list[StepGroup]:
    """The groups of a step in the order of its file. R3Error: it has no rollouts."""
    return run.fresh("groups", (step, run.stamp(step)), lambda: groups_of(run.rows(step), step=step))


def find_group(run: RunReader, step: int, context: str, uid: str) -> StepGroup:
    """One of `groups_in`. Raises NotThere."""
    for group in groups_in(run, step):
        if group.key == (uid, context):
            return group
    raise NotThere(f"step {step} of {run.name} has no {context} group of problem {uid}")
