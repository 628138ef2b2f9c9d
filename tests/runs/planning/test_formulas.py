"""Each formula beside what PyTorch, vLLM and DeepSpeed really allocate, on models that are here, and beside DeepSpeed's
own estimators. Fifteen percent is what a plan promises."""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoConfig

from r3_openrlhf.runs.models.locate import resolve_model
from r3_openrlhf.runs.planning import formulas as f
from r3_openrlhf.runs.planning.shapes import ModelShape, measured, published, shape_of

WITHIN = 0.15
HERE = ("tiny", "smollm2")
CARDS = {
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": 1_777_088_000,
    "Qwen/Qwen2.5-7B": 7_615_616_512,
    "Qwen/Qwen2.5-32B": 32_763_876_352,
    "Qwen/Qwen3-8B": 8_190_735_360,
    "meta-llama/Llama-3.1-8B": 8_030_261_248,
    "HuggingFaceTB/SmolLM2-135M": 134_515_008,
}
ARCHITECTURES, CONFIGS = (
    json.loads(Path(__file__).with_name(file).read_text())
    for file in ("architectures.json", "published_configs.json")
)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_parameters_and_cache_are_counted_from_the_configuration(name):
    """12 architectures. Of each layer q, k, v, o, the MLP (or each expert's and the router), the norms, and `more`. Then by hand
    what a token is multiplied by, and the keys and values that all layers keep of it, in bfloat16."""
    row = {"experts": 0, "used": 1, "norms": 2, "qkv_bias": False, "more": 0} | ARCHITECTURES[
        name
    ]
    config = AutoConfig.for_model(**row["config"])
    hidden, kv_heads = config.hidden_size, config.num_key_value_heads
    dim = getattr(config, "head_dim", None) or hidden // config.num_attention_heads
    q, kv = config.num_attention_heads * dim, kv_heads * dim
    mlp = 3 * hidden * row.get("intermediate", config.intermediate_size)
    around = (
        2 * hidden * (q + kv)
        + (q + 2 * kv) * row["qkv_bias"]
        + row["norms"] * hidden
        + row["more"]
    )
    layer = around + (row["experts"] * (mlp + hidden) if row["experts"] else mlp)
    words, layers = config.vocab_size * hidden, config.num_hidden_layers
    shape = measured(config)
    tied = config.tie_word_embeddings
    assert shape.params == layers * layer + hidden + words * (1 if tied else 2)
    unused = (row["experts"] - row["used"]) * mlp * layers if row["experts"] else 0
    assert shape.matmul_params == pytest.approx(
        shape.params - unused - words * (not tied), rel=1e-4
    )
    assert shape.kv_bytes == 2 * 2 * layers * kv and (shape.heads, shape.kv_heads) == (
        q // dim,
        kv_heads,
    )


@pytest.mark.parametrize(("name", "config"), CONFIGS.items())
def test_published_shapes_are_measured(name, config):
    assert published()[name] == measured(AutoConfig.for_model(**config))


@pytest.mark.parametrize("name", HERE)
def test_the_table_is_what_the_models_here_say(name):
    assert shape_of(resolve_model(name)) == shape_of(name)


def test_known_sizes():
    """As their model cards and the headers of their weight files say."""
    assert {name: published()[name].params for name in CARDS} == CARDS


# ── DeepSpeed's own estimators ──

SIZES = [(1_777_088_000, 8), (7_615_616_512, 32), (32_763_876_352, 64), (134_515_008, 2)]


def _states(params: int, *, ranks: int, stage: int) -> int:
    zero = f.Zero(ranks, stage)
    return (
        zero.weights(params)
        + zero.optimizer(params)
        + zero.gradients(params)
        + zero.step_gradients(params)
    )


