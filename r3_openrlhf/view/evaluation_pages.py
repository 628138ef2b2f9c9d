"""The pages of evaluations: results, responses to a problem, two models on the same problems."""

from __future__ import annotations

from collections import Counter

from r3_openrlhf.view.evaluation import difference_of, pairs_of
from r3_openrlhf.view.library import Library
from r3_openrlhf.view.rendering import render
from r3_openrlhf.view.run_reader import NotThere


def evaluation_page(library: Library, name: str) -> str:
    """The results of one `r3 eval`, and its problems."""
    reader = library.evaluation(name)
    problems = list(reader.problems().values())
    results, fault = reader.results()
    return render(
        "evaluation.html",
        evaluation=reader,
        results=results,
        fault=fault,
        problems=sorted(
            problems, key=lambda problem: (problem.benchmark, -1.0 if problem.share is None else problem.share)
        ),
        statements={(problem.benchmark, problem.uid): library.statement(problem.uid) for problem in problems},
        others=[other for other in library.evaluations.values() if other is not reader],
    )


def sample_page(library: Library, name: str, benchmark: str, uid: str) -> str:
    """The responses to one problem of an evaluation, and next to them those of another one."""
    reader = library.evaluation(name)
    if (benchmark, uid) not in reader.problems():
        raise NotThere(f"{name} was not asked a problem {uid} of {benchmark}")
    others = [
        other for other in library.evaluations.values() if other is not reader and (benchmark, uid) in other.problems()
    ]
    return render(
        "sample.html",
        evaluation=reader,
        benchmark=benchmark,
        uid=uid,
        statement=library.statement(uid),
        sides=[(side, side.responses(benchmark, uid)) for side in [reader, *others][:2]],
    )


def pairs_page(library: Library, a: str, b: str) -> str:
    """Two evaluations on the problems that both were asked."""
    readers = library.evaluation(a), library.evaluation(b)
    pairs = pairs_of(*readers)
    return render(
        "pairs.html",
        a=readers[0],
        b=readers[1],
        pairs=pairs,
        counts=Counter(pair.kind for pair in pairs),
        difference=difference_of(*readers),
        statements={pair.uid: library.statement(pair.uid) for pair in pairs},
    )
