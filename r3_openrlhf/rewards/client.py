"""Graders for the training side: in local worker processes, or on reward servers."""

from __future__ import annotations

from typing import Protocol

from r3_openrlhf.config import RewardConfig
from r3_openrlhf.rewards.answers.request import GradeRequest
from r3_openrlhf.rewards.exchange import Grade
from r3_openrlhf.rewards.local import LocalGrader


class Grader(Protocol):
    """A grader of responses: processes of this machine, or reward servers."""

    async def grade(self, request: GradeRequest) -> Grade:
        """Grade one response; a bad one raises nothing, it is UNGRADED with a reason."""

    def close(self) -> None:
        """End what the grader started."""


def make_grader(config: RewardConfig) -> Grader:
    """Make a grader on the configured servers, or in local processes."""
    if config.urls:
        from r3_openrlhf.rewards.remote import RemoteGrader  # needs aiohttp

        return RemoteGrader(config)
    return LocalGrader(config)
