"""`r3 submit`: jobs on clusters."""

import json
import os
import re
import shlex
import shutil
import sys
from dataclasses import asdict
from pathlib import Path

import click

from r3_openrlhf.config import R3Config
from r3_openrlhf.method.errors import ConfigError, quoted, without_secrets


@click.group()
def submit() -> None:
    """Train on a cluster: Slurm, or Ray jobs."""


@submit.command()
@click.argument("settings", nargs=-1, metavar="experiment=NAME [KEY=VALUE]...")
@click.option(
    "--nodes",
    type=click.IntRange(1),
    help="Nodes; sets cluster.num_nodes. Default: the experiment's.",
)
@click.option("--partition")
@click.option("--account")
@click.option("--qos")
@click.option("--time", help="Time limit, as sbatch takes it: 24:00:00.")
@click.option("--gres", help="Instead of --gpus-per-node=N, like gpu:h100:8.")
@click.option(
    "--cpus-per-task", type=click.IntRange(1), help="CPU cores per node. Default: by its GPUs."
)
@click.option(
    "--mem",
    help="Memory per node, as sbatch takes it: 200G; 0: all of it. Default: what `r3 plan` says.",
)
@click.option("--exclusive", is_flag=True, help="Whole nodes, with all their cores and memory.")
@click.option("--container", help="A .sif file (Apptainer) or an image for pyxis.")
@click.option("--mounts", help="HOST:CONTAINER,...; the run directory is added.")
@click.option("--prologue", help="A file that the job sources first.")
@click.option("--ray-args", help="Further arguments of `ray start` on every node.")
@click.option("--seeds", help="1,2,3: a job array, one run per seed in run_dir/seedN.")
@click.option("--after", help="ID of a job; start after it ends, with any exit status.")
@click.option(
    "--sbatch",
    "sbatch_options",
    multiple=True,
    metavar="OPTION",
    help="A further line #SBATCH OPTION.",
)
@click.option(
    "--template",
    help="A template of your own instead of r3_openrlhf/operations/cluster/templates/slurm.sh.j2.",
)
@click.option("--dry-run", is_flag=True, help="Write and print the job script; submit nothing.")
def slurm(
    settings: tuple[str, ...], nodes: int | None, seeds: str | None, dry_run: bool, **given
) -> None:
    """Write a job script into the run directory and submit it. A preempted job continues by itself.

    \b
    r3 submit slurm experiment=r3_7b_deepscaler_multinode --nodes 4 --time 24:00:00
    r3 submit slurm experiment=r3_1p5b_deepscaler_8gpu --seeds 1,2,3 --partition gpu --account me

    Partition, account, prologue and so on can be in ~/.config/r3/site.yaml (or R3_SITE's file).
    """
    from r3_openrlhf.operations.cluster import slurm as jobs
    from r3_openrlhf.operations.cluster import submissions
    from r3_openrlhf.operations.cluster.site import load_site

    config, plain = checked(settings, nodes)
    wanted = jobs.seeds_of(seeds)
    site = load_site()
    chosen = {name: given[name] or getattr(site, name) for name in site.__dataclass_fields__}
    job = jobs.SlurmJob(
        nodes=config.cluster.num_nodes,
        settings=plain,
        seeds=wanted,
        after=given["after"],
        exclusive=given["exclusive"],
        sbatch_options=given["sbatch_options"],
        environment=jobs.forwarded(os.environ),
        written_by=f"r3 {shlex.join(sys.argv[1:])}",
        **chosen,
    )
    if (warning := jobs.ask_for_resources(job, config)) is not None:
        click.echo(f"Warning: {warning}", err=True)
    text = jobs.render(job, config)
    script = jobs.script_of(config)
    from r3_openrlhf.runs.directory import RunDirectory, write_whole

    try:
        RunDirectory(script.parent.parent).make()
        script.parent.mkdir(exist_ok=True)
        write_whole(script, text, mode=0o600)
    except OSError as error:
        raise ConfigError(
            f"run_dir {script.parent.parent} cannot be written: {error.strerror}"
        ) from error
    if dry_run:
        click.echo(without_secrets(text), nl=False)
        click.echo(f"Not submitted: {script}", err=True)
        return
    number = jobs.sbatch(script)
    submissions.note(
        config.run_dir, {"job": number, "seeds": wanted} if wanted else {"job": number}
    )
    log = script.with_name(f"slurm-{number}_N.log" if seeds else f"slurm-{number}.log")
    click.echo(number)
    click.echo(
        f"Job {number}: {script}\n"
        f"  follow  tail -F {log}\n"
        f"  status  r3 status {config.run_dir}\n"
        f"  stop    scancel {number}              (scancel --signal=USR1 {number}: after a checkpoint, and it continues)\n"
        f"  resume  sbatch {script}",
        err=True,
    )


def checked(settings: tuple[str, ...], nodes: int | None) -> tuple[R3Config, list[str]]:
    """Check the settings now, not in the job: raises ConfigError. Returns the run's configuration,
    and the settings without run_dir and cluster.num_nodes."""
    from r3_openrlhf.config.loading import load_config, split_settings

    if nodes is not None:
        settings = (*settings, f"cluster.num_nodes={nodes}")
    config = load_config(*split_settings(settings, command="submit"))
    if not config.run_dir.isprintable():
        raise ConfigError(
            f"run_dir is {quoted(config.run_dir)}; use a path without control characters"
        )
    plain = [
        setting
        for setting in settings
        if not setting.startswith(("run_dir=", "cluster.num_nodes="))
    ]
    return config, plain


