"""The history of a run: what outlives a step."""

from r3_openrlhf.method.history.records import (
    HistoryLimits,
    ProblemSummary,
    RecallRequest,
    StoredRollout,
    Tally,
)
from r3_openrlhf.method.history.store import HistoryStore

__all__ = ["HistoryLimits", "HistoryStore", "ProblemSummary", "RecallRequest", "StoredRollout", "Tally"]
