"""A selection of pages as files that open from disk: no server, no other host, with the same scripts."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Any

from r3_openrlhf.method.errors import R3Error, quoted
from r3_openrlhf.runs.trajectories import trajectories_of
from r3_openrlhf.view.compare_page import compare_page
from r3_openrlhf.view.effect_page import effect_page
from r3_openrlhf.view.evaluation_pages import evaluation_page, pairs_page, sample_page
from r3_openrlhf.view.group_page import extremes, group_page
from r3_openrlhf.view.indexing import Indexing
from r3_openrlhf.view.library import Library
from r3_openrlhf.view.links import FileLinks, Links, Parts, file_of
from r3_openrlhf.view.overview_page import overview
from r3_openrlhf.view.problem_page import problem_page
from r3_openrlhf.view.rendering import json_block
from r3_openrlhf.view.run_reader import RunReader
from r3_openrlhf.view.site import Site, groups_in
from r3_openrlhf.view.step_groups import StepGroup
from r3_openrlhf.view.step_page import step_page
from r3_openrlhf.view.tokens_page import tokens_of_group
from r3_openrlhf.view.trajectory_page import trajectory_page

STATIC = Path(__file__).with_name("static")


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What is exported. steps: None: the newest, or with `uids` all. uids: None: every problem. tokens: their values, too."""

    steps: Sequence[int] | None = None
    uids: Sequence[str] | None = None
    tokens: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What was written."""

    path: Path
    pages: int
    bytes: int  # of everything


def parse_steps(text: str) -> list[int]:
    """ "3", "3,7", "10-12". R3Error for anything else."""
    steps: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise R3Error(f"--steps is {quoted(text)}; use numbers and ranges with commas, like 3,7,10-12")
        steps.update(range(int(first), int(last if dash else first) + 1))
    return sorted(steps)


def export(
    library: Library, directory: Path, selection: Selection, *, cache: Path | None = None, overwrite: bool = False
) -> Exported:
    """Write the overviews of all open runs, the chosen steps and their groups; with `uids` also the lives of those problems. Of
    evaluations their results, each pair of them, and the responses to every problem, or to those of `uids`.

    Args:
        overwrite: replace an earlier export in the directory.

    Raises:
        R3Error: the directory holds files that may not be replaced, a step or a problem that no run has.
    """
    is_export = (directory / "index.html").is_file() and (directory / "static" / "view.css").is_file()
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        if not is_export:
            raise R3Error(f"--export {directory} is there already; choose another directory, or empty this one")
        if not overwrite:
            raise R3Error(f"--export {directory} holds an export; choose another directory, or add --overwrite")
    writer = _Writer(library, directory, selection, cache)
    try:
        if is_export:
            shutil.rmtree(directory)
        directory.mkdir(parents=True, exist_ok=True)
        writer.write()
        shutil.copytree(STATIC, directory / "static")
    except OSError as error:
        raise R3Error(f"--export {directory} cannot be written: {error.strerror}") from error
    files = [path for path in directory.rglob("*") if path.is_file()]
    return Exported(path=directory, pages=len(writer.pages), bytes=sum(path.stat().st_size for path in files))


class _Writer:
    def __init__(self, library: Library, directory: Path, selection: Selection, cache: Path | None) -> None:
        self.library, self.directory, self.selection = library, directory, selection
        self.indexing = Indexing(library, cache=cache)
        self.site = Site(library, self.indexing, is_export=True)
        self.evaluations = list(library.evaluations.values())
        self.groups = {run.name: dict(self._chosen(run)) for run in library.runs.values()}
        self._check()
        self.pages = dict(self._pages())

    def _chosen(self, run: RunReader) -> Iterable[tuple[int, list[StepGroup]]]:
        steps, uids = run.steps(), self.selection.uids
        if self.selection.steps is not None:
            steps = [step for step in steps if step in set(self.selection.steps)]
        elif uids is None:
            steps = steps[-1:]
        for step in steps:
            groups = groups_in(run, step)
            if uids is None or any(group.uid in uids for group in groups):
                yield step, [group for group in groups if uids is None or group.uid in uids]

    def _check(self) -> None:
        found = {step for steps in self.groups.values() for step in steps}
        if self.selection.uids is None and self.selection.steps is not None:
            if missing := sorted(set(self.selection.steps) - found):
                raise R3Error(f"--steps names {missing[0]}, of which no open run has rollouts")
        seen = {uid for reader in self.evaluations for _, uid in reader.problems()}
        seen |= {group.uid for steps in self.groups.values() for groups in steps.values() for group in groups}
        if missing_uids := [uid for uid in self.selection.uids or () if uid not in seen]:
            raise R3Error(
                f"--problems names {missing_uids[0]}, which neither a chosen step of an open run nor an evaluation has"
            )

    def _pages(self) -> Iterable[tuple[Parts, Callable[[Links], str]]]:
        """The address of every page, and what makes it."""

        def page(make: Callable[..., str], *names: object, **more: Any) -> Callable[[Links], str]:
            return lambda links: make(self.site, links, *names, **more)

        def curves(*names: str) -> Callable[[Links], str]:
            return lambda links: overview(self.site, links, names or None, addresses=self._steps_from(links))

        yield (), curves()
        if len(self.groups) > 1:
            yield ("compare",), page(compare_page)
        for name, steps in self.groups.items():
            yield (name,), curves(name)
            yield (name, "effect"), page(effect_page, name)
            for uid in self._whole_lives(name):
                yield (name, "problem", uid), page(problem_page, name, uid)
            for step, groups in steps.items():
                yield (name, "step", str(step)), page(step_page, name, step)
                for group in groups:
                    of_group = (group.context.value, group.uid)
                    where, address = (name, step, *of_group), (str(step), *of_group)
                    tokens = self.selection.tokens
                    yield (name, "step", *address), page(group_page, *where, has_token_file=tokens)
                    yield (name, "difference", *address), page(extremes, *where)
                    for one in trajectories_of(group.rows):
                        parts = (name, "trajectory", str(step), str(one.place), *of_group)
                        yield parts, page(trajectory_page, name, step, one.place, *of_group)
        yield from self._evaluation_pages(page)

    def _evaluation_pages(
        self, page: Callable[..., Callable[[Links], str]]
    ) -> Iterable[tuple[Parts, Callable[[Links], str]]]:
        for reader in self.evaluations:
            yield (reader.name,), page(evaluation_page, reader.name)
            for key in reader.problems():
                if self.selection.uids is None or key[1] in self.selection.uids:
                    yield (reader.name, "sample", *key), page(sample_page, reader.name, *key)
        for a, b in permutations(self.evaluations, 2):
            yield ("compare", a.name, b.name), page(pairs_page, a.name, b.name)

    def _whole_lives(self, name: str) -> list[str]:
        own = {group.uid for groups in self.groups[name].values() for group in groups}
        return [uid for uid in self.selection.uids or () if uid in own]

    def write(self) -> None:
        """Every page."""
        for run in self.library.runs.values():
            if self._whole_lives(run.name):
                self.indexing.update(run)
        for parts, make in self.pages.items():
            file = self.directory / file_of(parts)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(make(FileLinks(parts, self.pages)), encoding="utf-8")
        if self.selection.tokens:
            self._write_tokens()

    def _write_tokens(self) -> None:
        for name, steps in self.groups.items():
            for step, group in ((step, group) for step, groups in steps.items() for group in groups):
                of_group = (group.context.value, group.uid)
                values = json_block(tokens_of_group(self.site, name, step, *of_group))
                page = self.directory / file_of((name, "step", str(step), *of_group))
                page.with_name("tokens.js").write_text(f"window.r3Tokens({values});\n", encoding="utf-8")

    def _steps_from(self, links: Links) -> dict[str, dict[int, str | None]]:
        """Name of a run -> step -> the address of its page, for the points of the curves."""
        return {name: {step: links.page(name, "step", step) for step in steps} for name, steps in self.groups.items()}
