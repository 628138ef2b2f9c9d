"""`r3 compare`: runs of several arms and seeds -> one table, or the same as JSON."""

import json
from dataclasses import asdict

import click

from r3_openrlhf.method.errors import R3Error


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="RUN...")
@click.option(
    "--reference",
    metavar="ARM",
    help="The arm that the others are compared with. [default: grpo]",
)
@click.option(
    "--target",
    type=click.FloatRange(0, 1),
    metavar="ACCURACY",
    help="Where mean curves have this held-out accuracy. [default: the mean final accuracy of the reference]",
)
@click.option(
    "--unfinished", is_flag=True, help="Take runs that have not ended as far as they are."
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print every number as JSON instead of the table."
)
def compare(
    paths: tuple[str, ...],
    reference: str | None,
    target: float | None,
    unfinished: bool,
    as_json: bool,
) -> None:
    """Compare runs: held-out accuracy at equal generated tokens, with intervals over seeds.

    RUN is a run directory, or one that holds some. Runs of one arm (`arm`, else `algo`) differ in
    the seed only; all share data, model and evaluation. Others are refused. Or RUN is a directory of
    `r3 eval`: Pass@1 of several, and differences paired by problem.

    \b
    r3 compare runs/lab
    r3 compare runs/lab/* > comparison.md
    r3 compare runs/grpo_* runs/r3_* runs/r3_no_ccr_* --reference r3
    r3 compare runs/lab --target 0.5 --json > comparison.json
    r3 compare runs/evaluations/base runs/r3_1p5b/evaluations/final_model --reference base
    """
    from r3_openrlhf.comparison.arms import compare as compare_runs
    from r3_openrlhf.comparison.evaluations import compare_evaluations, find_evaluations
    from r3_openrlhf.comparison.runs import find_runs, read_run
    from r3_openrlhf.comparison.table import comparison_table, evaluations_table

    if target is not None and target != target:
        raise R3Error("--target is nan; use an accuracy from 0 to 1")
    if evaluations := find_evaluations(paths):
        if target is not None:
            raise R3Error(f"--target is {target}, but evaluations have no curves; leave it out")
        of_evaluations = compare_evaluations(evaluations, reference=reference)
        comparison, text = asdict(of_evaluations), evaluations_table(of_evaluations)
    else:
        run_paths, without = find_runs(paths)
        for path in without:
            click.echo(f"Left out: there is no run in {path}", err=True)
        of_runs = compare_runs(
            [read_run(path, unfinished=unfinished) for path in run_paths],
            reference=reference,
            target=target,
        )
        comparison, text = asdict(of_runs), comparison_table(of_runs)
    click.echo(
        json.dumps(comparison, indent=2, ensure_ascii=False, allow_nan=False)
        if as_json
        else text,
        nl=as_json,
    )