@pytest.mark.parametrize(("params", "ranks"), SIZES)
def test_model_states_are_deepspeeds_estimates(params, ranks):
    """ZeRO 2 is its own. For ZeRO 3 DeepSpeed counts 18 P / N too, which leaves bf16 weights or bf16 gradients out of its own list
    of parts (2 + 2 + 4 + 4 + 8, stage_1_and_2.py:3111); the parts that are allocated are 20 P / N."""
    from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs
    from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs

    _, gpu = estimate_zero2_model_states_mem_needs(
        params, num_gpus_per_node=ranks, cpu_offload=False
    )
    assert _states(params, ranks=ranks, stage=2) == pytest.approx(gpu, rel=1e-6)
    _, gpu = estimate_zero2_model_states_mem_needs(
        params, num_gpus_per_node=ranks, cpu_offload=True
    )
    offloaded = f.Zero(ranks, 2, offloaded=True)
    assert (
        offloaded.weights(params),
        offloaded.optimizer(params),
        offloaded.gradients(params),
    ) == (gpu, 0, 0)
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
    heads = {
        "num_kv_heads": shape.kv_heads,
        "head_size": shape.attention_width // shape.layers // shape.heads,
    }
    layer = FullAttentionSpec(block_size=16, dtype=torch.bfloat16, **heads)
    assert shape.layers * layer.page_size_bytes / 16 == shape.kv_bytes


def _kept_by_autograd(name: str, *, tokens: int, checkpointing: bool) -> int:
    """Bytes behind the forward pass beside the parameters: the fp32 logits, as upstream copies them, and activations."""
    from torch.distributed._tools.mem_tracker import MemTracker
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        resolve_model(name), dtype=torch.bfloat16, attn_implementation="sdpa"
    )
    if checkpointing:
        model.gradient_checkpointing_enable(
            gradient_checkpointing_kwargs={"use_reentrant": False}
        )
    model.train()
    ids = torch.randint(5, 200, (1, tokens), generator=torch.Generator().manual_seed(0))
    tracker = MemTracker()
    tracker.track_external(model)
    with tracker:
        logits = model(ids, use_cache=False).logits.float()
        (sizes,) = tracker.get_tracker_snapshot("current").values()
    assert logits.dtype is torch.float32
    return sum(
        size
        for kind, size in sizes.items()
        if any(word in str(kind) for word in ("ACT", "TEMP"))
    )


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize(("name", "tokens"), [("tiny", 1024), ("smollm2", 256)])
def test_activations_are_what_autograd_keeps(name, tokens, checkpointing):
    """Every layer's activations, or with checkpointing its input; the layer that is computed again comes later."""
    shape = shape_of(name)
    expected = f.activation_bytes(
        shape, tokens=tokens, checkpointing=checkpointing, flash=False
    )
    expected -= tokens * (shape.layer_bytes + shape.repeated_bytes) * checkpointing
    expected += f.FP32 * tokens * shape.vocab
    assert expected == pytest.approx(
        _kept_by_autograd(name, tokens=tokens, checkpointing=checkpointing), rel=WITHIN
    )


# ── laws ──


@given(st.integers(1, 500), st.floats(10, 4000), st.integers(4096, 9000))
def test_lengths_have_the_mean_and_the_cut_that_was_asked_for(num, mean, longest):
    lengths = f.response_lengths(num, mean=mean, longest=longest)
    assert lengths == sorted(lengths) and lengths[-1] <= longest
    assert sum(lengths) / num == pytest.approx(mean, abs=1.0)


UNIT = ModelShape(
    params=500,
    matmul_params=500,
    tensors=9,
    largest=80,
    layers=1,
    hidden=8,
    vocab=10,
    heads=1,
    kv_heads=1,
    attention_width=8,
    kv_bytes=32,
    kept_bytes=0,
    layer_bytes=0,
    widest_bytes=0,
    repeated_bytes=0,
    around_bytes=0,
    linear_sizes={},
)


def test_decoding_by_hand():
    """Free arithmetic and memory: only the fixed time of a step counts. Three responses of 2, 3 and 5 tokens: 5 steps at once;
    one after another 10."""
    rates = f.Rates(decode_step_s=1.0)
    free = dict(prompt=3, tensor_parallel=1, flops=1e30, bandwidth=1e30, rates=rates)
    assert f.decode_seconds(UNIT, [2, 3, 5], slots=3, **free) == pytest.approx(5)
    assert f.decode_seconds(UNIT, [2, 3, 5], slots=1, **free) == pytest.approx(10)


