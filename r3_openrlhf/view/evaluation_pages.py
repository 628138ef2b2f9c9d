"""What `r3 eval` left: results, problems, responses; and two models on the same problems."""

from __future__ import annotations

from collections import Counter

from r3_openrlhf.view.compare_page import difference_of
from r3_openrlhf.view.evaluation_reader import pairs_of
from r3_openrlhf.view.links import Links
from r3_openrlhf.view.site import NotThere, Site


def evaluation_page(site: Site, links: Links, name: str) -> str:
    """The results of one `r3 eval`, and its problems."""
    reader = site.evaluation(name)
    asked = list(reader.problems().values())
    results, fault = reader.results()
    return site.render(
        "evaluation.html",
        links,
        evaluation=reader,
        results=results,
        fault=fault,
        asked=sorted(asked, key=lambda one: (one.benchmark, one.share if one.share is not None else -1.0)),
        statements={(one.benchmark, one.uid): site.statement(one.uid) for one in asked},
        others=[other for other in site.library.evaluations.values() if other is not reader],
    )


def sample_page(site: Site, links: Links, name: str, benchmark: str, uid: str) -> str:
    """The responses to one problem of an evaluation, and next to them those of another one."""
    own = site.evaluation(name)
    if (benchmark, uid) not in own.problems():
        raise NotThere(f"{name} was not asked a problem {uid} of {benchmark}")
    others = [
        one for one in site.library.evaluations.values() if one is not own and (benchmark, uid) in one.problems()
    ]
    return site.render(
        "sample.html",
        links,
        evaluation=own,
        benchmark=benchmark,
        uid=uid,
        statement=site.statement(uid),
        sides=[(reader, reader.responses(benchmark, uid)) for reader in [own, *others][:2]],
    )


def pairs_page(site: Site, links: Links, a: str, b: str) -> str:
    """Two evaluations on the problems that both were asked."""
    readers = site.evaluation(a), site.evaluation(b)
    pairs = pairs_of(*readers)
    return site.render(
        "pairs.html",
        links,
        a=readers[0],
        b=readers[1],
        pairs=pairs,
        counts=Counter(pair.kind for pair in pairs),
        difference=difference_of(*readers),
        statements={pair.uid: site.statement(pair.uid) for pair in pairs},
    )
