"""Algorithms that can be trained: one record per value of the key `algo`.

An entry of one's own is a function of a group's rewards (method/core/estimators.py), which makes
R³ with these advantages, `algo=my_file.py:maxrl`, or a record, `algo=my_module:MINE`, with

    from r3_openrlhf.config.algorithms import Algorithm
    MINE = Algorithm(advantages=maxrl, loss="cispo")

Everything that depends on the algorithm asks its record; no other file knows the names.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from r3_openrlhf.method.core.checks import whole_number
from r3_openrlhf.method.core.estimators import ESTIMATORS, GroupEstimator, estimator_of_user
from r3_openrlhf.method.core.losses import LOSSES, loss_of_user
from r3_openrlhf.method.errors import ConfigError, quoted
from r3_openrlhf.method.open_table import OpenTable

MAKERS = "r3_openrlhf.stack.experience_maker"
METHOD = frozenset({"replay", "reflection", "ranking", "distill"})
# OpenRLHF's estimators that take a reward by itself, or against the mean of the whole step
# (trainer/ppo_utils/experience_maker.py:268-278)
WITHOUT_GROUPS = frozenset({"gae", "reinforce", "flash_reinforce"})
DAPO_OVERLONG_SHARE = 0.2  # arXiv 2503.14476, section 3.4: a buffer of 4,096 of 20,480 tokens
# Its penalty goes down to -1 with verdicts of +1 and -1; ours are 1 and 0, half as far apart, and
# group_norm makes everything but this proportion the same.
DAPO_OVERLONG_FACTOR = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """An algorithm's use of the stack.

    Attributes:
        estimator: OpenRLHF's word for its advantages (--algo.advantage.estimator).
        advantages: own advantages: an entry of `advantage.function`, or such a function. None: that key
            of the configuration, or OpenRLHF's.
        loss: an entry of `train.loss`, or such a function. None: that key of the configuration.
        flags: further flags of OpenRLHF that it is made of.
        experience_maker: import path of the class before the update; a subclass of
            StockExperienceMaker.
        mechanisms: sections of the method that may be on.
        own_advantages: ours, for any number of rows; OpenRLHF's estimators' flags are refused.
        keeps_history: every rollout is kept in a history store, whatever is on.
        filters_groups: replace groups without a difference by other problems' (dynamic sampling)?
        overlong_penalty: DAPO's penalty on long responses.
        environment: are the rollouts trajectories in an environment (agents.environment)?
        compared: presets to compare a run with: the first, or the second for a run of the first.
    """

    estimator: str = "group_norm"
    advantages: Any = None
    loss: Any = None
    flags: Mapping[str, Any] = field(default_factory=dict)
    experience_maker: str = f"{MAKERS}:StockExperienceMaker"
    mechanisms: frozenset[str] = frozenset()
    own_advantages: bool = False
    keeps_history: bool = False
    filters_groups: bool = False
    overlong_penalty: bool = False
    environment: bool = False
    compared: tuple[str, str] = ("grpo", "r3")

    @property
    def group_estimator(self) -> GroupEstimator | None:
        """Its estimator as a function of ours, for any loop; None: there is none, or settings choose it."""
        if self.own_advantages:
            return self.advantages
        return ESTIMATORS[self.estimator] if self.estimator in ESTIMATORS else None

    @property
    def has_critic(self) -> bool:
        """True if a critic is trained too (critic.*). Only OpenRLHF's estimator GAE needs one."""
        return self.estimator == "gae"

    @property
    def compares_groups(self) -> bool:
        """True if the responses of one prompt are compared, so that one alone would train nothing."""
        return self.own_advantages or self.estimator not in WITHOUT_GROUPS

    @property
    def replays_states(self) -> bool:
        """True if groups may start from a critic's states (exploration.rrl), with a history."""
        return self.has_critic and self.keeps_history


