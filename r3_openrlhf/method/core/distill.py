"""A teacher from the store (METHOD section 11): what the policy says of a response's tokens once it has read a success.

A failed response y of a problem x is scored a second time by the same weights, behind a prompt that also
shows a right response s of the same problem:

    g_t = log pi(y_t | x, s, y_<t) - log pi(y_t | x, y_<t)         the gap, nats a token
    d_t = w_t min(max(g_t, -bound), bound)                         the teacher's term, w from WEIGHTS
    A_t = A + coef d_t                                             the token's advantage, detached

with the group's advantage A, or 0 in its place (distill.group_advantage). To first order this is the
gradient of the reverse KL from the policy to its teacher on the sampled tokens (SDPO, arXiv 2601.20802;
OPSD, arXiv 2601.18734).

A loss on logits, another entry of DISTILL_LOSSES, compares the two distributions instead of the sampled token:

    l_t = coef w_t D(p_S, p_T)                                     joins the policy loss of token t

p_S and p_T are the probabilities of K tokens and of all others together, so both sum to 1. The K tokens are
the likeliest of the teacher, or of the policy before the update (Support). Only p_S has a gradient.

B rows, A action positions, T tokens of a response, K kept tokens of a position."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from r3_openrlhf.method.core.checks import same_length
from r3_openrlhf.method.errors import ConfigError, quoted
from r3_openrlhf.method.open_table import OpenTable, check_signature, tried
from r3_openrlhf.method.types import Rollout, Word

if TYPE_CHECKING:
    from torch import Tensor

DOUBTED = -math.log(2)  # gap of a token that the teacher finds half as likely, or less


class TaughtRows(Word):
    """The fresh rows that may be taught: failed ones (SRPO, arXiv 2604.02288), or all (SDPO)."""

    FAILED = "failed"
    ALL = "all"


class GroupAdvantage(Word):
    """The rows that keep their group's advantage: all, those without a teacher (SRPO), or none (SDPO)."""

    ALL = "all"
    UNTAUGHT = "untaught"
    NONE = "none"


class Shown(Word):
    """The teacher's prompt: the problem and a success; with the verdict on an attempt; or with a stored error."""

    SUCCESS = "success"
    VERDICT = "verdict"
    ERROR = "error"


class Teacher(Word):
    """The weights that score behind a teacher's prompt: the policy's, or a moving average of them (SDPO)."""

    POLICY = "policy"
    AVERAGE = "average"


class Support(Word):
    """The model whose likeliest tokens a loss on logits compares (K of them, and the rest as one class)."""

    TEACHER = "teacher"
    STUDENT = "student"  # the policy before the update (SDPO)


class LessonFate(Word):
    """Tell whether a fresh row has a teacher in this step, and if not, why."""

    TAUGHT = "taught"
    NOT_FAILED = "not_failed"
    STARTS_ELSEWHERE = "starts_elsewhere"  # after another prompt than the plain one
    WITHOUT_SUCCESS = "without_success"  # no right response of the problem is known
    WITHOUT_ROOM = "without_room"  # problem, success and response are too long together
    CUT = "cut_by_max_share"


@dataclass(frozen=True, slots=True, eq=False)
class Lesson:
    """One taught row.

    Attributes:
        row: index into MixedBatch.rows.
        prompt: the teacher's, as the loop's PromptMaker made it; the row's own response follows.
        success: the response that it shows; None: the reference answer."""

    row: int
    prompt: Any
    success: Rollout | None


@dataclass(frozen=True, slots=True, eq=False)
class TeacherScores:
    """Log-probs of one response's tokens under today's policy, at the temperature of sampling.

    Attributes:
        teacher: behind the teacher's prompt, float [T].
        student: behind the response's own prompt, float [T].
        entropies: of the teacher's distribution, nats [T]; None: not measured."""

    teacher: np.ndarray
    student: np.ndarray
    entropies: np.ndarray | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """The teacher's log-probs of K tokens at each place of a response, for a loss of DISTILL_LOSSES.

    Attributes:
        ids: integer [T, K].
        logprobs: of the teacher, float32 [T, K].
        weights: of the loss at each place, float32 [T]; 0 where a token was given."""

    ids: np.ndarray
    logprobs: np.ndarray
    weights: np.ndarray


# ── the success that is shown ──


