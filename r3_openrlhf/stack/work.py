"""Ask once for a run's work: problems for a grader, or environment tasks (docs/agents.md)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from transformers import PreTrainedTokenizerBase

from r3_openrlhf.config import R3Config
from r3_openrlhf.method.errors import ConfigError, quoted
from r3_openrlhf.method.prompts import PromptMaker
from r3_openrlhf.method.types import Rollout
from r3_openrlhf.problems.held_out import check_held_out_source, prepare_held_out
from r3_openrlhf.problems.prompts import RunPrompts
from r3_openrlhf.problems.sources import check_source
from r3_openrlhf.problems.training_file import PreparedData, prepare
from r3_openrlhf.runs.directory import RunDirectory
from r3_openrlhf.runs.first_page import FirstPage, page_of_run
from r3_openrlhf.runs.models.checks import load_tokenizer
from r3_openrlhf.stack.agents.calls import TemplateCalls

HERE = Path(__file__).parent


class Work(NamedTuple):
    """The differences between responses to problems and trajectories in an environment.

    Attributes:
        executor: the file that OpenRLHF loads to sample one rollout (--train.agent_func_path).
        check: checks the source and writes nothing. R3Error: it is of no use.
        prepare: writes the training file and the held-out one, and makes the first page. R3Error:
            they are of no use.
        prompts: makes what renders plain and reflection prompts.
        evaluated: one record per rollout that an evaluation counts."""

    executor: Path
    check: Callable[[R3Config], None]
    prepare: Callable[[R3Config, str, RunDirectory], tuple[PreparedData, FirstPage]]
    prompts: Callable[[R3Config, PreTrainedTokenizerBase], PromptMaker]
    evaluated: Callable[[Sequence[Rollout]], Sequence[Rollout]]


def work_of(config: R3Config) -> Work:
    """Return the kind of work of this run."""
    if config.flag("train.agent_func_path") is not None:
        return _PROBLEMS._replace(executor=HERE / "agents" / "agent_file.py")
    return _tasks() if config.is_agentic else _PROBLEMS


def _check_problems(config: R3Config) -> None:
    file = config.flag("train.agent_func_path")
    if file is not None and (not str(file).endswith(".py") or not Path(str(file)).is_file()):
        raise ConfigError(
            f"openrlhf.train.agent_func_path is {quoted(file)}, which is no Python file; use a path of one"
        )
    check_source(config.data, with_rows=config.reward.reads_rows)
    check_held_out_source(config)


def _prepare_problems(config: R3Config, model: str, run: RunDirectory) -> tuple[PreparedData, FirstPage]:
    tokenizer = load_tokenizer(model, trusted=config.model.trust_remote_code, data=config.data)
    if config.agents.tools and config.agents.tool_form == "template":
        for part in config.data.parts.values():
            TemplateCalls(tokenizer, part)  # refuses a template without calls
    data = prepare(config, tokenizer, run.data)
    if config.held_out.path is not None:
        prepare_held_out(config, tokenizer, run.data, run.held_out)
    return data, page_of_run(config, tokenizer, model, data)


_PROBLEMS = Work(
    executor=HERE / "rollout_executor.py",
    check=_check_problems,
    prepare=_prepare_problems,
    prompts=RunPrompts,
    evaluated=lambda rollouts: rollouts,
)


def _tasks() -> Work:
    from r3_openrlhf.problems.agents.reflection import TurnPrompts
    from r3_openrlhf.problems.agents.replay import whole_trajectories
    from r3_openrlhf.stack.agents.tasks import check_environment, prepare_tasks

    return Work(
        executor=HERE / "agents" / "executor.py",
        check=check_environment,
        prepare=prepare_tasks,
        prompts=TurnPrompts,
        evaluated=whole_trajectories,
    )
