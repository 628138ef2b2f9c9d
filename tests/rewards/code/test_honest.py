"""Solutions that are right stay right."""

import pytest

from r3_openrlhf.rewards.code.data import decode
from r3_openrlhf.rewards.code.run import Limits
from tests.rewards.code.honest import HONEST


@pytest.mark.parametrize("name", HONEST)
def test_it_is_right(runner, name):
    if "numpy" in name:
        pytest.importorskip("numpy")
    program, call, expected = HONEST[name]
    (outcome,) = runner.run_program(program, [call], limits=Limits())
    assert (outcome.status, outcome.detail) == ("finished", "")
    result = outcome.stdout if call.function is None else decode(outcome.value)
    assert result == expected
    assert type(result) is type(expected)
