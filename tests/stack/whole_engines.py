"""Played engines whose responses are whole: tokens, log-probs and grades."""

import sys
from pathlib import Path

import numpy as np

from r3_openrlhf.method.types import EntropyBounds, Verdict
from r3_openrlhf.rewards.exchange import Grade
from r3_openrlhf.stack.convert import Run, response_of
from r3_openrlhf.stack.partial_rollouts import Piece, run_lengths

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from partial_rollouts import PlayedEngines  # noqa: E402


class WholeEngines(PlayedEngines):
    """With tokens, log-probs that tell the weights, and grades: a response is right if its length is even."""

    def _pieces(self, number, place, count):
        before = self._groups[number].samples[place]
        if not count:
            return before
        begin = sum(len(piece.ids) for piece in before)
        prompt = self._groups[number].prompt
        ids = [hash_of(prompt, place, position) for position in range(begin, begin + count)]
        logprobs_TK = np.array(
            [[-0.01 * one - self.policy_step, -0.5] for one in ids], dtype=np.float32
        )
        return [
            *before,
            Piece(ids=ids, logprobs_TK=logprobs_TK, policy_step=self.policy_step),
        ]

    def _response(self, number, place, count):
        group, pieces = self._groups[number], self._pieces(number, place, count)
        length = sum(len(piece.ids) for piece in pieces)
        verdict = Verdict.WRONG if length % 2 else Verdict.CORRECT
        reward = float(verdict is Verdict.CORRECT)
        return response_of(
            [1, 2],
            [Run(piece.ids, piece.logprobs_TK[:, 0]) for piece in pieces],
            Grade(verdict=verdict, reason="", score=reward, reward=reward),
            prompt=group.prompt,
            label=group.label,
            truncated=False,
            text=f"{group.prompt} {place} \ud800",
            finish_reason="stop",
            entropy_bounds=EntropyBounds(
                peak_lower=0.1, peak_upper=0.2, global_lower=0.1, global_upper=0.3
            ),
            seconds=0.5,
            policy_step=pieces[0].policy_step,
            pieces=run_lengths(pieces, given=0),
            tools={},
            fault="",
        )

    def occupancy(self):
        return 0.5


def hash_of(prompt, place, position):
    return sum(f"{prompt}/{place}/{position}".encode()) % 97


def as_plain(response):
    found = dict(response)
    for key in ("observation_tokens", "rollout_log_probs"):
        found[key] = (found[key].dtype.itemsize, found[key].tolist())
    found["action_ranges"] = list(map(tuple, found["action_ranges"]))
    found["r3"] = found["r3"] | {"pieces": list(map(tuple, found["r3"]["pieces"]))}
    return found
