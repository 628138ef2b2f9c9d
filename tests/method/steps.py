"""Rollouts and settings for the tests of R3."""

from r3_openrlhf.method.history.store import HistoryStore
from r3_openrlhf.method.r3 import R3
from r3_openrlhf.method.settings import R3Settings
from r3_openrlhf.method.types import (
    Context,
    EntropyBounds,
    Verdict,
)
from tests.method.history.samples import make_rollout

C, W = Verdict.CORRECT, Verdict.WRONG


def settings_of(**keys):
    """The defaults with some keys changed: section__key=value."""
    settings = R3Settings()
    for key, value in keys.items():
        owner = settings
        *sections, name = key.split("__")
        for section in sections:
            owner = getattr(owner, section)
        assert hasattr(owner, name)
        setattr(owner, name, value)
    return settings


class Storing(R3):
    """Recalls what it is told, as if a history had it."""

    def __init__(self, stored, *, seed=0, **keys):
        super().__init__(settings_of(**keys), history=HistoryStore.open(":memory:"), seed=seed)
        self._stored = stored

    def stored(self, uid, verdict, *, step):
        return list(self._stored(uid, verdict))


def rollout(
    verdict=W,
    *,
    number=0,
    uid="a",
    truncated=False,
    step=0,
    context=Context.PLAIN,
    prompt=(1, 2),
    bounds=None,
):
    made = make_rollout(
        uid,
        ids=(7, number),
        logprobs=(-0.5, -0.5),
        prompt=prompt,
        verdict=verdict,
        reward=1.0 if verdict == C else 0.0,
        truncated=truncated,
        policy_step=step,
        context=context,
    )
    made.entropy_bounds = bounds
    return made


def bounds(peak, width):
    return EntropyBounds(
        peak_lower=peak, peak_upper=peak + width, global_lower=1 / peak, global_upper=1 / peak
    )
