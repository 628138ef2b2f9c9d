"""A moving average of the policy's weights, behind which a teacher's prompts are scored (distill.teacher=average).

    e <- e + rate (theta - e)          after each step's update, as SDPO's code; e begins as theta

Not upstream's train.enable_ema (ppo_actor.py:367, deepspeed.py:503): its average is in bfloat16, where a small
step rounds to none; it counts micro-batches, whose number differs from step to step here; no checkpoint keeps
it; and save_model (ppo_actor.py:608) would save it in place of the policy.

e is in float32 in host memory. Under ZeRO 3 each rank keeps that of its own shard, else whole parameters in
turn, so that all ranks together keep it once: 4 bytes a trained parameter."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from deepspeed import DeepSpeedEngine

from r3_openrlhf.method.errors import TrainingStopped

FOLDER = "_average"  # next to _actor: OpenRLHF counts every folder in there as a checkpoint


class AverageTeacher:
    """The average of a DeepSpeed engine's trained parameters. Every rank calls each method."""

    def __init__(self, engine: DeepSpeedEngine, *, rate: float) -> None:
        self.engine, self.rate = engine, rate
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.is_sharded = engine.zero_optimization_stage() == 3
        self.begin_again()

    def begin_again(self) -> None:
        """Let the average be today's weights."""
        self.average = {
            name: stored.detach().to("cpu", torch.float32, copy=True)
            for name, stored in self._own()
        }

    @torch.no_grad()
    def update(self) -> None:
        """Move the average towards today's weights."""
        for name, stored in self._own():
            self.average[name].lerp_(stored.to("cpu", torch.float32), self.rate)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Let the model have the average's weights in the block."""
        policy = {name: stored.detach().to("cpu", copy=True) for name, stored in self._own()}
        self._put(self.average)
        try:
            yield
        finally:
            self._put(policy)

    # ── checkpoints ──

    def save(self, checkpoints: Path, tag: str) -> None:
        """Write this rank's part; call it before the checkpoint, so that there is none without it."""
        file = self._file(checkpoints, tag)
        file.parent.mkdir(parents=True, exist_ok=True)
        begun = file.with_suffix(".begun")
        torch.save({"ranks": self.ranks, "average": self.average}, begun)
        os.replace(begun, file)
        dist.barrier()

    def load(self, checkpoints: Path, tag: str) -> None:
        """Read what `save` wrote. TrainingStopped: it is missing, damaged, or of other ranks."""
        file = self._file(checkpoints, tag)
        try:
            found = torch.load(file, map_location="cpu", weights_only=True)
            average = found["average"]
            fits = found["ranks"] == self.ranks and _shapes(average) == _shapes(self.average)
        except FileNotFoundError as error:
            raise TrainingStopped(
                f"the checkpoint {tag} has no average for distill.teacher=average ({file}); continue as the run "
                "was, or choose another run_dir"
            ) from error
        except Exception as error:  # torch.load raises whatever a damaged file leads to
            raise TrainingStopped(
                f"{file}, the teacher's average, is damaged: {str(error)[:80]}; restore it from a copy, or choose "
                "another run_dir"
            ) from error
        if not fits:
            raise TrainingStopped(
                f"{file}, the teacher's average, is of another model or number of ranks; continue as the run was"
            )
        self.average = average

    def _file(self, checkpoints: Path, tag: str) -> Path:
        return checkpoints / FOLDER / tag / f"rank{self.rank}.pt"

    # ── weights ──

    def _trained(self) -> list[tuple[str, torch.nn.Parameter]]:
        return [
            (name, parameter)
            for name, parameter in self.engine.module.named_parameters()
            if parameter.requires_grad
        ]

    def _own(self) -> list[tuple[str, torch.Tensor]]:
        """Return what this rank keeps the average of: its shard of every parameter, or every n-th parameter."""
        if self.is_sharded:
            return [(name, parameter.ds_tensor.data) for name, parameter in self._trained()]
        return [
            (name, parameter.data)
            for place, (name, parameter) in enumerate(self._trained())
            if place % self.ranks == self.rank
        ]

    @torch.no_grad()
    def _put(self, values: Mapping[str, torch.Tensor]) -> None:
        """Write the values of `_own` into the model of every rank."""
        if self.is_sharded:
            # what is gathered would hide a shard that is written (persistent parameters)
            self.engine.empty_partition_cache()
        for name, stored in self._own():
            stored.copy_(values[name])
        if not self.is_sharded and self.ranks > 1:
            for place, (_, parameter) in enumerate(self._trained()):
                dist.broadcast(parameter.data, src=place % self.ranks)


def forget_superseded(checkpoints: Path) -> None:
    """Delete the averages whose checkpoints are gone."""
    for folder in (checkpoints / FOLDER).glob("*"):
        if not (checkpoints / "_actor" / folder.name).is_dir():
            shutil.rmtree(folder)


def _shapes(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in tensors.items()}
