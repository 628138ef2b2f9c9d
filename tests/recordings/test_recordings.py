"""The committed recordings are those of today's code; a stale one says how it is made anew."""

import asyncio

import numpy as np
import pytest

from r3_openrlhf.config.loading import config_from_yaml, load_config
from r3_openrlhf.method.errors import DataError
from r3_openrlhf.stack.recorded_rollouts import Recording, response_key
from tests.recordings import COMMAND, SETTINGS, pack, path_of, read_packed, recorded


@pytest.mark.parametrize("name", SETTINGS)
def test_the_configuration_is_todays(name):
    stored = config_from_yaml(recorded(name)[1]["config"], source=str(path_of(name)))
    today = load_config("cpu_smoke", SETTINGS[name])
    stored.run_dir = today.run_dir  # that of the checkout
    assert stored == today, f"tests/recordings/{name}.npz is stale; make it anew: {COMMAND} {name}"


@pytest.mark.parametrize("name", SETTINGS)
def test_every_response_is_whole(name):
    responses, about = recorded(name)
    assert len(responses) >= len([row for row in about["story"] if row[5] is None])
    for token_ids, logprobs_TK, reason in responses.values():
        assert len(token_ids) == len(logprobs_TK) > 0 and reason in ("stop", "length")
        assert np.isfinite(logprobs_TK).all() and (logprobs_TK <= 0).all()


def test_a_packed_recording_gives_back_what_was_written(tmp_path):
    rng = np.random.default_rng(0)
    writer = Recording(str(tmp_path / "responses"))
    written = {}
    for length, width in ((3, 1), (1, 5), (7, 5)):
        key = writer.key(11, "prompt")
        ids, logprobs = rng.integers(0, 9, length).tolist(), -rng.random((length, width)).astype(np.float32)
        writer.write(key, ids, logprobs, "stop")
        written[key] = (ids, logprobs)
    pack(tmp_path / "responses", tmp_path / "all.npz", {"story": [["x", 1, None]]})
    assert read_packed(tmp_path / "all.npz")[1] == {"story": [["x", 1, None]]}
    reader = Recording(str(tmp_path / "responses"))
    for sample in (1, 2, 3):
        key = reader.key(11, "prompt")
        assert key == response_key(11, sample, "prompt")
        for ids, logprobs, reason in (asyncio.run(reader.read(key)), read_packed(tmp_path / "all.npz")[0][key]):
            assert ids == written[key][0] and reason == "stop"
            np.testing.assert_array_equal(logprobs, written[key][1])


def test_what_was_not_recorded_is_an_error(tmp_path):
    Recording(str(tmp_path)).write("known", [1], np.zeros((1, 1)), "stop")
    with pytest.raises(DataError, match="this run is not that run"):
        asyncio.run(Recording(str(tmp_path)).read("unknown"))
