"""Facts for SmolLM2: the data, the verdicts of a reward function in the lab's loop, and solutions that continue a sentence."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from r3_openrlhf.method.errors import ConfigError, R3Error
from r3_openrlhf.problems.sources import load_problems
from research import load, names, successes
from research.loop import Lab

SIX = "research.tests.test_names:begins_with_six"


def begins_with_six(response, reference):
    return response.startswith(reference)


def says_nothing(response):
    return None if response else 0.0


def lab_of(tmp_path, model_dir, *settings):
    own = [
        "data.path=research.tests.test_names:sums",
        "held_out.path=null",
        f"run_dir={tmp_path / 'run'}",
    ]
    return Lab(
        load(
            "lab_names",
            [
                "algo=r3_earned",
                f"reward.function={SIX}",
                "rollout.max_new_tokens=3",
                *own,
                *settings,
            ],
        ),
        model_dir=model_dir,
    )


def sums(**_drawn):
    return ({"problem": f"Calculate {i} + 2.", "answer": "6"} for i in range(8))


def test_each_fact_is_there_once_and_each_problem_has_one_answer():
    facts = names.names()
    assert 300 <= len(facts) <= 600 and len({fact[:2] for fact in facts}) == len(facts)
    assert {fact.relation for fact in facts} == set(names.WORDINGS) and all(
        map(str.strip, sum(facts, ()))
    )
    for part in names.PARTS:
        assert len({fact.problem(part) for fact in facts}) == len(facts)


def test_a_seed_draws_its_facts_and_asks_for_them_in_two_wordings():
    parts = {
        seed: [list(names.problems(seed=seed, part=part)) for part in names.PARTS]
        for seed in (1, 2)
    }
    for train, held_out in parts.values():
        assert len(train) == len(held_out) == names.SIZE
        assert [row["answer"] for row in train] == [row["answer"] for row in held_out]
        assert not {row["problem"] for row in train} & {row["problem"] for row in held_out}
    shared = Counter(row["problem"] for train, _ in parts.values() for row in train)
    assert 0 < sum(count == 2 for count in shared.values()) < names.SIZE
    for wrong, sentence in (
        ({"part": "dev"}, "dev"),
        ({"part": "train", "solvd": 1}, "solvd does not exist"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            names.problems(seed=1, **wrong).__next__()


def test_the_verdict_is_the_reward_functions(tmp_path, model_dir):
    lab = lab_of(tmp_path, model_dir)
    label = load_problems(lab.config.data, with_rows=True).labels[0]
    said = {
        text: lab.is_right(label, text, num_tokens=1, truncated=True)
        for text in ("6", "65", "56", "")
    }
    assert said == {"6": True, "65": True, "56": False, "": False}
    with pytest.raises(R3Error, match="says_nothing gives no value for .*repair it"):
        lab_of(
            tmp_path,
            model_dir,
            f"reward.function={SIX.replace('begins_with_six', 'says_nothing')}",
        ).is_right(label, "6", num_tokens=1, truncated=True)


def test_without_a_grader_of_its_own_the_lab_refuses(tmp_path, model_dir):
    with pytest.raises(ConfigError, match=r"use data.task=exact or reward.function"):
        lab_of(tmp_path, model_dir, "reward.function=null", "data.task=math")
    with pytest.raises(
        ConfigError, match="one reward function that is called with one response"
    ):
        lab_of(tmp_path, model_dir, "reward.function=null", f"reward.functions=[{SIX}]")


def test_a_solution_begins_with_the_answer_and_goes_on_as_the_policy_does(tmp_path, model_dir):
    lab = lab_of(tmp_path, model_dir)
    rollouts = successes.solutions(
        lab, load_problems(lab.config.data, with_rows=True).labels, share=0.5, style="own"
    )
    assert len(rollouts) == 4
    for one in rollouts:
        assert (
            one.text.startswith("6")
            and one.num_tokens <= 3
            and len(one.response_logprobs) == one.num_tokens
        )
        assert one.truncated == (
            one.response_ids[-1] != lab.tokenizer.eos_token_id
        ) and one.finish_reason == ("length" if one.truncated else "stop")
    again = successes.measured(lab, rollouts)
    for one, other in zip(rollouts, again, strict=True):
        np.testing.assert_allclose(one.response_logprobs, other.response_logprobs, atol=1e-4)
    with pytest.raises(ConfigError, match="needs boxed answers"):
        successes.solutions(lab, [], share=0.5, style="foreign")


@pytest.mark.parametrize(
    ("trained", "names_of"),
    [
        ("model.layers.1.", {"model.layers.1."}),
        (["model.layers.1.", "lm_head"], {"model.layers.1.", "lm_head"}),
    ],
)
def test_a_model_says_what_of_it_is_trained(tmp_path, model, tokenizer, trained, names_of):
    model.config.r3_trained = trained
    try:
        model.save_pretrained(tmp_path / "model")
    finally:
        del model.config.r3_trained
    tokenizer.save_pretrained(tmp_path / "model")
    lab = lab_of(tmp_path, str(tmp_path / "model"))
    found = {
        name for name, parameter in lab.model.named_parameters() if parameter.requires_grad
    }
    assert found == {
        name for name, _ in lab.model.named_parameters() if name.startswith(tuple(names_of))
    }
    assert len(lab.model.trunk._first) == 1


def test_a_run_trains_what_is_said_and_keeps_the_rest(tmp_path, model, tokenizer):
    import torch
    from transformers import AutoModelForCausalLM

    model.config.r3_trained = ["model.layers.1."]
    try:
        model.save_pretrained(tmp_path / "model")
    finally:
        del model.config.r3_trained
    tokenizer.save_pretrained(tmp_path / "model")
    lab = lab_of(
        tmp_path,
        str(tmp_path / "model"),
        "rollout.batch_size=8",
        "train.micro_batch_size=64",
        "data.reasoning_gym.solved=0.5",
        "replay.imported.min_logprob=null",
        "train.num_epochs=2",
        "data.max_len=64",
    )
    before = AutoModelForCausalLM.from_pretrained(
        tmp_path / "model", dtype=torch.float32
    ).state_dict()
    run = lab.train()
    assert [line["step"] for line in run.read_metrics()] == [1, 2] and run.read_metrics()[0][
        "successes/count"
    ] == 4
    for name, after in lab.model.state_dict().items():
        assert torch.equal(before[name], after) == (not name.startswith("model.layers.1.")), (
            name
        )


def test_a_teacher_reads_the_sentence_before_its_beginning():
    france = names.Name("capital", "France", "Paris")
    peru = names.Name("domain", "Peru", "pe")
    assert names.shown(france) == "France's capital is Paris.\nFrance's capital is"
    assert names.shown(france, other=peru) == "France's capital ispe.\nFrance's capital is"
    script = Path(names.__file__).with_name("teacher.sh").read_text(encoding="utf-8")
    assert f'distill.template=\\"{names.TEMPLATE}\\"' in script
