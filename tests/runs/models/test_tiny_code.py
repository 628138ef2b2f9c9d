"""The problems and solutions from which the model of code_smoke learns are what they claim to be."""

import random

from r3_openrlhf.config.loading import load_config
from r3_openrlhf.problems.sources import load_problems
from r3_openrlhf.rewards.code.extraction import last_program
from r3_openrlhf.runs.models import tiny_code
from r3_openrlhf.runs.models.pretraining import TURN_ENDS


def test_solutions_without_a_slip_pass_the_tests_and_one_part_in_ten_slips():
    rng = random.Random(3)
    wrong = parts_seen = 0
    for _ in range(400):
        parts = tiny_code.draw_parts(rng)
        space: dict = {}
        exec(last_program(tiny_code.word_solution(parts, rng)), space)
        right = [space["f"](x) for x in tiny_code.ARGUMENTS] == [
            tiny_code.value_of(parts, x) for x in tiny_code.ARGUMENTS
        ]
        wrong += not right
        parts_seen += len(parts)
    assert 0.07 < wrong / parts_seen < 0.13


def test_a_function_of_two_parts_fits_in_the_terse_form_only():
    tokenizer = tiny_code.TASK.train_tokenizer()
    most = load_config("code_smoke", []).rollout.max_new_tokens
    rng = random.Random(5)
    for _ in range(200):
        solution = tiny_code.word_solution(tiny_code.draw_parts(rng), rng)
        fits = len(tokenizer(solution + TURN_ENDS)["input_ids"]) <= most
        assert fits == ("return y" not in solution)


def test_the_problems_are_those_of_the_experiment():
    config = load_config("code_smoke", [])
    found = load_problems(config.data)
    assert len(found.labels) == len({label.uid for label in found.labels}) == 32
    assert {label.task for label in found.labels} == {"code"}
    assert found.labels[0].problem in {row["problem"] for row in tiny_code.problems(32, 1)}
