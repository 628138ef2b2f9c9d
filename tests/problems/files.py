"""Files of rows, what is read from them, and a small run on them."""

import json
from contextlib import contextmanager

import pytest

from r3_openrlhf.config import ClusterConfig, DataConfig, HeldOutConfig, R3Config, RolloutConfig
from r3_openrlhf.method.settings import ReflectionSettings
from r3_openrlhf.problems.sources import load_problems


def write_jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def load(tmp_path, rows, with_rows=False, **data):
    """The problems of a file of these rows."""
    path = write_jsonl(tmp_path / "own.jsonl", rows)
    return load_problems(DataConfig(path=path, **data), with_rows=with_rows)


def config_for(path=None, *, prompts=2, max_len=4096, reflection=False, held_out=None, **data):
    return R3Config(
        data=DataConfig(path=path, max_len=max_len, **data),
        rollout=RolloutConfig(batch_size=prompts, n_samples_per_prompt=8, max_new_tokens=16),
        reflection=ReflectionSettings(enabled=reflection),
        cluster=ClusterConfig(gpus_per_node=1),
        held_out=HeldOutConfig(**held_out or {}),
    )


@contextmanager
def refused(error, sentence):
    """The block is refused in one line that holds this text."""
    with pytest.raises(error) as refusal:
        yield
    assert sentence in str(refusal.value) and "\n" not in str(refusal.value)
