"""Log-probs in chunks: the same numbers and the same gradient as from all logits at once."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from r3_openrlhf.stack.chunked_logprobs import chunked_logprobs


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
