"""What a model says at the places that predict the tokens of responses.

N response tokens, U different places that predict them, V vocabulary, K tokens of a place."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Predictions:
    """Distributions over the next token, and the tokens that came.

    Attributes:
        logp_UV: log-probs, float32.
        token_N: the tokens, int64.
        place_N: the place that predicts each, int64; None: the n-th predicts the n-th token."""

    logp_UV: Tensor
    token_N: Tensor
    place_N: Tensor | None = None

    def of_tokens(self) -> Tensor:
        """Return the log-prob of each token [N]."""
        if self.place_N is not None:
            return self.logp_UV[self.place_N, self.token_N]
        return self.logp_UV.gather(1, self.token_N[:, None])[:, 0]

    def of_ids(self, ids_MK: Tensor, *, places: Tensor) -> Tensor:
        """Return the log-probs [M, K] of other tokens in the places of the response tokens `places` [M]."""
        if self.place_N is not None:
            places = self.place_N[places]
        return self.logp_UV[places[:, None], ids_MK]

    def entropies(self) -> Tensor:
        """Return the entropy at each token's place [N], nats."""
        return self._by_token(-torch.xlogy(self.logp_UV.exp(), self.logp_UV.exp()).sum(-1))

    def likeliest(self, count: int) -> tuple[Tensor, Tensor]:
        """Return the `count` likeliest tokens at each token's place: log-probs [N, K], ids [N, K]."""
        logp_UK, ids_UK = self.logp_UV.topk(min(count, self.logp_UV.shape[1]))
        return self._by_token(logp_UK), self._by_token(ids_UK)

    def _by_token(self, values: Tensor) -> Tensor:
        return values if self.place_N is None else values[self.place_N]
