"""R³ in TRL: its GRPOTrainer with replay, reflection and ranking by the class R3.

    trainer = R3Trainer(model, reward_funcs=accuracy, args=GRPOConfig(...), train_dataset=problems, r3=R3())

TRL samples, grades and updates; no method of it is copied. Lines are those of trl/trainer/grpo_trainer.py
in TRL 1.16.0. docs/ports.md says what becomes of GRPOConfig's fields, and what is refused."""

import copy
import logging
import math
from collections import Counter, defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np
import torch
from accelerate.utils import broadcast_object_list, gather_object
from torch import Tensor
from torch.utils.data import Dataset, Sampler
from transformers.trainer_utils import TrainOutput
from trl import GRPOTrainer
from trl.trainer.utils import pad, use_adapter

from r3_openrlhf import (
    R3,
    ConfigError,
    Context,
    HistoryStore,
    MixedBatch,
    Rollout,
    RowPrompts,
    TeacherScores,
    Verdict,
    uid_of,
)

# Losses whose mean is over rows (T:3132, T:3146, T:3163): rows without tokens would lower it.
ROW_MEANS = ("grpo", "sapo", "dr_grpo", "luspo")
RATIO, SAMPLING = "importance_sampling_ratio", "sampling_per_token_logps"
Fields = dict[str, Tensor]  # of one row [tokens] or, padded, of many [rows, tokens]

logger = logging.getLogger(__name__)


class StoredRow(Protocol):
    """A recalled or rehearsed row of a MixedBatch, as it travels between the processes."""

    rollout: Rollout
    advantage: float
    old_logprobs: np.ndarray | None


