"""The whole life of a problem, in every open run."""

from __future__ import annotations

from r3_openrlhf.method.errors import R3Error
from r3_openrlhf.view.links import Links
from r3_openrlhf.view.problem_life import life_of
from r3_openrlhf.view.site import NotThere, Site


def problem_page(site: Site, links: Links, name: str, uid: str) -> str:
    """What happened to a problem over the steps of every open run."""
    own = site.run(name)
    runs = [own, *(run for run in site.library.runs.values() if run is not own and run.steps())]
    lives, notes = [], []
    for run in runs:
        try:
            rollouts = site.indexing.of(run).index.problem_life(uid)
        except R3Error as error:
            notes.append(str(error))
            continue
        if rollouts:
            lives.append(life_of(run, rollouts))
        if why := site.indexing.why_incomplete(run):
            notes.append(why)
    problem = own.problem(uid)
    if not lives and problem is None and not notes:
        raise NotThere(f"no open run has sampled a problem {uid}")
    return site.render("problem.html", links, run=own, uid=uid, problem=problem, lives=lives, notes=notes)
