"""Log-probs and advantages -> the loss of each token, by name: the table behind `train.loss`.

A function of one's own joins it by import path, `train.loss=my_losses.py:plain`:

    def plain(logprobs, old_logprobs, advantages, mask):
        return -advantages * logprobs

All are float [B, A]; the result has the loss of each token [B, A], or it and which tokens were
clipped, bool [B, A]. Where the mask is 0 both log-probs are -1, and a value counts nothing. The
function may also name `settings` (LossSettings) and `recalled`, bool [B, 1]: the rows from the history.

r = exp(log pi - log pi_old). B rows, A action positions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from r3_openrlhf.method.open_table import OpenTable, check_signature, named_by, tried

if TYPE_CHECKING:
    from torch import Tensor

GMPO_BOUND = 0.4  # on a token's log-ratio, arXiv 2507.20673
SAPO_TAU_POSITIVE, SAPO_TAU_NEGATIVE = 1.0, 1.05  # arXiv 2511.20347
SHAPING = 0.1  # c of ExGRPO and LUFFY
HARMLESS = -1.0  # log-prob, new and old, that a loss is given at masked places


class LossSettings(NamedTuple):
    """The bounds of a run's loss: 1 - eps_clip_low <= r <= 1 + eps_clip_high, and dual_clip."""

    eps_clip_low: float = 0.2
    eps_clip_high: float = 0.2
    dual_clip: float | None = None


Clipped = tuple["Tensor", "Tensor"]  # the loss of each token, and which tokens are clipped


