"""A process that runs programs, for all tests of a file."""

import pytest

from r3_openrlhf.rewards.code.run import Runner


@pytest.fixture(scope="module")
def runner():
    with Runner() as runner:
        try:
            runner.start()
        except OSError as error:
            pytest.skip(str(error))
        yield runner