def test_paused_decoding_by_hand():
    """One iteration is one second. The responses of two steps run at once, so every other step finds its groups whole."""
    rates = f.Rates(decode_step_s=1.0)
    free = dict(prompt=3, tensor_parallel=1, flops=1e30, bandwidth=1e30, rates=rates)
    paused = dict(samples=2, partial=1.0, max_pauses=2, **free)
    assert f.paused_decode_seconds(UNIT, [10] * 8, slots=99, **paused) == pytest.approx(5)
    # where places are few there is nothing to gain: 16 responses of 10 tokens on 4 places
    assert f.paused_decode_seconds(UNIT, [10] * 16, slots=4, **paused) == pytest.approx(40)


@pytest.mark.parametrize(("partial", "low", "high"), [(1.0, 0.4, 0.6), (1.7, 0.33, 0.48)])
def test_paused_decoding_is_what_the_loop_of_a_run_does(partial, low, high):
    """Beside benchmarks/partial_rollouts.py, whose loop is the run's: .50 and .41 of the iterations."""
    rates = f.Rates(decode_step_s=1.0)
    free = dict(prompt=3, tensor_parallel=1, flops=1e30, bandwidth=1e30, rates=rates)
    lengths = f.response_lengths(128 * 16, mean=2300, longest=8192, sigma=1.0)
    waiting = f.decode_seconds(UNIT, lengths, slots=2560, **free)
    paused = f.paused_decode_seconds(
        UNIT, lengths, slots=2560, samples=16, partial=partial, max_pauses=2, **free
    )
    assert waiting == 8192 and low < paused / waiting < high


def test_decoding_reads_the_cache_of_what_runs():
    """One response of 2 tokens behind a prompt of 4, memory alone: 2 steps read the weights, the logits and 4 + 1 tokens' keys
    and values on average."""
    rates = f.Rates(decode_step_s=0.0, decode=1.0)
    read = 2 * UNIT.matmul_params + UNIT.kv_bytes * 5 + 12 * UNIT.vocab
    found = f.decode_seconds(
        UNIT, [2], prompt=4, slots=1, tensor_parallel=1, flops=1e30, bandwidth=1.0, rates=rates
    )
    assert found == pytest.approx(2 * read)


def test_flops_by_hand():
    """2 per weight and token; backward twice that; once more with checkpointing; attention over half the row."""
    attention = 4 * 1 * 8 * 3
    assert f.forward_flops(UNIT, tokens=10, length=6) == 10 * (
        2 * UNIT.matmul_params + attention
    )
    for checkpointing, passes in ((False, 3), (True, 4)):
        found = f.update_flops(UNIT, tokens=10, length=6, checkpointing=checkpointing)
        assert found == passes * f.forward_flops(UNIT, tokens=10, length=6)


@pytest.mark.stack
@pytest.mark.slow
@pytest.mark.parametrize(("name", "ranks", "stage"), [("tiny", 2, 2), ("tiny", 1, 2)])
def test_model_states_are_deepspeeds_tensors(name, ranks, stage, tmp_path):
    """Real ranks of OpenRLHF's strategy after one backward pass: the bytes of their tensors."""
    pytest.importorskip("openrlhf", reason="OpenRLHF is not installed")
    from tests.runs.planning import rank_states
    from tests.stack.ranks import on_ranks

    shape, model = shape_of(name), resolve_model(name)
    output = tmp_path / "found.json"
    on_ranks(rank_states.model_states, ranks, model, ranks, stage, output, folder=tmp_path)
    found = json.loads(output.read_text())
    zero = f.Zero(ranks, stage)
    # whole, however small the model is
    assert found["bucket"] == f.Zero(1, stage).bucket(shape.params)
    assert zero.weights(shape.params) == pytest.approx(found["weights"], rel=WITHIN)
    assert zero.optimizer(shape.params) == pytest.approx(found["optimizer"], rel=WITHIN)
    assert zero.gradients(shape.params) == pytest.approx(found["gradients"], rel=WITHIN)


