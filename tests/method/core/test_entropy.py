"""Shapes: T tokens, V vocabulary, k most likely tokens."""

import math
import random

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis.extra.numpy import arrays
from hypothesis.strategies import composite, floats, integers, lists, sampled_from
from pytest import approx
from torch.utils._python_dispatch import TorchDispatchMode

from r3_openrlhf.method.core.entropy import (
    entropy_statistics,
    token_logprobs_and_entropy,
    topk_entropy_bounds,
)

INF = math.inf
ENTROPIES = lists(floats(0, 12), min_size=1, max_size=60)


# ── entropy per token -> statistics of a response ──


def test_statistics_of_given_vectors(vectors):
    for case in vectors["entropy_statistics"]:
        found = entropy_statistics(case["entropies"], peak_fraction=case["peak_fraction"])
        assert found == (approx(case["peak"]), approx(case["global"])), case


@given(ENTROPIES, floats(0.01, 1), integers(0, 99))
def test_the_order_of_tokens_changes_not_even_the_last_bit(entropies, fraction, seed):
    shuffled = random.Random(seed).sample(entropies, len(entropies))
    assert entropy_statistics(shuffled, peak_fraction=fraction) == entropy_statistics(
        entropies, peak_fraction=fraction
    )


@given(ENTROPIES, floats(0.01, 1))
def test_agrees_with_the_definition(entropies, fraction):
    num_peak = max(1, math.floor(fraction * len(entropies)))
    highest = sorted(entropies, reverse=True)[:num_peak]
    found = entropy_statistics(entropies, peak_fraction=fraction)
    assert found == (
        approx(math.fsum(highest) / num_peak),
        approx(math.fsum(entropies) / len(entropies)),
    )


# ── top-k log-probs -> bounds of the entropy ──


def exact_entropy(probs):
    return -math.fsum(p * math.log(p) for p in probs if p > 0)


LN2, LN4 = math.log(2), math.log(4)
BY_HAND = {  # log-probs and vocabulary -> lower and upper bound
    # p = 1/2, 1/4 and a tail of 1/4: ln 2 / 2 + ln 4 / 4 + ln 4 / 4 when it is one token, and ln 2 / 4 more when it is two
    "a tail of two tokens": ([-LN2, -LN4], 4, 1.5 * LN2, 1.75 * LN2),
    "a tail of one token": ([-LN2, -LN4], 3, 1.5 * LN2, 1.5 * LN2),
    "no other token: missing mass is rounding": ([-LN2, -LN4], 2, LN2, LN2),
    "more than one leaves no tail": ([-LN2 + 1e-6, -LN2], 1000, LN2, LN2),
    "a certain token": ([0.0], 1000, 0, 0),
    "a certain token among impossible ones": ([-INF, 0.0, -INF], 1000, 0, 0),
    "all the mass in a tail of 8": ([-INF, -INF], 10, 0, math.log(8)),
}


@pytest.mark.parametrize(
    ("logprobs", "vocab_size", "lower", "upper"), BY_HAND.values(), ids=BY_HAND
)
def test_bounds_by_hand(logprobs, vocab_size, lower, upper):
    lower_T, upper_T = topk_entropy_bounds([logprobs], vocab_size=vocab_size)
    assert (lower_T, upper_T) == (approx(lower, abs=1e-5), approx(upper, abs=1e-5))
    assert lower != upper or lower_T == upper_T


def test_bounds_of_given_vectors(vectors):
    for case in vectors["topk_entropy_bounds"]:
        (lower,), (upper,) = topk_entropy_bounds(
            [[math.log(p) for p in case["probs"]]], vocab_size=case["vocab_size"]
        )
        assert (lower, upper) == (approx(case["lower"]), approx(case["upper"])), case


