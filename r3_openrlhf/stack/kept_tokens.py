"""The likeliest tokens of rows, or given ones, with their log-probs, as a forward pass of the policy keeps them.

B rows, A action positions, S sampled tokens of a row, K kept tokens of each."""

from __future__ import annotations

import numpy as np
import torch

from r3_openrlhf.stack.label_logprobs import LogitsOf, likeliest, logprobs_at

# of a row: 0 keeps nothing, k the k likeliest tokens of each sampled place; or the ids to keep, int32 [S, K]
TokensWanted = int | np.ndarray


class KeptTokens(dict[int, tuple[np.ndarray, np.ndarray]]):
    """Row of a pass -> ids int32 [S, K] and their log-probs float32 [S, K], in the order of its sampled tokens."""

    def __init__(self, wanted: list[TokensWanted]) -> None:
        super().__init__()
        self.wanted = wanted

    @property
    def wants_any(self) -> bool:
        """True if a row keeps tokens."""
        return any(not isinstance(one, int) or one > 0 for one in self.wanted)

    def read(
        self,
        logits_of: LogitsOf,
        places_BA: torch.Tensor,
        action_mask_BA: torch.Tensor,
        *,
        temperature: float,
    ) -> None:
        """Read the tokens of all rows off the logits of the pass. places_BA: of each action position there."""
        for row, wanted in enumerate(self.wanted):
            places_S = places_BA[row][action_mask_BA[row].bool()]
            if isinstance(wanted, np.ndarray):
                ids_SK = torch.from_numpy(wanted.copy()).to(places_S.device)
                logprobs_SK = logprobs_at(logits_of, places_S, ids_SK, temperature=temperature)
                self[row] = (wanted, logprobs_SK.cpu().numpy())
            elif wanted:
                ids_SK, logprobs_SK = likeliest(
                    logits_of, places_S, top_k=wanted, temperature=temperature
                )
                self[row] = (ids_SK.cpu().numpy(), logprobs_SK.cpu().numpy())
