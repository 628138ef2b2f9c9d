"""Arms x seeds, each a run of its own, several processes side by side. A finished run is not run again."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from r3_openrlhf.config_loading import load_config
from r3_openrlhf.models.locate import resolve_model
from r3_openrlhf.runs.directory import RunDirectory

CONTROLS = ("r3_shuffled_replay", "r3_known_successes", "r3_recall_successes")
ARMS = ("grpo", "dapo", "r3", "r3_no_ccr", "r3_no_isr", "r3_no_serr")
SEEDS = (1, 2, 3, 4, 5)


def settings_of(experiment: str, arm: str, seed: int, directory: Path, overrides: Iterable[str]) -> list[str]:
    """What `r3 train` would be given for this run, the experiment first."""
    # a control is no algorithm: only the lab has it
    preset = [f"algo={'r3' if arm in CONTROLS else arm}", f"arm={arm}"]
    return [experiment, *preset, f"train.seed={seed}", *overrides, f"run_dir={directory / f'{arm}-{seed}'}"]


def run_one(settings: list[str]) -> str:
    """One run on one thread, in a process of its own."""
    import torch

    from r3_openrlhf.lab.controls import LAB_OF_CONTROL
    from r3_openrlhf.lab.loop import Lab

    torch.set_num_threads(1)
    config = load_config(settings[0], settings[1:])
    return str(LAB_OF_CONTROL.get(config.arm or "", Lab)(config).train().path)


def run_study(
    experiment: str,
    *,
    arms: Iterable[str],
    seeds: Iterable[int],
    directory: Path,
    jobs: int,
    overrides: Iterable[str] = (),
    done: Callable[[str, int, int], None] = lambda path, number, of: None,
) -> list[str]:
    """The run directories, arm by arm. `done(path, number, of)` is called as runs end.

    Every configuration is checked before the first run starts. A run that fails stops the study with its error;
    what has finished stays, and the same call goes on from there.
    """
    overrides = list(overrides)
    todo = [settings_of(experiment, arm, seed, directory, overrides) for arm in arms for seed in seeds]
    configs = [load_config(settings[0], settings[1:]) for settings in todo]
    for path in {config.model.path for config in configs}:
        resolve_model(path)  # once, before several processes would build it
    # "spawn": a forked child inherits torch's threads in whatever state they are
    with ProcessPoolExecutor(max_workers=jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        futures = [pool.submit(run_one, settings) for settings in todo]
        try:
            for number, future in enumerate(as_completed(futures), start=1):
                done(future.result(), number, len(futures))
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    return [str(RunDirectory(config.run_dir).path) for config in configs]
