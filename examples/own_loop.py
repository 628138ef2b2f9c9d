"""R³ in a training loop of your own: plain torch, no OpenRLHF.

    python examples/own_loop.py            # under a minute on one core

The policy adds two digits: it reads a prompt of tokens (a, b, and in a reflection prompt a wrong attempt) and writes
digits, "hm" and an end sign, at most LIMIT tokens.
"""

from __future__ import annotations

import argparse
import random
from typing import NamedTuple

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from r3_openrlhf import R3, R3Settings, Rollout, Verdict, outcome_reward

END, NUM_TOKENS = 10, 12  # tokens 0 to 9 are digits, 11 is "hm"
LIMIT, PROBLEMS_PER_STEP, GROUP, CLIP = 5, 20, 8, 0.2
SHOWN = (
    "fresh/accuracy",
    "fresh/truncated",
    "r3/replay/recalled",
    "r3/reflection/groups",
    "r3/ranking/rows",
)
PAD = 20 + NUM_TOKENS  # of a prompt, whose tokens are a, b + 10, and 20 + those of an attempt


class Problem(NamedTuple):
    uid: str
    a: int
    b: int


class Prompts:
    """What R3.prompts asks for: a prompt may be of any type, here a tuple of tokens."""

    def plain(self, problem: Problem) -> tuple[int, ...]:
        return problem.a, problem.b + 10

    def reflection(self, problem: Problem, error: Rollout) -> tuple[int, ...]:
        return *self.plain(problem), *(20 + int(token) for token in error.response_ids)


class Policy(torch.nn.Module):
    """Logits of the next token, from the prompt and the tokens so far."""

    def __init__(self) -> None:
        super().__init__()
        self.read = torch.nn.EmbeddingBag(PAD + 1, 64, mode="sum", padding_idx=PAD)
        self.token = torch.nn.Embedding(NUM_TOKENS + 1, 64)  # the last one: nothing written yet
        self.cell = torch.nn.GRUCell(64, 64)
        self.head = torch.nn.Linear(64, NUM_TOKENS)

    def forward(self, prompts_BP: torch.Tensor, tokens_BT: torch.Tensor) -> torch.Tensor:
        """[B, T, V]: the logits at each of the T positions, given the tokens before it."""
        state = torch.tanh(self.read(prompts_BP))
        start = torch.full_like(tokens_BT[:, :1], NUM_TOKENS)
        logits = []
        for token_B in torch.cat([start, tokens_BT[:, :-1]], 1).unbind(1):
            state = self.cell(self.token(token_B), state)
            logits.append(self.head(state))
        return torch.stack(logits, 1)


def padded(rows: list, value: int) -> torch.Tensor:
    return pad_sequence(
        [torch.as_tensor(row).long() for row in rows], batch_first=True, padding_value=value
    )


def sample(
    policy: Policy, prompts: list, *, step: int, epoch: int
) -> tuple[list[Rollout], list[np.ndarray], list]:
    """GROUP graded rollouts of each prompt, their token entropies in nats, and the group of each."""
    groups = [number for number in range(len(prompts)) for _ in range(GROUP)]
    prompts_BP = padded([prompts[number].prompt for number in groups], PAD)
    tokens = torch.zeros(len(groups), 0, dtype=torch.long)
    with torch.no_grad():
        for _ in range(LIMIT):
            logits = policy(
                prompts_BP, torch.cat([tokens, tokens.new_zeros(len(groups), 1)], 1)
            )[:, -1]
            tokens = torch.cat([tokens, torch.multinomial(logits.softmax(-1), 1)], 1)
        logprobs_BTV = policy(prompts_BP, tokens).log_softmax(-1)
    logprobs_BT = logprobs_BTV.gather(-1, tokens[..., None])[..., 0]
    entropy_BT = -(logprobs_BTV.exp() * logprobs_BTV).sum(-1)
    rollouts = []
    for row, number in enumerate(groups):
        ids, problem = tokens[row].tolist(), prompts[number].problem
        length = ids.index(END) + 1 if END in ids else LIMIT
        answer = "".join(str(token) for token in ids[:length] if token < END)
        right = END in ids and answer == str(problem.a + problem.b)
        rollouts.append(
            Rollout(
                uid=problem.uid,
                context=prompts[number].context,
                prompt_ids=np.array(prompts[number].prompt, dtype=np.int32),
                response_ids=tokens[row, :length].numpy().astype(np.int32),
                response_logprobs=logprobs_BT[row, :length].numpy(),
                verdict=Verdict.CORRECT if right else Verdict.WRONG,
                reward=outcome_reward(float(right), length, max_tokens=LIMIT),
                truncated=END not in ids,
                finish_reason="stop" if END in ids else "length",
                policy_step=step,
                epoch=epoch,
            )
        )
    return (
        rollouts,
        [entropy_BT[row, : rollouts[row].num_tokens].numpy() for row in range(len(groups))],
        groups,
    )


