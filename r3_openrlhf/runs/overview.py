"""All rows of a run at a glance: their lengths, what kinds their references are, and the rows that are least like the others."""

from collections import Counter
from collections.abc import Callable, Sequence
from operator import itemgetter

import numpy as np

from r3_openrlhf.problems.label import Label
from r3_openrlhf.rewards.answers.references import read_reference

MOST_ODD = 3
ODD = 2.0  # as often the range that holds nine rows of ten, away from the middle row
MOST_KINDS = 300  # rows whose references are read


def _letters(text: str) -> float:
    return 100 * sum(map(str.isalpha, text)) / max(1, len(text))


# what a row is measured by -> its value, and whether twice as much is the same step anywhere
MEASURES: dict[str, tuple[Callable[[Label], float], bool]] = {
    "characters of the problem": (lambda label: len(label.problem), True),
    "characters of the reference": (
        lambda label: max(map(len, label.references), default=0),
        True,
    ),
    "percent letters in the problem": (lambda label: _letters(label.problem), False),
    "percent letters in the reference": (
        lambda label: _letters("".join(label.references)),
        False,
    ),
    "references": (lambda label: len(label.references), True),
    "earlier turns": (lambda label: len(label.turns or ()), True),
}


def overview(labels: Sequence[Label], prompts: Sequence[str]) -> list[str]:
    """Lines about `labels` and their prompts, for the first page."""
    if not labels:
        return []
    return [*_lengths(labels, prompts), *_kinds(labels), *odd_rows(labels)]


def _lengths(labels: Sequence[Label], prompts: Sequence[str]) -> list[str]:
    lengths = {
        "prompt": list(map(len, prompts)),
        "reference": [len(text) for label in labels for text in label.references],
    }
    heads = ["characters", "shortest", "half up to", "95% up to", "longest"]
    lines = ["".join(f"{head:>12}" for head in heads)]
    for name, values in lengths.items():
        if values:
            found = np.quantile(values, [0, 0.5, 0.95, 1], method="inverted_cdf")
            lines.append(f"{name:>12}" + "".join(f"{int(value):>12,}" for value in found))
    return lines


def _kinds(labels: Sequence[Label]) -> list[str]:
    asked = [
        label
        for label in labels[:: -(-len(labels) // MOST_KINDS)]
        if label.task == "math" and label.references
    ]
    kinds = Counter(
        read_reference(label.references[0], label.problem).kind or "mathematics"
        for label in asked
    )
    found = ", ".join(f"{number} {kind}" for kind, number in kinds.most_common())
    return [f"kinds of {len(asked)} references: {found}"] if found else []


def odd_rows(labels: Sequence[Label]) -> list[str]:
    """Name the MOST_ODD rows that lie farthest from the middle row of a measure, one for each measure.

    The distance is in ranges that hold nine rows of ten, which are at least a doubling, or ten percent."""
    found = []
    for name, (measure, doubles) in MEASURES.items():
        values = np.array([measure(label) for label in labels], dtype=float)
        scaled = np.log2(values + 1) if doubles else values
        low, middle, high = np.quantile(scaled, [0.05, 0.5, 0.95], method="inverted_cdf")
        distances = abs(scaled - middle) / max(high - low, 1.0 if doubles else 10.0)
        row = int(distances.argmax())
        usual = 2**middle - 1 if doubles else middle
        said = f"{values[row]:,.0f} {name}, the middle row has {usual:,.0f}"
        found.append((distances[row], said, labels[row]))
    far = sorted((one for one in found if one[0] >= ODD), key=itemgetter(0), reverse=True)
    # a row's largest distance stays
    first = {label.uid: (said, label) for _, said, label in far[::-1]}
    return [_odd(said, label) for said, label in list(first.values())[::-1][:MOST_ODD]]


def _odd(said: str, label: Label) -> str:
    return f"odd, {said}: reference {', '.join(label.references)[:30]}, problem {label.problem}"