@composite
def distributions(draw):
    """[T, V] float64 probabilities, sharp to flat, with zeros, and a k."""
    num_tokens, vocab_size = draw(integers(1, 6)), draw(integers(1, 12))
    logits_TV = draw(arrays(np.float64, (num_tokens, vocab_size), elements=floats(-40, 40)))
    impossible_TV = draw(arrays(np.bool_, (num_tokens, vocab_size)))
    impossible_TV[:, 0] = False
    logits_TV[impossible_TV] = -INF
    probs_TV = np.exp(logits_TV - logits_TV.max(axis=1, keepdims=True))
    return probs_TV / probs_TV.sum(axis=1, keepdims=True), draw(integers(1, vocab_size))


def log(probs):
    with np.errstate(divide="ignore"):
        return np.log(probs)


@given(distributions(), sampled_from([np.float64, np.float32]), integers(0, 99))
def test_bounds_contain_the_exact_entropy(distribution, dtype, seed):
    probs_TV, k = distribution
    vocab_size = probs_TV.shape[1]
    top_Tk = -np.sort(-probs_TV, axis=1)[:, :k]
    top_Tk = top_Tk[:, np.random.default_rng(seed).permutation(k)]  # any order of the k values
    lower_T, upper_T = topk_entropy_bounds(log(top_Tk).astype(dtype), vocab_size=vocab_size)
    assert lower_T.dtype == upper_T.dtype == dtype
    assert (lower_T <= upper_T).all()
    slack = 1e-9 if dtype is np.float64 else 1e-5
    for probs, lower, upper in zip(probs_TV, lower_T, upper_T, strict=True):
        assert lower - slack <= exact_entropy(probs) <= upper + slack
        assert -slack <= lower and upper <= math.log(vocab_size) + slack
    if k == vocab_size:
        assert (lower_T == upper_T).all()


@given(floats(1e-12, 0.5))
@example(1e-9)
def test_the_tail_of_a_nearly_certain_token_keeps_its_digits(tail):
    # 1 - p rounds to 0 or to 6e-8 in float32; the log-prob itself carries the tail to seven digits
    logprob = np.float32(math.log1p(-tail))
    tail = -math.expm1(float(logprob))
    lower_T, upper_T = topk_entropy_bounds(np.array([[logprob]]), vocab_size=100_001)
    assert lower_T.dtype == np.float32
    lower = -(1 - tail) * math.log1p(-tail) - tail * math.log(tail)
    assert lower_T == approx(lower, rel=1e-5)
    assert upper_T == approx(lower + tail * math.log(100_000), rel=1e-5)


# ── logits -> exact log-probs and entropy ──


def in_float64(logits_TV, labels_T, temperature=1.0):
    """Independent form: log_softmax and entr in float64."""
    logprobs_TV = (logits_TV.double() / temperature).log_softmax(dim=1)
    entropy_T = torch.special.entr(logprobs_TV.exp()).sum(dim=1)
    return logprobs_TV.gather(1, labels_T[:, None]).squeeze(1), entropy_T


