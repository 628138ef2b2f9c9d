"""Graders for the training side: in local worker processes, or on reward servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from r3_openrlhf.config import RewardConfig
from r3_openrlhf.rewards.local import LocalGrader

if TYPE_CHECKING:
    from r3_openrlhf.rewards.remote import RemoteGrader


def make_grader(config: RewardConfig) -> LocalGrader | RemoteGrader:
    """Make a grader on the configured servers, or in local processes. A bad response raises
    nothing in `grade`: it is UNGRADED with a reason. `close` ends what the grader started."""
    if config.urls:
        from r3_openrlhf.rewards.remote import RemoteGrader  # needs aiohttp

        return RemoteGrader(config)
    return LocalGrader(config)
