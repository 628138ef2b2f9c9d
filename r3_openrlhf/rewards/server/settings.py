"""Settings of the reward service, with defaults; those of the reward itself are in config."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from r3_openrlhf.config import RewardConfig
from r3_openrlhf.config.access import check_access
from r3_openrlhf.config.answer_tasks import DEFAULT_TASK, TASKS
from r3_openrlhf.method.errors import ConfigError

MAX_SIZE = 2**20


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """One reward service.

    token: bearer token that callers must show; needed unless the service listens on loopback. task: a
    word of answer_tasks.TASKS, or a user's import path, which callers may then ask for.
    max_pending_items, max_pending_mb: accepted, not yet answered; above it, 503. Bytes are those of
    items (response, references, metadata), without bodies still being read.
    max_connections: open at once, also idle ones; above it, 503.
    read_timeout_s: for the body of a request; then 408."""

    host: str = "127.0.0.1"
    port: int = 5000
    token: str | None = None
    task: str = DEFAULT_TASK
    max_body_mb: int = 32
    max_pending_items: int = 32768
    max_pending_mb: int = 256
    max_connections: int = 4096
    read_timeout_s: float = 20.0
    reward: RewardConfig = field(default_factory=RewardConfig)

    def __post_init__(self) -> None:
        TASKS[self.task]  # an unknown one is an error
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"--port is {self.port}; use 0 (any free port) to 65535")
        check_access(self.host, self.token, variable="R3_REWARD_TOKEN", name="reward token")
        for option, value in (
            ("--max-body-mb", self.max_body_mb),
            ("--max-pending", self.max_pending_items),
            ("--max-pending-mb", self.max_pending_mb),
            ("--max-connections", self.max_connections),
        ):
            if not 1 <= value <= MAX_SIZE:
                raise ConfigError(f"{option} is {value}; use a whole number from 1 to {MAX_SIZE}")
        if not (math.isfinite(self.read_timeout_s) and self.read_timeout_s > 0):
            raise ConfigError(f"--read-timeout is {self.read_timeout_s}; use a number of seconds above 0")
