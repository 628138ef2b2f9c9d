"""The pages of evaluations: results, responses to a problem, two models on the same problems."""

from collections import Counter

from r3_openrlhf.view.evaluation import Pair, difference_of
from r3_openrlhf.view.library import Library
from r3_openrlhf.view.rendering import render


def evaluation_page(library: Library, name: str) -> str:
    """Render the results of one `r3 eval`, and its problems."""
    reader = library.evaluation(name)
    problems = list(reader.problems().values())
    results, fault = reader.results()
    return render(
        "evaluation.html",
        evaluation=reader,
        results=results,
        fault=fault,
        problems=sorted(
            problems,
            key=lambda problem: (
                problem.benchmark,
                -1.0 if problem.share is None else problem.share,
            ),
        ),
        statements={
            (problem.benchmark, problem.uid): library.statement(problem.uid)
            for problem in problems
        },
        others=[
            (other, len(other.problems().keys() & reader.problems().keys()))
            for other in library.evaluations.values()
            if other is not reader
        ],
    )


def sample_page(library: Library, name: str, benchmark: str, uid: str) -> str:
    """Render the responses to one problem of an evaluation, and next to them those of another one."""
    reader = library.evaluation(name)
    asked = [
        other for other in library.evaluations.values() if (benchmark, uid) in other.problems()
    ]
    others = [other for other in asked if other is not reader]
    return render(
        "sample.html",
        evaluation=reader,
        benchmark=benchmark,
        uid=uid,
        statement=library.statement(uid),
        sides=[(side, side.responses(benchmark, uid)) for side in [reader, *others][:2]],
    )


def pairs_page(library: Library, a: str, b: str) -> str:
    """Two evaluations on the problems that both were asked, those that differ most first."""
    readers = library.evaluation(a), library.evaluation(b)
    of_b = readers[1].problems()
    pairs = [
        Pair(problem, of_b[key])
        for key, problem in readers[0].problems().items()
        if key in of_b
    ]
    return render(
        "pairs.html",
        a=readers[0],
        b=readers[1],
        pairs=sorted(
            pairs, key=lambda pair: -abs((pair.a.share or 0.0) - (pair.b.share or 0.0))
        ),
        counts=Counter(pair.kind for pair in pairs),
        difference=difference_of(*readers),
        statements={pair.a.uid: library.statement(pair.a.uid) for pair in pairs},
    )
