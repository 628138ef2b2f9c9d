"""Findings about data, model or reward before a run: wrong for sure, or suspicious."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One sentence for the first page of a run: what was found, where, and what to do.

    Attributes:
        sentence: A line of plain text with its remedy; a data set's text is cut to 80 characters.
        refuses: True: a run would train on wrong verdicts or text; False warns and continues.
    """

    sentence: str
    refuses: bool = False
