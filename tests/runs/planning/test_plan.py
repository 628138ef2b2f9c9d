"""What a plan says of whole runs: that its remedies are remedies, that its sums are sums, and what the command prints."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import AutoConfig

from r3_openrlhf.config.loading import experiments, load_config
from r3_openrlhf.method.errors import ConfigError
from r3_openrlhf.runs.planning.forecast import make_plan, num_problems_of
from r3_openrlhf.runs.planning.formulas import RATES, SLOW, forward_flops
from r3_openrlhf.runs.planning.hardware import GPUS, GiB
from r3_openrlhf.runs.planning.history_forecast import PROMPT_TOKENS
from r3_openrlhf.runs.planning.shapes import shape_of
from r3_openrlhf.runs.planning.verdict import (
    check_split,
    fits,
    host_check,
    missing_kv_cache,
    remedies,
    start_check,
)
from tests.commands import r3
from tests.imports import ENGINES, loaded_by
from tests.problems.files import write_jsonl

SMALL = shape_of("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B")
SEVEN = shape_of("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B")
H100 = GPUS["h100-80gb"]


def small(*settings):
    return load_config("r3_1p5b_deepscaler_8gpu", list(settings))


def planned(config, shape=SMALL, gpu=H100):
    return make_plan(config, shape, gpu, num_problems=40_315)


def phase(plan, name):
    return next(phase for phase in plan.phases if phase.name == name)


def test_the_1p5b_run_by_hand():
    """P = 1,777,088,000 on 8 ranks, ZeRO 2, one row of 16,384 tokens at most, 151,936 words."""
    update = phase(planned(small()), "update").parts
    assert update["weights"] == 2 * 1_777_088_000
    assert update["optimizer"] == 12 * 1_777_088_000 // 8
    assert update["gradients"] == 4 * 1_777_088_000 // 8  # summed in float32
    assert update["logits"] == 10 * 16_384 * 151_936
    # and its flattened copy
    assert update["gradient bucket"] == 2 * (500_000_000 + 500_000_000)
    sampling = phase(planned(small()), "sampling").parts
    engine = sum(sampling[part] for part in ("engine's weights", "KV cache", "engine's steps"))
    assert engine == int(0.7 * H100.memory_bytes) and planned(small()).steps == 3 * 315
    whole = phase(planned(small("rollout.max_tokens_per_gpu=null")), "log-probs").parts
    assert whole["logits"] == 6 * 16_384 * 151_936


def test_a_critic_is_a_second_model_with_states_of_its_own():
    """Bytes of P bfloat16 weights on each GPU, 12 bytes a parameter on the disk. Asleep while the policy updates, unless nothing
    sleeps."""
    params, grpo, ppo = 1_777_088_000, planned(small("algo=grpo")), planned(small("algo=ppo"))
    one, two = (phase(plan, "update").parts for plan in (grpo, ppo))
    assert (
        two["weights"] - one["weights"] == 2 * params and two["optimizer"] == one["optimizer"]
    )
    assert ppo.disk["checkpoints"] == 2 * grpo.disk["checkpoints"]
    of_grpo, of_ppo = (phase(plan, "update").seconds for plan in (grpo, ppo))
    assert of_ppo == pytest.approx(2 * of_grpo)
    awake = phase(planned(small("algo=ppo", "cluster.enable_sleep=false")), "update").parts
    assert awake["critic's states"] == one["optimizer"] + one["gradients"] + 4 * params // 8


def test_the_pass_of_taught_rows_by_hand():
    """Half of the rows, each as long as a row and a shown response: 2 FLOPs a weight and token, and attention."""
    plain, taught = planned(small("algo=r3_earned")), planned(small("algo=r3_teacher"))
    seconds = phase(taught, "log-probs").seconds - phase(plain, "log-probs").seconds
    config = small("algo=r3_teacher")
    mean = config.rollout.max_new_tokens / 2
    length = PROMPT_TOKENS + mean + min(mean, 2048)
    rows = 0.5 * config.rows_per_step
    flops = forward_flops(SMALL, tokens=rows * length, length=length)
    assert seconds == pytest.approx(flops / (RATES.forward * 8 * H100.flops), rel=1e-6)
    every = planned(small("algo=r3_teacher", "distill.rows=all"))
    more = phase(every, "log-probs").seconds - phase(plain, "log-probs").seconds
    assert more == pytest.approx(2 * seconds)
    assert phase(every, "update").seconds == phase(plain, "update").seconds


def test_a_loss_on_logits_and_an_average_by_hand():
    """32 bytes of each kept token; 6 bytes a parameter beside 8 GPUs, 4 in a checkpoint."""
    plain = planned(small("algo=r3_teacher"))
    logits = planned(small("algo=r3_teacher", "distill.loss=reverse_kl", "distill.top_k=100"))
    config = small("algo=r3_teacher")
    tokens = 0.5 * config.rows_per_step * config.rollout.max_new_tokens / 2
    name = "rows in controller and object store"
    more = logits.host_bytes[name] - plain.host_bytes[name]
    assert more == pytest.approx(tokens * 100 * 32, abs=2)
    average, params = (
        planned(small("algo=r3_teacher", "distill.teacher=average")),
        1_777_088_000,
    )
    assert average.host_bytes["teacher's average"] == 6 * params
    assert "teacher's average" not in plain.host_bytes
    disk = average.disk["checkpoints"] - plain.disk["checkpoints"]
    assert disk % (4 * params) == 0 and disk > 0
    # 5 times 2 bytes of an eighth, and two broadcasts
    seconds = phase(average, "log-probs").seconds - phase(plain, "log-probs").seconds
    assert seconds > 5 * 2 * params / 8 / RATES.host_link


def test_engines_that_sample_ahead_are_on_gpus_of_their_own():
    """4 of the 8 GPUs train: each holds a quarter of the states. Sampling takes nothing but the engine, and no time beside a
    longer update."""
    ahead = planned(small("openrlhf.train.async_enable=true", "cluster.enable_sleep=false"))
    update, sampling = phase(ahead, "update").parts, phase(ahead, "sampling").parts
    assert update["optimizer"] == 12 * 1_777_088_000 // 4 and update["engine"] == 0
    assert phase(ahead, "sync").parts["engine"] == 0 and "weights" not in sampling
    assert sampling["engine's weights"] == 2 * 1_777_088_000
    rest = sum(one.seconds for one in ahead.phases) - phase(ahead, "sampling").seconds
    assert ahead.step_s == max(phase(ahead, "sampling").seconds, rest)


def test_an_adapter_by_hand():
    """Rank 16 on every linear layer of Llama-3.1-8B: 41,943,040 parameters, as PEFT counts them (below). On 8 ranks with
    ZeRO 2 each trains an eighth; the base weights stay whole, and no other gradient is kept."""
    shape = shape_of("meta-llama/Llama-3.1-8B")
    found = phase(planned(small("openrlhf.ds.lora.rank=16"), shape), "update").parts
    adapter = 41_943_040
    assert found["weights"] == 2 * (8_030_261_248 + adapter)
    assert (found["optimizer"], found["gradients"]) == (12 * adapter // 8, 4 * adapter // 8)
    assert (
        found["gradient bucket"] == 2 * (500_000_000 + adapter)
        and found["last layer's gradient"] == 0
    )
    disk = planned(small("openrlhf.ds.lora.rank=16"), shape).disk["checkpoints"]
    assert disk % (2 * 8_030_261_248 + 12 * adapter) == 0
    attention = planned(
        small("openrlhf.ds.lora.rank=16", "openrlhf.ds.lora.target_modules=[q_proj,v_proj]"),
        shape,
    )
    assert phase(attention, "update").parts["weights"] == 2 * (
        8_030_261_248 + 32 * 16 * (8192 + 5120)
    )


def test_an_adapter_has_the_parameters_that_peft_gives_it():
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    shape = shape_of("meta-llama/Llama-3.1-8B")
    configs = json.loads(Path(__file__).with_name("published_configs.json").read_text())
    few = {"num_hidden_layers": 2, "vocab_size": 64}
    config = AutoConfig.for_model(**configs["meta-llama/Llama-3.1-8B"] | few)
    lora = LoraConfig(task_type="CAUSAL_LM", r=16, target_modules="all-linear")
    with torch.device("meta"):
        model = get_peft_model(AutoModelForCausalLM.from_config(config), lora)
    counted = sum(
        parameter.numel() for parameter in model.parameters() if parameter.requires_grad
    )
    assert shape.adapter_params(16) == counted * shape.layers // 2 == 41_943_040


def test_what_each_setting_is_for():
    base = planned(small())
    longer = planned(small("train.max_tokens_per_gpu=32768"))
    assert phase(longer, "update").parts["logits"] == 2 * phase(base, "update").parts["logits"]
    offloaded = planned(small("train.adam_offload=true"))
    assert phase(offloaded, "update").parts["optimizer"] == 0
    words = 151_936 * 1536  # the largest weight
    assert offloaded.host_bytes["offloaded optimizer"] == 16 * SMALL.params + 8 * 2 * words
    assert all(
        phase(offloaded, name).parts["host Adam's buffer"] == 2 * words
        for name in ("log-probs", "update", "sync")
    )
    alone = phase(planned(load_config("r3_1p5b_1gpu", [])), "update").parts
    assert alone["gradient bucket"] == 2 * 500_000_000
    awake = planned(small("cluster.enable_sleep=false"))
    for name in ("log-probs", "update"):  # the engine keeps its share
        assert phase(awake, name).peak - phase(base, name).peak > 0.6 * H100.memory_bytes
    reference = planned(small("train.kl_coef=0.01"))
    assert (
        phase(reference, "update").parts["weights"]
        == 2 * phase(base, "update").parts["weights"]
    )
    assert phase(reference, "log-probs").seconds == pytest.approx(
        2 * phase(base, "log-probs").seconds
    )
    split = planned(small("train.zero_stage=3"))
    assert phase(split, "update").parts["weights"] == 2 * SMALL.params // 8
    config = small()
    config.openrlhf = {}
    assert (
        phase(base, "update").parts["gradients"]
        == 2 * phase(planned(config), "update").parts["gradients"]
    )
    chunks = phase(planned(small("train.logits_chunk_tokens=1024")), "update").parts
    assert (
        chunks["logits"] == 10 * 1024 * 151_936
        and chunks["last layer's gradient"] == 4 * 151_936 * 1536
    )
    assert phase(base, "update").parts["last layer's gradient"] == 0
    stock = planned(load_config("grpo_1p5b_deepscaler_8gpu", []))
    assert "history, at most" not in stock.disk
    # one more gradient of the logits
    bonus = phase(planned(small("openrlhf.actor.entropy_coef=0.001")), "update").parts
    assert bonus["logits"] - phase(base, "update").parts["logits"] == 4 * 16_384 * 151_936
    without = planned(small("held_out.path=null")).disk["models"]
    assert without == (3 + 1) * 2 * SMALL.params  # else the best copy stays beside the newest
    assert base.disk["models"] - without == 2 * SMALL.params


def seven(*settings, gpu=H100):
    return planned(load_config("r3_7b_deepscaler_multinode", list(settings)), SEVEN, gpu)


def test_the_gathering_of_weights_has_a_price():
    """7B on 4 nodes: 28 micro-batches in two updates, P = 7,615,616,512. Stage 3 gathers 2 P bytes once more a micro-batch and
    direction than stage 2, which gathers once an update; log-probs take 14 micro-batches, the sync one gather."""
    plans = [seven(f"train.zero_stage={stage}") for stage in (2, 3)]
    of_gather = 31 / 32 * 2 * 7_615_616_512 / (0.7 * 8 * 50e9)
    for name, gathers in {"update": 28 * 2 - 2, "log-probs": 14, "sync": 1}.items():
        two, three = (phase(plan, name).seconds for plan in plans)
        # the sync of stage 3 has fewer states of a rank to move
        rest = 0.001 if name != "sync" else 0.02
        assert three - two == pytest.approx(gathers * of_gather, abs=rest), name
    assert plans[0].step_s < plans[1].step_s


@pytest.mark.parametrize("gpu", ["h100-80gb", "rtx4090-24gb"])
@pytest.mark.parametrize("nodes", [1, 2])
def test_a_slower_network_takes_no_less_and_stage_3_takes_longer(gpu, nodes):
    card = GPUS[gpu]
    slower = replace(card, network=card.network / 8)
    one = [f"cluster.num_nodes={nodes}", "cluster.vllm_tensor_parallel_size=1"]
    found = []
    for stage in (1, 2, 3):
        config = [*one, f"train.zero_stage={stage}", "cluster.enable_sleep=false"]
        fast, slow = (seven(*config, gpu=which) for which in (card, slower))
        assert (fast.step_s < slow.step_s) == (nodes > 1)
        found.append(fast)
    _, two, three = found
    assert phase(two, "update").seconds < phase(three, "update").seconds
    assert phase(two, "log-probs").seconds < phase(three, "log-probs").seconds


def test_the_7b_experiment_takes_the_faster_stage_that_fits():
    config = load_config("r3_7b_deepscaler_multinode", [])
    stages = {stage: seven(f"train.zero_stage={stage}") for stage in (2, 3)}
    best = min(stages, key=lambda stage: stages[stage].step_s)
    assert config.train.zero_stage == best == 2 and fits(config, SEVEN, H100)
    assert f"{phase(stages[2], 'update').peak / H100.memory_bytes:.0%}" == "57%"


@pytest.mark.parametrize(
    ("gpu", "settings"),
    [
        ("a100-40gb", ["cluster.num_nodes=1", "cluster.gpus_per_node=8"]),
        ("l40s-48gb", ["cluster.num_nodes=1", "model.gradient_checkpointing=false"]),
        ("a100-40gb", ["cluster.num_nodes=2", "cluster.enable_sleep=false"]),
    ],
)
def test_a_remedy_makes_it_fit(gpu, settings):
    config = load_config("r3_7b_deepscaler_multinode", settings)
    assert not fits(config, SEVEN, GPUS[gpu])
    found = remedies(config, SEVEN, GPUS[gpu])
    assert 1 <= len(found) <= 2
    for remedy in found:
        changed = load_config("r3_7b_deepscaler_multinode", [*settings, *remedy])
        assert fits(changed, SEVEN, GPUS[gpu])


def test_an_engine_of_more_gpus_than_key_heads_holds_each_head_several_times():
    """1.5B has 2 heads of keys and values. On 4 GPUs each holds a whole one: 28 layers x key and value x 128 x 2 bytes, and
    twice as many tokens as one GPU of two would, not four times."""
    two, four = (planned(small(f"cluster.vllm_tensor_parallel_size={size}")) for size in (2, 4))
    for plan in (two, four):
        assert phase(plan, "sampling").parts["KV cache"] == plan.kv_tokens * 28 * 2 * 128 * 2
    assert four.kv_tokens < 1.1 * two.kv_tokens
    # a decode step of the four reads as much cache as one of the two, so it is no twice as fast
    assert phase(four, "sampling").seconds > 0.7 * phase(two, "sampling").seconds


@pytest.mark.parametrize(("size", "even"), [(8, "1, 2, 4"), (7, "1, 2, 4"), (3, "1, 2, 4")])
def test_heads_that_vllm_cannot_share_are_refused(size, even):
    """7B has 28 heads, 4 of keys and values."""
    config = load_config(
        "r3_7b_deepscaler_multinode", ["cluster.gpus_per_node=8", "cluster.num_nodes=21"]
    )
    config.cluster.vllm_tensor_parallel_size = size
    with pytest.raises(
        ConfigError,
        match=f"is {size}, but .* has 28 attention heads, 4 for keys .*; use {even}$",
    ):
        check_split(config, heads=SEVEN.heads, kv_heads=SEVEN.kv_heads)


def test_no_remedy_splits_what_vllm_cannot_split():
    """7B on 45 GiB with a small share for vLLM fits in engines of 2 GPUs. 7 heads instead of 28 cannot be shared by 2."""
    settings = ["cluster.num_nodes=1", "cluster.vllm_tensor_parallel_size=1"]
    settings += ["cluster.vllm_gpu_memory_utilization=0.2", "train.zero_stage=3"]
    config, gpu = (
        load_config("r3_7b_deepscaler_multinode", settings),
        replace(H100, memory_bytes=45 * GiB),
    )
    wide = replace(SEVEN, heads=7, kv_heads=1)
    split = ("cluster.vllm_tensor_parallel_size=2",)
    assert (
        split in remedies(config, SEVEN, gpu) and split not in remedies(config, wide, gpu) != []
    )


def test_a_filter_samples_more_and_an_epoch_has_fewer_steps():
    """45% of the groups are dropped: 2,048 rows are trained, 2,048 / 0.55 = 3,724 sampled, and 40,315 problems give 22,174 groups,
    174 batches an epoch."""
    off = ("replay.enabled=false", "reflection.enabled=false", "ranking.enabled=false")
    grpo, dapo = (planned(small(f"algo={algo}", *off)) for algo in ("grpo", "dapo"))
    assert (grpo.steps, dapo.steps) == (3 * 315, 3 * 174)
    # what was dropped is in no file
    assert dapo.disk["rollouts"] / dapo.steps == pytest.approx(
        grpo.disk["rollouts"] / grpo.steps, rel=1e-6
    )
    assert phase(dapo, "update").seconds == phase(grpo, "update").seconds
    assert phase(dapo, "sampling").seconds > 1.2 * phase(grpo, "sampling").seconds


def test_a_run_ends_with_its_budget_of_tokens():
    """2,048 responses of 4,096 tokens a step, without reflection groups: 10 steps and a half are 11."""
    settings = (
        "reflection.enabled=false",
        f"train.max_generated_tokens={int(10.5 * 2048 * 4096)}",
    )
    assert planned(small(*settings)).steps == 11
    assert planned(small(*settings, "train.max_steps=7")).steps == 7


def test_half_of_every_rate_is_at_most_twice_the_time():
    """And not less than what moves bytes or multiplies, twice; the sleeping engine takes three times as long."""
    slow = make_plan(small(), SMALL, H100, num_problems=40_315, rates=SLOW)
    for phase, late in zip(planned(small()).phases, slow.phases, strict=True):
        assert 1.5 * phase.seconds < late.seconds < 3 * phase.seconds
        assert phase.name == "sync" or late.seconds <= 2.001 * phase.seconds


def test_a_job_with_less_host_memory_than_the_plan_is_named():
    needed = sum(planned(small()).host_bytes.values())
    rows = planned(small()).host_bytes["rows in controller and object store"]
    assert host_check(small(), SMALL, H100, needed) is None
    sentence = host_check(small(), SMALL, H100, needed - rows - GiB)
    assert sentence.startswith(
        f"the run is expected to take {needed / GiB:.1f} GiB of host memory"
    )
    assert "ask for more (--mem)" in sentence


def test_a_start_is_refused_only_for_what_is_sure():
    assert start_check(small(), SMALL, H100) is None
    expected = phase(planned(small()), "update")
    between = replace(H100, memory_bytes=(expected.peak + expected.sure) // 2)
    config = small("cluster.vllm_gpu_memory_utilization=0.5")
    assert "r3 plan" in start_check(config, SMALL, between)  # a warning
    with pytest.raises(ConfigError, match=r"does not fit.*phase \w+.*use "):
        start_check(config, SMALL, replace(H100, memory_bytes=5 * GiB))
    # a cache that holds no row is said
    config = small("cluster.vllm_gpu_memory_utilization=0.06")
    assert missing_kv_cache(config, planned(config).kv_tokens) > 0
    assert "vLLM will refuse" in start_check(config, SMALL, H100)


@pytest.mark.parametrize("name", experiments())
def test_every_experiment_can_be_planned(name):
    config = load_config(name, [])
    shape = shape_of(config.model.path)
    plan = make_plan(config, shape, H100, num_problems=num_problems_of(config) or 10)
    assert fits(config, shape, H100) and plan.step_s > 0


@pytest.mark.parametrize("gpu", ["rtx4090-24gb", "l40s-48gb", "h100-80gb"])
@pytest.mark.parametrize("name", ["r3_0p5b_1gpu", "r3_1p5b_1gpu"])
def test_the_runs_of_one_gpu_fit_on_24_48_and_80_gb(name, gpu):
    config = load_config(name, [])
    assert config.cluster.num_ranks == 1 and fits(
        config, shape_of(config.model.path), GPUS[gpu]
    )


def test_the_command(tmp_path):
    command = ["plan", "experiment=r3_1p5b_deepscaler_8gpu", f"run_dir={tmp_path}"]
    table = r3(*command)
    assert table.exit_code == 0 and "Fits." in table.output and "KV cache" in table.output
    assert "Warning" not in table.output
    short = r3(*command, "history.max_bytes=2000000000")
    said = " ".join(short.output.split())
    assert re.search(
        "Fits. Warning: history.max_bytes is 2,000,000,000: .* use [0-9,]+ or more", said
    )
    assert json.loads(r3(*command, "history.max_bytes=2000000000", "--json").output)["warnings"]
    found = json.loads(r3(*command, "--json").output)
    assert found["step_s"] == pytest.approx(sum(p["seconds"] for p in found["phases"]))
    assert f"{found['step_s']:,.0f} to {found['slow_step_s']:,.0f} s" in table.output
    assert all(p["peak"] == sum(p["parts"].values()) for p in found["phases"])
    assert list(tmp_path.iterdir()) == []
    at_seven = json.loads(r3(*command, "--json", "mean_tokens=7000").output)
    assert at_seven["mean_tokens"] == 7000 and at_seven["step_s"] > found["step_s"]
    seven = [
        "plan",
        "experiment=r3_7b_deepscaler_multinode",
        "nodes=1",
        "gpu=a100-40gb",
        f"run_dir={tmp_path}",
    ]
    small_gpu = r3(*seven)
    assert small_gpu.exit_code == 1 and "These would make it fit: " in small_gpu.output


def test_problems_in_a_file_are_counted(tmp_path):
    """problems=N was asked for a file that is here."""
    rows = [{"problem": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(300)]
    data = write_jsonl(tmp_path / "own.jsonl", rows)
    command = ["plan", "experiment=r3_1p5b_deepscaler_8gpu", f"run_dir={tmp_path}"]
    assert "; 300 problems" in r3(*command, f"data.path={data}").output
    assert "; 77 problems" in r3(*command, f"data.path={data}", "problems=77").output
    said = r3(*command, f"data.path={tmp_path}/elsewhere.jsonl")
    assert said.exit_code == 1 and "is not known here; add problems=N" in said.output


def test_the_plan_in_the_page_of_the_first_run_is_what_the_command_prints():
    page = (Path(__file__).parents[3] / "docs" / "install.md").read_text(encoding="utf-8")
    ((command, text),) = re.findall(
        r"<!-- r3 (plan [^\n]*) -->\n```text\n(.*?)\n```", page, re.DOTALL
    )
    printed = r3(*command.split()).output
    assert [
        line for line in map(str.rstrip, printed.splitlines()) if line in text.splitlines()
    ] == text.splitlines()


def test_other_architectures_and_one_that_nobody_knows(tmp_path):
    """A hybrid of 2026 is planned without packing, with a warning; of an unknown kind there is a sentence and no refusal."""
    command = ["plan", "experiment=r3_1p5b_deepscaler_8gpu", f"model.path={tmp_path}"]
    sizes = {"hidden_size": 2048, "num_hidden_layers": 8, "vocab_size": 151936}
    AutoConfig.for_model("qwen3_5_text", **sizes).save_pretrained(tmp_path)
    said = " ".join(r3(*command).output.split())
    assert "Fits." in said and "layers (linear_attention) that carry a state" in said
    (tmp_path / "config.json").write_text('{"model_type": "of_2031"}')
    shape_of.cache_clear()
    found = r3(*command)
    assert found.exit_code == 0
    assert found.output.startswith(f"Nothing is planned: the model {tmp_path} is of model_type")
    assert "of_2031" in found.output and found.output.count("\n") == 1


@pytest.mark.parametrize("package", ["transformers", "torch"])
def test_a_model_outside_the_table_needs_more_than_the_extra_cluster(
    monkeypatch, tmp_path, package
):
    """The smallest installation of `r3 plan` has neither package; its own table needs none."""
    AutoConfig.for_model("qwen3", num_hidden_layers=2).save_pretrained(tmp_path)
    shape_of.cache_clear()
    monkeypatch.setitem(sys.modules, package, None)
    found = r3("plan", "experiment=r3_1p5b_deepscaler_8gpu", f"model.path={tmp_path}")
    said = f"is measured with transformers and torch, and {package} is not installed: pip install 'r3_openrlhf[eval,torch]'"
    assert said in " ".join(found.output.split())
    assert "Fits." in r3("plan", "experiment=r3_1p5b_deepscaler_8gpu").output


MISTAKES = Path(__file__).with_name("mistakes.jsonl").read_text().splitlines()


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_sentences(mistake):
    settings, words = json.loads(mistake).values()
    result = r3("plan", *settings)
    assert result.exit_code == 1
    assert re.search(words, " ".join(result.output.split()))


def test_planning_starts_no_framework():
    statement = "from r3_openrlhf.runs.planning import cli, forecast, verdict, table"
    assert loaded_by(statement, ENGINES | {"torch", "transformers"}) == set()
