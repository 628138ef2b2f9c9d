"""Architectures of 2026, with random weights and the tokenizer of "tiny", for two steps of the whole stack."""

import psutil
import pytest
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from r3_openrlhf.runs.models.locate import resolve_model
from tests.processes import command_of
from tests.stack.training import ROOT, Run, lines, train

pytestmark = [
    pytest.mark.slow,
    pytest.mark.stack,
    pytest.mark.soak,
]  # `make soak` runs every architecture
SIZES = {
    "vocab_size": 448,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "head_dim": 32,
}
SIZES |= {
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "tie_word_embeddings": False,
    "initializer_range": 0.05,
}
PATCHES = {"PYTHONPATH": f"{ROOT / 'tests' / 'stack' / 'engine_patches'}:{ROOT}"}
# three layers that carry a state and one of attention
HEADS = {
    "head_dim": 128,
    "num_hidden_layers": 4,
}
HEADS |= dict.fromkeys(("linear_num_key_heads", "linear_num_value_heads"), 2)
HEADS |= dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), 128)
ZERO_3 = ("train.zero_stage=3", "cluster.gpus_per_node=2")
EXPERTS = {"moe_intermediate_size": 64, "num_experts": 8, "num_experts_per_tok": 2}


@pytest.mark.parametrize(
    ("kind", "more", "settings", "warning"),
    [
        ("qwen3_moe", EXPERTS, (), None),
        ("qwen3_moe", EXPERTS, ZERO_3, None),
        ("gemma3_text", {"sliding_window": 64}, (), None),
        ("gemma4_text", {"sliding_window": 64}, (), None),
        ("qwen3_5_text", HEADS, (), "carry a state from one token to the next"),
        (
            "olmo3",
            {"layer_types": ["full_attention"] * 2},
            ("train.adam_offload=true", *ZERO_3),
            None,
        ),
    ],
)
def test_the_engine_has_the_trained_weights(tmp_path, kind, more, settings, warning):
    """Packed where the architecture allows it. The gap would be .07 and more with a layer of the step before."""
    tokenizer = AutoTokenizer.from_pretrained(resolve_model("tiny"))
    ends = {
        name: getattr(tokenizer, name)
        for name in ("bos_token_id", "eos_token_id", "pad_token_id")
    }
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **SIZES | more | ends))
    for part in (model.bfloat16(), tokenizer):
        part.save_pretrained(tmp_path / "model")
    given = (
        f"model.path={tmp_path / 'model'}",
        "train.max_steps=3",
        "train.learning_rate=1e-3",
        "train.packing=true",
    )
    done = train(tmp_path / "run", *given, *settings, environment=PATCHES)
    steps = lines(tmp_path / "run" / "metrics.jsonl")
    gaps = [step["r3/sync/abs_logprob_gap"] for step in steps]
    print(kind, settings, gaps, [step["grad_norm"] for step in steps], done.stderr[-1500:])
    assert len(gaps) == 3 and max(gaps) < 0.05 and any(step["grad_norm"] > 0 for step in steps)
    assert warning is None or warning in done.stderr


def test_an_engine_of_two_ranks_has_the_trained_weights(tmp_path):
    """Over Ray, with its own process: halves of each weight, received by two workers."""
    given = (
        "train.max_steps=2",
        "cluster.gpus_per_node=2",
        "cluster.vllm_tensor_parallel_size=2",
    )
    train(tmp_path / "run", *given, environment=PATCHES)
    gaps = [
        step["r3/sync/abs_logprob_gap"] for step in lines(tmp_path / "run" / "metrics.jsonl")
    ]
    assert (
        len(gaps) == 2
        and max(gaps) < 0.01
        and "RayWorkerProc" in (tmp_path / "run" / "train.log").read_text()
    )


def test_an_engine_actor_that_is_killed_leaves_no_child(tmp_path):
    """Its EngineCore would keep a GPU's memory. Nothing ends the run meanwhile: its trainer is stopped."""
    with Run(tmp_path / "run", "train.max_steps=3", held_in=2) as run:
        run.wait_for_step(1)
        names = {process: " ".join(command_of(process)) for process in run.family()}
        (actor,) = (
            process for process, name in names.items() if name.startswith("ray::R3RolloutActor")
        )
        (trainer,) = (
            process for process, name in names.items() if name.startswith("ray::R3Trainer")
        )
        trainer.suspend()
        children = actor.children(recursive=True)
        assert any("VLLM::EngineCore" in command_of(child) for child in children)
        actor.kill()
        assert psutil.wait_procs(children, timeout=600)[1] == []