@dataclass(frozen=True, slots=True)
class TokenLoss:
    """One loss.

    Attributes:
        reads: fields of LossSettings, and `recalled`, that count.
        of_response: it has one ratio for a whole response, so the loss is a mean over responses.
        of_openrlhf: on the stack OpenRLHF's own class computes it.
        of_user: nothing is known of it."""

    function: Callable[..., Any]
    reads: frozenset[str] = frozenset()
    of_response: bool = False
    of_openrlhf: bool = False
    of_user: bool = False

    def of(
        self,
        now: Tensor,
        old: Tensor,
        advantages: Tensor,
        mask: Tensor,
        *,
        settings: LossSettings,
        recalled: Tensor,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the loss of each token, and which tokens are clipped; None: nothing is.

        At masked places the function sees HARMLESS: loops pad with 0, where the slope of a loss may be
        infinite, and 0 times infinity is NaN. ValueError: the function returned another shape."""
        now, old = (logprobs.where(mask.bool(), HARMLESS) for logprobs in (now, old))
        facts = named_by(self.function, {"settings": settings, "recalled": recalled})
        result = self.function(now, old, advantages, mask, **facts)
        loss, clipped = result if isinstance(result, tuple) else (result, None)
        if tuple(loss.shape) != tuple(now.shape):
            raise ValueError(
                f"a loss has the shape {list(loss.shape)}; one of each token is {list(now.shape)}"
            )
        return loss, clipped


def _ratio(now: Tensor, old: Tensor) -> Tensor:
    return (now - old).clamp(-20.0, 20.0).exp()


def _clipped(ratio: Tensor, adv: Tensor, settings: LossSettings) -> Clipped:
    plain = ratio * adv
    bounded = ratio.clamp(1 - settings.eps_clip_low, 1 + settings.eps_clip_high) * adv
    gain = plain.minimum(bounded)
    if settings.dual_clip is not None:
        gain = gain.maximum(settings.dual_clip * adv).where(adv < 0, gain)
    return -gain, bounded < plain


def ppo(
    now: Tensor, old: Tensor, adv: Tensor, _mask: Tensor, *, settings: LossSettings
) -> Clipped:
    """Compute -min(r A, clip(r) A); where A < 0 at most dual_clip |A|  arXiv 1707.06347, 1912.09729"""
    return _clipped(_ratio(now, old), adv, settings)


def gspo(
    now: Tensor, old: Tensor, adv: Tensor, mask: Tensor, *, settings: LossSettings
) -> Clipped:
    """Compute ppo's with s = exp(mean over the response of log r)      GSPO, arXiv 2507.18071"""
    return _clipped(_mean_of_response(now - old, mask).exp() * mask, adv, settings)


def cispo(
    now: Tensor, old: Tensor, adv: Tensor, _mask: Tensor, *, settings: LossSettings
) -> Clipped:
    """Compute -stop(clip(r)) A log pi                                  CISPO, arXiv 2506.13585, eq. 4

    A clipped token keeps its gradient. The paper has no bound below (eps_clip_low 1)."""
    ratio = _ratio(now, old).detach()
    weight = ratio.clamp(1 - settings.eps_clip_low, 1 + settings.eps_clip_high)
    return -weight * adv * now, weight != ratio


def gmpo(now: Tensor, old: Tensor, adv: Tensor, mask: Tensor) -> Clipped:
    """Compute -A exp(mean over the response of l)                      GMPO, arXiv 2507.20673

    l = min(log r, 0.4) where A > 0, max(log r, -0.4) where A < 0: a geometric mean of ratios."""
    sign = adv.sign()
    signed = sign * (now - old)
    mean = _mean_of_response(sign * signed.clamp(max=GMPO_BOUND), mask)
    return -adv * mean.exp(), signed > GMPO_BOUND


def sapo(now: Tensor, old: Tensor, adv: Tensor, _mask: Tensor) -> Tensor:
    """Compute -4 / tau sigmoid(tau (r - 1)) A                          SAPO, arXiv 2511.20347

    tau is 1 where A > 0, else 1.05. Nothing is clipped: the slope falls on both sides of r = 1."""
    tau = (adv > 0) * SAPO_TAU_POSITIVE + (adv <= 0) * SAPO_TAU_NEGATIVE
    return -(tau * (_ratio(now, old) - 1)).sigmoid() * 4 / tau * adv


def gpg(now: Tensor, _old: Tensor, adv: Tensor, _mask: Tensor) -> Tensor:
    """Compute -A log pi                                                GPG, arXiv 2504.02546. No ratio."""
    return -adv * now


def exgrpo(
    now: Tensor,
    old: Tensor,
    adv: Tensor,
    mask: Tensor,
    *,
    settings: LossSettings,
    recalled: Tensor,
) -> Clipped:
    """Compute -r / (r + c) A in a recalled row, ppo's in a fresh one   ExGRPO, arXiv 2510.02245"""
    return _shaped(_ratio(now, old), adv, recalled, ppo(now, old, adv, mask, settings=settings))


def luffy(
    now: Tensor,
    old: Tensor,
    adv: Tensor,
    mask: Tensor,
    *,
    settings: LossSettings,
    recalled: Tensor,
) -> Clipped:
    """Compute -pi / (pi + c) A in a recalled row, ppo's in a fresh one LUFFY, arXiv 2504.14945"""
    return _shaped(now.exp(), adv, recalled, ppo(now, old, adv, mask, settings=settings))


def _shaped(weight: Tensor, adv: Tensor, recalled: Tensor, fresh: Clipped) -> Clipped:
    loss, clipped = fresh
    return (-weight / (weight + SHAPING) * adv).where(recalled, loss), clipped & ~recalled


def _mean_of_response(values: Tensor, mask: Tensor) -> Tensor:
    """[B, 1], over the tokens of the mask."""
    return (values * mask).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1)


def loss_of_user(key: str, path: str, function: Any) -> TokenLoss:
    """Make an entry of a user's function. ConfigError: it cannot be called, or fails on made-up rows."""
    facts = named_by(function, {"settings": None, "recalled": None})
    loss = TokenLoss(function, ALL | facts.keys(), of_user=True)
    tried(key, path, lambda: _try(loss), on="four made-up rows of unequal length")
    return loss


