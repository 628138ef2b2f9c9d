"""python -m pytest examples/own: what the reward pays, before a GPU is paid for it."""

import importlib.util
from pathlib import Path

import pytest

spec = importlib.util.spec_from_file_location(
    "own_reward_of_this_folder", Path(__file__).with_name("reward.py")
)
reward = importlib.util.module_from_spec(spec)
spec.loader.exec_module(reward)


@pytest.mark.parametrize(
    ("response", "reference", "right"),
    [
        ("5 pens cost 7.5 euros.", "7.50", True),
        ("It takes 85", "85", True),
        ("1,200 litres", "1200", True),
        ("85 or 95", "85", False),  # the last one counts
        ("", "85", False),  # nothing is not paid
        ("eighty-five", "85", False),
    ],
)
def test_what_is_paid(response, reference, right):
    assert reward.is_right(response, reference) is right
