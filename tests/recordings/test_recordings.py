"""The committed recordings are those of today's code; a stale one says how it is made anew."""

import numpy as np
import pytest

from r3_openrlhf.config.loading import config_from_yaml, load_config
from r3_openrlhf.method.errors import DataError
from r3_openrlhf.stack.recorded_rollouts import read_response, write_response
from tests.recordings import COMMAND, SETTINGS, path_of, recorded


@pytest.mark.parametrize("name", SETTINGS)
def test_the_configuration_is_todays(name):
    stored = config_from_yaml(recorded(name)[1]["config"], source=str(path_of(name)))
    today = load_config("cpu_smoke", SETTINGS[name])
    stored.run_dir = today.run_dir  # that of the checkout
    assert stored == today, (
        f"tests/recordings/{name}.npz is stale; write it again: {COMMAND} {name}"
    )


@pytest.mark.parametrize("name", SETTINGS)
def test_every_response_is_whole(name):
    responses, about = recorded(name)
    assert len(responses) >= len([row for row in about["story"] if row[5] is None])
    for token_ids, logprobs_TK, reason in responses.values():
        assert len(token_ids) == len(logprobs_TK) > 0 and reason in ("stop", "length")
        assert np.isfinite(logprobs_TK).all() and (logprobs_TK <= 0).all()


def test_what_was_not_recorded_is_an_error(tmp_path):
    write_response(tmp_path / "known.npz", [1], np.zeros((1, 1)), "stop")
    with pytest.raises(DataError, match="this run is not that run"):
        read_response(tmp_path / "unknown.npz")