def random_logits(num_tokens, vocab_size, *, spread=3.0, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    logits_TV = torch.randn(num_tokens, vocab_size, generator=generator) * spread
    return logits_TV.to(dtype), torch.randint(vocab_size, (num_tokens,), generator=generator)


def test_exact_entropy_by_hand():
    # uniform; 1/2, 1/4, 1/4, 0
    logits_TV = torch.tensor([[0.0, 0, 0, 0], [math.log(2), 0, 0, -INF]])
    logprobs_T, entropy_T = token_logprobs_and_entropy(logits_TV, torch.tensor([3, 1]))
    assert logprobs_T.tolist() == approx([-math.log(4), -math.log(4)])
    assert entropy_T.tolist() == approx([math.log(4), 1.5 * math.log(2)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("spread", [0.1, 3.0, 30.0])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_agrees_with_float64(dtype, spread, temperature):
    logits_TV, labels_T = random_logits(50, 4000, spread=spread, dtype=dtype)
    logprobs_T, entropy_T = token_logprobs_and_entropy(
        logits_TV, labels_T, temperature=temperature, chunk_tokens=16
    )
    expected_logprobs_T, expected_entropy_T = in_float64(logits_TV, labels_T, temperature)
    assert logprobs_T.dtype == entropy_T.dtype == torch.float32
    torch.testing.assert_close(logprobs_T.double(), expected_logprobs_T, atol=5e-5, rtol=1e-6)
    torch.testing.assert_close(entropy_T.double(), expected_entropy_T, atol=1e-5, rtol=1e-5)


def test_logits_far_from_zero_lose_nothing():
    logits_TV, labels_T = random_logits(20, 1000)
    _, entropy_T = token_logprobs_and_entropy(logits_TV + 4096, labels_T)
    _, expected_T = in_float64(logits_TV + 4096, labels_T)
    torch.testing.assert_close(entropy_T.double(), expected_T, atol=2e-6, rtol=2e-6)


@given(
    integers(1, 40),
    integers(1, 60),
    sampled_from([1.0, 0.7]),
    sampled_from([torch.float32, torch.bfloat16]),
)
def test_chunks_change_nothing(num_tokens, chunk_tokens, temperature, dtype):
    logits_TV, labels_T = random_logits(num_tokens, 33, dtype=dtype)
    whole = token_logprobs_and_entropy(
        logits_TV, labels_T, temperature=temperature, chunk_tokens=10**6
    )
    chunked = token_logprobs_and_entropy(
        logits_TV, labels_T, temperature=temperature, chunk_tokens=chunk_tokens
    )
    assert all(torch.equal(one, other) for one, other in zip(whole, chunked, strict=True))


def test_impossible_words_count_as_nothing():
    logits_TV, labels_T = random_logits(8, 50)
    masked_TV = torch.cat([logits_TV, torch.full((8, 30), -INF)], dim=1)
    for one, other in zip(
        token_logprobs_and_entropy(logits_TV, labels_T),
        token_logprobs_and_entropy(masked_TV, labels_T),
        strict=True,
    ):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-6)
    impossible_T, _ = token_logprobs_and_entropy(masked_TV, torch.full((8,), 70))
    assert (impossible_T == -INF).all()


def test_a_broken_token_breaks_no_other():
    logits_TV, labels_T = random_logits(6, 50)
    expected = torch.stack(token_logprobs_and_entropy(logits_TV, labels_T))
    logits_TV[2, 7] = math.nan
    found = torch.stack(token_logprobs_and_entropy(logits_TV, labels_T))
    assert found[:, 2].isnan().all()
    healthy = [0, 1, 3, 4, 5]
    assert torch.equal(found[:, healthy], expected[:, healthy])


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_logits_are_left_as_they_were(temperature):
    logits_TV, labels_T = random_logits(10, 50)
    before_TV = logits_TV.clone()
    token_logprobs_and_entropy(logits_TV, labels_T, temperature=temperature)
    assert torch.equal(logits_TV, before_TV)


class LargestResult(TorchDispatchMode):
    """Largest storage, in bytes, that any operation made while this was on."""

    def __init__(self, *known):
        super().__init__()
        self.known = {tensor.untyped_storage().data_ptr() for tensor in known}
        self.num_bytes = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else [result]:
            if (
                isinstance(tensor, torch.Tensor)
                and tensor.untyped_storage().data_ptr() not in self.known
            ):
                self.num_bytes = max(self.num_bytes, tensor.untyped_storage().nbytes())
        return result


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_never_a_copy_of_all_logits(dtype, temperature):
    logits_TV, labels_T = random_logits(64, 500, dtype=dtype)
    with LargestResult(logits_TV, labels_T) as largest:
        token_logprobs_and_entropy(logits_TV, labels_T, temperature=temperature, chunk_tokens=8)
    assert largest.num_bytes == 8 * 500 * 4
    with LargestResult(logits_TV, labels_T) as largest:
        logits_TV.double()
    assert largest.num_bytes == 64 * 500 * 8  # the measure sees a copy where there is one
