"""What `r3 compare` says of the open runs, and of evaluations."""

from __future__ import annotations

from collections.abc import Sequence

from r3_openrlhf.comparison.arms import DEFAULT_REFERENCE, Comparison, compare
from r3_openrlhf.comparison.intervals import SeedEstimate, paired_difference
from r3_openrlhf.comparison.runs import read_run
from r3_openrlhf.comparison.table import reading, table_rows
from r3_openrlhf.method.errors import R3Error
from r3_openrlhf.view.evaluation_reader import EvaluationReader
from r3_openrlhf.view.links import Links
from r3_openrlhf.view.run_reader import RunReader
from r3_openrlhf.view.site import Site


def compare_page(site: Site, links: Links, names: Sequence[str] | None = None, reference: str = "") -> str:
    """The table of `r3 compare --unfinished`. names: runs; None: all. reference: an arm, "": grpo, or the first one."""
    runs = [site.run(name) for name in names] if names else list(site.library.runs.values())
    found, fault = comparison_of(runs, reference)
    return site.render(
        "compare.html",
        links,
        runs=runs,
        found=found,
        fault=fault,
        rows=table_rows(found) if found else [],
        reading=reading(found) if found else [],
    )


def comparison_of(runs: Sequence[RunReader], reference: str = "") -> tuple[Comparison | None, str | None]:
    """The comparison, or the sentence that says why there is none."""
    try:
        read = [read_run(run.path, unfinished=True) for run in runs]
        arms = sorted({run.arm for run in read})
        first = DEFAULT_REFERENCE if DEFAULT_REFERENCE in arms else arms[0]
        return compare(read, reference=reference or first), None
    except R3Error as error:
        return None, str(error)


def difference_of(a: EvaluationReader, b: EvaluationReader) -> SeedEstimate | None:
    """Pass@1 of b less that of a over the problems that both were asked, with Student's interval over problems."""
    shares = [{key: one.share for key, one in reader.problems().items() if one.share is not None} for reader in (b, a)]
    return paired_difference(*shares)
