"""Ask once for a run's work: problems for a grader, or environment tasks (docs/agents.md)."""

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from transformers import PreTrainedTokenizerBase

from r3_openrlhf.config import R3Config
from r3_openrlhf.method.errors import ConfigError, quoted
from r3_openrlhf.method.prompts import PromptMaker
from r3_openrlhf.method.types import Rollout
from r3_openrlhf.problems.agents.environment import make_environment, task_uid
from r3_openrlhf.problems.agents.reflection import TurnPrompts
from r3_openrlhf.problems.agents.replay import whole_trajectories
from r3_openrlhf.problems.held_out import check_held_out_source, prepare_held_out
from r3_openrlhf.problems.prompts import RunPrompts
from r3_openrlhf.problems.sources import check_source
from r3_openrlhf.problems.training_file import Label, PreparedData, line_of, prepare, write_once
from r3_openrlhf.runs.directory import RunDirectory
from r3_openrlhf.runs.first_page import FirstPage, page_of_run, page_of_tasks
from r3_openrlhf.runs.models.checks import load_tokenizer
from r3_openrlhf.stack.tools.calls import TemplateCalls

HERE = Path(__file__).parent


class Work(NamedTuple):
    """The differences between responses to problems and trajectories in an environment.

    Attributes:
        executor: the file that OpenRLHF loads to sample one rollout (--train.agent_func_path).
        check: checks the source and writes nothing. R3Error: it is of no use.
        prepare: writes the training file and the held-out one, and makes the first page; for a plan
            without a model its half. R3Error: they are of no use.
        prompts: makes what renders plain and reflection prompts.
        evaluated: one record per rollout that an evaluation counts."""

    executor: Path
    check: Callable[[R3Config], None]
    prepare: Callable[[R3Config, str | None, RunDirectory], tuple[PreparedData, FirstPage]]
    prompts: Callable[[R3Config, PreTrainedTokenizerBase], PromptMaker]
    evaluated: Callable[[Sequence[Rollout]], Sequence[Rollout]]


def work_of(config: R3Config) -> Work:
    """Return the kind of work of this run."""
    if config.flag("train.agent_func_path") is not None:
        return _PROBLEMS._replace(executor=HERE / "agents" / "agent_file.py")
    return _TASKS if config.is_agentic else _PROBLEMS


def _check_problems(config: R3Config) -> None:
    file = config.flag("train.agent_func_path")
    if file is not None and (not str(file).endswith(".py") or not Path(str(file)).is_file()):
        raise ConfigError(
            f"openrlhf.train.agent_func_path is {quoted(file)}, which is no Python file; use a path of one"
        )
    run = RunDirectory(config.run_dir)
    check_source(config.data, with_rows=config.reward.reads_rows, are_drawn=run.data.is_file())
    check_held_out_source(config, are_drawn=run.held_out.is_file())


def _prepare_problems(
    config: R3Config, model: str | None, run: RunDirectory
) -> tuple[PreparedData, FirstPage]:
    tokenizer = model and load_tokenizer(
        model, trusted=config.model.trust_remote_code, data=config.data
    )
    if tokenizer and config.agents.tools and config.agents.tool_form == "template":
        for part in config.data.parts.values():
            TemplateCalls(tokenizer, part)  # refuses a template without calls
    data, num_held_out = prepare(config, tokenizer, run.data), None
    if config.held_out.path is not None:
        num_held_out = prepare_held_out(config, tokenizer, run.data, run.held_out)
    return data, page_of_run(config, tokenizer, model, data, num_held_out=num_held_out)


_PROBLEMS = Work(
    executor=HERE / "rollout_executor.py",
    check=_check_problems,
    prepare=_prepare_problems,
    prompts=RunPrompts,
    evaluated=lambda rollouts: rollouts,
)


def _prepare_tasks(
    config: R3Config, model: str | None, run: RunDirectory
) -> tuple[PreparedData, FirstPage]:
    """Write the tasks that are trained on, and the held-out ones, whose seeds are the next ones.

    Raises:
        DataError: the run has begun with other tasks.
    """
    num_tasks, num_held_out = config.data.max_samples, config.held_out.max_samples
    assert num_tasks is not None  # R3Config
    _write_tasks(config, run.data, range(num_tasks))
    if num_held_out:
        _write_tasks(config, run.held_out, range(num_tasks, num_tasks + num_held_out))
    nothing = "num_dropped_overlong num_duplicates num_unusable"
    counts: dict[str, Any] = {"num_problems": num_tasks, **dict.fromkeys(nothing.split(), 0)}
    run.data_counts.write_text(json.dumps(counts) + "\n", encoding="utf-8")
    data = PreparedData(path=run.data, **counts)
    return data, page_of_tasks(config, model, data)


def _write_tasks(config: R3Config, output: Path, seeds: Iterable[int]) -> None:
    name = str(config.agents.environment)
    uids = [(seed, task_uid(name, seed)) for seed in seeds]
    labels = [
        Label(uid=uid, problem=uid, references=[], task="environment", metadata={"seed": seed})
        for seed, uid in uids
    ]
    lines = [line_of(label, label.uid, name) for label in labels]
    write_once(output, lines, f"agents.environment {name}")


_TASKS = Work(
    executor=HERE / "agents" / "executor.py",
    check=lambda config: make_environment(
        str(config.agents.environment), config.agents.options
    ).close(),
    prepare=_prepare_tasks,
    prompts=TurnPrompts,
    evaluated=whole_trajectories,
)
