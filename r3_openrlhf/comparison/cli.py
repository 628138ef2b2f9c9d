"""`r3 compare`: runs of several arms and seeds -> one table, one JSON file, plots."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from r3_openrlhf.config.shell_completion import complete_runs
from r3_openrlhf.method.errors import R3Error


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="RUN...", shell_complete=complete_runs)
@click.option("--reference", metavar="ARM", help="The arm that the others are compared with. [default: grpo]")
@click.option(
    "--target",
    type=click.FloatRange(0, 1),
    metavar="ACCURACY",
    help="Where mean curves have this held-out accuracy. [default: the mean final accuracy of the reference]",
)
@click.option("--out", type=click.Path(path_type=Path), help="Write comparison.md, comparison.json and plots there.")
@click.option("--unfinished", is_flag=True, help="Take runs that have not ended as far as they are.")
@click.option("--json", "as_json", is_flag=True, help="The content of comparison.json on stdout instead of the table.")
def compare(
    paths: tuple[str, ...],
    reference: str | None,
    target: float | None,
    out: Path | None,
    unfinished: bool,
    as_json: bool,
) -> None:
    """Compare runs: held-out accuracy at equal generated tokens, with intervals over seeds.

    RUN is a run directory, or one that holds some. Runs of one arm (`arm`, else `algo`) differ in
    the seed only; all share data, model and evaluation. Others are refused.

    \b
    r3 compare runs/lab
    r3 compare runs/lab/* --out runs/lab/comparison
    r3 compare runs/grpo_* runs/r3_* runs/r3_no_ccr_* --reference r3
    r3 compare runs/lab --target 0.5 --json
    """
    from r3_openrlhf.comparison.arms import compare as compare_runs
    from r3_openrlhf.comparison.runs import find_runs, read_run
    from r3_openrlhf.comparison.table import comparison_table, details

    if target is not None and target != target:
        raise R3Error("--target is nan; use an accuracy from 0 to 1")
    run_paths, without = find_runs(paths)
    for path in without:
        click.echo(f"Left out: there is no run in {path}", err=True)
    runs = [read_run(path, unfinished=unfinished) for path in run_paths]
    comparison = compare_runs(runs, reference=reference, target=target)
    table = comparison_table(comparison)
    encoded = json.dumps(asdict(comparison), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    if out is not None:
        from r3_openrlhf.comparison.plots import plot  # matplotlib takes a second to load

        try:
            out.mkdir(parents=True, exist_ok=True)
            pictures = plot(runs, comparison, out)
            shown = "".join(f"![{Path(name).stem}]({name})\n" for name in pictures)
            document = f"# Comparison\n\n{table}\n## Plots\n\n{shown}\n{details(comparison)}"
            (out / "comparison.md").write_text(document, encoding="utf-8")
            (out / "comparison.json").write_text(encoded, encoding="utf-8")
        except OSError as error:
            raise R3Error(f"--out {out} cannot be written: {error.strerror}") from error
        for file in ("comparison.md", "comparison.json", *pictures):
            click.echo(out / file, err=True)
    click.echo(encoded if as_json else table, nl=False)
