"""Each formula beside what PyTorch, vLLM and DeepSpeed really allocate, on models that are here, and beside DeepSpeed's
own estimators. Fifteen percent is what a plan promises."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from r3_openrlhf.runs.models.locate import resolve_model
from r3_openrlhf.runs.planning import formulas as f
from r3_openrlhf.runs.planning.shapes import PUBLISHED, ModelShape, shape_of

WITHIN = 0.15
HERE = ("tiny", "smollm2")


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_those_of_transformers(name):
    shape = PUBLISHED[name]
    from transformers import AutoConfig, AutoModelForCausalLM

    options = dict(
        num_hidden_layers=shape.layers, hidden_size=shape.hidden, intermediate_size=shape.intermediate, vocab_size=shape.vocab,
        num_attention_heads=shape.heads, num_key_value_heads=shape.kv_heads, head_dim=shape.head_dim, tie_word_embeddings=shape.tied,
    )  # fmt: skip
    config = AutoConfig.for_model("qwen2" if shape.qkv_bias else "llama", **options)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    model.tie_weights()
    parameters = list(model.parameters())
    assert sum(parameter.numel() for parameter in parameters) == shape.params
    assert len(parameters) == shape.tensors


@pytest.mark.parametrize("name", HERE)
def test_the_table_is_what_the_models_here_say(name):
    assert shape_of(resolve_model(name)) == shape_of(name)


def test_known_sizes():
    """As their model cards say: 1.78, 7.62, 32.8, 8.03 billion and 135 million."""
    size = {name.partition("/")[2]: shape.params for name, shape in PUBLISHED.items()}
    assert size["DeepSeek-R1-Distill-Qwen-1.5B"] == 1_777_088_000
    assert size["Qwen2.5-7B"] == 7_615_616_512
    assert size["Qwen2.5-32B"] == 32_763_876_352
    assert size["Llama-3.1-8B"] == 8_030_261_248
    assert size["SmolLM2-135M"] == 134_515_008


# ── DeepSpeed's own estimators ──

SIZES = [(1_777_088_000, 8), (7_615_616_512, 32), (32_763_876_352, 64), (134_515_008, 2)]


def _states(params: int, *, ranks: int, stage: int) -> int:
    zero = f.Zero(ranks, stage)
    return zero.weights(params) + zero.optimizer(params) + zero.gradients(params) + zero.step_gradients(params)


@pytest.mark.parametrize(("params", "ranks"), SIZES)
def test_model_states_are_deepspeeds_estimates(params, ranks):
    """ZeRO 2 is its own. For ZeRO 3 DeepSpeed counts 18 P / N too, which leaves bf16 weights or bf16 gradients out of its own list
    of parts (2 + 2 + 4 + 4 + 8, stage_1_and_2.py:3111); the parts that are allocated are 20 P / N."""
    from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs
    from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs

    _, gpu = estimate_zero2_model_states_mem_needs(params, num_gpus_per_node=ranks, cpu_offload=False)
    assert _states(params, ranks=ranks, stage=2) == pytest.approx(gpu, rel=1e-6)
    _, gpu = estimate_zero2_model_states_mem_needs(params, num_gpus_per_node=ranks, cpu_offload=True)
    offloaded = f.Zero(ranks, 2, offloaded=True)
    assert (offloaded.weights(params), offloaded.optimizer(params), offloaded.gradients(params)) == (gpu, 0, 0)
    options = {"num_gpus_per_node": ranks, "cpu_offload": False, "cpu_offload_params": False}
    _, gpu, _ = estimate_zero3_model_states_mem_needs(params, 0, **options)
    assert _states(params, ranks=ranks, stage=3) / gpu == pytest.approx(20 / 18, rel=1e-6)


# ── what the CPU stack allocates ──


@pytest.mark.stack
@pytest.mark.parametrize("name", HERE)
def test_kv_cache_is_vllms(name):
    pytest.importorskip("vllm", reason="vLLM is not installed")
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    shape = shape_of(name)
    heads = {"num_kv_heads": shape.kv_heads, "head_size": shape.head_dim}
    layer = FullAttentionSpec(block_size=16, dtype=torch.bfloat16, **heads)
    assert shape.layers * layer.page_size_bytes / 16 == f.kv_bytes_per_token(shape)


def _kept_by_autograd(name: str, *, tokens: int, checkpointing: bool) -> int:
    """Bytes behind the forward pass beside the parameters: the fp32 logits, as upstream copies them, and activations."""
    from torch.distributed._tools.mem_tracker import MemTracker
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(resolve_model(name), dtype=torch.bfloat16, attn_implementation="sdpa")
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    ids = torch.randint(5, 200, (1, tokens), generator=torch.Generator().manual_seed(0))
    tracker = MemTracker()
    tracker.track_external(model)
    with tracker:
        logits = model(ids, use_cache=False).logits.float()
        (sizes,) = tracker.get_tracker_snapshot("current").values()
    assert logits.dtype is torch.float32
    return sum(size for kind, size in sizes.items() if any(word in str(kind) for word in ("ACT", "TEMP")))


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize(("name", "tokens"), [("tiny", 1024), ("smollm2", 256)])
def test_activations_are_what_autograd_keeps(name, tokens, checkpointing):
    """Every layer's activations, or with checkpointing its input; the layer that is computed again comes later."""
    shape = shape_of(name)
    expected = f.activation_bytes(shape, tokens=tokens, checkpointing=checkpointing, flash=False)
    expected -= tokens * f.layer_activation_bytes(shape, flash=False) * checkpointing
    expected += f.FP32 * tokens * shape.vocab
    assert expected == pytest.approx(_kept_by_autograd(name, tokens=tokens, checkpointing=checkpointing), rel=WITHIN)


