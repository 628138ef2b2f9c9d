"""Exact chunked entropy and log-probs on a CUDA device: right to float32's digits, and small in memory.

Shapes: T tokens, V vocabulary. Needs torch alone, of any recent version; OpenRLHF where it is installed.
"""

import math

import pytest
import torch

from r3_openrlhf.method.core.entropy import (
    DEVICE_BUFFER_BYTES,
    entropy_statistics,
    token_logprobs_and_entropy,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device here"),
]
QWEN_VOCAB = 151_936


def random_logits(num_tokens, vocab_size, *, dtype=torch.bfloat16, spread=3.0):
    generator = torch.Generator("cuda").manual_seed(0)
    logits_TV = torch.randn(num_tokens, vocab_size, generator=generator, device="cuda") * spread
    return logits_TV.to(dtype), torch.randint(
        vocab_size, (num_tokens,), generator=generator, device="cuda"
    )


def in_float64(logits_TV, labels_T, temperature=1.0):
    logprobs_TV = (logits_TV.double() / temperature).log_softmax(dim=1)
    return logprobs_TV.gather(1, labels_T[:, None]).squeeze(1), torch.special.entr(
        logprobs_TV.exp()
    ).sum(dim=1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize(
    ("spread", "chunk_tokens"),
    [(0.1, 64), (30.0, 64), *((3.0, size) for size in (1, 7, 64, 1000, None))],
)
def test_agrees_with_float64(dtype, temperature, spread, chunk_tokens):
    logits_TV, labels_T = random_logits(200, QWEN_VOCAB, dtype=dtype, spread=spread)
    logprobs_T, entropy_T = token_logprobs_and_entropy(
        logits_TV, labels_T, temperature=temperature, chunk_tokens=chunk_tokens
    )
    exact_logprobs_T, exact_entropy_T = in_float64(logits_TV, labels_T, temperature)
    assert logprobs_T.is_cuda and logprobs_T.dtype == entropy_T.dtype == torch.float32
    torch.testing.assert_close(logprobs_T.double(), exact_logprobs_T, atol=5e-5, rtol=1e-6)
    torch.testing.assert_close(entropy_T.double(), exact_entropy_T, atol=1e-5, rtol=1e-5)


def test_agrees_with_the_cpu():
    logits_TV, labels_T = random_logits(40, 5000)
    on_cuda = token_logprobs_and_entropy(logits_TV, labels_T)
    on_cpu = token_logprobs_and_entropy(logits_TV.cpu(), labels_T.cpu())
    for one_T, other_T in zip(on_cuda, on_cpu, strict=True):
        torch.testing.assert_close(one_T.cpu(), other_T, atol=1e-5, rtol=1e-5)
    # takes tensors of any device
    peak_and_global = entropy_statistics(on_cuda[1], peak_fraction=0.2)
    assert peak_and_global == pytest.approx(
        entropy_statistics(on_cpu[1], peak_fraction=0.2), rel=1e-5
    )


def test_impossible_words_and_certain_ones():
    logits_TV = torch.full((2, QWEN_VOCAB), -math.inf, device="cuda", dtype=torch.bfloat16)
    logits_TV[0, 5] = 3.0
    logits_TV[1, :4] = 1.0
    logprobs_T, entropy_T = token_logprobs_and_entropy(
        logits_TV, torch.tensor([5, 0], device="cuda")
    )
    assert logprobs_T.tolist() == pytest.approx([0, -math.log(4)])
    assert entropy_T.tolist() == pytest.approx([0, math.log(4)])


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_peak_memory_is_that_of_the_chunks(dtype, temperature):
    logits_TV, labels_T = random_logits(4096, 32_000, dtype=dtype)
    for chunk_tokens, buffer_bytes in ((64, 64 * 32_000 * 4), (None, DEVICE_BUFFER_BYTES)):
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        token_logprobs_and_entropy(
            logits_TV, labels_T, temperature=temperature, chunk_tokens=chunk_tokens
        )
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated() - before
        # two buffers, results, the allocator's rounding
        assert buffer_bytes <= peak <= 2 * buffer_bytes + 4 * 2**20


def test_agrees_with_openrlhf():
    models = pytest.importorskip(
        "openrlhf.models.utils", reason="OpenRLHF is not installed here"
    )
    logits_TV, labels_T = random_logits(300, 20_000)
    logprobs_T, entropy_T = token_logprobs_and_entropy(logits_TV, labels_T)
    scaled_BTV = logits_TV.float()[None]
    stock_T = models.log_probs_from_logits(scaled_BTV.clone(), labels_T[None])[0]
    torch.testing.assert_close(logprobs_T, stock_T, atol=2e-5, rtol=0)
    torch.testing.assert_close(
        entropy_T, models.compute_entropy(scaled_BTV)[0], atol=2e-4, rtol=0
    )