def _try(loss: TokenLoss) -> None:
    import torch

    seen = torch.arange(5) < torch.tensor([[5], [3], [1], [4]])
    # as OpenRLHF pads them
    logprobs = (-torch.arange(1.0, 21.0).reshape(4, 5) / 10).where(seen, 0.0)
    advantages = torch.tensor([[1.0], [1.0], [-1.0], [-1.0]]) * seen
    recalled = torch.tensor([[False], [False], [False], [True]])
    # the first update of a step has log-probs equal to the old ones
    for gap, where in (
        (0.1, ""),
        (0.0, " where its log-prob equals the old one, as in each first update of a step"),
    ):
        now = logprobs.clone().requires_grad_()
        old = (logprobs - gap).where(seen, 0.0)
        per_token, _ = loss.of(
            now, old, advantages, seen.float(), settings=LossSettings(), recalled=recalled
        )
        (gradient,) = torch.autograd.grad(per_token[seen].sum(), now)
        if not per_token[seen].isfinite().all() or not gradient.isfinite().all():
            raise ValueError(f"the loss of a token, or its gradient, is not finite{where}")


BOUNDS, ALL = frozenset({"eps_clip_low", "eps_clip_high"}), frozenset(LossSettings._fields)
PPO = TokenLoss(ppo, ALL, of_openrlhf=True)
LOSSES: OpenTable[TokenLoss] = OpenTable(
    "train.loss",
    {
        "ppo": PPO,
        "gspo": TokenLoss(gspo, ALL, of_response=True, of_openrlhf=True),
        "cispo": TokenLoss(cispo, BOUNDS),
        "gmpo": TokenLoss(gmpo, of_response=True),
        "sapo": TokenLoss(sapo),
        "gpg": TokenLoss(gpg),
        "exgrpo": TokenLoss(exgrpo, ALL | {"recalled"}),
        "luffy": TokenLoss(luffy, ALL | {"recalled"}),
    },
    of_user=lambda path, function: loss_of_user("train.loss", path, function),
)


# ── imported rows ──

NEVER = -20.0  # log-prob of a token that the policy never says
NO_PULL = 0.01  # of the gradient -A of ratio 1


def shaped(probs: Tensor) -> Tensor:
    """c p / (p + c)^2: with ratio 1 the gradient of LUFFY's p / (p + c), arXiv 2504.14945. [A] -> [A]"""
    return SHAPING * probs / (probs + SHAPING) ** 2


def _weight_of_user(
    path: str, function: Callable[[Tensor], Tensor]
) -> Callable[[Tensor], Tensor]:
    """ConfigError: it is no function of the probabilities."""
    check_signature("replay.imported.weight", path, function, None)
    return function


# probability of each token of an imported row, float [A] -> factor on its advantage [A]; None: 1
IMPORTED_WEIGHTS: OpenTable[Callable[[Tensor], Tensor] | None] = OpenTable(
    "replay.imported.weight",
    {"clip": None, "ratio1": None, "shaped": shaped},
    of_user=_weight_of_user,
)


def bounds_imported(
    loss: TokenLoss, weight: str, settings: LossSettings, *, foreign: float
) -> bool:
    """Tell whether an imported row's pull on the policy, |d loss / d log pi| for A = 1, ends.

    It does where tokens that the policy never says have none (LUFFY), or where under `clip` a token to which
    the first policy gave `foreign` nats has none once it is certain."""
    import torch

    def pull(now: float, old: float) -> float:
        now_BA, ones_BA = torch.full((4, 5), now, requires_grad=True), torch.ones(4, 5)
        factor = IMPORTED_WEIGHTS[weight] or torch.ones_like
        adv_BA, recalled_B1 = ones_BA * factor(now_BA[0].detach().exp()), ones_BA[:, :1].bool()
        per_token, _ = loss.of(
            now_BA, ones_BA * old, adv_BA, ones_BA, settings=settings, recalled=recalled_B1
        )
        return torch.autograd.grad(per_token.sum(), now_BA)[0].abs().max().item()

    return pull(NEVER, NEVER) < NO_PULL or (weight == "clip" and pull(0.0, foreign) < NO_PULL)