# ── laws ──


@given(st.integers(1, 500), st.floats(10, 4000), st.integers(4096, 9000))
def test_lengths_have_the_mean_and_the_cut_that_was_asked_for(num, mean, longest):
    lengths = f.response_lengths(num, mean=mean, longest=longest)
    assert lengths == sorted(lengths) and lengths[-1] <= longest
    assert sum(lengths) / num == pytest.approx(mean, abs=1.0)


UNIT = ModelShape(layers=1, hidden=8, intermediate=8, heads=1, kv_heads=1, head_dim=8, vocab=10, tied=True)


def test_decoding_by_hand():
    """Free arithmetic and memory: only the fixed time of a step counts. Three responses of 2, 3 and 5 tokens: 5 steps at once;
    one after another 10."""
    rates = f.Rates(decode_step_s=1.0)
    free = dict(prompt=3, tensor_parallel=1, flops=1e30, bandwidth=1e30, rates=rates)
    assert f.decode_seconds(UNIT, [2, 3, 5], slots=3, **free) == pytest.approx(5)
    assert f.decode_seconds(UNIT, [2, 3, 5], slots=1, **free) == pytest.approx(10)


def test_decoding_reads_the_cache_of_what_runs():
    """One response of 2 tokens behind a prompt of 4, memory alone: 2 steps read the weights, the logits and 4 + 1 tokens' keys
    and values on average."""
    rates = f.Rates(decode_step_s=0.0, decode=1.0)
    read = 2 * UNIT.matmul_params + f.kv_bytes_per_token(UNIT) * 5 + 12 * UNIT.vocab
    found = f.decode_seconds(UNIT, [2], prompt=4, slots=1, tensor_parallel=1, flops=1e30, bandwidth=1.0, rates=rates)
    assert found == pytest.approx(2 * read)


def test_flops_by_hand():
    """2 per weight and token; backward twice that; once more with checkpointing; attention over half the row."""
    attention = 4 * 1 * 8 * 3
    assert f.forward_flops(UNIT, tokens=10, length=6) == 10 * (2 * UNIT.matmul_params + attention)
    for checkpointing, passes in ((False, 3), (True, 4)):
        found = f.update_flops(UNIT, tokens=10, length=6, checkpointing=checkpointing)
        assert found == passes * f.forward_flops(UNIT, tokens=10, length=6)
