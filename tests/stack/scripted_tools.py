"""The executor of a run with tools, and a grader that likes nothing."""

import contextlib
import tomllib
from pathlib import Path
from types import SimpleNamespace

from r3_openrlhf.config.loading import load_config
from r3_openrlhf.method.types import Verdict
from r3_openrlhf.rewards.exchange import Grade
from r3_openrlhf.stack.rollout_executor import AgentExecutor

HOSTILE = tomllib.loads(Path(__file__).with_name("hostile_tools.toml").read_text())
TOKENS = 40  # of an answer at most


@contextlib.contextmanager
def tool_executor(in_a_job, directory, *, form):
    """Yield the executor with its tools, python and one of hostile answers, in a directory."""
    own_tool = directory / "own_tool.py"
    own_tool.write_text(f"CASES = {HOSTILE['answers']!r}\n{HOSTILE['tool']}")
    keys = [
        "run_dir=unused",
        "ranking.enabled=false",
        f"agents.tools=[python,{own_tool}:say]",
        f"agents.tool_form={form}",
        f"agents.tool_tokens={TOKENS}",
        "agents.tool_seconds=1.5",
    ]
    in_a_job(load_config("cpu_smoke", keys))
    made = AgentExecutor()
    made.requests = []

    async def grade(request):
        made.requests.append(request)
        return Grade(verdict=Verdict.WRONG, reason="wrong", score=0.0, reward=0.0)

    made.grader = SimpleNamespace(grade=grade)
    yield made
    made.tools._pool.close()