def own_group(group: Sequence[Rollout], _stored: Sequence[Rollout]) -> list[Rollout]:
    """Return the other right responses of the same group (SDPO, SRPO)."""
    return list(group)


def of_store(_group: Sequence[Rollout], stored: Sequence[Rollout]) -> list[Rollout]:
    """Return what the policy once answered rightly in other steps."""
    return [rollout for rollout in stored if not rollout.origin]


def of_import(_group: Sequence[Rollout], stored: Sequence[Rollout]) -> list[Rollout]:
    """Return imported successes (history.start)."""
    return [rollout for rollout in stored if rollout.origin]


def nearest_first(group: Sequence[Rollout], stored: Sequence[Rollout]) -> list[Rollout]:
    """Return the group's own successes; without any the stored ones."""
    return list(group) or list(stored)


Source = Callable[[Sequence[Rollout], Sequence[Rollout]], Sequence[Rollout]]


def _source_of_user(path: str, function: Source) -> Source:
    """ConfigError: it does not take the group's successes and the stored ones."""
    check_signature("distill.source", path, function, [], [])
    return function


# (right responses of the row's group but itself, stored ones) -> those of which one is drawn
SOURCES: OpenTable[Source] = OpenTable(
    "distill.source",
    {"any": nearest_first, "group": own_group, "stored": of_store, "imported": of_import},
    of_user=_source_of_user,
)


# ── the term of a token ──


def equal_weights(entropies: np.ndarray) -> np.ndarray:
    """Return w_t = 1."""
    return np.ones_like(entropies)


def confident(entropies: np.ndarray) -> np.ndarray:
    """Return w_t = exp(-H_t) / mean(exp(-H)): a token of which the teacher is unsure counts less.

    SRPO (arXiv 2604.02288) weighs by the teacher's entropy; this form of it is ours."""
    certain = np.exp(-entropies)
    return certain / certain.mean()


@dataclass(frozen=True, slots=True)
class TokenWeight:
    """Weights of a response's tokens [T] from its teacher's entropies, nats [T]."""

    function: Callable[[np.ndarray], np.ndarray]
    needs_entropy: bool = True


def _weight_of_user(path: str, function: Callable[[np.ndarray], np.ndarray]) -> TokenWeight:
    """ConfigError: it does not take an array of entropies, or returns no finite number for each."""
    entropies = np.array([0.1, 1.0], np.float32)
    check_signature("distill.weight", path, function, entropies)
    weights = tried(
        "distill.weight",
        path,
        lambda: np.asarray(function(entropies), dtype=np.float64),
        on="the entropies of two tokens",
    )
    if weights.shape != (2,) or not np.isfinite(weights).all():
        raise ConfigError(
            f"distill.weight is {quoted(path)}, which returned {quoted(weights.tolist())} for two tokens; use one "
            "finite number for each"
        )
    return TokenWeight(function)


WEIGHTS: OpenTable[TokenWeight] = OpenTable(
    "distill.weight",
    {
        "equal": TokenWeight(equal_weights, needs_entropy=False),
        "confident": TokenWeight(confident),
    },
    of_user=_weight_of_user,
)


def token_terms(
    scores: TeacherScores, sampled: np.ndarray, *, bound: float | None, weight: TokenWeight
) -> np.ndarray:
    """Return the teacher's term d_t of each token, float32 [T]; 0 where a token was given.

    sampled: bool [T], the tokens that the policy wrote itself. ValueError: unequal lengths, or a
    log-prob or a weight that is not finite."""
    same_length(
        teacher=list(scores.teacher), student=list(scores.student), sampled=list(sampled)
    )
    gap = np.where(sampled, scores.teacher - scores.student, 0.0).astype(np.float32)
    if not np.isfinite(gap).all():
        raise ValueError("a log-prob of the teacher or of the policy is not finite")
    if bound is not None:
        gap = gap.clip(-bound, bound)
    return token_weights(scores.entropies, sampled, weight) * gap


def token_weights(
    entropies: np.ndarray | None, sampled: np.ndarray, weight: TokenWeight
) -> np.ndarray:
    """Return w_t of each token, float32 [T]; 0 where a token was given.

    entropies: of the teacher, nats [T]; None: `weight` reads none. ValueError: a weight is not finite."""
    weights = np.zeros(len(sampled), np.float32)
    if not sampled.any():
        return weights
    if entropies is None:
        entropies = weights
    weights[sampled] = weight.function(entropies[sampled])
    if not np.isfinite(weights).all():
        raise ValueError("distill.weight returned a number that is not finite")
    return weights


