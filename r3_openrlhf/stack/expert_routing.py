"""Routing replay: the policy's passes send each token to the experts that the engine chose for it
(rollout.routing_replay).

Engine and trainer compute a router's logits with different kernels. Where two experts are nearly
equal they choose differently, and the ratio of the loss is then taken between two different models.
Here a router takes the chosen experts as given and computes their weights from its own logits, so
that the gradient of the gate stays:

    w_e = softmax(logits)_e                       for e among the given experts
    w_e = w_e / sum of the w of the given ones    where the model does so (norm_topk_prob)

Positions without given experts choose for themselves: padding, a row's last token, which the engine
never passed through the model, and rows whose experts are not known. Answers
transformers/models/qwen3_moe/modeling_qwen3_moe.py:258 (Qwen3MoeTopKRouter.forward).

B rows, T tokens of prompt + response, N tokens of a pass (B x T, or without padding where rows are
packed), L layers of the model, K experts of a token, E experts of a layer."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import NamedTuple

import numpy as np
import torch
from openrlhf.trainer.ppo_utils.experience import Experience

from r3_openrlhf.method.errors import TrainingStopped

KEY = "rollout.routing_replay"


def softmax_weights(
    router: torch.nn.Module, logits_NE: torch.Tensor, experts_NK: torch.Tensor
) -> torch.Tensor:
    """Compute the weights [N, K] of these experts as Qwen3MoeTopKRouter.forward does of its own."""
    weights_NE = torch.softmax(logits_NE, dtype=torch.float, dim=-1)
    weights_NK = weights_NE.gather(-1, experts_NK)
    if router.norm_topk_prob:
        weights_NK = weights_NK / weights_NK.sum(dim=-1, keepdim=True)
    return weights_NK.to(logits_NE.dtype)


Weights = Callable[[torch.nn.Module, torch.Tensor, torch.Tensor], torch.Tensor]
# The class of a router -> the weights of given experts. The router returns (logits [N, E], weights [N, K],
# experts [N, K]). runs/models/routers.py says before a start which types of models have one of them.
ROUTERS: dict[str, Weights] = {
    "Qwen3MoeTopKRouter": softmax_weights,
    "Qwen2MoeTopKRouter": softmax_weights,
    "OlmoeTopKRouter": softmax_weights,
}


class RoutingCounts(NamedTuple):
    """What a rank's passes found of given experts."""

    tokens: int = 0  # whose experts were given
    # of these: in some layer the policy's own experts are others
    differing_tokens: int = 0
    choices: int = 0  # tokens x layers with experts
    differing_choices: int = 0


def add_counts(counts: Sequence[RoutingCounts]) -> RoutingCounts:
    """Add up the counts of passes or ranks."""
    return RoutingCounts(*(sum(numbers) for numbers in zip(*counts, strict=True)))


@dataclass(slots=True)
class _Pass:
    """The given experts of the pass that runs."""

    experts_NLK: torch.Tensor
    is_given_N: torch.Tensor  # bool
    # bool [N]: do the policy's own experts differ in a layer? None: nobody counts
    differs_N: torch.Tensor | None
    # tokens whose own experts differ, of each layer that was passed; on the device, so that none waits
    differing_L: list[torch.Tensor] = field(default_factory=list)


