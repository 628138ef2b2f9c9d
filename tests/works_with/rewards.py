"""Rewards in the shapes that users have, each asked a right, a wrong and an empty response. Each is made up."""

import json
import os
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

from r3_openrlhf.config import RewardConfig
from r3_openrlhf.method.errors import ConfigError
from r3_openrlhf.problems.label import Label
from r3_openrlhf.rewards.probe import probe_rewards
from tests.answering import answering
from tests.tables import tables_beside
from tests.works_with import rows_of

MODULE = Path(__file__).with_name("users_rewards.txt").read_text()
ROW = {
    "problem": "8 * 9",
    "answer": "72",
    "solution": "72",
    "weight": 0.5,
    "data_source": "made/up",
}
TABLES = tables_beside(__file__)
MESSAGES = {"prompt": [{"role": "user", "content": "8 * 9"}]}

REWARDS = TABLES["rewards"]  # kind -> settings

USUAL = "; right: correct, reward 1; wrong: wrong, reward 0; empty: wrong, reward 0"


def _answer(path: str, body: Any) -> tuple[int, str]:
    """/grade, /get_reward and /v1/chat/completions, all for the reference 72."""
    if path.endswith("/grade"):
        return 200, json.dumps({"results": [_result(item) for item in body["items"]]})
    if path.endswith("/get_reward"):
        reward = float("{72}" in body["query"][0])
        return 200, json.dumps({"rewards": [reward], "scores": [reward], "extra_logs": {}})
    said = "yes" if "{72}" in body["messages"][0]["content"] else "no"
    return 200, json.dumps({"choices": [{"message": {"content": said}}]})


def _result(item: dict[str, Any]) -> dict[str, Any]:
    right = "{72}" in item["response"]
    verdict = "correct" if right else "wrong"
    return {
        "verdict": verdict,
        "reason": verdict,
        "score": float(right),
        "extracted": None,
        "seconds": 0.0,
    }


def outcome(name: str, directory: Path) -> str:
    """A cell of the table."""
    settings, columns = REWARDS[name], MESSAGES if name in TABLES["of_messages"] else {}
    (directory / "my_rewards.py").write_text(MODULE)

    def placed(value: Any) -> Any:
        if isinstance(value, list):
            return [placed(item) for item in value]
        is_text = isinstance(value, str)
        return (
            value.replace("SERVER", server.url).replace(
                "my_rewards.py", f"{directory}/my_rewards.py"
            )
            if is_text
            else value
        )

    with answering(_answer) as server, mock.patch.dict(os.environ, R3_TRIED_JUDGE=server.url):
        try:
            used = {key: placed(value) for key, value in settings.items()}
            config = RewardConfig(num_workers=1, length_reward_max_tokens=None, **used)
            found = probe_rewards(
                config,
                Label(
                    uid="u", references=["72"], task="math", problem="8 * 9", row=ROW | columns
                ),
            )
        except ConfigError as refusal:
            return "refused: " + str(refusal).replace(f"{directory}/", "")
    said = "right: " + found.rewards[0].rpartition(": right: ")[2]
    warnings = [finding.sentence.replace(f"{directory}/", "") for finding in found.findings]
    return "; ".join([f"works with {_keys(settings)}", said, *warnings])


def _keys(settings: dict[str, Any]) -> str:
    def written(value: Any) -> str:
        text = f"[{','.join(map(str, value))}]" if isinstance(value, list) else str(value)
        return text.replace("SERVER", "http://HOST:PORT")

    return " ".join(f"`reward.{key}={written(value)}`" for key, value in settings.items())


def section() -> str:
    """The table of rewards."""
    with tempfile.TemporaryDirectory() as folder:
        said = {name: outcome(name, Path(folder)).removesuffix(USUAL) for name in REWARDS}
    text = """## Rewards

Without a key the built-in grader judges. Each [reward](rewards.md#a-reward-of-your-own) judged a right, a wrong and an
empty response. Unless the row says otherwise, the right one was correct with reward 1, and the others were wrong with reward 0.

"""
    return text + rows_of(said)
