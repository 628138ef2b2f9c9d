"""The policy's Ray actor: exact token entropy in the pass that computes the old log-probs, and the
policy update of policy_update.py.

B rows, T tokens, A = T - 1 action positions, V vocabulary.
"""

import math
import socket
import time
from collections import deque
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import ray
import torch
from deepspeed.ops.op_builder import builder
from openrlhf.trainer.ray import ppo_actor
from peft import PeftModel

from r3_openrlhf.config.idle_rows import why_all_rows_stay
from r3_openrlhf.config.words import TokenValues
from r3_openrlhf.machine.gpus import expandable_segments
from r3_openrlhf.method.core.entropy import entropy_statistics, token_logprobs_and_entropy
from r3_openrlhf.method.errors import TrainingStopped
from r3_openrlhf.stack import lora, safe_pickles
from r3_openrlhf.stack.average_teacher import AverageTeacher, forget_superseded
from r3_openrlhf.stack.blocked_signals import keep_blocked
from r3_openrlhf.stack.chunked_actor import ChunkedActor
from r3_openrlhf.stack.environment import config_from_environment, on_cpu, use_share_of_cores
from r3_openrlhf.stack.expert_routing import ExpertRouting, RoutingCounts
from r3_openrlhf.stack.finite_advice import check_loaded
from r3_openrlhf.stack.kept_tokens import KeptTokens, TokensWanted
from r3_openrlhf.stack.label_logprobs import LogitsOf
from r3_openrlhf.stack.model_inputs import model_inputs, places_of
from r3_openrlhf.stack.phases import announce_builds
from r3_openrlhf.stack.policy_update import R3ActorTrainer, scaled_rate, supervised_loss
from r3_openrlhf.stack.step_warnings import ASLEEP
from r3_openrlhf.stack.taught_actor import TaughtActor

# trainer/ray/ppo_actor.py:475: the name is a Ray actor; this is the decorated class
UpstreamPolicyActor: Any = (
    ppo_actor.PolicyModelActor.__ray_metadata__.modified_class.__ray_actor_class__
)


class EntropyPass(NamedTuple):
    """Measurements of one forward pass."""

    statistics_B2: torch.Tensor  # (peak, global) in nats, NaN for rows that did not ask
    seconds: float  # spent on entropy
    # row -> float16 [T], nats; empty with logging.token_values=none
    tokens: dict[int, np.ndarray]


