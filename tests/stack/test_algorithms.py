"""DAPO on the real stack, the arm in which most can be lost: tokens, groups, updates, and held-out accuracy.

A recorded run is played back, stopped by a token budget, and goes on without one. Everything is counted again from the
recorded responses, and compared with the run that was recorded, which never stopped.
"""

import json
import re

import numpy as np
import pytest
import torch

import tests.stack.cpu_only  # noqa: F401
from r3_openrlhf.stack.recorded_rollouts import response_key
from r3_openrlhf.stack.samples_generator import stable_seed
from tests.recordings import counts, playback_of, recorded, recorded_counts, settings_of, story
from tests.stack.training import lines, rollouts_of, train

pytestmark = [pytest.mark.stack, pytest.mark.slow]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """The budget runs out in step 3, the checkpoint is of step 2, whose evaluation is then lost."""
    run_dir = tmp_path_factory.mktemp("runs") / "run"
    budget = int(recorded_counts("dapo")[1]["generated_tokens_total"]) + 1
    train(
        run_dir,
        *settings_of("dapo"),
        f"train.max_generated_tokens={budget}",
        environment=playback_of("dapo"),
    )
    found = {name: lines(run_dir / f"{name}.jsonl") for name in ("metrics", "evaluations")}
    found |= {
        "budget": budget,
        "final_model": (run_dir / "final_model" / "config.json").is_file(),
    }
    kept = found["evaluations"][:2]
    (run_dir / "evaluations.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in kept)
    )
    return run_dir, found


@pytest.fixture(scope="module")
def whole(stopped):
    """The run directory when it has gone on to the end, and what was printed."""
    return stopped[0], train(stopped[0], *settings_of("dapo"), environment=playback_of("dapo"))


@pytest.fixture(scope="module")
def responses(whole):
    """(token ids of every response by its key, keys of the held-out ones by (step, label of the problem))."""
    run, _ = whole
    found = {key: ids for key, (ids, _, _) in recorded("dapo")[0].items()}
    asked = {}
    for line in lines(run / "evaluations.jsonl"):
        seed = stable_seed(42, "held out", line["step"])
        for row in lines(run / "data" / "held_out.jsonl"):
            keys = [response_key(seed, sample, row["input"]) for sample in (1, 2)]
            asked[line["step"], row["label"]] = keys
    return found, asked


def test_a_run_ends_with_its_budget(stopped):
    _, found = stopped
    assert [line["step"] for line in found["metrics"]] == [1, 2, 3]
    totals = [line["generated_tokens_total"] for line in found["metrics"]]
    assert totals[1] < found["budget"] <= totals[2]
    assert found["final_model"]
    assert [line["step"] for line in found["evaluations"]] == [0, 1, 2, 3]


def test_it_goes_on_as_if_it_had_never_stopped(whole):
    about = recorded("dapo")[1]
    assert story(whole[0]) == about["story"]
    assert counts(whole[0]) == recorded_counts("dapo")
    assert lines(whole[0] / "evaluations.jsonl") == about["evaluations"]


def test_every_sampled_token_is_counted(whole, responses):
    found, asked = responses
    held_out = {key for keys in asked.values() for key in keys}
    assert held_out < set(found)
    metrics = lines(whole[0] / "metrics.jsonl")
    total = sum(len(ids) for key, ids in found.items() if key not in held_out)
    assert (
        sum(step["generated_tokens"] for step in metrics)
        == metrics[-1]["generated_tokens_total"]
        == total
    )
    trained = sum(step["response_tokens"] for step in metrics)
    lost = sum(
        step["r3/filter/dropped_tokens"] + step["r3/filter/left_over_tokens"]
        for step in metrics
    )
    assert trained + lost == total and lost > 0
    dropped = sum(step["r3/filter/dropped_groups"] for step in metrics)
    trained_groups = {(row["step"], row["group"]) for row in rollouts_of(whole[0])}
    assert (len(found) - len(held_out)) / 8 == len(trained_groups) + dropped


def test_a_short_batch_makes_its_own_update(whole):
    """Both epochs of the recorded run end with a short batch. Every group that is not dropped is trained on, and there
    are as many updates in DeepSpeed's own count as steps. (Groups dropped behind the last step of an epoch are counted
    in the next step, which is of the next epoch.)"""
    run, _ = whole
    metrics, rows = lines(run / "metrics.jsonl"), rollouts_of(run)
    dropped = sum(step["r3/filter/dropped_groups"] for step in metrics)
    groups_of = {step["step"]: 0 for step in metrics}
    for step, _ in {(row["step"], row["group"]) for row in rows}:
        groups_of[step] += 1
    assert sum(groups_of.values()) + dropped == 2 * 32  # two epochs over 32 problems
    for epoch in (1, 2):
        sizes = [groups_of[step["step"]] for step in metrics if step["epoch"] == epoch]
        assert sizes[:-1] == [8] * (len(sizes) - 1) and 0 < sizes[-1] < 8
    checkpoints = sorted((run / "checkpoints" / "_actor").glob("global_step*"))
    for path in checkpoints:
        state = torch.load(path / "mp_rank_00_model_states.pt", weights_only=False)
        assert state["global_steps"] == int(path.name.removeprefix("global_step"))
    assert checkpoints


def test_held_out_accuracy_is_that_of_the_verdicts(whole, responses):
    """Against the last box of each recorded response."""
    from transformers import AutoTokenizer

    run, done = whole
    found, asked = responses
    tokenizer = AutoTokenizer.from_pretrained(run / "final_model")

    def right(key, label):
        boxes = re.findall(
            r"\\boxed\{([^}]*)\}", tokenizer.decode(found[key], skip_special_tokens=True)
        )
        return bool(boxes) and boxes[-1].strip() in json.loads(label)["references"]

    evaluations, last = (
        lines(run / "evaluations.jsonl"),
        lines(run / "metrics.jsonl")[-1]["step"],
    )
    assert [line["step"] for line in evaluations] == list(range(last + 1)) and last > 2
    for line in evaluations:
        answers = [
            [right(key, label) for key in keys]
            for (step, label), keys in asked.items()
            if step == line["step"]
        ]
        assert len(answers) == line["num_problems"] == 8 and line["num_ungraded"] == 0
        assert line["pass_at_1"] == pytest.approx(np.mean(answers))
        assert line["pass_at_n"] == pytest.approx(np.mean([any(answer) for answer in answers]))
        lengths = [
            len(found[key])
            for (step, _), keys in asked.items()
            if step == line["step"]
            for key in keys
        ]
        assert line["response_tokens_mean"] == pytest.approx(np.mean(lengths))
    totals = {
        line["step"]: line["generated_tokens_total"] for line in lines(run / "metrics.jsonl")
    }
    for line in evaluations[:-1]:
        assert line["generated_tokens"] == ({0: 0} | totals)[line["step"]]
    # the console's lines of the second part: the evaluation of step 2 was lost and came again
    assert (
        "held-out problems after step 2" in done.stderr
        and "held-out accuracy, 2 responses" in done.stdout
    )
