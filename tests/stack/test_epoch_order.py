"""The order of the problems in an epoch, with the loader that OpenRLHF uses."""

from types import SimpleNamespace

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

import torch  # noqa: E402
from torchdata.stateful_dataloader import StatefulDataLoader  # noqa: E402

from r3_openrlhf.stack.samples_generator import R3SamplesGenerator  # noqa: E402

pytestmark = pytest.mark.stack


def order_of(epochs, *, state=None, take=None):
    """Items of each epoch, in a process that starts with the first of `epochs`."""
    torch.manual_seed(torch.seed())  # another process has another random state
    loader = StatefulDataLoader(list(range(30)), batch_size=1, shuffle=True, collate_fn=lambda items: items[0])
    if state is not None:
        loader.load_state_dict(state)
    generator = R3SamplesGenerator.__new__(R3SamplesGenerator)
    generator.prompts_dataloader, generator.config = loader, SimpleNamespace(train=SimpleNamespace(seed=42))
    found = []
    for generator.epoch in epochs:
        generator._seed_epoch()
        items = iter(loader)
        found.append([item for _, item in zip(range(take or 30), items, strict=False)])
    return found, loader.state_dict()


def test_a_run_that_starts_between_two_epochs_goes_on_in_the_same_order():
    (first, second), _ = order_of([1, 2])
    (resumed,), _ = order_of([2])
    assert resumed == second != first


def test_a_run_that_starts_inside_an_epoch_goes_on_behind_it():
    (whole, following), _ = order_of([1, 2])
    (part,), state = order_of([1], take=11)
    (rest, after), _ = order_of([1, 2], state=state)
    assert part + rest == whole and after == following
