"""What tests of the stack need: a small model, the environment of a job, and rows."""

import pytest


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    from tests.stack.mixed_rows import save_model

    return save_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def in_a_job(monkeypatch):
    """A function that gives this process the environment of a job with this configuration, until the end of the test."""
    from r3_openrlhf.stack.environment import config_from_environment, environment_of

    def enter(config, platform="cuda"):
        for name, value in environment_of(config, platform).items():
            monkeypatch.setenv(name, value)
        config_from_environment.cache_clear()

    yield enter
    config_from_environment.cache_clear()


@pytest.fixture(scope="module")
def rows():
    """A batch of rows of different lengths."""
    from openrlhf.trainer.ppo_utils.experience import Experience

    from tests.stack.mixed_rows import experience_of, mixed_rows

    return Experience.concat_experiences(
        [experience_of(row) for row in mixed_rows(5, seed=1)], 0
    )


@pytest.fixture(scope="module")
def environments():
    """The processes of the environment `stairs`, for all tests of a file."""
    from r3_openrlhf.problems.agents.environment import environment_pool
    from tests.stack.scripted_agents import STAIRS

    with environment_pool(STAIRS, {}, timeout_s=60) as pool:
        yield pool


@pytest.fixture
def agent_executor(monkeypatch, environments, in_a_job):
    """A function that makes the executor of an agentic run."""
    from tests.stack.scripted_agents import executor_maker

    return executor_maker(monkeypatch, environments, in_a_job)


@pytest.fixture(params=[False, True], ids=["alone", "in_groups"])
def ends_executor(in_a_job, request):
    """An executor whose grader likes everything; it grades responses alone, or in groups."""
    from tests.stack import scripted_endings

    return scripted_endings.ends_executor(in_a_job, reads_groups=request.param)


@pytest.fixture(params=["fenced"])
def tool_executor(in_a_job, tmp_path, request):
    """An executor with tools, in this form of calls."""
    from tests.stack import scripted_tools

    with scripted_tools.tool_executor(in_a_job, tmp_path, form=request.param) as made:
        yield made


@pytest.fixture(scope="module")
def critic(model, tmp_path_factory):
    """A critic with a head of its own, as a directory."""
    import torch
    from openrlhf.models import get_llm_for_sequence_regression

    path = tmp_path_factory.mktemp("critic")
    torch.manual_seed(1)
    made = get_llm_for_sequence_regression(
        model, "critic", attn_implementation="sdpa", init_value_head=True
    )
    made.save_pretrained(path)
    return str(path)
