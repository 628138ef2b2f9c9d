"""Two examples trained on the tiny model in one run: two mixed sources and a reward function, with all that a stranger adds."""

import json

import pytest

from tests.docs.pages import REPOSITORY
from tests.stack.training import lines, r3, rollouts_of, train

# tests/docs/test_tutorial.py trains with a reward of its own in every run of the suite
pytestmark = [pytest.mark.stack, pytest.mark.soak]
EXAMPLES = REPOSITORY / "examples"
SOURCES = f"[{{path: {EXAMPLES}/data/gsm8k.jsonl, weight: 1}}, {{path: {EXAMPLES}/data/verl.parquet, weight: 1}}]"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Two steps; CUDA_VISIBLE_DEVICES is empty, and Weights & Biases is asked nothing over the network."""
    run_dir = tmp_path_factory.mktemp("examples") / "run"
    settings = (
        f"data.sources={SOURCES}",
        f"reward.function={EXAMPLES}/own_reward.py:partly",
        "rollout.stop=['=1']",
    )
    settings += ("logging.wandb_project=p", "train.max_steps=2")
    surroundings = {
        "CUDA_VISIBLE_DEVICES": "",
        "WANDB_MODE": "offline",
        "WANDB_DIR": str(run_dir.parent),
    }
    surroundings |= {"WANDB_API_KEY": "0" * 40}
    train(run_dir, *settings, environment=surroundings)
    return run_dir


def test_both_sources_are_counted_and_the_function_s_values_are_there(trained):
    metrics = lines(trained / "metrics.jsonl")
    assert len(metrics) == 2 and all("r3/reward/num_steps" in line for line in metrics)
    for line in metrics:
        found = [line.get(f"r3/source/{name}/problems", 0) for name in ("gsm8k", "verl")]
        assert sum(found) == 8 and line["r3/grading/ungraded"] == 0
    assert (trained / "reward_functions" / "own_reward.py").read_text() == (
        EXAMPLES / "own_reward.py"
    ).read_text()


def test_a_response_ends_at_the_text_of_rollout_stop(trained):
    rollouts = rollouts_of(trained)
    texts = [rollout["text"] for rollout in rollouts]
    assert all("=1" not in text[:-2] for text in texts)
    ended = [rollout for rollout in rollouts if rollout["text"].endswith("=1")]
    assert ended and not any(rollout["truncated"] for rollout in ended)


def test_the_table_of_completions(trained):
    tables = sorted(trained.parent.rglob("completions*.table.json"))
    # four groups of a step
    assert tables and len(json.loads(tables[0].read_text())["data"]) == 4 * 8


def test_a_moved_function_is_named_by_its_copy(trained):
    said = r3(
        "eval", str(trained), "--benchmark", f"{EXAMPLES}/data/gsm8k.jsonl", cwd=trained
    ).stderr
    assert f"add reward.function={EXAMPLES}/own_reward.py:partly to the command" in " ".join(
        said.split()
    )
