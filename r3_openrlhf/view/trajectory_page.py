"""One trajectory turn by turn, with the groups that each turn is compared in at every level."""

from __future__ import annotations

from collections.abc import Sequence

from r3_openrlhf.runs.trajectories import explain, trajectories_of
from r3_openrlhf.view.links import Links
from r3_openrlhf.view.responses import open_group
from r3_openrlhf.view.run_reader import Row
from r3_openrlhf.view.site import NotThere, Site


def places_of(rows: Sequence[Row]) -> dict[int, int]:
    """Place of a row in its step's file -> place of its trajectory in the group."""
    return {row["at"]: played.place for played in trajectories_of(rows) for row in played.rows}


def trajectory_page(site: Site, links: Links, name: str, step: int, place: int, context: str, uid: str) -> str:
    """A trajectory of a task. NotThere: there is none at this place."""
    opened = open_group(site, name, step, context, uid)
    run, played = opened.run, trajectories_of(opened.rows)
    if not 0 <= place < len(played):
        has = f"trajectories 0 to {len(played) - 1}" if played else "no trajectories"
        raise NotThere(f"the {context} group of {uid} in step {step} of {run.name} has {has}, and no {place}")
    settings = run.config.agents if run.config is not None else None
    explained = None if settings is None else explain(played, settings)
    return site.render(
        "trajectory.html",
        links,
        **opened.names,
        played=played,
        this=played[place],
        settings=settings,
        explained=explained,
    )
