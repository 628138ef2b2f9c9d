"""DAPO on the real stack, the arm in which most can be lost: tokens, groups, updates, and held-out accuracy.

One run is recorded; everything is counted again from the recorded responses. A second one, played back, ends at a
token budget and goes on without one.
"""

import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")
torch = pytest.importorskip("torch")
if torch.cuda.is_available():
    pytest.skip("these runs are for the CPU platform", allow_module_level=True)

from r3_openrlhf.openrlhf_adapter.samples_generator import stable_seed  # noqa: E402

pytestmark = [pytest.mark.stack, pytest.mark.slow]
ROOT = Path(__file__).parents[2]
R3 = Path(sys.executable).with_name("r3")
HELD_OUT = "size: 8, seed: 1000, min_terms: 2, max_terms: 3, min_digits: 1, max_digits: 1, operators: ['+']"
SETTINGS = [
    "experiment=cpu_smoke",
    "algo=dapo",
    "checkpoint.save_steps=2",
    "held_out.path=reasoning_gym:basic_arithmetic",
    f"held_out.reasoning_gym={{{HELD_OUT}, allow_parentheses: false, allow_negation: false}}",
    "held_out.every_steps=1",  # every step: a recording can then answer a run that ends anywhere
    "held_out.n_samples=2",
]


def train(run_dir, *settings):
    done = subprocess.run(
        [R3, "train", *SETTINGS, f"run_dir={run_dir}", *settings],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    log = run_dir / "train.log"
    assert done.returncode == 0, done.stderr + (log.read_text()[-3000:] if log.is_file() else "")
    return done


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs")
    done = train(directory / "whole", f"rollout.record={directory / 'recording'}")
    return directory / "whole", directory / "recording", done


@pytest.fixture(scope="module")
def recorded(whole):
    """(token ids of every response by its key, keys of the held-out ones by (step, problem))."""
    run, recording, _ = whole
    found = {path.stem: np.load(path)["token_ids"].tolist() for path in recording.glob("*.npz")}
    asked = {}
    for line in lines(run / "evaluations.jsonl"):
        seed = stable_seed(42, "held out", line["step"])
        for row in lines(run / "data" / "held_out.jsonl"):
            texts = [f"{seed}/{sample}/{row['input']}" for sample in (1, 2)]
            keys = [hashlib.sha256(text.encode()).hexdigest() for text in texts]
            asked[line["step"], row["label"]] = keys
    return found, asked


def test_every_sampled_token_is_counted(whole, recorded):
    found, asked = recorded
    held_out = {key for keys in asked.values() for key in keys}
    assert held_out < set(found)
    metrics = lines(whole[0] / "metrics.jsonl")
    total = sum(len(ids) for key, ids in found.items() if key not in held_out)
    assert sum(step["generated_tokens"] for step in metrics) == metrics[-1]["generated_tokens_total"] == total
    trained = sum(step["response_tokens"] for step in metrics)
    lost = sum(step["r3/filter/dropped_tokens"] + step["r3/filter/left_over_tokens"] for step in metrics)
    assert trained + lost == total and lost > 0
    dropped = sum(step["r3/filter/dropped_groups"] for step in metrics)
    assert (len(found) - len(held_out)) / 8 == len({(r["step"], r["group"]) for r in rollouts(whole[0])}) + dropped


def rollouts(run):
    return lines(run / "rollouts.jsonl")


def test_only_groups_that_a_verdict_tells_apart_are_trained_on(whole):
    groups = {}
    for row in rollouts(whole[0]):
        groups.setdefault((row["step"], row["group"]), set()).add(row["verdict"])
    assert groups and all(verdicts == {"correct", "wrong"} for verdicts in groups.values())


def test_the_overlong_penalty_is_all_that_is_added_to_a_verdict(whole):
    """Advantages by hand: verdict, and -1/2 at the limit of 24 tokens, from 20 tokens on (a buffer of 4)."""
    groups, penalised = {}, 0
    for row in rollouts(whole[0]):
        groups.setdefault((row["step"], row["group"]), []).append(row)
    for group in groups.values():
        over = [max(0, row["num_tokens"] - 20) / 4 for row in group]
        rewards = np.array([(row["verdict"] == "correct") - 0.5 * o for row, o in zip(group, over, strict=True)])
        expected = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-9)
        assert [row["advantage"] for row in group] == pytest.approx(expected.tolist(), abs=1e-4)
        penalised += sum(o > 0 for o in over)
    assert penalised > 0