class R3PolicyActor(UpstreamPolicyActor):
    """Upstream's, updated by R3ActorTrainer. It measures exact entropy with the old log-probs, says when
    DeepSpeed compiles operators, may make logits in chunks, merges an adapter for engines and saved
    models (lora.py), and gives its routers the engine's experts (expert_routing.py)."""

    _routing: ExpertRouting | None = None

    def init_model_from_pretrained(self, *args, **kwargs):
        """Initialize as upstream does (ppo_actor.py:495), with R3ActorTrainer; a ChunkedActor if
        train.logits_chunk_tokens is set."""
        keep_blocked()
        use_share_of_cores()
        config = config_from_environment()
        if not on_cpu() and not config.is_async and (why := expandable_segments()) is not None:
            raise TrainingStopped(f"on {socket.gethostname()} {why}")
        safe_pickles.allow_deepspeed()
        announce_builds(builder)
        distill = config.distill
        # ppo_actor.py:513 takes the global name
        if config.train.logits_chunk_tokens is not None:
            ppo_actor.Actor = ChunkedActor
        elif distill.enabled and distill.compares_logits:
            ppo_actor.Actor = TaughtActor
        ppo_actor.ActorPPOTrainer = R3ActorTrainer  # as :571 does
        self._peak_fraction = config.ranking.peak_fraction
        self._keeps_tokens = config.logging.token_values != TokenValues.NONE
        self._wanted: deque[tuple[list[bool], bool]] = deque()
        self._entropy: list[EntropyPass] = []
        self._wanted_tokens: deque[list[TokensWanted]] = deque()
        self._kept_tokens: list[KeptTokens] = []
        super().init_model_from_pretrained(*args, **kwargs)
        flags = self.strategy.args
        check_loaded(
            self.actor.model.module, flags, folder="_actor", path=flags.actor.model_name_or_path
        )
        self.trainer.use_loss(
            config.loss, config.loss_settings, config.train.correction.resolved
        )
        if distill.enabled and distill.compares_logits:
            self.trainer.use_teacher(distill)
        self.trainer.replay_buffer.rows_per_update = config.train.rows_per_update
        self.trainer.skips_idle = why_all_rows_stay(config) is None
        self._teacher_in_place = ExitStack()
        if distill.averages:
            self._start_average(distill.update_rate)
        if config.rollout.routing_replay:
            self._replay_routing()
        self._adapted = self.strategy._unwrap_model(self.actor)
        self._merge_loss = lora.MergeLoss()  # before the first sync the adapter changes nothing
        if isinstance(self._adapted, PeftModel):
            lora.prepare(self.strategy, self._adapted)

    def _start_average(self, rate: float) -> None:
        """Begin the teacher's average at the policy, or where the checkpoint left it."""
        average = AverageTeacher(self.actor.model, rate=rate)
        checkpoints = Path(self.strategy.args.ckpt.path)
        latest = checkpoints / "_actor" / "latest"  # what upstream loads (ppo_actor.py:574)
        if self.strategy.args.ckpt.load_enable and latest.is_file():
            average.load(checkpoints, latest.read_text(encoding="utf-8").strip())
        self.trainer.average = average

    def put_teacher(self) -> None:
        """Give the model the teacher's weights, until `put_policy`."""
        self._teacher_in_place.enter_context(self.trainer.average.in_place())

    def put_policy(self) -> None:
        """Give the model its own weights again."""
        self._teacher_in_place.close()

    def save_checkpoint(self, tag, client_states=None, metric_value=None, metric_key=None):
        """Save as upstream does (ppo_actor.py:661), after the teacher's average."""
        average, checkpoints = self.trainer.average, Path(self.strategy.args.ckpt.path)
        if average is not None:
            average.save(checkpoints, tag)
        super().save_checkpoint(tag, client_states, metric_value, metric_key)
        if average is not None and self.strategy.is_rank_0():
            forget_superseded(checkpoints)

    def _replay_routing(self) -> None:
        """Let the model's routers take given experts, in this actor's passes and in its updates."""
        self._routing = ExpertRouting(self.strategy._unwrap_model(self.actor))
        self.trainer.routing = self._routing
        if isinstance(self.actor, ChunkedActor):
            self.actor.aside = self._routing.paused

    def pop_routing(self) -> RoutingCounts:
        """Count what the forward passes since the last call found of given experts."""
        return RoutingCounts() if self._routing is None else self._routing.take_counts()

    def fit(self, kl_ctl: float = 0):
        """Upstream's (ppo_actor.py:598). On a sleeping engine's GPU, its status has memory that is
        not this process's: engine, contexts, reference; a constant (stack/step_warnings.py)."""
        beside = {}
        config = config_from_environment()
        if not on_cpu() and config.cluster.enable_sleep and not config.is_async:
            free, total = torch.cuda.mem_get_info()
            beside[ASLEEP] = float(total - free - torch.cuda.memory_reserved())
        if isinstance(self._adapted, PeftModel):
            # of the weights that sampled this step
            beside[lora.LOST_SHARE] = self._merge_loss.share
        return super().fit(kl_ctl) | beside

    def fit_supervised(self, windows: int, scale: float = 1.0) -> dict:
        """Make one pass over the buffer's rows in `windows` updates (warm_start.py), and return its status.

        scale: its learning rate, in those of train.learning_rate."""
        trainer, buffer = self.trainer, self.trainer.replay_buffer
        with (
            patch.multiple(trainer, actor_loss_fn=supervised_loss(), max_epochs=1),
            patch.multiple(buffer, windows=windows),
            scaled_rate(trainer.actor_optim, trainer.actor_scheduler, scale),
        ):
            status = super().fit()
        if trainer.average is not None:  # of the policy that samples first
            trainer.average.begin_again()
        return status

    def forget_rows(self) -> None:
        """Drop the rows of a step that trains the critic alone. Upstream clears the buffer in `fit` (ppo_actor.py:603),
        not called then: the first update would take the rows of every step before it."""
        self.trainer.replay_buffer.clear()

    def broadcast_to_vllm(self):
        """Upstream's weight sync (ppo_actor.py:646), of merged weights if there is an adapter."""
        if not isinstance(self._adapted, PeftModel):
            super().broadcast_to_vllm()
            return
        with lora.merged_for_sync(self.trainer, self._adapted) as loss:
            super().broadcast_to_vllm()
        self._merge_loss = loss

    def expect_entropy(self, rows: list[bool], tokens: bool = False) -> None:
        """Say which rows of the next `forward` without such a message need exact entropy.

        tokens: keep that of each token, which logging.token_values alone keeps otherwise."""
        self._wanted.append((rows, tokens or self._keeps_tokens))

    def pop_entropy(self) -> list[EntropyPass]:
        """Return the entropies of each announced forward pass since the last call."""
        found, self._entropy = self._entropy, []
        return found

    def expect_tokens(self, rows: list[TokensWanted]) -> None:
        """Say of each row of the next `forward` without such a message which tokens' log-probs it keeps."""
        self._wanted_tokens.append(rows)

    def pop_tokens(self) -> list[dict[int, tuple[np.ndarray, np.ndarray]]]:
        """One for each pass announced by `expect_tokens` since the last call: row -> (ids, log-probs)."""
        found, self._kept_tokens = self._kept_tokens, []
        return [dict(kept) for kept in found]

    def forward(
        self,
        sequences,
        action_mask=None,
        attention_mask=None,
        packed_seq_lens=None,
        mm_train_inputs_list=None,
    ):
        """Old log-probs [B, A] (ppo_actor.py:602-632), the entropy statistics and tokens asked for.

        mm_train_inputs_list: with rollout.routing_replay the experts of each row."""
        with ExitStack() as stack:
            if self._routing is not None and mm_train_inputs_list is not None:
                experts = self._routing.given(
                    mm_train_inputs_list,
                    attention_mask.to(torch.cuda.current_device()),
                    packed=self.actor.packing_samples,
                    counts=True,
                )
                stack.enter_context(experts)
            return self._forward(
                sequences, action_mask, attention_mask, packed_seq_lens, mm_train_inputs_list
            )

    def _forward(
        self, sequences, action_mask, attention_mask, packed_seq_lens, mm_train_inputs_list
    ):
        """Return the old log-probs, and measure the entropy that was asked for."""
        rows, keeps_tokens = self._wanted.popleft() if self._wanted else ([], False)
        kept = None
        if self._wanted_tokens:
            kept = KeptTokens(self._wanted_tokens.popleft())
            self._kept_tokens.append(kept)
        if not any(rows) and (kept is None or not kept.wants_any):
            if rows:
                self._entropy.append(EntropyPass(torch.full((len(rows), 2), math.nan), 0.0, {}))
            return super().forward(
                sequences, action_mask, attention_mask, packed_seq_lens, mm_train_inputs_list
            )
        device = torch.cuda.current_device()
        self.actor.eval()
        with torch.no_grad():
            logprobs_BA, entropy_BA, seconds = logprobs_and_entropy(
                self.actor,
                sequences.to(device),
                action_mask.to(device),
                attention_mask.to(device),
                kept=kept,
                ring_attn_group=self.strategy.ring_attn_group,
            )
        self.actor.train()
        if not rows:
            return logprobs_BA.to("cpu")
        statistics_B2, tokens = torch.full((len(rows), 2), math.nan), {}
        for row in (i for i, wanted in enumerate(rows) if wanted):
            values_T = entropy_BA[row][action_mask[row].bool()]
            statistics_B2[row] = torch.tensor(
                entropy_statistics(values_T, peak_fraction=self._peak_fraction)
            )
            if keeps_tokens:
                tokens[row] = values_T.clamp(min=0).to(torch.float16).numpy()
        self._entropy.append(EntropyPass(statistics_B2, seconds, tokens))
        return logprobs_BA.to("cpu")