def update(
    policy: Policy, optimizer: torch.optim.Optimizer, batch, dual_clip: float | None
) -> torch.Tensor:
    """One step on the clipped loss of the trained rows, which is returned."""
    rows = batch.trained
    tokens = padded([row.rollout.response_ids for row in rows], 0)
    mask = padded([np.ones(row.rollout.num_tokens) for row in rows], 0)
    prompts = padded([batch.prompt_ids_of(row) for row in rows], PAD)
    logprobs = policy(prompts, tokens).log_softmax(-1).gather(-1, tokens[..., None])[..., 0]
    old = logprobs.detach().clone()
    for number, row in enumerate(rows):
        if row.old_logprobs is not None:  # else the current policy's own: the ratio is 1
            old[number, : row.rollout.num_tokens] = torch.tensor(row.old_logprobs)
    advantages = torch.tensor([row.advantage for row in rows])[:, None]
    ratio = (logprobs - old).exp()
    gain = torch.minimum(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages)
    if dual_clip is not None:  # a stored failure's ratio is unbounded where A < 0
        gain = torch.where(advantages < 0, torch.maximum(gain, dual_clip * advantages), gain)
    loss = -(gain * mask).sum() / mask.sum()
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    optimizer.step()
    return loss.detach()


def train(num_steps: int, *, seed: int = 0) -> list[dict[str, float]]:
    """The metrics of every step."""
    torch.manual_seed(seed)
    draw, policy, lines = random.Random(seed), Policy(), []
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
    problems = [Problem(f"{a}+{b}", a, b) for a in range(10) for b in range(10)]
    r3 = R3(R3Settings(), history=":memory:", seed=seed)
    for step in range(num_steps):
        epoch, place = divmod(step * PROBLEMS_PER_STEP, len(problems))
        problems = problems if place else draw.sample(problems, len(problems))
        due = problems[place : place + PROBLEMS_PER_STEP]
        prompts = r3.prompts(due, step=step, epoch=epoch + 1, render=Prompts())  # ISR
        rollouts, entropies, groups = sample(policy, list(prompts), step=step, epoch=epoch + 1)
        # CCR, SERR, eq. 3
        batch = r3.mix(rollouts, step=step, entropy=entropies, groups=groups)
        update(policy, optimizer, batch, r3.settings.replay.dual_clip)
        lines.append(r3.metrics(batch, step=step) | prompts.metrics())
        r3.remember(rollouts, step=step, epoch=epoch + 1)
    return lines


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="R³ in a loop of plain torch")
    parser.add_argument("--steps", type=int, default=300)
    steps = parser.parse_args().steps
    if steps < 1:
        parser.error(f"--steps is {steps}, so nothing would be trained; use 1 or more")
    metrics = train(steps)
    for part in (metrics[start : start + 30] for start in range(0, len(metrics), 30)):
        print(
            ", ".join(
                f"{name} {sum(line[name] for line in part) / len(part):.2f}" for name in SHOWN
            )
        )
