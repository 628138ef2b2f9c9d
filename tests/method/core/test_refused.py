"""What makes no sense is refused in one sentence with its name and value, by every function of the core: refused.toml."""

import random
import tomllib
from functools import partial
from pathlib import Path

import pytest
import torch

from r3_openrlhf.config.algorithms import overlong_penalty
from r3_openrlhf.method.core import advantages, entropy, ranking, reflection, replay, rewards
from r3_openrlhf.method.errors import ConfigError
from r3_openrlhf.problems.agents import hierarchy
from tests.method.core.hierarchies import hierarchy_advantages


def of_zeros(shape, labels, **options):
    return entropy.token_logprobs_and_entropy(
        torch.zeros(shape), torch.tensor(labels, dtype=torch.long), **options
    )


MODULES = (advantages, entropy, ranking, reflection, replay, rewards, hierarchy)
FUNCTIONS = {name: value for module in MODULES for name, value in vars(module).items()} | {
    "hierarchy_advantages": hierarchy_advantages,
    "choose": partial(replay.choose, rng=random.Random(0)),
    "overlong_penalty": overlong_penalty,
    "token_logprobs_and_entropy": of_zeros,
}
TABLE = tomllib.loads(Path(__file__).with_name("refused.toml").read_text())
CASES = [(name, *case) for name, cases in TABLE.items() for case in cases] + [
    ("group_advantages", {"rewards": [1.0, None]}, r"rewards\[1\] is None"),
    ("outcome_reward", {"score": None, "num_tokens": 1, "max_tokens": 8}, "score is None"),
]


@pytest.mark.parametrize(("name", "arguments", "words"), CASES)
def test_what_makes_no_sense_is_refused_by_name(name, arguments, words):
    with pytest.raises((ValueError, ConfigError), match=words):
        FUNCTIONS[name](**arguments)
