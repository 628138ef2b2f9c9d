"""A checkpoint of one number of GPUs in a run of another: DeepSpeed's universal checkpoints.

Answers deepspeed/runtime/engine.py:4414 (`latest_universal` names the folder) and :4374, and
checkpoint/ds_to_universal.py, the program that makes one. It is made when the run continues and
removed when every rank has loaded it; what the run saves then is an ordinary checkpoint of its new
number of GPUs."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from r3_openrlhf.config import R3Config
from r3_openrlhf.method.errors import ConfigError, R3Error
from r3_openrlhf.runs.directory import RunDirectory
from r3_openrlhf.stack import safe_pickles

ACTOR = "_actor"
SHARDS = "*zero_pp_rank_*_mp_rank_00_optim_states.pt"  # engine.py:4196, one for each rank
POINTER = "latest_universal"
FOLDER = "_universal"  # next to _actor: OpenRLHF counts every folder in there as a checkpoint


def must_convert(config: R3Config, run: RunDirectory) -> bool:
    """Return True if another number of ranks saved the newest checkpoint. Raises ConfigError if so
    and this run could not load it."""
    tag = _tag(run)
    saved = len(list((run.checkpoints / ACTOR / tag).glob(SHARDS))) if tag else 0
    ranks = config.num_policy_ranks // (config.flag("ds.tensor_parallel_size") or 1)
    # ranks that share a sequence (ring attention) may have a shard each, or one together
    if saved in (0, ranks, ranks // (config.flag("ds.ring_attn_size") or 1)):
        return False
    reason = _hindrance(config)
    if reason:
        raise ConfigError(
            f"the newest checkpoint of run_dir {run.path} is of {saved} GPUs, {config.num_policy_ranks} are asked for, and {reason}. "
            f"Continue with {saved}, or start another run from its newest weights: run_dir=NEW model.path={run.newest_weights()} "
            "(with a new optimizer and an empty history)"
        )
    return True


def convert(run: RunDirectory) -> None:
    """Write the newest checkpoint again for any number of ranks: a float32 weight, two moments per
    parameter, 12 bytes of disk, twice while made. Resources as DeepSpeed's. R3Error: failed."""
    forget(run)
    actor, folder = run.checkpoints / ACTOR, run.checkpoints / FOLDER
    tag = _tag(run)
    program = [
        *(sys.executable, "-m", safe_pickles.__name__),
        *("deepspeed.checkpoint.ds_to_universal", "--inject_missing_state"),
    ]
    done = subprocess.run(
        [*program, f"--input_folder={actor / tag}", f"--output_folder={folder / tag}"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        # no GPU: it computes nothing, and they are the run's
        env={**os.environ, **safe_pickles.ENVIRONMENT, "CUDA_VISIBLE_DEVICES": ""},
    )
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()[-1]
        forget(run)
        raise R3Error(
            f"the checkpoint {actor / tag} could not be made one for another number of GPUs: {said}. Continue with its own number, or "
            f"start another run from its newest weights: run_dir=NEW model.path={run.newest_weights()}"
        )
    (actor / POINTER).write_text(os.path.join(os.pardir, FOLDER, tag))  # relative to the actor


def forget(run: RunDirectory) -> None:
    """Remove what `convert` wrote. Nothing happens where there is nothing."""
    (run.checkpoints / ACTOR / POINTER).unlink(missing_ok=True)
    if (run.checkpoints / FOLDER).is_dir():
        shutil.rmtree(run.checkpoints / FOLDER)


def _tag(run: RunDirectory) -> str:
    latest: Path = run.checkpoints / ACTOR / "latest"
    return latest.read_text(encoding="utf-8").strip() if latest.is_file() else ""


def _hindrance(config: R3Config) -> str | None:
    """Return why a checkpoint of this run fits one number of ranks only, as far as tried."""
    if config.algorithm.has_critic:
        return "this is untested with a critic"
    if config.distill.averages:
        return "each rank keeps its part of the average of distill.teacher"
    off = {
        "train.async_enable": 0,
        "ds.lora.rank": 0,
        "ds.tensor_parallel_size": 1,
        "ds.ring_attn_size": 1,
    }
    for flag, most in off.items():
        if (config.flag(flag) or 0) > most:
            return f"this is untested with openrlhf.{flag}"
    return None  # actor.optim is adam: flags.toml
