"""Which problems are held out, and what is said about the answers to them."""

import json

import pytest

from r3_openrlhf.method.errors import DataError
from r3_openrlhf.method.types import Verdict
from r3_openrlhf.problems.held_out import (
    check_held_out_source,
    evaluation_line,
    prepare_held_out,
    read_prompts,
)
from r3_openrlhf.problems.sources import Label, problem_uid
from r3_openrlhf.problems.training_file import prepare
from tests.method.history.samples import make_rollout
from tests.problems import files
from tests.problems.files import refused, write_jsonl

C, W, U = Verdict.CORRECT, Verdict.WRONG, Verdict.UNGRADED
SUMS = {
    "size": 60,
    "seed": 1,
    "min_terms": 2,
    "max_terms": 2,
    "min_digits": 1,
    "max_digits": 1,
    "operators": ["+"],
}
SUMS |= {"allow_parentheses": False, "allow_negation": False}


def problems(path, numbers):
    return write_jsonl(path, [{"problem": f"What is {n}?", "answer": str(n)} for n in numbers])


def config_for(source, *, data=None, **evaluation):
    return files.config_for(source, held_out=evaluation, **(data or {}))


@pytest.fixture
def prepared(tmp_path, byte_tokenizer):
    """A function: what is written for a configuration, as (prompts, labels)."""

    def run(config):
        training, output = (
            tmp_path / "data" / "problems.jsonl",
            tmp_path / "data" / "held_out.jsonl",
        )
        prepare(config, byte_tokenizer, training)
        prepare_held_out(config, byte_tokenizer, training, output)
        prompts, labels = read_prompts(output)
        return prompts, [Label.from_json(label) for label in labels]

    return run


def test_held_out_problems_are_rendered_as_the_training_ones(tmp_path, prepared):
    path = problems(tmp_path / "test.jsonl", [7, 8, 9])
    data = {"system_prompt": "Be brief.", "prompt_template": "Q: {problem}", "max_samples": 4}
    train = problems(tmp_path / "train.jsonl", range(5))
    config = config_for(train, data=data, path=path, max_samples=2)
    prompts, labels = prepared(config)
    assert prompts[0] == "<system>Be brief.</system><user>Q: What is 7?</user><assistant>"
    texts = {n: f"What is {n}?" for n in (7, 8)}
    assert labels == [
        Label(uid=problem_uid(text), problem=text, references=[str(n)], task="math")
        for n, text in texts.items()
    ]


def test_a_problem_that_is_trained_on_is_not_held_out(tmp_path, prepared):
    train = problems(tmp_path / "train.jsonl", range(5))
    test = problems(tmp_path / "test.jsonl", [7, 3, 4])
    first = problem_uid("What is 3?")
    with refused(
        DataError,
        f"test.jsonl holds 2 of the problems that are trained on ({first} is the first)",
    ):
        prepared(config_for(train, path=test))


def test_the_same_problem_under_another_uid_is_found(tmp_path, prepared):
    train, test = tmp_path / "train.jsonl", tmp_path / "test.jsonl"
    for path, number in ((train, 1), (test, 9)):
        write_jsonl(
            path,
            [
                {"problem": f"What is {n}?", "answer": str(n), "id": f"{number}-{n}"}
                for n in range(4)
            ],
        )
    with pytest.raises(
        DataError, match="holds 4 of the problems that are trained on .9-0 is the first"
    ):
        prepared(config_for(str(train), data={"uid_key": "id"}, path=str(test)))


def test_generated_problems_that_meet_by_chance_are_left_out(prepared):
    """60 of the 81 sums of two digits (1 to 9) are trained on, so two draws of 60 must share 39 or more."""
    source = "reasoning_gym:basic_arithmetic"
    config = config_for(
        source,
        data={"reasoning_gym": SUMS},
        path=source,
        reasoning_gym=SUMS | {"seed": 1000},
        max_samples=5,
    )
    _, labels = prepared(config)
    assert len(labels) == 5 and all(label.task == "reasoning_gym" for label in labels)
    config.held_out.max_samples = None
    config.held_out.reasoning_gym = SUMS
    with pytest.raises(DataError, match="gives no problem that is not trained on"):
        prepared(config)


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("/nowhere.jsonl", "held_out.path is /nowhere.jsonl, but there is no such file"),
        (
            "reasoning_gym:basic_arithmetc",
            "held_out.path is reasoning_gym:basic_arithmetc, but reasoning-gym has no",
        ),
    ],
)
def test_a_wrong_source_is_named_by_its_own_key(tmp_path, path, sentence):
    with pytest.raises(DataError) as refusal:
        check_held_out_source(
            config_for(problems(tmp_path / "train.jsonl", range(5)), path=path)
        )
    assert sentence in str(refusal.value) and "data.path" not in str(refusal.value)


def rollout(uid, verdict, *, tokens=2, truncated=False):
    # length is in the reward, and must not be in accuracy
    reward = None if verdict is U else 1.7 * (verdict is C)
    return make_rollout(
        uid,
        ids=[0] * tokens,
        verdict=verdict,
        reward=reward,
        truncated=truncated,
        policy_step=3,
    )


def line_of(rollouts):
    config = config_for("unused", path="x", n_samples=3)
    return evaluation_line(rollouts, config=config, step=3, epoch=2, generated_tokens=99)


def test_the_line_by_hand():
    rollouts = [rollout("b", v) for v in (C, W, W)] + [
        rollout("a", v, tokens=4) for v in (W, W, W)
    ]
    rollouts += [rollout("c", v, tokens=6, truncated=True) for v in (C, U, C)]
    assert line_of(rollouts) == {
        "step": 3,
        "epoch": 2,
        "generated_tokens": 99,
        "name": "held_out",
        "num_problems": 3,
        "n_samples": 3,
        "temperature": 1.0,
        "max_new_tokens": 16,
        "pass_at_1": pytest.approx((1 / 3 + 0 + 1) / 3),
        "pass_at_n": pytest.approx(2 / 3),
        "response_tokens_mean": 4.0,
        "truncated_rate": pytest.approx(1 / 3),
        "num_ungraded": 1,
        # printf 'a\nb\nc' | sha256sum
        "problems_sha256": "ea7fb08b7a2dc4619ffb7c7bb38d95a2047935fa165d71b12efd3852a2e6d0cc",
    }


def test_what_could_not_be_graded_is_absent_and_not_zero():
    """Problem a has one verdict, problem b none: b's two responses change nothing but the counts."""
    line = line_of([rollout("a", C), rollout("a", U), rollout("b", U), rollout("b", U)])
    assert (
        line["pass_at_1"],
        line["pass_at_n"],
        line["num_problems"],
        line["num_ungraded"],
    ) == (1.0, 1.0, 2, 3)
    line = line_of([rollout("a", U)])
    assert line["pass_at_1"] is None and line["pass_at_n"] is None
    assert json.loads(json.dumps(line)) == line
