"""R³ in TRL 1.16: its GRPOTrainer as it is, with replay, ranking and reflection through the class R3.

    pip install 'r3_openrlhf[trl]'
    python examples/trl_loop.py            # a minute on one core

Take `R3Trainer` as it stands; the rest is a tiny model that adds two digits. Your dataset needs a column `uid`, the same
at every visit of a problem, and `correct_from` says from which reward on a completion is right. Eq. 3 takes the place of
`scale_rewards`, and R3Trainer sets GRPOConfig's delta to replay.dual_clip. TRL logs rewards and the completions' advantages before stored
rollouts join. On several ranks every rank keeps a history of its own with the rollouts of all of them.
"""

from __future__ import annotations

import argparse
from types import SimpleNamespace

import torch
from accelerate.utils import gather_object
from datasets import Dataset
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch.nn.functional import pad
from transformers import PreTrainedTokenizerFast, PrinterCallback, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer

from r3_openrlhf import R3, Context, HistoryStore, R3Settings, ReplaySettings, Rollout, Verdict, outcome_reward
from r3_openrlhf.method.errors import ConfigError


class R3Trainer(GRPOTrainer):
    """GRPOTrainer whose collapsed groups get stored rollouts in place of fresh ones, and whose advantages are eq. 3's.

    Args:
        r3: with replay.mode "replace": the number of rows stays what TRL splits into steps.
        correct_from: the reward from which on a completion is correct.
        render: makes reflection prompts (ISR), for example ChatPrompts. A reflection group takes the turn of another
            problem's plain group. None: no reflection.
    """

    def __init__(self, *args, r3: R3, correct_from: float = 1.0, render=None, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.r3, self.correct_from, self.render, self.started = r3, correct_from, render, False
        given, replay, steps = self.args, r3.settings.replay, self.args.steps_per_generation
        added, rows = replay.enabled and replay.mode != "replace", given.per_device_train_batch_size * steps
        explores = r3.settings.exploration != type(r3.settings.exploration)()
        bound = replay.dual_clip if replay.enabled else None
        for refused, why in (
            (added, "replay.mode is 'add'; use 'replace', TRL's split into steps loses added rows"),
            (replay.k >= self.num_generations, f"replay.k is {replay.k}; use less than num_generations"),
            (
                replay.rehearse.share,
                f"replay.rehearse.share is {replay.rehearse.share}; use 0, the number of rows is TRL's",
            ),
            (
                bound and given.delta not in (None, bound),
                f"delta is {given.delta} and replay.dual_clip {bound}; leave delta out",
            ),
            (explores, "exploration is not supported here"),
            (rows % self.num_generations, f"with {rows} rows a rank, a group of num_generations would span two"),
            (steps * self.num_iterations % given.gradient_accumulation_steps, "an update would need two generations"),
            (given.mask_truncated_completions, "mask_truncated_completions hides the rows that are ranked"),
            (self.beta and self.ref_model is None, "beta with PEFT is not supported here"),
            (self.tools or self._is_vlm, "tools, environments and images are not supported here"),
            ("uid" not in (self.train_dataset.column_names or ["uid"]), "the dataset has no column uid"),
        ):
            if refused:
                raise ConfigError(f"R3Trainer: {why}")
        given.delta = bound or given.delta

    def _calculate_rewards(self, *args):
        self.rewards = super()._calculate_rewards(*args)  # of all ranks, one column per reward function
        return self.rewards

    def _generate_and_score_completions(self, inputs):
        if not self.model.training:
            return super()._generate_and_score_completions(inputs)
        step, epoch = self.state.global_step, int(self.state.epoch or 0) + 1
        if not self.started:  # a run that continues from a checkpoint forgets what came after it
            self.r3.roll_back(step)
            self.started = True
        inputs, contexts = self._with_reflection(inputs, step=step, epoch=epoch)
        output = super()._generate_and_score_completions(inputs)
        logprobs_BT, entropy_BT = self._measured(self.model, output)
        rollouts = self._rollouts(inputs, contexts, output, logprobs_BT, step=step, epoch=epoch)
        entropies = [entropy_BT[i, : one.num_tokens].float().cpu().numpy() for i, one in enumerate(rollouts)]
        groups = [i // self.num_generations for i in range(len(rollouts))]
        batch = self.r3.mix(rollouts, step=step, entropy=entropies, groups=groups)
        self.r3.remember(gather_object(rollouts), step=step, epoch=epoch)
        self._write(batch, output, logprobs_BT)
        for name, value in self.r3.metrics(batch, step=step).items():
            self._metrics["train"][name].append(value)
        return output

    def _with_reflection(self, inputs, *, step, epoch):
        """The rows to sample from and their contexts. The last problems that are not hard lose their turn."""
        inputs, contexts, size = list(inputs), [Context.PLAIN] * len(inputs), self.num_generations
        if self.render is None:
            return inputs, contexts
        problems = [SimpleNamespace(**row) for row in inputs[::size]]
        asked = self.r3.prompts(problems, step=step, epoch=epoch, render=self.render)
        reflections = [one for one in asked if one.context is Context.REFLECTION]
        others = sorted(set(range(len(problems))) - {one.place for one in reflections}, reverse=True)
        for one, place in zip(reflections, others, strict=False):
            for i in range(place * size, (place + 1) * size):
                inputs[i], contexts[i] = {**vars(one.problem), "prompt": one.prompt}, Context.REFLECTION
        return inputs, contexts

    @torch.no_grad()
    def _measured(self, model, output):
        """Log-probs of the completions [B, T], and their entropies under the policy."""
        ids = torch.cat([output["prompt_ids"], output["completion_ids"]], 1)
        mask = torch.cat([output["prompt_mask"], output["completion_mask"]], 1)
        sizes = dict(logits_to_keep=output["completion_ids"].size(1), batch_size=self.args.per_device_train_batch_size)
        entropy = model is self.model
        return self._get_per_token_logps_and_entropies(model, ids, mask, compute_entropy=entropy, **sizes)[:2]

    def _rollouts(self, inputs, contexts, output, logprobs_BT, *, step, epoch) -> list[Rollout]:
        ends, first = {*self.eos_token_ids, self._tokenizer.pad_token_id}, self.accelerator.process_index * len(inputs)
        rewards, found = self.rewards[first : first + len(inputs)], []
        for i, (row, context) in enumerate(zip(inputs, contexts, strict=True)):
            ids = output["completion_ids"][i][output["completion_mask"][i].bool()].int().cpu().numpy()
            graded, ended = not rewards[i].isnan().all(), int(ids[-1]) in ends
            reward = float((rewards[i] * self.reward_weights.to(rewards)).nansum())
            right = Verdict.CORRECT if reward >= self.correct_from else Verdict.WRONG
            one = Rollout(
                uid=row["uid"],
                context=context,
                prompt_ids=output["prompt_ids"][i][output["prompt_mask"][i].bool()].int().cpu().numpy(),
                response_ids=ids,
                response_logprobs=logprobs_BT[i, : len(ids)].float().cpu().numpy(),
                verdict=right if graded else Verdict.UNGRADED,
                reward=reward if graded else None,
                truncated=not ended,
                finish_reason="stop" if ended else "length",
                policy_step=step,
                epoch=epoch,
            )
            found.append(one)
        return found

    def _write(self, batch, output, logprobs_BT) -> None:
        """Put advantages and recalled rows into what TRL trains on. A row that could not be graded has advantage 0."""
        trained = {row.source: row for row in batch.trained if not row.recalled}
        recalled = {}
        for group in batch.groups:
            start = batch.rows[group.rows[0]].source // self.num_generations * self.num_generations
            free = [place for place in range(start, start + self.num_generations) if place not in trained]
            recalled |= zip(free, [batch.rows[i] for i in group.recalled], strict=False)
        trained |= recalled
        if recalled:  # then every row needs old log-probs
            output.setdefault("old_per_token_logps", logprobs_BT)
        width = output["completion_ids"].size(1)
        wider = max([0, *(row.rollout.num_tokens - width for row in recalled.values())])
        for key, fill, value in (
            ("completion_ids", self._tokenizer.pad_token_id, lambda row: row.rollout.response_ids),
            ("completion_mask", 0, lambda _: 1),
            ("old_per_token_logps", 0.0, lambda row: row.rollout.response_logprobs),
            ("sampling_per_token_logps", 0.0, lambda row: row.rollout.response_logprobs),
            ("importance_sampling_ratio", 1.0, lambda _: 1.0),
        ):
            if key not in output:
                continue
            if output[key].size(1) == width:  # vLLM's ratio may have one column
                output[key] = pad(output[key], (0, wider), value=fill)
            for place, row in recalled.items():
                output[key][place] = fill
                output[key][place, : row.rollout.num_tokens] = torch.as_tensor(value(row)).to(output[key])
        own = [i in recalled and recalled[i].old_logprobs is None for i in range(len(output["advantages"]))]
        own_B = torch.tensor(own, device=self.accelerator.device)
        if self.accelerator.gather(own_B).any():  # rows with the current policy's log-probs; all ranks compute them
            now_BT, _ = self._measured(self.model, output)
            if recalled:
                output["old_per_token_logps"] = now_BT.where(own_B[:, None], output["old_per_token_logps"])
        if "ref_per_token_logps" in output:
            output["ref_per_token_logps"], _ = self._measured(self.ref_model, output)
        advantages = [trained[i].advantage if i in trained else 0.0 for i in range(len(own))]
        output["advantages"] = output["advantages"].new_tensor(advantages)
        output["num_items_in_batch"] = self.accelerator.gather(output["completion_mask"].sum()).sum()


LIMIT, WORDS = 4, [*"0123456789+=", "<pad>", "<eos>"]
SHOWN = ("epoch", "reward", "completions/clipped_ratio", "r3/replay/recalled", "r3/ranking/rows")


def tokenizer() -> PreTrainedTokenizerFast:
    """One token per character."""
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<pad>"))
    words.pre_tokenizer, words.decoder = pre_tokenizers.Split(Regex("."), "isolated"), decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")


def reward(completions, completion_ids, answer, **_) -> list[float]:
    """R: 0 when wrong, 1 and a bonus for brevity when right."""
    graded = zip(completions, completion_ids, answer, strict=True)
    return [outcome_reward(float(text == right), len(ids), max_tokens=LIMIT) for text, ids, right in graded]


def trainer(*, steps: int) -> R3Trainer:
    """The tiny model, its problems, and R3Trainer on them."""
    torch.manual_seed(0)
    sizes = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4)
    problems = [(f"{a}+{b}", str(a + b)) for a in range(10) for b in range(10)]
    options = dict(output_dir="runs/trl_loop", report_to="none", use_cpu=True, bf16=False, disable_tqdm=True)
    options |= dict(max_steps=steps, per_device_train_batch_size=160, num_generations=8, max_completion_length=LIMIT)
    return R3Trainer(
        model=Qwen2ForCausalLM(Qwen2Config(vocab_size=len(WORDS), num_key_value_heads=4, **sizes)),
        processing_class=tokenizer(),
        train_dataset=Dataset.from_list([dict(uid=one, prompt=one + "=", answer=answer) for one, answer in problems]),
        reward_funcs=reward,
        args=GRPOConfig(**options, learning_rate=2e-3, logging_steps=20, save_strategy="no"),
        r3=R3(R3Settings(replay=ReplaySettings(mode="replace")), history=HistoryStore.open(":memory:"), seed=0),
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    run = trainer(steps=parser.parse_args().steps)
    run.remove_callback(PrinterCallback)
    run.train()
    for line in run.state.log_history[:-1]:
        print(", ".join(f"{name} {line[name]}" for name in SHOWN))
