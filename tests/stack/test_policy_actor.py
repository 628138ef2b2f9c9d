"""Log-probs and exact entropy from one forward pass, against OpenRLHF's own Actor, padded and packed."""

from collections import deque

import numpy as np
import pytest
import torch
from openrlhf.models import Actor

from r3_openrlhf.config.loading import load_config
from r3_openrlhf.method.core.entropy import entropy_statistics
from r3_openrlhf.stack import chunked_actor
from r3_openrlhf.stack.chunked_actor import ChunkedActor
from r3_openrlhf.stack.policy_actor import R3PolicyActor, logprobs_and_entropy
from r3_openrlhf.stack.policy_update import R3ReplayBuffer
from tests.stack.mixed_rows import VOCAB, experience_of, mixed_rows

pytestmark = pytest.mark.stack


@pytest.mark.parametrize("packing", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_and_entropy_are_upstreams(model, rows, packing, temperature):
    actor = Actor(
        model,
        attn_implementation="flash_attention_2",
        packing_samples=packing,
        temperature=temperature,
    )
    actor.eval()
    mask = rows.action_mask.bool()
    with torch.no_grad():
        expected, output = actor(
            rows.sequences,
            rows.action_mask,
            rows.attention_mask,
            return_output=True,
            return_entropy=True,
        )
        logprobs, entropy, _ = logprobs_and_entropy(
            actor, rows.sequences, rows.action_mask, rows.attention_mask
        )
    torch.testing.assert_close(logprobs, expected)
    torch.testing.assert_close(entropy[mask], output.entropy[mask], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("makes_caches", [False, True])
def test_a_packed_row_has_the_log_probs_of_the_row_alone(model, rows, makes_caches):
    """Also where the model's configuration asks for a cache, as that of a part for texts does."""
    packed = Actor(model, attn_implementation="flash_attention_2", packing_samples=True)
    alone = Actor(model, attn_implementation="sdpa")
    packed.eval()
    alone.eval()
    packed.model.config.use_cache = makes_caches
    with torch.no_grad():
        together, _, _ = logprobs_and_entropy(
            packed, rows.sequences, rows.action_mask, rows.attention_mask
        )
        for i, mask in enumerate(rows.attention_mask.bool()):
            ids = rows.sequences[i : i + 1, mask]
            logprobs = alone.model(ids, use_cache=False).logits.float().log_softmax(-1)
            expected = logprobs[0, :-1].gather(1, ids[0, 1:, None])[:, 0]
            is_action = rows.action_mask[i].bool()
            num_actions = int(is_action.sum())
            torch.testing.assert_close(
                together[i][is_action], expected[-num_actions:], rtol=1e-4, atol=1e-4
            )


def test_entropy_of_the_rows_that_asked(model, rows):
    policy = R3PolicyActor.__new__(R3PolicyActor)
    policy.actor = Actor(model, attn_implementation="sdpa")
    policy.strategy = type("Strategy", (), {"ring_attn_group": None})
    policy._peak_fraction, policy._entropy, policy._keeps_tokens = 0.25, [], True
    policy._wanted, policy._wanted_tokens = deque(), deque()
    forward = lambda: policy.forward(rows.sequences, rows.action_mask, rows.attention_mask)  # noqa: E731
    policy.expect_entropy([False, True, False, False, True])
    policy.expect_entropy([False] * 5)
    first, second, third = forward(), forward(), forward()
    torch.testing.assert_close(first, second)
    torch.testing.assert_close(second, third)
    (asked, _, tokens), (unasked, _, none) = policy.pop_entropy()
    assert unasked.isnan().all() and asked[[0, 2, 3]].isnan().all()
    assert none == {} and set(tokens) == {1, 4}
    with torch.no_grad():
        _, output = policy.actor(
            rows.sequences,
            rows.action_mask,
            rows.attention_mask,
            return_output=True,
            return_entropy=True,
        )
    for row in (1, 4):
        values = output.entropy[row][rows.action_mask[row].bool()]
        assert asked[row].tolist() == pytest.approx(
            entropy_statistics(values, peak_fraction=0.25), abs=1e-4
        )
        assert tokens[row].dtype == np.float16
        # half precision
        assert tokens[row].tolist() == pytest.approx(values.tolist(), rel=1e-3, abs=1e-4)
    assert policy.pop_entropy() == []
    # where nothing is logged, those of a teacher are kept all the same
    policy._keeps_tokens = False
    policy.expect_entropy([True] * 5)
    policy.expect_entropy([True] * 5, tokens=True)
    forward(), forward()
    (*_, logged), (*_, kept) = policy.pop_entropy()
    assert logged == {} and set(kept) == set(range(5))


@pytest.mark.parametrize("packing", [False, True])
@pytest.mark.parametrize("chunk_tokens", [None, 7])
def test_tokens_of_the_rows_that_asked(monkeypatch, model, rows, chunk_tokens, packing):
    """The likeliest of one row, given ones of another, and none of the others; beside entropy or alone."""
    config = load_config("cpu_smoke", [f"train.logits_chunk_tokens={chunk_tokens or 1}"])
    monkeypatch.setattr(chunked_actor, "config_from_environment", lambda: config)
    policy = R3PolicyActor.__new__(R3PolicyActor)
    attention = "flash_attention_2" if packing else "sdpa"
    policy.actor = (ChunkedActor if chunk_tokens else Actor)(
        model, attn_implementation=attention, packing_samples=packing, temperature=0.7
    )
    policy.actor.model.float()
    policy.strategy = type("Strategy", (), {"ring_attn_group": None})
    policy._peak_fraction, policy._entropy, policy._keeps_tokens = 0.25, [], True
    policy._wanted, policy._wanted_tokens, policy._kept_tokens = deque(), deque(), []
    forward = lambda: policy.forward(rows.sequences, rows.action_mask, rows.attention_mask)  # noqa: E731
    plain = forward()
    asked = np.random.default_rng(0).integers(0, VOCAB, (int(rows.action_mask[3].sum()), 2))
    wanted = [0, 4, 0, asked.astype(np.int32), 0]
    policy.expect_tokens(wanted)
    policy.expect_tokens([0] * 5)
    policy.expect_tokens(wanted)
    torch.testing.assert_close(forward(), plain, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(forward(), plain)
    policy.expect_entropy([True] * 5)
    forward()
    first, none, beside = policy.pop_tokens()
    assert none == {} and policy.pop_tokens() == [] and len(policy.pop_entropy()) == 1
    alone = Actor(model, attn_implementation="sdpa")
    alone.model.float()
    for kept in (first, beside):
        assert set(kept) == {1, 3}
        for row, (ids, logprobs) in kept.items():
            tokens = rows.sequences[row : row + 1, rows.attention_mask[row].bool()]
            with torch.no_grad():
                logits = alone.model(tokens, use_cache=False).logits[0, :-1] / 0.7
            expected_SV = logits.log_softmax(-1)[-int(rows.action_mask[row].sum()) :]
            assert ids.dtype == np.int32 and logprobs.dtype == np.float32
            found = expected_SV.gather(1, torch.from_numpy(ids).long())
            torch.testing.assert_close(torch.from_numpy(logprobs), found, rtol=1e-4, atol=1e-4)
            if row == 1:
                torch.testing.assert_close(found, expected_SV.topk(4).values)
            else:
                assert (ids == asked).all()


def test_making_a_buffer_leaves_the_device_of_other_threads_alone():
    class Watched(R3ReplayBuffer):
        def __setattr__(self, name, value):
            assert torch.cuda.current_device() == torch.device("cpu")
            super().__setattr__(name, value)

    assert Watched(1).target_device == torch.device("cpu")


@pytest.mark.parametrize("packing", [True, False])
def test_the_buffer_hands_out_every_row_once_in_its_window(packing):
    """Packed in the order they came, padded by length, so that short rows are not padded to long ones."""
    buffer = R3ReplayBuffer(2, packing_samples=packing)
    for row in mixed_rows(10, seed=2):
        experience = experience_of(row)
        experience.advantages = experience.action_mask.float()
        buffer.append(experience)
    items = list(buffer.items)
    if not packing:
        for window in (slice(0, 5), slice(5, 10)):
            items[window] = sorted(items[window], key=lambda item: len(item.sequences))
        assert [id(item) for item in items] != [id(item) for item in buffer.items]
    order = [id(item) for item in items]
    count = buffer.lay_out(windows=2, micro_batch_size=3, seed=None)
    given = [[id(item) for item in buffer[i]] for i in range(len(buffer))]
    assert len(given) == 2 * count and {
        len(sum(window, [])) for window in (given[:count], given[count:])
    } == {5}
    assert sum(given, []) == order
    assert [len(batch) for batch in given] == [3, 2, 3, 2]
    with pytest.raises(ValueError, match="10 rows on this rank do not make 3 equal windows"):
        buffer.lay_out(windows=3, micro_batch_size=3, seed=None)