# ── losses on the likeliest tokens ──


def with_rest(logprobs: Tensor) -> Tensor:
    """Append the log-prob of all other tokens: [.., K] -> [.., K + 1], which sums to 1."""
    import torch

    kept = logprobs.logsumexp(-1, keepdim=True).clamp(max=-1e-7)
    return torch.cat([logprobs, (-kept.expm1()).log()], dim=-1)


def reverse_kl(student: Tensor, teacher: Tensor) -> Tensor:
    """Compute sum_k p_S (log p_S - log p_T): [.., K] -> [..]   OPSD, arXiv 2601.18734; TRL's alpha 1"""
    return (student.exp() * (student - teacher)).sum(-1)


def forward_kl(student: Tensor, teacher: Tensor) -> Tensor:
    """Compute sum_k p_T (log p_T - log p_S): [.., K] -> [..]   Hinton et al., arXiv 1503.02531; TRL's alpha 0"""
    return (teacher.exp() * (teacher - student)).sum(-1)


def jensen_shannon(student: Tensor, teacher: Tensor) -> Tensor:
    """Compute (KL(p_S | m) + KL(p_T | m)) / 2, m = (p_S + p_T) / 2: [.., K] -> [..]   SDPO; TRL's alpha .5"""
    mixture = student.logaddexp(teacher) - math.log(2)
    return (reverse_kl(student, mixture) + reverse_kl(teacher, mixture)) / 2


@dataclass(frozen=True, slots=True)
class DistillLoss:
    """One form of the teacher's part of the loss.

    Attributes:
        function: log-probs of the policy [B, A, K + 1] with gradient, and of the teacher -> [B, A]; None:
            the term joins the advantages, and the run's own loss does the rest."""

    function: Callable[[Tensor, Tensor], Tensor] | None = None

    def divergence(self, student: Tensor, teacher: Tensor) -> Tensor:
        """Compute D(p_S, p_T) at each place from log-probs of K tokens: [.., K], [.., K] -> [..]

        The rest of the vocabulary is one more class, so that both are distributions."""
        assert self.function is not None
        return self.function(with_rest(student), with_rest(teacher))


def _loss_of_user(path: str, function: Callable[[Tensor, Tensor], Tensor]) -> DistillLoss:
    """ConfigError: it does not take the log-probs of policy and teacher."""
    check_signature("distill.loss", path, function, None, None)
    return DistillLoss(function)


DISTILL_LOSSES: OpenTable[DistillLoss] = OpenTable(
    "distill.loss",
    {
        "policy_gradient": DistillLoss(),
        "reverse_kl": DistillLoss(reverse_kl),
        "forward_kl": DistillLoss(forward_kl),
        "jensen_shannon": DistillLoss(jensen_shannon),
    },
    of_user=_loss_of_user,
)


# ── metrics ──


def lesson_metrics(
    fates: Iterable[LessonFate],
    scores: Mapping[int, TeacherScores],
    sampled: Mapping[int, np.ndarray],
    *,
    bound: float | None,
) -> dict[str, float]:
    """Return `r3/distill/*`: rows by fate, and how far the teacher is from the policy.

    A step without a taught token has no gap: the keys of it are missing.

    Args:
        scores, sampled: of each taught row."""
    counts = Counter(fates)
    metrics = {f"r3/distill/{fate}": float(counts[fate]) for fate in LessonFate}
    gaps = [
        (one.teacher - one.student)[sampled[row]].astype(np.float64)
        for row, one in scores.items()
    ]
    if not any(len(gap) for gap in gaps):
        return metrics
    gap = np.concatenate(gaps)
    metrics["r3/distill/gap"] = float(gap.mean())
    metrics["r3/distill/abs_gap"] = float(np.abs(gap).mean())
    metrics["r3/distill/doubted_share"] = float((gap <= DOUBTED).mean())
    at_bound = np.zeros(len(gap), bool) if bound is None else np.abs(gap) >= bound
    metrics["r3/distill/at_bound_share"] = float(at_bound.mean())
    return metrics