class R3Trainer(GRPOTrainer):
    """GRPOTrainer whose batches R3 mixes.

    A data set may have a column `uid`, the same at every visit of a problem; else the prompt is the id.
    Without a history of its own, `r3` keeps `history.sqlite` in output_dir while it trains.

    Args:
        r3: settings, seed and history. Only the main process uses the history.
        correct_from: the reward from which on a response is correct.
        correct_by: the name of the reward function that decides it; needed with several.
        render: makes the prompts of reflection groups. Default: the row's prompt, text or messages,
            with the stored attempt in the last message.
        max_prompt_tokens: of such a prompt. Default: what max_completion_length leaves of the context.

    Raises:
        ConfigError: an option of GRPOConfig or of R3Settings that this trainer cannot carry.
    """

    _logs: Any
    _sampler: Any = ()  # of an IterableDataset none

    def __init__(
        self,
        *args: object,
        r3: R3,
        correct_from: float = 1.0,
        correct_by: str | None = None,
        render: Any = None,
        max_prompt_tokens: int | None = None,
        **kwargs: object,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.r3, self.correct_from = r3, correct_from
        self.correct_by = correct_by or (
            self.reward_func_names[0] if len(self.reward_func_names) == 1 else None
        )
        context = (
            getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
            or 2**31
        )
        longest = max_prompt_tokens or max(1, context - self.max_completion_length)
        attempt = r3.settings.reflection.max_attempt_tokens
        self.render = render or RowPrompts(
            self._tokenizer, max_prompt_tokens=longest, max_attempt_tokens=attempt
        )
        self._refuse()
        if r3.settings.replay.enabled:  # for A < 0 delta is the dual clip (T:3107)
            self.args.delta = r3.settings.replay.dual_clip or self.args.delta

    def _refuse(self) -> None:
        args, settings, updates = (
            self.args,
            self.r3.settings,
            self.args.gradient_accumulation_steps,
        )
        replay, processes = settings.replay, self.accelerator.num_processes
        dual_clip, shaped = (
            replay.enabled and replay.dual_clip,
            replay.imported.weight not in ("clip", "ratio1"),
        )
        several = args.steps_per_generation * self.num_iterations % updates
        two_clips = dual_clip and args.delta not in (None, dual_clip)
        shared = self.num_generations % processes and settings.reflection.enabled
        distill = settings.distill
        of_response = (
            self.importance_sampling_level != "token"
            or self.loss_type == "vespo"
            or self.off_policy_mask_threshold is not None
        )
        other_sum = self.multi_objective_aggregation != "sum_then_normalize"
        for applies, what in (
            (
                self.tools or self._is_vlm,
                "tools, environments and images; a row of the history is one turn of text",
            ),
            (
                self.mask_truncated_completions,
                "mask_truncated_completions, which hides the responses that are ranked",
            ),
            (
                several,
                f"steps_per_generation below {updates} gradient_accumulation_steps; one generation an update",
            ),
            (
                self.scale_rewards != "group",
                "scale_rewards; R3 makes the advantages, by advantage.function",
            ),
            (
                other_sum,
                "multi_objective_aggregation; R3 makes the advantages of the weighted sum",
            ),
            (
                two_clips,
                f"delta {args.delta} with replay.dual_clip {dual_clip}, which is delta here",
            ),
            (settings.exploration.rrl.ratio, "exploration.rrl.ratio, which needs a critic"),
            (shaped, f"replay.imported.weight {replay.imported.weight}; use clip or ratio1"),
            (
                distill.enabled and distill.compares_logits,
                f"distill.loss {distill.loss}; use policy_gradient",
            ),
            (distill.averages, "distill.teacher average; use policy"),
            (
                distill.enabled and of_response,
                "distill beside importance_sampling_level other than token, loss_type vespo or "
                "off_policy_mask_threshold, which read one advantage a response",
            ),
            (
                shared,
                f"reflection groups of {self.num_generations} on {processes} processes; choose a multiple",
            ),
        ):
            if applies:
                raise ConfigError(f"R3Trainer does not support {what}; leave it out")
        if self.correct_by not in self.reward_func_names:
            names = ", ".join(self.reward_func_names)
            raise ConfigError(
                f"correct_by is {self.correct_by!r}; name the reward function that says what is correct: {names}"
            )

    # ── a run and its checkpoints ──

    def train(self, *args: object, **kwargs: object) -> TrainOutput:
        """Train as TRL does; `resume_from_checkpoint` continues with the history of that step."""
        if self.r3.history is not None or not self.accelerator.is_main_process:
            return super().train(*args, **kwargs)
        path = Path(self.args.output_dir) / "history.sqlite"
        path.parent.mkdir(parents=True, exist_ok=True)
        with HistoryStore.open(
            path, limits=self.r3.settings.history, seed=self.r3.seed
        ) as self.r3.history:
            try:
                return super().train(*args, **kwargs)
            finally:
                self.r3.history = None

    def _get_train_sampler(self, dataset: Dataset | None = None) -> Sampler | None:
        self._sampler = super()._get_train_sampler(dataset)
        return self._sampler

    def _state_file(self, directory: str | Path) -> Path:
        return (
            Path(directory)
            / f"r3_{self.accelerator.process_index}_of_{self.accelerator.num_processes}.pt"
        )

    def _save_checkpoint(self, model: torch.nn.Module, trial: object) -> None:
        """Save what TRL has in no checkpoint (T:1543): the rows of a generation that later steps use."""
        history, steps = self.r3.history, self.args.steps_per_generation * self.num_iterations
        directory = (
            Path(self._get_output_dir(trial=trial)) / f"checkpoint-{self.state.global_step}"
        )
        directory.mkdir(parents=True, exist_ok=True)
        state = {
            "step": self._step,
            "rows": self._buffered_inputs if self._step % steps else None,
        }
        state["history"] = None if history is None else history.last_step
        # first: what transformers calls complete has it
        torch.save(state, self._state_file(directory))
        super()._save_checkpoint(model, trial)
        if history is not None and history.last_step is not None:
            kept = [
                int(path.name.split("-")[1]) for path in directory.parent.glob("checkpoint-*")
            ]
            history.set_rollback_floor(min(*kept, history.last_step, self.state.global_step))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        file, history = self._state_file(checkpoint), self.r3.history
        if not file.is_file():
            raise ConfigError(
                f"{checkpoint} has no {file.name}; resume with the trainer and the number of processes that made it, or start "
                "a new run with its model"
            )
        state = torch.load(file, weights_only=True, map_location=self.accelerator.device)
        self._step, self._buffered_inputs = state["step"], state["rows"]
        if history is not None and (history.last_step or 0) < (state["history"] or 0):
            raise ConfigError(
                f"{history.path} ends at step {history.last_step}, before the step {state['history']} of {checkpoint}; put "
                "the history of that run there"
            )
        # transformers does not draw the orders of the epochs that are done, which come before the next one's
        for _ in range(int(self.state.epoch or 0)):
            next(iter(self._sampler), None)

    # ── one generation ──

    def _calculate_rewards(self, *args: object) -> Tensor:
        # [rows of all processes, reward functions]
        self._rewards = super()._calculate_rewards(*args)
        return self._rewards

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        if not self.model.training:
            return super()._generate_and_score_completions(inputs)
        step, epoch, history = (
            self.state.global_step,
            int(self.state.epoch or 0) + 1,
            self.r3.history,
        )
        # a run that was resumed or started again
        if history is not None and (history.last_step or 0) > step:
            logger.warning(
                "%s: the rollouts of the steps %d to %d go",
                history.path,
                step + 1,
                history.last_step,
            )
            self.r3.roll_back(step)
        reflections, metrics = self._reflections(inputs, step=step, epoch=epoch)
        rows, rollouts = self._sample(inputs, Context.PLAIN, step=step, epoch=epoch)
        if reflections:
            kept = self._metrics["train"], self._logs  # they are of the data set's prompts
            self._metrics["train"], self._logs = defaultdict(list), copy.deepcopy(self._logs)
            context = Context.HINT if self.r3.settings.reflection.hint else Context.REFLECTION
            more = self._sample(reflections, context, step=step, epoch=epoch)
            (self._metrics["train"], self._logs), rows, rollouts = (
                kept,
                rows + more[0],
                rollouts + more[1],
            )
        entropies = self._measure(rows, rollouts)
        shares, more_metrics = self._mix(
            inputs, rows, rollouts, entropies, step=step, epoch=epoch
        )
        for name, value in (metrics | more_metrics).items():
            self._metrics["train"][name].append(value)
        for share in shares:
            # of a taught row the mean of its tokens
            advantages = {
                which: float(np.mean(value)) for which, value in share if isinstance(which, int)
            }
            self._logs["advantages"].extend(
                advantages.get(i, math.nan) for i in range(len(inputs))
            )
        return self._batch_of(rows, shares)

    def _reflections(
        self, inputs: list[dict[str, Any]], *, step: int, epoch: int
    ) -> tuple[list[dict[str, Any]], dict[str, float]]:
        """Return this process's rows of the step's reflection groups, which come on top, and metrics."""
        if not self.r3.settings.reflection.enabled:
            return [], {}
        problems = [
            SimpleNamespace(**row | {"uid": uid_of(row)})
            for row in gather_object(inputs)[:: self.num_generations]
        ]
        result: list[Any] = [None]
        if self.accelerator.is_main_process:
            prompts = self.r3.prompts(problems, step=step, epoch=epoch, render=self.render)
            hard = [
                (one.place, one.prompt) for one in prompts if one.context is not Context.PLAIN
            ]
            result = [(hard, prompts.metrics())]
        ((hard, metrics),) = broadcast_object_list(result)
        rows = [
            {**vars(problems[i]), "prompt": prompt}
            for i, prompt in hard
            for _ in range(self.num_generations)
        ]
        start, share = (
            self.accelerator.process_index,
            len(rows) // self.accelerator.num_processes,
        )
        return rows[start * share : (start + 1) * share], metrics

    def _sample(
        self, inputs: list[dict[str, Any]], context: Context, *, step: int, epoch: int
    ) -> tuple[list[Fields], list[Rollout]]:
        """Sample and grade by TRL: one response for each input."""
        output = super()._generate_and_score_completions(inputs)
        if "tool_mask" in output:
            raise ConfigError(
                "R3Trainer does not support a rollout_func that returns env_mask; leave it out"
            )
        first = self.accelerator.process_index * len(inputs)
        rows, rollouts = [], []
        for i, (given, rewards_F) in enumerate(
            zip(inputs, self._rewards[first : first + len(inputs)], strict=True)
        ):
            prompt, response = (
                output["prompt_mask"][i].bool(),
                output["completion_mask"][i].bool(),
            )
            row = {key: output[key][i][prompt] for key in ("prompt_ids", "prompt_mask")}
            row |= {
                key: output[key][i][response] for key in ("completion_ids", "completion_mask")
            }
            for key in {
                "old_per_token_logps",
                "ref_per_token_logps",
                RATIO,
                SAMPLING,
            } & output.keys():
                row[key] = (
                    output[key][i][response]
                    if len(output[key][i]) == len(response)
                    else output[key][i]
                )
            rows.append(row)
            ids, deciding = (
                row["completion_ids"].tolist(),
                rewards_F[self.reward_func_names.index(self.correct_by)].item(),
            )
            graded = bool(ids) and not self._lacks_a_reward(rewards_F)
            ended = bool(ids) and ids[-1] in {*self.eos_token_ids, self._tokenizer.pad_token_id}
            right = Verdict.CORRECT if deciding >= self.correct_from else Verdict.WRONG
            rollout = Rollout(
                uid=uid_of(given),
                context=context,
                prompt_ids=np.array(row["prompt_ids"].tolist(), dtype=np.int32),
                response_ids=np.array(ids, dtype=np.int32),
                response_logprobs=np.zeros(len(ids), dtype=np.float32),  # _measure sets them
                verdict=right if graded else Verdict.UNGRADED,
                reward=float((rewards_F * self.reward_weights.to(rewards_F)).nansum())
                if graded
                else None,
                truncated=not ended,
                finish_reason="stop" if ended else "length",
                policy_step=step,
                epoch=epoch,
            )
            rollouts.append(rollout)
        return rows, rollouts

    def _lacks_a_reward(self, rewards_F: Tensor) -> bool:
        """Tell whether a function returned None (T:1630, :1647: NaN) for a row of F rewards.

        TRL adds up the others (T:2763), so that a missing reward counts as 0. One of weight 0 adds
        nothing, and may be missing."""
        is_needed_F = self.reward_weights.to(rewards_F.device) != 0
        is_needed_F[self.reward_func_names.index(self.correct_by)] = True
        return bool(rewards_F[is_needed_F].isnan().any())

    def _measure(self, rows: list[Fields], rollouts: list[Rollout]) -> list[np.ndarray] | None:
        """Set the policy's log-probs (`now`) of each row and rollout. Returns entropies in nats, where
        rows are ranked by them."""
        ranks, entropies = self.r3.settings.ranks_by_entropy, None
        sizes = [len(row["completion_ids"]) for row in rows]
        if ranks or "old_per_token_logps" not in rows[0]:
            now_BT, entropy_BT = self._forward(
                self.model, self._padded(rows), compute_entropy=ranks
            )
            entropies = (
                [entropy_BT[i, :n].float().cpu().numpy() for i, n in enumerate(sizes)]
                if ranks
                else None
            )
        for i, (row, rollout) in enumerate(zip(rows, rollouts, strict=True)):
            row["now"] = (
                row["old_per_token_logps"]
                if "old_per_token_logps" in row
                else now_BT[i, : sizes[i]]
            )
            rollout.response_logprobs = row["now"].float().cpu().numpy()
        return entropies

    @torch.no_grad()
    def _forward(
        self, model: torch.nn.Module, batch: Fields, *, compute_entropy: bool = False
    ) -> tuple[Tensor, Any]:
        """Log-probs of the responses [rows, tokens], and their entropies."""
        ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1)
        mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1)
        size = dict(
            logits_to_keep=batch["completion_ids"].size(1),
            batch_size=self.args.per_device_train_batch_size,
        )
        return self._get_per_token_logps_and_entropies(
            model, ids, mask, compute_entropy=compute_entropy, **size
        )[:2]

    def _recall(self, everything: list[Rollout], *, step: int) -> MixedBatch:
        """Group the rows of all processes, and recall for them."""
        counts: Counter[Context] = Counter()
        groups = []
        for one in everything:  # those of a context, in order, are groups
            groups.append((one.context, counts[one.context] // self.num_generations))
            counts[one.context] += 1
        return self.r3.recall(everything, step=step, groups=groups)

    def _teacher_scores(
        self,
        batch: MixedBatch | None,
        inputs: list[dict[str, Any]],
        rows: list[Fields],
        *,
        step: int,
    ) -> dict[int, TeacherScores]:
        """Score the taught rows of each process after their teacher's prompts (method/core/distill.py).

        Every process makes the same passes, as shards of a model need. batch: in the main process."""
        problems = {uid_of(row): row for row in gather_object(inputs)}
        result: list[Any] = [None]
        if batch is not None:
            asked: list[list[tuple[int, int, Any]]] = [
                [] for _ in range(self.accelerator.num_processes)
            ]
            for lesson in self.r3.lessons(
                batch,
                step=step,
                problems=lambda one: SimpleNamespace(**problems[one.uid] | {"uid": one.uid}),
                render=self.render,
            ):
                rank, place = divmod(batch.rows[lesson.row].fresh_source, len(rows))
                asked[rank].append((lesson.row, place, lesson.prompt))
            result = [asked]
        (asked,) = broadcast_object_list(result)
        own = asked[self.accelerator.process_index]
        most = max(map(len, asked))
        if not most:
            return {}
        taught = [self._taught_row(rows[place], prompt) for _, place, prompt in own]
        taught += [rows[0]] * (most - len(own))
        needs_entropy = self.r3.settings.distill.needs_entropy
        now_BT, entropy_BT = self._forward(
            self.model, self._padded(taught), compute_entropy=needs_entropy
        )
        found = []
        for number, (index, place, _) in enumerate(own):
            size = len(rows[place]["completion_ids"])
            teacher = now_BT[number, :size].float().cpu().numpy()
            student = rows[place]["now"].float().cpu().numpy()
            entropies = None
            if needs_entropy:
                entropies = entropy_BT[number, :size].float().cpu().numpy()
            found.append((index, TeacherScores(teacher, student, entropies)))
        return dict(gather_object(found))

    def _taught_row(self, row: Fields, prompt: Any) -> Fields:
        """Return the fields of a response after another prompt, which TRL makes ids of."""
        ids = self._tokenize_prompts([prompt])[0][0]
        prompt_ids = torch.as_tensor(ids).to(row["prompt_ids"])
        names = ("completion_ids", "completion_mask")
        return {
            "prompt_ids": prompt_ids,
            "prompt_mask": torch.ones_like(prompt_ids).to(row["prompt_mask"]),
        } | {name: row[name] for name in names}

    def _mix(
        self,
        inputs: list[dict[str, Any]],
        rows: list[Fields],
        rollouts: list[Rollout],
        entropies: list[np.ndarray] | None,
        *,
        step: int,
        epoch: int,
    ) -> tuple[list[list[tuple[Any, Any]]], dict[str, float]]:
        """Mix the rows of all processes in the main one.

        Returns what each process trains, (index of its row, advantage or those of its tokens) or (prompt
        ids, a stored Row), and metrics. Stored rows go where the fewest are."""
        everything: list[Rollout] = gather_object(rollouts)
        result: list[Any] = [None]
        measured = None if entropies is None else gather_object(entropies)
        batch, scores = None, dict[int, TeacherScores]()
        if self.accelerator.is_main_process:
            batch = self._recall(everything, step=step)
        teaches = self.r3.settings.distill.enabled
        if teaches:
            scores = self._teacher_scores(batch, inputs, rows, step=step)
        if batch is not None:
            self.r3.assign_advantages(batch, measured)
            more = self.r3.teach(batch, scores) if teaches else {}
            self.r3.remember(everything, step=step, epoch=epoch)
            shares: list[list[tuple[Any, Any]]] = [
                [] for _ in range(self.accelerator.num_processes)
            ]
            for row in batch.trained:  # fresh ones first
                if row.recalled:
                    min(shares, key=len).append((batch.prompt_ids_of(row), row))
                else:
                    rank, i = divmod(row.fresh_source, len(rollouts))
                    value: Any = row.token_advantages
                    shares[rank].append((i, float(row.advantage) if value is None else value))
            result = [(shares, self.r3.metrics(batch, step=step) | more)]
        return broadcast_object_list(result)[0]

    # ── what TRL trains ──

    def _batch_of(
        self, rows: list[Fields], shares: list[list[tuple[Any, Any]]]
    ) -> dict[str, Any]:
        """Return the rows of this process's update. TRL cuts them into equal steps and drops what
        is left over (U:1057), so rows without tokens fill every process up to the same multiple."""
        steps, num_rows = self.args.steps_per_generation, sum(map(len, shares))
        width = max(1, math.ceil(max(map(len, shares)) / steps)) * steps
        stored = [row for share in shares for which, row in share if not isinstance(which, int)]
        shortest = min(rows, key=lambda row: len(row["completion_ids"]))
        filler = shortest | {"completion_mask": torch.zeros_like(shortest["completion_mask"])}
        trained, values = [filler] * width, list[Any]([0.0] * width)
        for place, (which, value) in enumerate(shares[self.accelerator.process_index]):
            is_fresh = isinstance(which, int)
            trained[place] = (
                rows[which] if is_fresh else self._stored_fields(which, value, rows[0])
            )
            values[place] = value if is_fresh else value.advantage
        batch: dict[str, Any] = self._padded(trained)
        batch["advantages"] = self._advantages(values, batch["completion_mask"])
        batch["num_items_in_batch"] = self.accelerator.gather(
            batch["completion_mask"].sum()
        ).sum()
        if "old_per_token_logps" in rows[0] or any(
            row.old_logprobs is not None for row in stored
        ):
            # of all rows or of none (T:3065); every process makes the same passes, as shards of a model need
            today: Any = (
                self._forward(self.model, batch)[0]
                if any(row.old_logprobs is None for row in stored)
                else None
            )
            old = [
                row["now"] if "now" in row else today[i, : len(row["completion_ids"])]
                for i, row in enumerate(trained)
            ]
            batch["old_per_token_logps"] = pad(
                old, 0.0, pad_to_multiple_of=self.pad_to_multiple_of
            )
        if self.beta != 0.0 and stored:
            batch["ref_per_token_logps"] = self._reference(batch)
        if self.loss_type in ROW_MEANS and 0 < num_rows < width * len(shares):
            batch["r3_scale"] = torch.tensor(
                width * len(shares) / num_rows, device=self.accelerator.device
            )
        return batch

    def _advantages(self, values: list[Any], mask_BT: Tensor) -> Tensor:
        """Return advantages [rows], or [rows, tokens] where rows are taught (T:3056). values: of each row
        one number, or one for each of its tokens."""
        if not self.r3.settings.distill.enabled:
            return torch.tensor(values, dtype=torch.float32, device=mask_BT.device)
        advantages_BT = torch.zeros(mask_BT.shape, device=mask_BT.device)
        for place, value in enumerate(values):
            if isinstance(value, float):
                advantages_BT[place] = value
            else:
                advantages_BT[place, : len(value)] = torch.as_tensor(value)
        return advantages_BT

    def _stored_fields(self, prompt_ids: np.ndarray, row: StoredRow, like: Fields) -> Fields:
        """Return the fields of a stored row. Nothing sampled it in this step, so its correction is 1."""
        ids, logprobs = row.rollout.response_ids, row.rollout.response_logprobs
        if not row.rollout.has_logprobs:  # imported
            logprobs = np.zeros(len(ids), dtype=np.float32)
        fields = {"prompt_ids": prompt_ids, "prompt_mask": np.ones(len(prompt_ids))}
        fields |= {
            "completion_ids": ids,
            "completion_mask": np.ones(len(ids)),
            SAMPLING: logprobs,
        }
        fields[RATIO] = np.ones(1 if self._one_ratio else len(ids))
        if row.old_logprobs is not None:
            fields["now"] = logprobs
        return {
            key: torch.as_tensor(value).to(like[key])
            for key, value in fields.items()
            if key in like
        }

    @property
    def _one_ratio(self) -> bool:
        return self.vllm_importance_sampling_mode.startswith("sequence")  # [rows, 1] (T:2665)

    def _padded(self, rows: list[Fields]) -> Fields:
        """Pad these rows as TRL does, [rows, tokens]."""
        batch, token = {}, self._tokenizer.pad_token_id
        for key, side, fill in (
            ("prompt_ids", "left", token),
            ("prompt_mask", "left", 0),
            ("completion_ids", "right", token),
            ("completion_mask", "right", 0),
            ("ref_per_token_logps", "right", 0.0),
            (SAMPLING, "right", 0.0),
            (RATIO, "right", 1.0),
        ):
            if all(key in row for row in rows):
                batch[key] = pad(
                    [row[key] for row in rows], fill, side, self.pad_to_multiple_of
                )
        if RATIO in batch and self._one_ratio:
            batch[RATIO] = batch[RATIO][:, :1]
        return batch

    def _reference(self, batch: Fields) -> Tensor:
        if self.ref_model is not None:
            return self._forward(self.ref_model, batch)[0]
        model = self.accelerator.unwrap_model(self.model)  # PEFT (T:2723)
        with use_adapter(model, adapter_name="ref" if "ref" in model.peft_config else None):
            return self._forward(self.model, batch)[0]

    def _compute_loss(self, model: torch.nn.Module, inputs: dict[str, Any]) -> Tensor:
        return super()._compute_loss(model, inputs) * inputs.get("r3_scale", 1.0)
