"""`r3 compare`: runs of several arms and seeds -> one table, or the same as JSON."""

import json
from dataclasses import asdict

import click

from r3_openrlhf.method.errors import R3Error


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="RUN...")
@click.option("--reference", metavar="ARM", help="The arm that the others are compared with. [default: grpo]")
@click.option(
    "--target",
    type=click.FloatRange(0, 1),
    metavar="ACCURACY",
    help="Where mean curves have this held-out accuracy. [default: the mean final accuracy of the reference]",
)
@click.option("--unfinished", is_flag=True, help="Take runs that have not ended as far as they are.")
@click.option("--json", "as_json", is_flag=True, help="Print every number as JSON instead of the table.")
def compare(
    paths: tuple[str, ...],
    reference: str | None,
    target: float | None,
    unfinished: bool,
    as_json: bool,
) -> None:
    """Compare runs: held-out accuracy at equal generated tokens, with intervals over seeds.

    RUN is a run directory, or one that holds some. Runs of one arm (`arm`, else `algo`) differ in
    the seed only; all share data, model and evaluation. Others are refused.

    \b
    r3 compare runs/lab
    r3 compare runs/lab/* > comparison.md
    r3 compare runs/grpo_* runs/r3_* runs/r3_no_ccr_* --reference r3
    r3 compare runs/lab --target 0.5 --json > comparison.json
    """
    from r3_openrlhf.comparison.arms import compare as compare_runs
    from r3_openrlhf.comparison.runs import find_runs, read_run
    from r3_openrlhf.comparison.table import comparison_table

    if target is not None and target != target:
        raise R3Error("--target is nan; use an accuracy from 0 to 1")
    run_paths, without = find_runs(paths)
    for path in without:
        click.echo(f"Left out: there is no run in {path}", err=True)
    runs = [read_run(path, unfinished=unfinished) for path in run_paths]
    comparison = compare_runs(runs, reference=reference, target=target)
    if as_json:
        click.echo(json.dumps(asdict(comparison), indent=2, ensure_ascii=False, allow_nan=False))
    else:
        click.echo(comparison_table(comparison), nl=False)
