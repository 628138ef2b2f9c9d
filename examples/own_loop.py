"""R³ in a training loop of your own: plain torch, no OpenRLHF. Between the two lines of dashes are the ten lines of R³.

    python examples/own_loop.py            # a few seconds on one core

The policy is a small recurrent network that adds two digits: it is given (a, b) and writes digits, "hm" and an end sign,
at most LIMIT tokens. Replay and ranking work as in `r3 train`; reflection needs a model that reads, and is left out.
"""

from __future__ import annotations

import argparse
import random

import numpy as np
import torch

from r3_openrlhf import (
    Context,
    EntropyStatistics,
    HistoryStore,
    MixedBatch,
    R3Config,
    Rollout,
    Verdict,
    batch_metrics,
    entropy_statistics,
    method,
    outcome_reward,
)

END, HM, NUM_TOKENS = 10, 11, 12  # tokens 0 to 9 are digits
LIMIT, PROBLEMS_PER_STEP, GROUP, CLIP = 5, 16, 8, 0.2


class Policy(torch.nn.Module):
    """Logits of the next token, from the two digits and the tokens so far."""

    def __init__(self) -> None:
        super().__init__()
        self.digits = torch.nn.Embedding(20, 64)  # a, and b + 10
        self.token = torch.nn.Embedding(NUM_TOKENS + 1, 64)  # the last one: nothing written yet
        self.cell = torch.nn.GRUCell(64, 64)
        self.head = torch.nn.Linear(64, NUM_TOKENS)

    def forward(self, prompts_B2: torch.Tensor, tokens_BT: torch.Tensor) -> torch.Tensor:
        """[B, T, V]: the logits at each of the T positions, given the tokens before it."""
        state = torch.tanh(self.digits(prompts_B2).sum(1))
        start = torch.full_like(tokens_BT[:, :1], NUM_TOKENS)
        logits = []
        for token_B in torch.cat([start, tokens_BT[:, :-1]], 1).unbind(1):
            state = self.cell(self.token(token_B), state)
            logits.append(self.head(state))
        return torch.stack(logits, 1)


def sample(policy: Policy, problems: list[tuple[int, int]], step: int, config: R3Config) -> tuple[list, list]:
    """GROUP graded rollouts of each problem, and the entropy statistics of each."""
    asked = [problem for problem in problems for _ in range(GROUP)]
    prompts = torch.tensor([(a, b + 10) for a, b in asked])
    tokens = torch.zeros(len(asked), 0, dtype=torch.long)
    with torch.no_grad():
        for _ in range(LIMIT):
            logits = policy(prompts, torch.cat([tokens, tokens.new_zeros(len(asked), 1)], 1))[:, -1]
            tokens = torch.cat([tokens, torch.multinomial(logits.softmax(-1), 1)], 1)
        logprobs_BTV = policy(prompts, tokens).log_softmax(-1)
    logprobs_BT = logprobs_BTV.gather(-1, tokens[..., None])[..., 0]
    entropy_BT = -(logprobs_BTV.exp() * logprobs_BTV).sum(-1)
    rollouts, entropies = [], []
    for row, (a, b) in enumerate(asked):
        ids = tokens[row].tolist()
        length = ids.index(END) + 1 if END in ids else LIMIT
        said = "".join(str(token) for token in ids[:length] if token < END)
        right = END in ids and said == str(a + b)
        rollouts.append(
            Rollout(
                uid=f"{a}+{b}",
                context=Context.PLAIN,
                prompt_ids=prompts[row].numpy().astype(np.int32),
                response_ids=tokens[row, :length].numpy().astype(np.int32),
                response_logprobs=logprobs_BT[row, :length].numpy().astype(np.float32),
                verdict=Verdict.CORRECT if right else Verdict.WRONG,
                reward=outcome_reward(float(right), length, max_tokens=LIMIT),
                truncated=END not in ids,
                finish_reason="stop" if END in ids else "length",
                policy_step=step,
                epoch=1,
            )
        )
        peak, global_ = entropy_statistics(entropy_BT[row, :length], peak_fraction=config.ranking.peak_fraction)
        entropies.append(EntropyStatistics(peak=peak, global_=global_, source="exact"))
    return rollouts, entropies


def update(policy: Policy, optimizer: torch.optim.Optimizer, rows: list, old: list) -> None:
    """One step on the clipped loss. `old`: a row's log-probs when it was sampled; None: those of the policy now."""
    prompts = torch.tensor(np.stack([row.rollout.prompt_ids for row in rows])).long()
    responses = [torch.tensor(row.rollout.response_ids).long() for row in rows]
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones(len(ids)) for ids in responses], batch_first=True)
    tokens = torch.nn.utils.rnn.pad_sequence(responses, batch_first=True)
    logprobs = policy(prompts, tokens).log_softmax(-1).gather(-1, tokens[..., None])[..., 0]
    before = logprobs.detach().clone()
    for row, stored in enumerate(old):
        if stored is not None:
            before[row, : len(stored)] = torch.tensor(stored)
    advantages = torch.tensor([row.advantage for row in rows])[:, None]
    ratio = (logprobs - before).exp()
    gain = torch.minimum(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages)
    loss = -(gain * mask).sum() / mask.sum()
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    optimizer.step()


def train(num_steps: int, *, seed: int = 0) -> list[dict[str, float]]:
    """The metrics of every step."""
    torch.set_num_threads(1)  # tensors as small as these gain nothing from more
    torch.manual_seed(seed)
    draw = random.Random(seed)
    policy = Policy()
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
    problems = [(a, b) for a in range(10) for b in range(10)]
    lines = []

    config = R3Config(run_dir="none")  # the defaults; nothing is written
    history = HistoryStore.open(":memory:", seed=seed)
    for step in range(num_steps):
        rollouts, entropies = sample(policy, draw.sample(problems, PROBLEMS_PER_STEP), step, config)

        # ---- R³ ----
        def stored(uid, verdict, step=step):
            return method.stored_rollouts(history, config, uid, verdict, step=step)

        batch = MixedBatch(rollouts, [rollout.uid for rollout in rollouts])
        method.recall(batch, stored, config, step=step)
        ranked = method.rows_to_rank(batch, config)
        method.assign_advantages(batch, ranked, lambda row, found=entropies: found[row.source], config)
        rows = [row for row in batch.rows if row.trained]
        behaviour = [method.uses_stored_logprobs(batch, row, config) for row in rows]
        history.commit_step(step + 1, 1, rollouts)
        # ------------

        old = [row.rollout.response_logprobs if mine else None for row, mine in zip(rows, behaviour, strict=True)]
        update(policy, optimizer, rows, old)
        lines.append(batch_metrics(batch, step=step))
    history.close()
    return lines


def mean(lines: list[dict[str, float]], name: str) -> float:
    return sum(line[name] for line in lines) / len(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    metrics = train(arguments.steps, seed=arguments.seed)
    tenth = max(1, len(metrics) // 10)
    for start in range(0, len(metrics), tenth):
        part = metrics[start : start + tenth]
        print(
            f"steps {start + 1:>4} to {start + len(part):>4}: accuracy {mean(part, 'accuracy'):.3f}, "
            f"truncated {mean(part, 'truncated_rate'):.3f}, recalled {mean(part, 'r3/replay/recalled'):.1f} a step, "
            f"ranked {mean(part, 'r3/ranking/rows'):.1f}"
        )