# ── what ZeRO moves ──

LINKS = {"gpus_per_node": 8, "link": 450e9, "network": 50e9}
COUNTS = st.integers(1, 500)


def test_the_traffic_of_an_update_by_hand():
    """P = T = 10, 6 micro-batches in 2 updates: a gather or a reduction of everything is 20 bytes."""
    moved = {
        stage: f.Zero(4, stage).update_traffic(10, 10, passes=6, updates=2)
        for stage in range(4)
    }
    assert moved == {0: 2 * 40, 1: 2 * 40, 2: 6 * 20 + 2 * 20, 3: 6 * 3 * 20}
    # an adapter of 1 parameter: stage 3 gathers what is frozen, too
    assert f.Zero(4, 3).update_traffic(10, 1, passes=6, updates=2) == 6 * (2 * 20 + 2)
    assert f.Zero(4, 2).update_traffic(10, 1, passes=6, updates=2) == 6 * 2 + 2 * 2
    assert [f.Zero(4, stage).forward_traffic(10, passes=6) for stage in (2, 3)] == [0, 120]


def test_the_seconds_of_a_collective_by_hand():
    """450 GB over 8 GPUs of one node: 7/8 of it at 70% of 450 GB/s is 1.25 s. Over two nodes 15/16 at 8 x 50 GB/s."""
    assert f.collective_seconds(450e9, ranks=8, **LINKS) == pytest.approx(7 / 8 / 0.7)
    assert f.collective_seconds(450e9, ranks=16, **LINKS) == pytest.approx(
        15 / 16 * 450 / (0.7 * 400)
    )
    # cards that together are faster than the link
    fast = LINKS | {"network": 100e9}
    assert f.collective_seconds(450e9, ranks=16, **fast) == pytest.approx(15 / 16 / 0.7)
    assert f.collective_seconds(450e9, ranks=1, **LINKS) == 0.0


@given(st.integers(1, 10**9), st.integers(0, 10**9), COUNTS, COUNTS, COUNTS)
def test_a_higher_stage_moves_no_less(params, frozen, passes, fewer, more):
    """As many updates as micro-batches at most. More micro-batches, updates or weights never move less."""
    updates = min(passes, fewer)
    total = params + frozen

    def moved(stage, **changed):
        counts = {"passes": passes, "updates": updates} | changed
        return f.Zero(8, stage).update_traffic(total, params, **counts)

    assert moved(0) == moved(1) <= moved(2) <= moved(3)
    for stage in range(4):
        assert moved(stage, passes=passes + more) >= moved(stage)
        assert moved(stage, updates=updates + more) >= moved(stage)
    # equal only where every micro-batch is an update
    assert (moved(1) == moved(2)) == (updates == passes)


@given(
    st.floats(1, 1e12), st.integers(2, 64), st.floats(1e9, 1e12), st.floats(1e9, 1e11), COUNTS
)
def test_seconds_fall_with_each_bandwidth_and_rise_with_bytes_and_ranks(
    size, ranks, link, network, more
):
    links = {"gpus_per_node": 8, "link": link, "network": network}
    seconds = f.collective_seconds(size, ranks=ranks, **links)
    assert 0 < seconds <= 1.001 * f.collective_seconds(size + more, ranks=ranks, **links)
    assert seconds <= 1.001 * f.collective_seconds(size, ranks=ranks + more, **links)
    faster = links | {"link": link + 1e9 * more, "network": network + 1e9 * more}
    assert f.collective_seconds(size, ranks=ranks, **faster) <= 1.001 * seconds
    half = f.collective_seconds(size, ranks=ranks, rates=f.SLOW, **links)
    assert half == pytest.approx(2 * seconds)