def logprobs_and_entropy(
    actor,
    sequences_BT,
    action_mask_BA,
    attention_mask_BT,
    *,
    kept: KeptTokens | None = None,
    ring_attn_group=None,
):
    """Log-probs and exact entropy of all action positions, under the scaled policy. Fills `kept`.

    Answers models/actor.py:202-292, which copies all logits to float32 first, and for entropy
    several times. Here the model's logits are read, or made (ChunkedActor), in chunks of tokens.

    Returns:
        log-probs [B, A] on the device, entropy [B, A] in nats on the CPU, seconds to entropy.
    """
    batch, seqlen = sequences_BT.size()
    num_actions = action_mask_BA.shape[1]

    def read(logits_of: LogitsOf, places_BT: torch.Tensor) -> None:
        if kept is not None:
            places_BA = places_BT[:, :-1][:, -num_actions:]
            kept.read(logits_of, places_BA, action_mask_BA, temperature=actor.temperature)

    if isinstance(actor, ChunkedActor):
        _, logprobs_BT, entropy_BT = actor.of_every_token(
            sequences_BT,
            attention_mask_BT,
            with_entropy=True,
            read=read,
            ring_attn_group=ring_attn_group,
        )
        started = time.perf_counter() - actor.head_seconds
    else:
        inputs, labels, restored = model_inputs(
            actor, sequences_BT, attention_mask_BT, ring_attn_group
        )
        logits = actor.model(**inputs)["logits"]
        logits_NV = logits.flatten(0, 1)
        read(lambda places_C: logits_NV[places_C], places_of(labels, restored, batch, seqlen))
        torch.cuda.synchronize()
        started = time.perf_counter()
        found = token_logprobs_and_entropy(
            logits_NV, labels.flatten(), temperature=actor.temperature
        )
        logprobs_BT, entropy_BT = (
            restored(values.view(labels.shape), batch, seqlen) for values in found
        )
    logprobs_BA = logprobs_BT[:, :-1][:, -num_actions:] * action_mask_BA.float()
    entropy_BA = entropy_BT[:, :-1][:, -num_actions:].cpu()
    return logprobs_BA, entropy_BA, time.perf_counter() - started


PolicyModelActor = ray.remote(num_gpus=1)(R3PolicyActor)
