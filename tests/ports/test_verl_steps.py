"""Two steps of examples/verl_r3.sh on a CPU: verl's trainer, workers, FSDP and agent loop, with a recall in the second step."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
import verl  # noqa: F401 (without it this file is skipped)

from r3_openrlhf.runs.models.locate import resolve_model

ROOT = Path(__file__).parents[2]
SUMS = ("1+2", "2+3")
LIMIT_S = 1800  # four minutes on two cores that others use
OVERRIDES = [
    "trainer.device=cpu",
    "trainer.n_gpus_per_node=1",
    "trainer.nnodes=1",
    "trainer.logger=[console]",
    "trainer.val_before_train=False",
    "trainer.test_freq=-1",
    "trainer.save_freq=-1",
    "trainer.total_training_steps=2",
    "trainer.total_epochs=2",
    f"data.train_batch_size={len(SUMS)}",
    "data.max_prompt_length=64",
    "data.max_response_length=8",
    "data.dataloader_num_workers=0",
    f"actor_rollout_ref.actor.ppo_mini_batch_size={len(SUMS)}",
    "actor_rollout_ref.actor.strategy=fsdp2",
    "actor_rollout_ref.actor.use_torch_compile=False",
    "actor_rollout_ref.actor.optim.lr=1e-3",
    "actor_rollout_ref.model.use_remove_padding=False",
    "+actor_rollout_ref.model.override_config.attn_implementation=eager",
    "actor_rollout_ref.rollout.name=transformers",
    "actor_rollout_ref.rollout.n=4",
    "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
    "actor_rollout_ref.rollout.agent.num_workers=1",
    "reward.num_workers=1",
    "reward.custom_reward_function.path=tests/ports/verl_cpu/reward.py",
    "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
    "+ray_kwargs.ray_init.num_gpus=1",
    "ray_kwargs.ray_init.num_cpus=16",
    "+ray_kwargs.ray_init.include_dashboard=False",
]
ENVIRONMENT = {
    "VERL_PLATFORM": "cpu",
    # FSDP's engine is registered for cuda and npu (verl/workers/engine/fsdp/transformer_impl.py:1143)
    "VERL_ENGINE_DEVICE": "cuda",
    "VERL_USE_EXTERNAL_MODULES": "tests.ports.verl_cpu.platform,tests.ports.verl_cpu.sampler,r3_openrlhf.verl",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONPATH": str(ROOT),
}
pytestmark = [pytest.mark.slow, pytest.mark.stack]


def problem(text):
    return {
        "data_source": "sums",
        "prompt": [{"role": "user", "content": f"{text}="}],
        "reward_model": {"style": "rule", "ground_truth": text},
    }


@pytest.fixture(scope="module")
def output(tmp_path_factory):
    directory = tmp_path_factory.mktemp("verl")
    (directory / "seen").mkdir()
    table = pyarrow.Table.from_pylist([problem(text) for text in SUMS])
    pyarrow.parquet.write_table(table, directory / "train.parquet")
    words = [directory / "train.parquet", directory / "train.parquet", resolve_model("tiny")]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [
            "examples/verl_r3.sh",
            *map(str, words),
            *OVERRIDES,
            f"trainer.default_local_dir={directory / 'run'}",
            f"hydra.run.dir={directory / 'hydra'}",
        ],
        cwd=ROOT,
        env=os.environ | ENVIRONMENT | {"PATH": path, "R3_TEST_SEEN": str(directory / "seen")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
    )
    (directory / "output.txt").write_text(done.stdout)
    assert done.returncode == 0, done.stdout[-8000:]
    return done.stdout


@pytest.fixture(scope="module")
def steps(output):
    """The metrics of each step, from verl's console logger: name -> number."""
    lines = re.findall(r"step:(\d+) - (.*)", output)
    assert [int(step) for step, _ in lines] == [1, 2]
    return [
        {name: float(value) for name, value in re.findall(r"([\w/]+):(-?[\d.e+-]+)", line)}
        for _, line in lines
    ]


def test_the_second_step_recalls_what_the_first_one_stored(steps):
    """The reward calls the first response to each problem right, and none after it."""
    first, second = steps
    assert first["r3/groups/mixed"] == len(SUMS) and first["r3/replay/recalled"] == 0
    assert second["r3/groups/none_correct"] == len(SUMS)
    assert second["r3/replay/recalled"] == second["r3/replay/hits_correct"] == len(SUMS)
    assert second["r3/groups/collapsed_after"] == 0 and second["r3/replay/mean_lag"] == 1
    # one right row of four: each group's advantages sum to zero, and the stored row is among the rewards
    assert first["critic/rewards/mean"] == second["critic/rewards/mean"] == 0.25


def test_the_sampler_has_the_actors_weights_and_the_actor_is_updated(steps):
    """The sampler starts with random weights. verl compares before it is told of the stored log-probs, so in the second
    step the difference is that of the stored rows, from the policy before the update."""
    first, second = steps
    assert first["training/rollout_probs_diff_max"] < 0.05
    assert second["training/rollout_probs_diff_max"] > 0.05
    assert first["actor/grad_norm"] > 0.1 and second["actor/grad_norm"] > 0.1


def test_a_stored_row_has_the_types_of_its_fields(output):
    assert "dtype mismatch" not in output
