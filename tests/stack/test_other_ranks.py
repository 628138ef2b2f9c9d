"""A run that goes on with another number of GPUs: its checkpoint is made one for any number, and nothing of it changes."""

import pytest
import torch

from r3_openrlhf.config.loading import load_config
from r3_openrlhf.method.errors import ConfigError, R3Error
from r3_openrlhf.runs.directory import RunDirectory
from r3_openrlhf.runs.models.locate import resolve_model
from r3_openrlhf.stack import other_ranks


def run_with_shards(path, names):
    run = RunDirectory(path)
    folder = run.checkpoints / "_actor" / "global_step4"
    folder.mkdir(parents=True)
    (folder.parent / "latest").write_text("global_step4")
    for name in names:
        (folder / name).touch()
    return run


def config_for(*overrides):
    return load_config("cpu_smoke", ["run_dir=unused", *overrides])


BF16 = [
    "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt",
    "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt",
]


def test_a_checkpoint_of_as_many_ranks_is_loaded_as_it_is(tmp_path):
    run = run_with_shards(tmp_path, BF16)
    assert not other_ranks.must_convert(config_for("cluster.gpus_per_node=2"), run)
    assert not other_ranks.must_convert(
        config_for("cluster.gpus_per_node=4", "+openrlhf.ds.tensor_parallel_size=2"), run
    )
    assert other_ranks.must_convert(config_for(), run)
    assert other_ranks.must_convert(config_for("cluster.gpus_per_node=4"), run)
    assert not other_ranks.must_convert(config_for(), RunDirectory(tmp_path / "new"))


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        (["+openrlhf.ds.lora.rank=8"], "ds.lora.rank"),
        (["+openrlhf.ds.ring_attn_size=4", "cluster.gpus_per_node=4"], "ds.ring_attn_size"),
    ],
)
def test_where_nobody_has_tried_it_is_refused_with_what_would_work(tmp_path, overrides, why):
    run = run_with_shards(
        tmp_path, [f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in range(3)]
    )
    for step in (2, 10):
        (run.checkpoints / f"global_step{step}_hf").mkdir()
    with pytest.raises(ConfigError, match=why) as refused:
        other_ranks.must_convert(config_for(*overrides), run)
    assert "is of 3 GPUs" in str(refused.value)
    assert f"model.path={run.checkpoints / 'global_step10_hf'} " in str(refused.value)


@pytest.mark.slow
def test_a_checkpoint_that_cannot_be_converted_is_one_sentence(tmp_path):
    pytest.importorskip("deepspeed", reason="DeepSpeed is not installed")
    run = run_with_shards(tmp_path, BF16)
    with pytest.raises(
        R3Error,
        match="could not be made one for another number of GPUs: .+ Continue with its own number",
    ) as refused:
        other_ranks.convert(run)
    assert len(str(refused.value).splitlines()) == 1
    assert sorted(path.name for path in run.checkpoints.rglob("*universal*")) == []


@pytest.mark.stack
@pytest.mark.slow
@pytest.mark.parametrize("stage", [2, 3])
def test_weights_moments_and_the_next_update_are_those_of_the_same_number(stage, tmp_path):
    """Two real ranks of OpenRLHF's strategy save; two go on and one goes on. Bit for bit."""
    pytest.importorskip("openrlhf", reason="OpenRLHF is not installed")
    from tests.stack import going_on_ranks
    from tests.stack.ranks import on_ranks

    model, run = resolve_model("tiny"), RunDirectory(tmp_path / "run")
    run.checkpoints.mkdir(parents=True)
    outputs = {ranks: tmp_path / f"{ranks}.pt" for ranks in (2, 1)}
    on_ranks(
        going_on_ranks.go,
        2,
        model,
        2,
        stage,
        run.checkpoints,
        False,
        outputs[2],
        folder=tmp_path,
    )
    config = config_for()
    assert other_ranks.must_convert(config, run)
    other_ranks.convert(run)
    on_ranks(
        going_on_ranks.go,
        1,
        model,
        1,
        stage,
        run.checkpoints,
        True,
        outputs[1],
        folder=tmp_path,
    )
    two, one = (torch.load(outputs[ranks]) for ranks in (2, 1))
    for moment in ("before", "after"):
        assert two[moment].keys() == one[moment].keys() and len(one[moment]) == 81
        for name, tensor in two[moment].items():
            assert torch.equal(tensor, one[moment][name]), (moment, name)
    assert any(
        not torch.equal(two["before"][name], two["after"][name]) for name in two["before"]
    )
    assert (two["rate"], two["next_rate"]) == (one["rate"], one["next_rate"]) and two[
        "rate"
    ] != two["next_rate"]
    other_ranks.forget(run)
    assert sorted(path.name for path in (run.checkpoints / "_actor").iterdir()) == [
        "global_step2",
        "latest",
        "zero_to_fp32.py",
    ]
    assert not (run.checkpoints / "_universal").exists()