class ExpertRouting:
    """The routers of a model, which take given experts inside `given`.

    TrainingStopped: the model has no router that ROUTERS knows."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._routers: dict[int, torch.nn.Module] = {}
        self._pass: _Pass | None = None
        self._counts: list[RoutingCounts] = []
        for name, module in model.named_modules():
            layer = re.search(r"(?:^|\.)layers\.(\d+)\.", name)
            weights = ROUTERS.get(type(module).__name__)
            if layer is None or weights is None:
                continue
            number = int(layer[1])
            self._routers[number] = module
            module.forward = partial(self._forward, module, module.forward, weights, number)
        if not self._routers:
            raise TrainingStopped(
                f"{KEY} is true, but {type(model).__name__} has no router of experts that is known "
                f"({', '.join(ROUTERS)}); use {KEY}=false"
            )

    @contextmanager
    def given(
        self,
        experts_B: Sequence[torch.Tensor | None],
        attention_mask_BT: torch.Tensor,
        *,
        packed: bool,
        counts: bool = False,
    ) -> Iterator[None]:
        """Inside, a pass over these rows takes the given experts, its backward pass included: gradient
        checkpointing passes through the routers once more.

        Args:
            experts_B: of each row its experts [tokens, L, K] from its first token on; None: not known.
            packed: does the pass leave the padding out?
            counts: is the pass counted (`take_counts`)?"""
        self._pass = self._laid_out(experts_B, attention_mask_BT, packed=packed, counts=counts)
        try:
            yield
            if counts:
                self._counts.append(self._counted())
        finally:
            self._pass = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Inside, a pass over other tokens than those of `given` chooses its experts itself."""
        running, self._pass = self._pass, None
        try:
            yield
        finally:
            self._pass = running

    def take_counts(self) -> RoutingCounts:
        """Return the counts of the passes since the last call."""
        found, self._counts = self._counts, []
        return add_counts(found) if found else RoutingCounts()

    def _laid_out(
        self,
        experts_B: Sequence[torch.Tensor | None],
        attention_mask_BT: torch.Tensor,
        *,
        packed: bool,
        counts: bool,
    ) -> _Pass | None:
        """Put the experts of the rows where the pass has their tokens; None: no row has any."""
        known = [one for one in experts_B if one is not None]
        if not known:
            return None
        for experts_TLK in known:
            self._check_shape(experts_TLK)
        is_real_N = attention_mask_BT.bool().flatten()
        device, num_places = is_real_N.device, len(is_real_N)
        dtype = reduce(torch.promote_types, (one.dtype for one in known))
        chosen_NLK = torch.zeros((num_places, *known[0].shape[1:]), dtype=dtype, device=device)
        is_given_N = torch.zeros(num_places, dtype=torch.bool, device=device)
        length = attention_mask_BT.shape[1]
        for row, experts_TLK in enumerate(experts_B):
            if experts_TLK is None:
                continue
            places_T = attention_mask_BT[row].nonzero().flatten()[: len(experts_TLK)]
            places_T = places_T + row * length
            chosen_NLK[places_T] = experts_TLK[: len(places_T)].to(device, dtype)
            is_given_N[places_T] = True
        if packed:
            chosen_NLK, is_given_N = chosen_NLK[is_real_N], is_given_N[is_real_N]
        differs_N = torch.zeros_like(is_given_N) if counts else None
        return _Pass(chosen_NLK, is_given_N, differs_N)

    def _check_shape(self, experts_TLK: torch.Tensor) -> None:
        """TrainingStopped: the experts are those of another model."""
        layers, top_k = experts_TLK.shape[1:]
        last = max(self._routers)
        wanted = self._routers[last].top_k
        if layers <= last or top_k != wanted:
            raise TrainingStopped(
                f"{KEY}: a rollout has {top_k} experts of each token in {layers} layers, but the policy "
                f"chooses {wanted}, in layers up to {last + 1}; the rollout is of another model"
            )

    def _forward(
        self,
        router: torch.nn.Module,
        own: Callable[..., tuple[torch.Tensor, torch.Tensor, torch.Tensor]],
        weights: Weights,
        layer: int,
        hidden_states: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Route as upstream, but for the positions whose experts are given."""
        logits_NE, weights_NK, own_NK = own(hidden_states)
        if self._pass is None:
            return logits_NE, weights_NK, own_NK
        given_NK = self._pass.experts_NLK[:, layer].to(own_NK.dtype)
        is_given_N = self._pass.is_given_N
        if len(own_NK) != len(given_NK):
            raise TrainingStopped(
                f"{KEY}: a pass has {len(own_NK)} tokens, and the experts of {len(given_NK)} were given"
            )
        if self._pass.differs_N is not None:
            differs_N = differing(own_NK, given_NK) & is_given_N
            self._pass.differs_N |= differs_N
            self._pass.differing_L.append(differs_N.sum())
        experts_NK = torch.where(is_given_N[:, None], given_NK, own_NK)
        return logits_NE, weights(router, logits_NE, experts_NK), experts_NK

    def _counted(self) -> RoutingCounts:
        if self._pass is None or self._pass.differs_N is None:
            return RoutingCounts()
        tokens = int(self._pass.is_given_N.sum())
        return RoutingCounts(
            tokens=tokens,
            differing_tokens=int(self._pass.differs_N.sum()),
            choices=tokens * len(self._pass.differing_L),
            differing_choices=int(sum(self._pass.differing_L)),
        )


GIVEN_ROWS = "r3/routing/given_rows"
DIFFERING_TOKENS = "r3/routing/differing_tokens"
DIFFERING_CHOICES = "r3/routing/differing_choices"
RECALLED_OWN = "r3/routing/recalled_own"  # recalled rows that choose their experts themselves


def routing_metrics(samples: Sequence[Experience], counts: RoutingCounts) -> dict[str, float]:
    """Return the metrics of a step's passes.

    Args:
        samples: the micro-batches that passed; rows without any action, fillers, do not count.
        counts: of all ranks."""
    are_given = []
    for sample in samples:
        has_actions_B = sample.action_mask.bool().any(-1).tolist()
        for has_actions, experts in zip(has_actions_B, sample.mm_train_inputs, strict=True):
            if has_actions:
                are_given.append(experts is not None)
    return {
        GIVEN_ROWS: sum(are_given) / max(1, len(are_given)),
        DIFFERING_TOKENS: counts.differing_tokens / max(1, counts.tokens),
        DIFFERING_CHOICES: counts.differing_choices / max(1, counts.choices),
    }


def differing(first_NK: torch.Tensor, second_NK: torch.Tensor) -> torch.Tensor:
    """Tell which tokens have different sets of experts: bool [N]. The order in a set says nothing."""
    first_NK = first_NK.sort(dim=-1).values
    second_NK = second_NK.sort(dim=-1).values
    return (first_NK != second_NK).any(dim=-1)


def experts_tensor(experts_TLK: np.ndarray | None) -> torch.Tensor | None:
    """Return the experts of a row as it passes through the ranks: uint8 or int16 [T, L, K].

    torch computes little with uint16; no model has 2**15 experts."""
    if experts_TLK is None:
        return None
    if experts_TLK.dtype == np.uint16:
        experts_TLK = experts_TLK.view(np.int16)
    return torch.from_numpy(experts_TLK)
