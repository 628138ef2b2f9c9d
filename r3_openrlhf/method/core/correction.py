"""The weight of each token for the mismatch between sampler and trainer (importance sampling correction).

The engine that samples and the model that trains give the same token log-probs that differ, by kernels
and rounding, or because the engine has older weights. A loss of tokens is multiplied by

    w_t = pi_trainer(t) / pi_sampler(t)        both before the step's first update

bounded (TIS), or 0 outside a band (IcePop; a mask of whole responses). The formulas are OpenRLHF's
(models/loss.py:239-278), which multiplies its own `ppo` alone. Recalled rows have one set of log-probs for
both, so their weight is exactly 1. B rows, A action positions."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from r3_openrlhf.method.types import Word

if TYPE_CHECKING:
    from torch import Tensor

# probabilities are within [SMALLEST, 1 - SMALLEST], so that divergences are finite
SMALLEST = 1e-6


class CorrectionMethod(Word):
    """The treatment outside the band: bound the weight, drop the token, or drop the response."""

    NONE = "none"
    TIS = "tis"
    ICEPOP = "icepop"
    SEQUENCE = "sequence"


class CorrectionMeasure(Word):
    """The quantity that the band limits: pi_trainer / pi_sampler, or their divergence at the sampled token."""

    RATIO = "ratio"
    BINARY_KL = "binary_kl"
    TV = "tv"


class Correction(NamedTuple):
    """A correction: what it measures, and the band [low, high] of that."""

    method: CorrectionMethod
    measure: CorrectionMeasure
    low: float
    high: float

    def weights(self, trainer: Tensor, sampler: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weight of each token, float [B, A], and what is outside the band, bool.

        The second is [B, A], with `sequence` [B, 1]. Neither has a gradient.

        Args:
            trainer: log-probs of the trainer before the first update, float [B, A].
            sampler: log-probs of the engine, float [B, A].
            mask: 1 at sampled tokens, float [B, A]."""
        log_ratio = (trainer - sampler).detach()
        ratio = log_ratio.exp()
        value = self._measured(log_ratio, trainer.detach(), sampler.detach(), mask)
        outside = (value < self.low) | (value > self.high)
        if self.method is CorrectionMethod.TIS:
            return value.clamp(self.low, self.high), outside
        return ratio.where(~outside, 0.0), outside

    def _measured(
        self, log_ratio: Tensor, trainer: Tensor, sampler: Tensor, mask: Tensor
    ) -> Tensor:
        """Measure each token, [B, A]; with `sequence` the mean over the response, [B, 1], geometric for the ratio."""
        of_response = self.method is CorrectionMethod.SEQUENCE
        if self.measure is CorrectionMeasure.RATIO:
            return (_mean(log_ratio, mask) if of_response else log_ratio).exp()
        p = sampler.exp().clamp(SMALLEST, 1 - SMALLEST)
        q = trainer.exp().clamp(SMALLEST, 1 - SMALLEST)
        if self.measure is CorrectionMeasure.TV:
            value = (p - q).abs()
        else:
            value = p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()
        return _mean(value, mask) if of_response else value


def _mean(values: Tensor, mask: Tensor) -> Tensor:
    """Compute the mean over the tokens of the mask, [B, 1]."""
    return (values * mask).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1)