def _of_user(path: str, found: object) -> Algorithm:
    if inspect.isfunction(found):
        found = Algorithm(advantages=found, mechanisms=METHOD, keeps_history=True)
    if not isinstance(found, Algorithm):
        raise ConfigError(
            f"algo is {quoted(path)}, which is not an instance of r3_openrlhf.config.algorithms.Algorithm"
        )
    if found.advantages is not None:
        maker = found.experience_maker.replace(":Stock", ":R3")
        found = replace(found, own_advantages=True, experience_maker=maker)
        found = replace(
            found, advantages=_entry(ESTIMATORS, path, found.advantages, estimator_of_user)
        )
    if found.loss is not None:
        found = replace(found, loss=_entry(LOSSES, path, found.loss, loss_of_user))
    unknown = found.mechanisms - METHOD
    if unknown:
        raise ConfigError(
            f"algo is {quoted(path)}, whose mechanisms include {quoted(sorted(unknown)[0])}; known: {', '.join(sorted(METHOD))}"
        )
    if found.has_critic and found.own_advantages:
        raise ConfigError(
            f"algo is {path!r} with the estimator gae and own_advantages, but the critic would learn eq. 3's advantages as returns; "
            "leave one of the two out"
        )
    return found


def _entry(table: OpenTable[Any], path: str, given: Any, of_user: Any) -> object:
    return of_user("algo", path, given) if callable(given) else table[given]


# With own_advantages the estimator is what eq. 3 reduces to.
ALGORITHMS: OpenTable[Algorithm] = OpenTable(
    "algo",
    {
        "r3": Algorithm(
            estimator="group_norm",
            experience_maker=f"{MAKERS}:R3ExperienceMaker",
            mechanisms=METHOD,
            own_advantages=True,
            keeps_history=True,
        ),
        "grpo": Algorithm(estimator="group_norm"),
        "rloo": Algorithm(estimator="rloo"),
        "reinforce_pp": Algorithm(estimator="reinforce"),
        "flash_reinforce": Algorithm(estimator="flash_reinforce"),
        "reinforce_pp_baseline": Algorithm(estimator="reinforce_baseline"),
        "dr_grpo": Algorithm(estimator="dr_grpo"),
        "gspo": Algorithm(estimator="group_norm", flags={"actor.policy_loss_type": "gspo"}),
        "ppo": Algorithm(estimator="gae"),
        "rrl": Algorithm(estimator="gae", keeps_history=True),
        "dapo": Algorithm(estimator="group_norm", filters_groups=True, overlong_penalty=True),
        # trajectories, by agents.estimator
        "agents": Algorithm(
            estimator="group_norm",
            experience_maker="r3_openrlhf.stack.agents.experience:AgentExperienceMaker",
            mechanisms=frozenset({"replay", "reflection"}),
            own_advantages=True,
            environment=True,
            compared=("gigpo", "hgpo"),
        ),
    },
    of_user=_of_user,
    unread=lambda path: Algorithm(estimator="group_norm", mechanisms=METHOD),
)


def overlong_penalty(num_tokens: int, *, max_tokens: int) -> float:
    """Compute what DAPO takes from the reward of a response of l tokens, at most
    DAPO_OVERLONG_FACTOR (its section 3.4).

        F * min(l - (L - B), B) / B   above L - B tokens, else 0;  L = max_tokens, B = int(DAPO_OVERLONG_SHARE * L)

    As OpenRLHF's trainer/ppo_utils/length_penalty.py:41-55. A limit too small takes nothing.

    Raises:
        ValueError: num_tokens below 0, max_tokens below 1."""
    num_tokens = whole_number("num_tokens", num_tokens, minimum=0)
    max_tokens = whole_number("max_tokens", max_tokens, minimum=1)
    buffer = int(DAPO_OVERLONG_SHARE * max_tokens)
    exceeding = min(num_tokens - (max_tokens - buffer), buffer)
    return DAPO_OVERLONG_FACTOR * exceeding / buffer if exceeding > 0 else 0.0
