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
