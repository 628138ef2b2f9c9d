"""The lab's model with a bad habit: a quarter of its solutions are guesses, words without any work and a random number.

A guess is confident in all but its number: high peak entropy, low global entropy, which is what SERR ranks first. With
ranking.scope=failed a wrong guess outranks an honest attempt (docs/lab.md, control c).
"""

from __future__ import annotations

from pathlib import Path

from r3_openrlhf.runs.models import lab as lab_model

GUESS_SHARE = 0.25


def build(directory: Path) -> None:
    """As runs/models/lab.py does, with GUESS_SHARE of the solutions guessed."""
    lab_model.build(directory, guess_share=GUESS_SHARE)
