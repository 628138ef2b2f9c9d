"""What replay, reflection and ranking changed in a run."""

from __future__ import annotations

from r3_openrlhf.runs.effect import Effect, effect_of
from r3_openrlhf.view.links import Links
from r3_openrlhf.view.run_reader import RunReader
from r3_openrlhf.view.site import Site


def effect_page(site: Site, links: Links, name: str, against: str = "") -> str:
    """`r3 show RUN --effect`; against: the name of an open run without replay, "": none."""
    run, other = site.run(name), site.run(against) if against else None
    others = [one.name for one in site.library.runs.values() if one is not run and one.steps()]
    found = effect_in(site, run, other) if run.steps() else None
    return site.render("effect.html", links, run=run, found=found, against=against, others=others)


def sentences(site: Site, links: Links, name: str) -> list[dict[str, str]]:
    """The sentences at the top of a run, each with the address of its data."""
    run = site.run(name)
    page = links.page(name, "effect")
    return [
        {"text": text, "href": f"{page}#{part}" if page else ""}
        for part, text in (effect_in(site, run).parts() if run.steps() else [])
    ]


def effect_in(site: Site, run: RunReader, other: RunReader | None = None) -> Effect:
    """Kept as long as no run has a new step. Reading all steps takes seconds, so no other page waits for it."""
    key = run.name, other.name if other else None
    stamp = run.steps(), other.steps() if other else None
    if site.effects.get(key, (None,))[0] != stamp:
        site.effects[key] = stamp, effect_of(run.directory, against=other.directory if other else None)
    return site.effects[key][1]
