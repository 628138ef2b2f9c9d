"""Experience makers without models, and the samples they get."""

from types import SimpleNamespace

import numpy as np
import torch
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker

from r3_openrlhf.config import R3Config
from r3_openrlhf.method.r3 import R3
from r3_openrlhf.method.types import Context, EntropyStatistics, Rollout, Verdict
from r3_openrlhf.stack.experience_maker import R3ExperienceMaker, StockExperienceMaker
from tests.stack.mixed_rows import experience_of

C, W, U = Verdict.CORRECT, Verdict.WRONG, Verdict.UNGRADED
G = 4


def arguments(ranks=1):
    return SimpleNamespace(
        actor=SimpleNamespace(
            num_nodes=1, num_gpus_per_node=ranks, eps_clip_low_high=(0.2, 0.2)
        ),
        ds=SimpleNamespace(ring_attn_size=1, tensor_parallel_size=1),
        rollout=SimpleNamespace(
            batch_size=2, n_samples_per_prompt=G, micro_batch_size=3, max_tokens_per_gpu=64
        ),
        train=SimpleNamespace(batch_size=2 * G, dynamic_batch_enable=False),
        algo=SimpleNamespace(
            advantage=SimpleNamespace(
                estimator="group_norm", gamma=1.0, lambd=1.0, no_std_norm=False
            ),
            kl=SimpleNamespace(use_loss=False),
        ),
        reward=SimpleNamespace(
            clip_range=(-10, 10), overlong_buffer_len=None, stop_properly_penalty_coef=None
        ),
    )


class Given:
    """In place of the remote forward passes: log-probs by row, entropy by rollout, a KL of zero."""

    gap = 0.0

    def make_experience(self, samples_list):
        for samples in samples_list:
            samples.action_log_probs = (
                samples.rollout_log_probs + self.gap * samples.action_mask
            )
            samples.base_action_log_probs = samples.values = None
            samples.kl = torch.zeros_like(samples.rollout_log_probs)
        return samples_list

    def _announce_entropy(self, samples_list, wanted, *, tokens=False):  # noqa: ARG002
        self.wanted = wanted

    def _exact_entropy(self, samples_list):
        return {
            i: EntropyStatistics(peak=10.0 - i, global_=i / 10, source="exact")
            for i in self.wanted
        }, 0.0


class Ours(Given, R3ExperienceMaker):
    pass


class Recording(Given, StockExperienceMaker):
    pass


class Stock(Given, RemoteExperienceMaker):
    pass


def maker(cls, *, config=None, history=None, ranks=1):
    made = cls.__new__(cls)
    made.args = arguments(ranks)
    made.strategy = SimpleNamespace(args=made.args)
    made.advantage_estimator = "group_norm"
    made.initial_model_group = made.critic_model_group = None
    made.kl_ctl = SimpleNamespace(value=0.0)
    made.tokenizer = SimpleNamespace(pad_token_id=0, decode=lambda ids, **kwargs: str(ids))
    made.config = config or config_with()
    made.r3 = R3(made.config, history=history, seed=made.config.train.seed)
    made.step = 5
    return made


def config_with(**sections):
    config = R3Config(run_dir="unused")
    for section, values in sections.items():
        for key, value in values.items():
            assert hasattr(getattr(config, section), key)
            setattr(getattr(config, section), key, value)
    return config


OFF = dict(replay={"enabled": False}, reflection={"enabled": False}, ranking={"enabled": False})


def sample(verdict, *, prompt="p", tokens=(3, 4, 5), truncated=False, reward=None, step=5):
    reward = (
        {C: 1.0 + 1 / max(1, len(tokens)), W: 0.0, U: None}[verdict]
        if reward is None
        else reward
    )
    ids = [1, 2, *tokens]
    logprobs = torch.tensor([[0.0] + [-0.1 * t for t in tokens]])
    experience = experience_of({"tokens": ids, "prompt": 2, "advantage": 0.0})
    experience.rollout_log_probs, experience.truncated = logprobs, torch.tensor([truncated])
    experience.prompts, experience.labels = [prompt], [prompt]
    experience.info = {"response_clip_ratio": torch.tensor([False])}
    experience.rewards = experience.scores = None
    if reward is not None:
        experience.rewards, experience.scores = (
            torch.tensor([reward]),
            torch.tensor([float(reward > 0)]),
        )
        experience.info |= {
            "reward": experience.rewards.clone(),
            "score": experience.scores.clone(),
        }
    experience.r3_rollout = Rollout(
        uid=prompt,
        context=Context.PLAIN,
        prompt_ids=np.array(ids[:2], dtype=np.int32),
        response_ids=np.array(tokens, dtype=np.int32),
        response_logprobs=logprobs[0, 1:].numpy(),
        verdict=verdict,
        reward=reward,
        truncated=truncated,
        finish_reason="length" if truncated else "stop",
        policy_step=step,
        epoch=1,
        reason="timeout" if verdict is U else verdict.value,
    )
    return experience


def group(*verdicts, prompt="p", **settings):
    """Responses of different lengths, so that rows differ."""
    return [
        sample(v, prompt=prompt, tokens=tuple(range(3, 5 + i)), **settings)
        for i, v in enumerate(verdicts)
    ]


def by_row(experiences, field):
    found = {}
    for experience in experiences:
        for position, index in enumerate(experience.index):
            mask = experience.action_mask[position].bool()
            found[index] = getattr(experience, field)[position][mask]
    return [found[i] for i in sorted(found)]


class Valued:
    """A critic that says something of every token."""

    def make_experience(self, samples_list):
        for samples in super().make_experience(samples_list):
            samples.values = torch.cos(7 * samples.rollout_log_probs) * samples.action_mask
        return samples_list


class ValuedRecording(Valued, Recording):
    pass