@submit.command()
@click.argument("settings", nargs=-1, metavar="experiment=NAME [KEY=VALUE]...")
@click.option(
    "--address", envvar="RAY_API_SERVER_ADDRESS", help="The dashboard, like http://HOST:8265."
)
@click.option(
    "--nodes",
    type=click.IntRange(1),
    help="Nodes; sets cluster.num_nodes. Default: the experiment's.",
)
@click.option(
    "--manifest", is_flag=True, help="Print a RayJob for KubeRay instead; submit nothing."
)
@click.option("--image", help="With --manifest: the image of all pods.")
@click.option("--claim", help="With --manifest: the PersistentVolumeClaim that holds run_dir.")
@click.option(
    "--mount", help="With --manifest: where the claim is mounted; run_dir is below it."
)
@click.option("--wait", is_flag=True, help="Wait for the job; exit with its exit code.")
@click.option("--dry-run", is_flag=True, help="Print the job's command; submit nothing.")
def ray(
    settings: tuple[str, ...],
    address: str | None,
    nodes: int | None,
    manifest: bool,
    wait: bool,
    dry_run: bool,
    **kubernetes: str | None,
) -> None:
    """Submit a run to an existing Ray cluster. run_dir must be on storage that its nodes share.

    \b
    r3 submit ray experiment=r3_1p5b_deepscaler_8gpu run_dir=/shared/r3 --address http://HOST:8265
    r3 submit ray experiment=r3_1p5b_deepscaler_8gpu run_dir=/runs/r3 --manifest --image IMAGE --claim runs --mount /runs
    """
    from r3_openrlhf.operations.cluster import ray_jobs
    from r3_openrlhf.operations.cluster.slurm import forwarded

    config, plain = checked(settings, nodes)
    plain.append(f"cluster.num_nodes={config.cluster.num_nodes}")
    if wait and (manifest or dry_run):
        raise ConfigError("--wait needs a job; leave out --manifest and --dry-run")
    if manifest:
        _print_manifest(config, plain, **kubernetes)
        return
    if dry_run:
        click.echo(without_secrets(ray_jobs.entrypoint(config, plain)))
        return
    if not address:
        raise ConfigError(
            "no Ray dashboard is given; use --address http://HOST:8265 or set RAY_API_SERVER_ADDRESS"
        )
    job = ray_jobs.submit(config, plain, address=address, environment=forwarded(os.environ))
    click.echo(job)
    click.echo(
        f"Job {job} at {address}\n"
        f"  follow  ray job logs --address {address} --follow {job}\n"
        f"  status  ray job status --address {address} {job}\n"
        f"  stop    ray job stop --address {address} {job}     (after its step and a checkpoint)\n"
        f"  resume  the same command",
        err=True,
    )
    if wait:
        end = ray_jobs.wait(job, address=address)
        click.echo(f"Error: {end.sentence}" if end.code else end.sentence, err=True)
        sys.exit(end.code)


def _print_manifest(config: R3Config, plain: list[str], **kubernetes: str | None) -> None:
    from r3_openrlhf.operations.cluster import ray_jobs
    from r3_openrlhf.operations.cluster.slurm import cores_of, forwarded, job_name, planned_gib

    if missing := [f"--{name}" for name, value in kubernetes.items() if not value]:
        raise ConfigError(f"--manifest needs {' and '.join(missing)} too")
    if not Path(config.run_dir).is_relative_to(kubernetes["mount"] or ""):
        raise ConfigError(
            f"run_dir {config.run_dir} is not below --mount {kubernetes['mount']}"
        )
    environment = forwarded(os.environ)
    environment.pop("PYTHONPATH", None)  # of this machine
    memory = None
    try:
        memory = planned_gib(config)
    except ConfigError as error:
        click.echo(
            f"Warning: there is no plan: {error}; add memory to the worker pods' requests",
            err=True,
        )
    name = re.sub(r"[^a-z0-9]+", "-", job_name(config).lower())[:40].strip("-")
    needs = {"name": name, "cores": cores_of(config), "memory": memory}
    text = ray_jobs.manifest(config, plain, environment=environment, **kubernetes, **needs)
    if without_secrets(text) != text:
        click.echo(
            "Left out: the passwords of URLs; give the pods R3_REWARD_TOKEN from a Secret instead",
            err=True,
        )
    click.echo(without_secrets(text))


@click.command()
@click.argument("runs", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--all",
    "below",
    is_flag=False,
    flag_value="runs",
    help="Every run below this folder (runs).",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="One JSON object per line and run, with nothing rounded.",
)
def status(runs: tuple[Path, ...], below: str | None, as_json: bool) -> None:
    """Show the state of runs: step, reward, held-out accuracy, time left, checkpoint, job and end.

    In a pipe it prints one record a line, with tabs between the columns.

    \b
    r3 status runs/quickstart
    r3 status --all
    """
    from r3_openrlhf.operations.cluster.status import find_runs, status_of, status_page
    from r3_openrlhf.operations.cluster.submissions import runs_of
    from r3_openrlhf.runs.group_report import tab_separated

    paths = [
        *(run for path in runs for run in runs_of(path)),
        *(find_runs(Path(below)) if below else []),
    ]
    if not paths:
        raise ConfigError(
            f"there is no run below {below}" if below else "name a run directory, or use --all"
        )
    statuses = [status_of(path) for path in paths]
    records = list(map(asdict, statuses))
    if as_json:
        for record in records:
            click.echo(json.dumps(record))
    elif not sys.stdout.isatty():
        click.echo(tab_separated(records), nl=False)
    else:
        click.echo(status_page(statuses, width=shutil.get_terminal_size().columns))
