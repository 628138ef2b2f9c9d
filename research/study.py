"""Arms x seeds, each a run of its own, several processes side by side. A finished run is not run again."""

from __future__ import annotations

import multiprocessing
import os
import re
import shlex
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from r3_openrlhf.config.loading import check_keys
from r3_openrlhf.method.errors import ConfigError, quoted
from r3_openrlhf.runs.directory import RunDirectory
from r3_openrlhf.runs.models.locate import resolve_model
from research import evidence, load

CONTROLS = (
    "r3_shuffled_replay",
    "r3_known_successes",
    "r3_recall_successes",
    "r3_free_collapsed",
    "r3_known_free",
    "r3_shuffled_teacher",
    "r3_supervised_lessons",
)
# arm -> what it sets on top of r3: the paper's ablations
ABLATIONS = {
    "r3_no_ccr": "replay.enabled=false",
    "r3_no_isr": "reflection.enabled=false",
    "r3_no_serr": "ranking.enabled=false",
}
ARMS = ("grpo", "dapo", "r3", *ABLATIONS)
SEEDS = (1, 2, 3, 4, 5)
SET_BY_THE_STUDY = ("algo", "arm", "run_dir", "train.seed")


@dataclass(frozen=True, slots=True)
class Arm:
    """A preset or a control under a name of its own, with settings of its own."""

    name: str
    preset: str
    settings: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Arm:
        """ "NAME=PRESET KEY=VALUE ...", or a preset alone, which is its own name.

        ConfigError: a name that cannot be part of a directory, a part that sets nothing, a key that a study sets itself.
        """
        try:
            parts = shlex.split(text)
        except ValueError as error:
            raise ConfigError(
                f"the arm {quoted(text)} cannot be read: {error}; use NAME=PRESET KEY=VALUE ..."
            ) from error
        name, _, preset = parts[0].partition("=") if parts else ("", "", "")
        settings = parts[1:]
        if not re.fullmatch(r"\w[\w.+-]*", name):
            raise ConfigError(
                f"the arm {quoted(text)} has no usable name; begin with NAME=PRESET, a name of letters and digits"
            )
        for setting in settings:
            key, equals, _ = setting.partition("=")
            if not equals:
                raise ConfigError(
                    f"the arm {quoted(text)} holds {quoted(setting)}, which sets nothing; use KEY=VALUE"
                )
            if key in SET_BY_THE_STUDY:
                raise ConfigError(
                    f"the arm {quoted(text)} sets {key}, which the study sets itself; leave it out"
                )
        return cls(name, preset or name, tuple(settings))


def settings_of(
    experiment: str, arm: Arm | str, seed: int, directory: Path, overrides: Iterable[str]
) -> list[str]:
    """The settings of a run as `load` takes them, the experiment first. The arm's own settings win over `overrides`."""
    arm = Arm.parse(arm) if isinstance(arm, str) else arm
    # a control is no algorithm: run_one finds it by the name of the arm
    preset = [
        f"algo={'r3' if arm.preset in (*CONTROLS, *ABLATIONS) else arm.preset}",
        f"arm={arm.name}",
    ]
    preset += [ABLATIONS[arm.preset]] if arm.preset in ABLATIONS else []
    run_dir = f"run_dir={directory / f'{arm.name}-{seed}'}"
    return [experiment, *preset, f"train.seed={seed}", *overrides, *arm.settings, run_dir]


def run_one(settings: list[str], control: str | None = None) -> str:
    """One run on one thread, in a process of its own; `control`: one of CONTROLS."""
    import torch

    from research.controls import LAB_OF_CONTROL
    from research.loop import Lab
    from research.partial import PartialLab

    torch.set_num_threads(1)
    config = load(settings[0], settings[1:])
    lab: type[Lab] = Lab
    if control:
        lab = LAB_OF_CONTROL[control]
    elif config.rollout.partial:
        lab = PartialLab
    return str(lab(config).train().path)


def run_study(
    experiment: str,
    *,
    arms: Iterable[Arm | str],
    seeds: Iterable[int],
    directory: Path,
    jobs: int,
    overrides: Iterable[str] = (),
    keep: Path | None = None,
    tuning: bool = False,
    done: Callable[[str, int, int], None] = lambda path, number, of: None,
) -> list[str]:
    """Run what has not been run; returns the run directories, arm by arm. `done(path, number, of)` is called as runs end.

    Every configuration is checked before the first run starts. A run that fails stops the study with its error;
    what has finished stays, and the same call goes on from there. `keep`: a file of evidence that gets each run;
    a run that is in it is not run again, and is not in the result. `tuning`: see Evidence.

    Raises R3Error as `evidence.is_in` and `evidence.write` do.
    """
    overrides, seeds = list(overrides), list(seeds)
    wanted = [Arm.parse(arm) if isinstance(arm, str) else arm for arm in arms]
    twice = [name for name, count in Counter(arm.name for arm in wanted).items() if count > 1]
    if twice:
        raise ConfigError(
            f"there are several arms called {twice[0]}; give each a name of its own, NAME=PRESET KEY=VALUE ..."
        )
    pairs = [(arm, seed) for arm in wanted for seed in seeds]
    todo = [settings_of(experiment, arm, seed, directory, overrides) for arm, seed in pairs]
    controls = [arm.preset if arm.preset in CONTROLS else None for arm, _ in pairs]
    configs = [load(settings[0], settings[1:]) for settings in todo]
    for (arm, _), config in zip(pairs, configs, strict=True):
        check_keys(config, (setting.partition("=")[0] for setting in arm.settings))
    records = [] if keep is None else evidence.read(keep)
    kept = [
        keep is not None and evidence.is_in(records, config, file=keep, tuning=tuning)
        for config in configs
    ]
    for path in {
        config.model.path for config, is_kept in zip(configs, kept, strict=True) if not is_kept
    }:
        resolve_model(path)  # once, before several processes would build it
    # "spawn": a forked child inherits torch's threads in whatever state they are
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        max_workers=jobs, mp_context=spawn, initializer=_end_with_the_study
    ) as pool:
        # seed by seed: a study that is stopped early has every arm of the seeds that it has
        by_seed = sorted(range(len(pairs)), key=lambda i: seeds.index(pairs[i][1]))
        futures = [pool.submit(run_one, todo[i], controls[i]) for i in by_seed if not kept[i]]
        try:
            for number, future in enumerate(as_completed(futures), start=1):
                path = future.result()
                if keep is not None:
                    evidence.add(keep, RunDirectory.open(path), tuning=tuning)
                done(path, number, len(futures))
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    return [
        config.run_dir for config, is_kept in zip(configs, kept, strict=True) if not is_kept
    ]


def _end_with_the_study() -> None:
    """End this worker as soon as the study's process is gone. Otherwise it would continue its run next to
    the next study of the same directory, which starts an unfinished run again."""
    study = multiprocessing.parent_process()
    if study is None:
        raise RuntimeError("a worker of a study is a process of its own")

    def end() -> None:
        study.join()
        os._exit(1)

    threading.Thread(target=end, daemon=True).start()
