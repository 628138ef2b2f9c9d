"""Settings of the reward service, with defaults; those of the reward itself are in config."""

from dataclasses import dataclass, field

from r3_openrlhf.config import RewardConfig
from r3_openrlhf.config.access import check_access
from r3_openrlhf.config.answer_tasks import DEFAULT_TASK, TASKS


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """One reward service; the options of `r3 serve-rewards` say what each one means.

    token: bearer token that callers must show; needed unless the service listens on loopback."""

    host: str = "127.0.0.1"
    port: int = 5000
    token: str | None = None
    task: str = DEFAULT_TASK
    max_body_mb: int = 32
    max_pending_items: int = 32768
    max_pending_mb: int = 256
    max_connections: int = 4096
    read_timeout_s: int = 20
    reward: RewardConfig = field(default_factory=RewardConfig)

    def __post_init__(self) -> None:
        TASKS[self.task]  # an unknown one is an error
        check_access(self.host, self.token, variable="R3_REWARD_TOKEN", name="reward token")
