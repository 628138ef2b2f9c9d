"""Warm up a grading process of task "math" with common answers, each slow the first time."""

from __future__ import annotations

from r3_openrlhf.rewards.answers.mathematics import grade
from r3_openrlhf.rewards.answers.patterns import table
from r3_openrlhf.rewards.answers.request import Item


def warm_up() -> None:
    """Grade one of each kind, so that forked workers find modules loaded and caches filled."""
    examples = table("warm_up.toml")
    for response, reference in [(rf"\boxed{{{answer}}}", gold) for answer, gold in examples["pairs"]] + examples[
        "texts"
    ]:
        grade(Item("math", response, (reference,), False))
