"""A forecast of how long a symbolic comparison takes, so that the short ones go first."""

from __future__ import annotations

from collections import OrderedDict

SECONDS_PER_OPERATOR = 0.003  # a rough guess; what matters is the order
MAX_COMPLEXITY = 100
MAX_SUBJECTS = 10_000


def expected_seconds(complexity: int) -> float:
    """complexity: of tasks.complexity_of."""
    return min(max(0, complexity), MAX_COMPLEXITY) * SECONDS_PER_OPERATOR


class Forecast:
    """From what other items of the same subject took.

    A subject is what items have in common (tasks.subject_of), such as the references that the responses to one problem
    are compared with: where two of them took long, the others are likely to. 0 is no subject. Bounded memory.
    """

    def __init__(self) -> None:
        self._slow: OrderedDict[int, dict[int, float]] = OrderedDict()  # subject -> the last two items, when slow

    def known_seconds(self, subject: int) -> float:
        """What the last two items of this subject took at least, when both were slow; else 0."""
        items = self._slow.get(subject, {})
        return min(items.values()) if len(items) > 1 else 0.0

    def learn_slow(self, subject: int, number: int, seconds: float) -> None:
        """Item `number` has taken at least `seconds`."""
        if subject == 0:
            return
        others = [item for item in self._slow.pop(subject, {}).items() if item[0] != number]
        self._slow[subject] = dict([*others[-1:], (number, seconds)])
        if len(self._slow) > MAX_SUBJECTS:
            self._slow.popitem(last=False)

    def learn_fast(self, subject: int) -> None:
        """An item of this subject was not slow: it is not its subject that makes an item slow."""
        self._slow.pop(subject, None)
