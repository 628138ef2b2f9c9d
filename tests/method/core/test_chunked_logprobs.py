"""Log-probs in chunks: the same numbers and the same gradient as from all logits at once."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from r3_openrlhf.stack.chunked_logprobs import chunked_logprobs
from r3_openrlhf.stack.label_logprobs import likeliest, logprobs_at, logprobs_of_labels


def drawn(seed, *, tokens=7, hidden=5, vocabulary=11, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    hidden_TH = torch.randn(tokens, hidden, generator=generator, dtype=dtype)
    weight_VH = torch.randn(vocabulary, hidden, generator=generator, dtype=dtype)
    labels_T = torch.randint(vocabulary, (tokens,), generator=generator)
    gradient_T = torch.randn(tokens, generator=generator, dtype=dtype)
    return hidden_TH, weight_VH, labels_T, gradient_T


def unchunked(hidden_TH, weight_VH, labels_T, temperature):
    """autograd through all logits."""
    return (
        (hidden_TH @ weight_VH.T / temperature)
        .log_softmax(-1)
        .gather(1, labels_T[:, None])
        .squeeze(1)
    )


def with_gradient(function, hidden_TH, weight_VH, gradient_T):
    """(log-probs, gradient of the hidden states, gradient of the weight) for a loss that weighs each token by itself."""
    hidden_TH, weight_VH = (
        hidden_TH.clone().requires_grad_(),
        weight_VH.clone().requires_grad_(),
    )
    logprobs_T = function(hidden_TH, weight_VH)
    (logprobs_T * gradient_T).sum().backward()
    return logprobs_T.detach(), hidden_TH.grad, weight_VH.grad


def test_by_hand():
    """Two words with logits ln 3 and 0: probabilities 3/4 and 1/4; d ln p_0 / d x = (1 - 3/4, -1/4)."""
    weight = torch.tensor([[math.log(3.0)], [0.0]], dtype=torch.float64)
    hidden, labels = torch.ones(2, 1, dtype=torch.float64), torch.tensor([0, 1])
    found, _, gradient = with_gradient(
        lambda h, w: chunked_logprobs(h, w, labels, chunk_tokens=1),
        hidden,
        weight,
        torch.tensor([1.0, 0.0]),
    )
    assert found.tolist() == pytest.approx([math.log(0.75), math.log(0.25)])
    assert gradient.flatten().tolist() == pytest.approx([0.25, -0.25])


@given(
    seed=st.integers(0, 99),
    chunk=st.integers(1, 9),
    temperature=st.sampled_from([1.0, 0.6, 2.0]),
    tokens=st.integers(1, 9),
)
@settings(max_examples=40, deadline=None)
def test_values_and_gradient_are_those_of_all_logits_at_once(seed, chunk, temperature, tokens):
    """float64: to 1e-12. Any chunk, also one that is larger than the batch, and any weight of a token."""
    hidden, weight, labels, gradient = drawn(seed, tokens=tokens)
    found = with_gradient(
        lambda h, w: chunked_logprobs(
            h, w, labels, chunk_tokens=chunk, temperature=temperature
        ),
        hidden,
        weight,
        gradient,
    )
    expected = with_gradient(
        lambda h, w: unchunked(h, w, labels, temperature), hidden, weight, gradient
    )
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 2e-5), (torch.bfloat16, 3e-2)]
)
def test_in_the_types_of_a_model(dtype, tolerance):
    """Against float64. bfloat16 has 8 bits: what differs is its rounding of inputs and products, not the sum over chunks."""
    hidden, weight, labels, gradient = drawn(
        2, tokens=64, hidden=32, vocabulary=300, dtype=torch.float32
    )
    hidden, weight = (hidden / 4).to(dtype), (weight / 4).to(dtype)
    found = with_gradient(
        lambda h, w: chunked_logprobs(h, w, labels, chunk_tokens=10), hidden, weight, gradient
    )
    expected = with_gradient(
        lambda h, w: unchunked(h, w, labels, 1.0),
        hidden.double(),
        weight.double(),
        gradient.double(),
    )
    assert found[0].dtype == torch.float32 and found[1].dtype == found[2].dtype == dtype
    for one, other in zip(found, expected, strict=True):
        error = (one.double() - other).norm() / other.norm()
        assert error < tolerance


def test_many_chunks_of_a_bfloat16_weight_gradient_do_not_lose_the_small_ones():
    """2,048 tokens that each add the same: a sum in bfloat16 stops growing at 256 of them."""
    weight = torch.zeros(2, 1, dtype=torch.bfloat16)
    hidden, labels = (
        torch.ones(2048, 1, dtype=torch.bfloat16),
        torch.zeros(2048, dtype=torch.long),
    )
    _, _, gradient = with_gradient(
        lambda h, w: chunked_logprobs(h, w, labels, chunk_tokens=1),
        hidden,
        weight,
        torch.ones(2048),
    )
    assert gradient.flatten().tolist() == [1024.0, -1024.0]


def test_no_tensor_of_all_logits_is_made(monkeypatch):
    """Every product that makes logits has at most a chunk of rows, forward and backward."""
    sizes = []
    matmul = torch.Tensor.__matmul__
    monkeypatch.setattr(
        torch.Tensor,
        "__matmul__",
        lambda a, b: sizes.append(tuple(matmul(a, b).shape)) or matmul(a, b),
    )
    hidden, weight, labels, gradient = drawn(4, tokens=8)
    with_gradient(
        lambda h, w: chunked_logprobs(h, w, labels, chunk_tokens=4), hidden, weight, gradient
    )
    assert [size for size in sizes if size[1] == 11] == [(4, 11)] * 4


@given(seed=st.integers(0, 99), chunk=st.integers(1, 9), count=st.integers(1, 4))
@settings(max_examples=20, deadline=None)
def test_several_labels_of_a_token(seed, chunk, count):
    """Labels may repeat; each has a weight of its own. From hidden states, and from logits that are there."""
    hidden, weight, _, _ = drawn(seed)
    generator = torch.Generator().manual_seed(seed)
    labels_TK = torch.randint(11, (7, count), generator=generator)
    gradient_TK = torch.randn(7, count, generator=generator, dtype=torch.float64)

    def at_once(h, w):
        return (h @ w.T / 0.7).log_softmax(-1).gather(1, labels_TK)

    def in_chunks(h, w):
        return chunked_logprobs(h, w, labels_TK, chunk_tokens=chunk, temperature=0.7)

    def of_logits(h, w):
        return logprobs_of_labels(h @ w.T, labels_TK, temperature=0.7)

    expected = with_gradient(at_once, hidden, weight, gradient_TK)
    for function in (in_chunks, of_logits):
        found = with_gradient(function, hidden, weight, gradient_TK)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@given(seed=st.integers(0, 99), chunk=st.integers(1, 9), top_k=st.integers(1, 14))
@settings(max_examples=20, deadline=None)
def test_the_likeliest_tokens_are_those_of_all_logits(seed, chunk, top_k):
    hidden, weight, _, _ = drawn(seed)
    logits_TV = hidden @ weight.T
    places = torch.tensor([5, 0, 3])
    asked = dict(temperature=0.7, chunk_tokens=chunk)
    ids, logprobs = likeliest(lambda c: logits_TV[c], places, top_k=top_k, **asked)
    expected = (logits_TV / 0.7).log_softmax(-1)[places]
    assert ids.dtype == torch.int32 and ids.shape == logprobs.shape == (3, min(top_k, 11))
    torch.testing.assert_close(
        logprobs, expected.topk(min(top_k, 11)).values.float(), rtol=1e-6, atol=1e-6
    )
    torch.testing.assert_close(expected.gather(1, ids.long()).float(), logprobs)
    again = logprobs_at(lambda c: logits_TV[c], places, ids, **asked)
    torch.testing.assert_close(again, logprobs)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_logits_have_float32_logprobs(dtype):
    hidden, weight, labels, _ = drawn(0, vocabulary=3000)
    logits = (hidden @ weight.T).to(dtype).requires_grad_()
    found = logprobs_of_labels(logits, labels[:, None])
    assert found.dtype == torch.float32
    torch.testing.assert_close(
        found[:, 0], logits.float().log_softmax(-1).gather(1, labels[:, None])[:, 0]
    )
    found.sum().backward()
    assert logits.grad.dtype == dtype
