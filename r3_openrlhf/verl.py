"""R³ in verl: its synchronous PPOTrainer with replay, reflection and ranking by the class R3.

    VERL_USE_EXTERNAL_MODULES=r3_openrlhf.verl python -m verl.trainer.main_ppo trainer.v1.trainer_mode=r3 \\
        algorithm.adv_estimator=r3 actor_rollout_ref.rollout.calculate_log_probs=True +r3.replay.mode=replace ...

Keys below `r3` are the sections of R3Settings, and `seed` and `correct_from`. Rows keep their number, because verl fills
a batch up to whole mini-batches (B:1589): a stored row is written over a fresh one that gives way, and a reflection
prompt over another problem's. B is verl/trainer/ppo/v1/trainer_base.py of verl 0.9.1."""

from __future__ import annotations

import uuid
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import transfer_queue as tq
from omegaconf import DictConfig, OmegaConf
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils.tensordict_utils import assign_non_tensor_stack, list_of_dict_to_tensordict

from r3_openrlhf import (
    R3,
    ConfigError,
    Context,
    HistoryStore,
    Rollout,
    RowPrompts,
    Verdict,
    uid_of,
)

if TYPE_CHECKING:
    from tensordict import TensorDict
    from transfer_queue import KVBatchMeta


@register_trainer("r3")
class R3PPOTrainer(PPOTrainerSync):
    """PPOTrainerSync whose batches R3 mixes. The problem of a row is a digest of its prompt.

    Raises:
        ConfigError: an option of verl or of R3Settings that this trainer cannot carry."""

    def __init__(self, config: DictConfig) -> None:
        options: Any = OmegaConf.to_container(
            config.get("r3", OmegaConf.create()), resolve=True
        )
        self.correct_from, seed = options.pop("correct_from", 1.0), options.pop("seed", 0)
        self.r3 = R3(options, seed=seed)
        refuse(config, self.r3)
        # the word that verl's branches ask for (B:145, B:1499)
        config.trainer.v1.trainer_mode = "sync"
        if self.r3.settings.replay.enabled:
            config.actor_rollout_ref.actor.clip_ratio_c = self.r3.settings.replay.dual_clip
        super().__init__(config)
        # verl's uid, new at each draw (B:1476)
        self.problem_of: dict[str, tuple[str, Context]] = {}
        self.advantages: list[float] = []  # of the batch's rows, in its order
        ADV_ESTIMATOR_REGISTRY["r3"] = self.estimate

    # ── a run and its checkpoints ──

    def _load_checkpoint(self) -> None:
        super()._load_checkpoint()
        directory = Path(self.config.trainer.default_local_dir)
        directory.mkdir(parents=True, exist_ok=True)
        history = HistoryStore.open(
            directory / "history.sqlite", limits=self.r3.settings.history, seed=self.r3.seed
        )
        if (history.last_step or 0) < self.global_steps:
            ends = f"{history.path} ends at step {history.last_step}, before the checkpoint's {self.global_steps}"
            raise ConfigError(f"{ends}; put the history of that run there")
        self.r3.history = history
        self.r3.roll_back(self.global_steps)

    def _save_checkpoint(self) -> None:
        super()._save_checkpoint()
        folders = Path(self.config.trainer.default_local_dir).glob("global_step_*")
        assert self.r3.history is not None
        self.r3.history.set_rollback_floor(
            min(int(folder.name.rpartition("_")[2]) for folder in folders)
        )

    # ── reflection ──

    def _fetch_one_gen_batch(self) -> TensorDict:
        """verl's prompts; those of reflection groups take the turns of the last problems that are not hard."""
        batch = super()._fetch_one_gen_batch()
        prompts = [list(prompt) for prompt in batch["raw_prompt"]]
        problems = [
            SimpleNamespace(uid=uid_of({"prompt": prompt}), prompt=prompt) for prompt in prompts
        ]
        size, attempt = (
            self.config.data.max_prompt_length,
            self.r3.settings.reflection.max_attempt_tokens,
        )
        render = RowPrompts(self.tokenizer, max_prompt_tokens=size, max_attempt_tokens=attempt)
        asked = self.r3.prompts(
            problems, step=self.global_steps - 1, epoch=self.epoch, render=render
        )
        hard = [one for one in asked if one.context is not Context.PLAIN]
        free = sorted(set(range(len(problems))) - {one.place for one in hard}, reverse=True)
        rows, contexts = list(range(len(problems))), [Context.PLAIN] * len(problems)
        for place, one in zip(free, hard, strict=False):
            rows[place], contexts[place], prompts[place] = one.place, one.context, one.prompt
        batch = batch[rows]  # with the answers of the problems that are asked again
        uids = [str(uuid.uuid4()) for _ in rows]
        assign_non_tensor_stack(batch, "raw_prompt", prompts)
        assign_non_tensor_stack(batch, "uid", uids)
        for uid, row, context in zip(uids, rows, contexts, strict=True):
            self.problem_of[uid] = problems[row].uid, context
        return batch

    @property
    def epoch(self) -> int:
        """The pass over the data, from 1."""
        return (self.global_steps - 1) // self.steps_per_epoch + 1

    # ── a step ──

    def _balance_batch(
        self, batch: KVBatchMeta, metrics: dict[str, Any], **options: object
    ) -> KVBatchMeta:
        """Recall before verl counts tokens, and write stored rows over those that give way."""
        fields = ["prompts", "responses", "response_mask", "rm_scores", "rollout_log_probs"]
        rows = self._rows(batch, fields)
        self.rollouts = [
            self._rollout(key, *row) for key, row in zip(batch.keys, rows, strict=True)
        ]
        groups = [key.rsplit("_", 2)[0] for key in batch.keys]
        self.mixed = self.r3.recall(self.rollouts, step=self.global_steps - 1, groups=groups)
        self.keys = list(batch.keys)  # of the rollouts; verl reorders the batch
        self.stored: dict[str, Any] = {}
        for group in self.mixed.groups:
            leaving = [i for i in group.rows if not self.mixed.rows[i].trained]
            for place, recalled in zip(leaving, group.recalled, strict=True):
                self.stored[self.keys[self.mixed.rows[place].fresh_source]] = self.mixed.rows[
                    recalled
                ]
        for i, key in enumerate(batch.keys):
            if key in self.stored:
                self._write(batch, i)
        return super()._balance_batch(batch, metrics, **options)

    def _rows(self, batch: KVBatchMeta, fields: list[str]) -> list[tuple[torch.Tensor, ...]]:
        """Return these fields of each row, [tokens] each."""
        data = tq.kv_batch_get(
            keys=batch.keys, partition_id=batch.partition_id, select_fields=fields
        )
        return list(zip(*(data[field].unbind() for field in fields), strict=True))

    def _rollout(
        self,
        key: str,
        prompt: torch.Tensor,
        response: torch.Tensor,
        mask: torch.Tensor,
        scores: torch.Tensor,
        logprobs: torch.Tensor,
    ) -> Rollout:
        uid, context = self.problem_of[key.rsplit("_", 2)[0]]
        if not mask.all() or not key.endswith("_0"):
            raise ConfigError(
                "r3_openrlhf.verl does not support several turns; use a single-turn agent loop"
            )
        reward, is_long = (
            float(scores.sum()),
            len(response) >= self.config.data.max_response_length,
        )
        truncated = is_long and response[-1] != self.tokenizer.eos_token_id
        return Rollout(
            uid=uid,
            context=context,
            prompt_ids=prompt.int().numpy(),
            response_ids=response.int().numpy(),
            response_logprobs=logprobs.float().numpy(),
            verdict=Verdict.CORRECT if reward >= self.correct_from else Verdict.WRONG,
            reward=reward,
            truncated=truncated,
            finish_reason="length" if truncated else "stop",
            policy_step=self.global_steps - 1,
            epoch=self.epoch,
        )

    def _write(self, batch: KVBatchMeta, place: int) -> None:
        """Write the stored row over the fresh one at this place, with the fields of AgentLoopWorkerTQ."""
        row = self.stored[batch.keys[place]]
        prompt = torch.as_tensor(self.mixed.prompt_ids_of(row)).long()
        response = torch.as_tensor(row.rollout.response_ids).long()
        ids, scores = torch.cat([prompt, response]), torch.zeros(len(response))
        scores[-1] = row.outcome_reward
        mask = torch.ones_like(response)
        fields = dict(
            prompts=prompt,
            responses=response,
            input_ids=ids,
            position_ids=torch.arange(len(ids)),
        )
        fields |= dict(response_mask=mask, loss_mask=mask, rm_scores=scores)
        logprobs = (
            row.rollout.response_logprobs
            if row.rollout.has_logprobs
            else np.zeros(len(mask), np.float32)
        )
        fields["rollout_log_probs"] = torch.as_tensor(logprobs)
        batch.tags[place] |= dict(
            prompt_len=len(prompt), response_len=len(response), seq_len=len(ids)
        )
        self._put(batch, {batch.keys[place]: fields})

    def _put(self, batch: KVBatchMeta, rows: dict[str, dict[str, Any]]) -> None:
        tags = [batch.tags[batch.keys.index(key)] for key in rows]
        fields = list_of_dict_to_tensordict(list(rows.values()))
        tq.kv_batch_put(
            keys=list(rows), partition_id=batch.partition_id, fields=fields, tags=tags
        )

    def _compute_old_log_prob(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        """verl's pass, which has the entropies; then the stored log-probs, and the advantages."""
        batch = super()._compute_old_log_prob(batch, metrics)
        today = dict(
            zip(batch.keys, self._rows(batch, ["old_log_probs", "entropy"]), strict=True)
        )
        own = {}
        for key, row in self.stored.items():
            measured = today[key][0]
            logprobs = (
                measured
                if row.old_logprobs is None
                else torch.as_tensor(row.old_logprobs).to(measured.dtype)
            )
            # TransferQueue takes one dtype a field: the actor's (bfloat16 without flash-attn), and
            # float32 for the engine's. The same numbers, so that the correction is 1.
            own[key] = {
                "old_log_probs": logprobs,
                "rollout_log_probs": logprobs.float(),
            }
        if own:
            self._put(batch, own)
        entropies: list[np.ndarray] = [today[key][1].float().numpy() for key in self.keys]
        ranked = {i for rows in self.r3.rows_to_rank(self.mixed).values() for i in rows}
        sources = [self.mixed.rows[i].fresh_source for i in ranked]
        self.r3.assign_advantages(self.mixed, {source: entropies[source] for source in sources})
        return batch

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        advantages = {
            self.keys[row.fresh_source]: row.advantage
            for row in self.mixed.trained
            if not row.recalled
        }
        advantages |= {key: row.advantage for key, row in self.stored.items()}
        # 0: a row that fills up, or is in no group
        self.advantages = [advantages.get(key, 0.0) for key in batch.keys]
        step = self.global_steps - 1
        metrics.update(self.r3.metrics(self.mixed, step=step))
        self.r3.remember(self.rollouts, step=step, epoch=self.epoch)
        self.problem_of.clear()
        return super()._compute_advantage(batch, metrics)

    def estimate(
        self, *, response_mask: torch.Tensor, **_: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """verl's estimator `r3`: the advantage of each row on all its tokens, [rows, tokens], twice."""
        advantages_BT = torch.tensor(self.advantages)[:, None] * response_mask
        return advantages_BT, advantages_BT


def refuse(config: DictConfig, r3: R3) -> None:
    """ConfigError: what verl cannot carry, by name."""
    rollout, actor, algorithm = (
        config.actor_rollout_ref.rollout,
        config.actor_rollout_ref.actor,
        config.algorithm,
    )
    replay, is_set = r3.settings.replay, partial(OmegaConf.select, config)
    # 3.0: verl's default
    own_clip = replay.enabled and actor.clip_ratio_c not in (
        3.0,
        replay.dual_clip,
    )
    for applies, what in (
        (
            algorithm.adv_estimator != "r3",
            f"algorithm.adv_estimator={algorithm.adv_estimator}; use r3",
        ),
        (
            not rollout.calculate_log_probs,
            "rollout.calculate_log_probs=False; the history stores them",
        ),
        (
            is_set("algorithm.rollout_correction.bypass_mode"),
            "rollout_correction.bypass_mode, which measures no entropies",
        ),
        (
            is_set("algorithm.filter_groups.enable"),
            "algorithm.filter_groups, which drops the groups that replay repairs",
        ),
        (
            is_set("distillation.enabled"),
            "distillation.enabled; stored rows have no log-probs of a teacher",
        ),
        (
            algorithm.use_kl_in_reward,
            "algorithm.use_kl_in_reward; use actor_rollout_ref.actor.use_kl_loss",
        ),
        (
            rollout.get("enable_rollout_routing_replay"),
            "enable_rollout_routing_replay; stored rows have no routes",
        ),
        (
            own_clip,
            f"actor.clip_ratio_c={actor.clip_ratio_c}; here r3.replay.dual_clip={replay.dual_clip} sets it",
        ),
        (
            replay.enabled and not replay.dual_clip,
            "r3.replay.dual_clip=null; verl's loss always has a bound",
        ),
        (
            replay.enabled and replay.mode != "replace",
            "r3.replay.mode=add; use replace, verl fills up mini-batches",
        ),
        (
            replay.enabled and replay.k >= rollout.n,
            f"r3.replay.k={replay.k} with rollout.n={rollout.n}; use less",
        ),
        (
            r3.settings.distill.enabled,
            "r3.distill.coef; verl's batch has one pass of the policy",
        ),
        (
            replay.rehearse.share,
            "r3.replay.rehearse, whose rows would fill up whole mini-batches",
        ),
        (r3.settings.exploration.rrl.ratio, "r3.exploration.rrl, which needs a critic"),
        (
            replay.imported.weight not in ("clip", "ratio1"),
            "r3.replay.imported.weight; use clip or ratio1",
        ),
    ):
        if applies:
            raise ConfigError(f"r3_openrlhf.verl does not support {what}")