def test_a_short_batch_makes_its_own_update(whole):
    """Every group that is not dropped is trained on, and there are as many updates in DeepSpeed's own count as steps,
    although epochs end with short batches (unless a multiple of 8 groups happens to be kept)."""
    metrics = lines(whole[0] / "metrics.jsonl")
    for epoch in {step["epoch"] for step in metrics}:
        mine = [step for step in metrics if step["epoch"] == epoch]
        rows = sum(step["response_tokens"] / step["response_length_mean"] for step in mine)
        kept = 32 - sum(step["r3/filter/dropped_groups"] for step in mine)  # of 32 problems
        assert rows == pytest.approx(8 * kept) and len(mine) == -(-kept // 8)
    checkpoints = sorted((whole[0] / "checkpoints" / "_actor").glob("global_step*"))
    for path in checkpoints:
        state = torch.load(path / "mp_rank_00_model_states.pt", weights_only=False)
        assert state["global_steps"] == int(path.name.removeprefix("global_step"))
    assert checkpoints


def test_held_out_accuracy_is_that_of_the_verdicts(whole, recorded):
    """Against the last box of each recorded response."""
    from transformers import AutoTokenizer

    run, _, done = whole
    found, asked = recorded
    tokenizer = AutoTokenizer.from_pretrained(run / "final_model")

    def right(key, label):
        boxes = re.findall(r"\\boxed\{([^}]*)\}", tokenizer.decode(found[key], skip_special_tokens=True))
        return bool(boxes) and boxes[-1].strip() in json.loads(label)["references"]

    evaluations, last = lines(run / "evaluations.jsonl"), lines(run / "metrics.jsonl")[-1]["step"]
    assert [line["step"] for line in evaluations] == list(range(last + 1)) and last > 2
    for line in evaluations:
        answers = [
            [right(key, label) for key in keys] for (step, label), keys in asked.items() if step == line["step"]
        ]
        assert len(answers) == line["num_problems"] == 8 and line["num_ungraded"] == 0
        assert line["pass_at_1"] == pytest.approx(np.mean(answers))
        assert line["pass_at_n"] == pytest.approx(np.mean([any(answer) for answer in answers]))
        lengths = [len(found[key]) for (step, _), keys in asked.items() if step == line["step"] for key in keys]
        assert line["response_tokens_mean"] == pytest.approx(np.mean(lengths))
    totals = {line["step"]: line["generated_tokens_total"] for line in lines(run / "metrics.jsonl")}
    for line in evaluations[:-1]:
        assert line["generated_tokens"] == ({0: 0} | totals)[line["step"]]
    assert "held-out problems after step 2" in done.stderr and "held-out accuracy, 2 responses" in done.stdout


def test_held_out_problems_are_never_trained_on(whole):
    held_out = {json.loads(row["label"])["uid"] for row in lines(whole[0] / "data" / "held_out.jsonl")}
    assert held_out and not held_out & {row["uid"] for row in rollouts(whole[0])}


def test_a_run_ends_with_its_budget_and_goes_on_as_if_it_had_never_stopped(whole, tmp_path):
    """The budget runs out in step 3, the checkpoint is of step 2, whose evaluation is then lost."""
    run, recording, _ = whole
    wanted = lines(run / "metrics.jsonl")
    budget = int(wanted[1]["generated_tokens_total"]) + 1
    stopped = tmp_path / "stopped"
    train(stopped, f"rollout.playback={recording}", f"train.max_generated_tokens={budget}")
    metrics = lines(stopped / "metrics.jsonl")
    assert [line["step"] for line in metrics] == [1, 2, 3]
    assert metrics[1]["generated_tokens_total"] < budget <= metrics[2]["generated_tokens_total"]
    assert (stopped / "final_model" / "config.json").is_file()
    evaluations = lines(stopped / "evaluations.jsonl")
    assert [line["step"] for line in evaluations] == [0, 1, 2, 3]
    (stopped / "evaluations.jsonl").write_text("".join(json.dumps(line) + "\n" for line in evaluations[:2]))

    train(stopped, f"rollout.playback={recording}")
    keys = [key for key in wanted[0] if "generated_tokens" in key or key.startswith(("r3/filter", "r3/groups"))]
    story = [[line[key] for key in ("step", "epoch", *keys)] for line in lines(stopped / "metrics.jsonl")]
    assert story == [[line[key] for key in ("step", "epoch", *keys)] for line in wanted]
    assert lines(stopped / "evaluations.jsonl") == lines(run / "evaluations.jsonl")
