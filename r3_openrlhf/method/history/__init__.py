"""The history of a run: what outlives a step."""

from r3_openrlhf.method.history.records import RecallRequest, StoredRollout
from r3_openrlhf.method.history.store import HistoryStore

__all__ = ["HistoryStore", "RecallRequest", "StoredRollout"]
