"""Rows of programming problems in the shapes of public data sets, made up here: each becomes the one contract, or a sentence."""

import base64
import json
import os
import pickle
import zlib
from dataclasses import asdict
from pathlib import Path

import pytest

from r3_openrlhf.config import CodeConfig
from r3_openrlhf.config.code_tests import read_tests, write_tests
from r3_openrlhf.method.errors import DataError
from r3_openrlhf.problems.code_rows import limit_of, unpacked
from r3_openrlhf.rewards.answers.request import Item
from r3_openrlhf.rewards.code.grading import grader
from tests.problems.files import load

ADD = {"inputs": ["1 2\n", "3 4\n"], "outputs": ["3\n", "7\n"]}
CALLS = {"fn_name": "add", "inputs": [[1, 2], [3, 4]], "outputs": [3, 7]}
CASES = [
    {"input": "1 2\n", "output": "3\n", "testtype": "stdin"},
    {"input": "3 4\n", "output": "7\n", "testtype": "stdin"},
]
LINES = [{"input": "[1, 2]\n3", "output": "[4, 5]", "testtype": "functional"}]
PROBLEM = "Add two numbers."

ROWS = [
    json.loads(line)
    for line in Path(__file__).with_name("code_rows.jsonl").read_text("utf-8").splitlines()
]
PROGRAM, FUNCTION, REFUSED = (
    {
        entry["name"]: entry["row"] if kind != "refused" else (entry["row"], entry["sentence"])
        for entry in ROWS
        if entry["kind"] == kind
    }
    for kind in ("program", "function", "refused")
)


def only(tmp_path, row, **settings):
    (label,) = load(tmp_path, [row], task="code", **settings).labels
    assert label.task == "code"
    return label, read_tests(label.references[0])


def judged(program, label):
    judge = grader(asdict(CodeConfig(credit="share")))
    return judge(Item("code", f"```python\n{program}\n```", label.references, False))


@pytest.mark.parametrize("row", PROGRAM.values(), ids=PROGRAM)
def test_programs(tmp_path, row):
    label, tests = only(tmp_path, row)
    assert (tests.kind, tests.fn_name) == ("standard input", None)
    assert [text.strip() for text in tests.inputs] == ["1 2", "3 4"]
    assert [text.strip() for text in tests.outputs] == ["3", "7"]
    assert label.problem.startswith(PROBLEM)


@pytest.mark.parametrize("row", FUNCTION.values(), ids=FUNCTION)
def test_functions(tmp_path, row):
    label, tests = only(tmp_path, row)
    assert (tests.kind, tests.fn_name, tests.inputs, tests.outputs) == (
        "a function",
        "add",
        [[1, 2], [3, 4]],
        [3, 7],
    )
    assert "add" in label.problem  # else nobody could know it


def test_how_arguments_and_outputs_are_read(tmp_path):
    row = {
        "question_content": PROBLEM,
        "metadata": '{"func_name": "f"}',
        "public_test_cases": json.dumps(LINES),
    }
    assert only(tmp_path, row)[1].inputs == [[[1, 2], 3]]
    assert only(tmp_path, row)[1].outputs == [[4, 5]]
    boxed = {"fn_name": "f", "inputs": [[{"1": 2}]], "outputs": [[5]]}
    tests = only(tmp_path, {"question": "f", "input_output": json.dumps(boxed)})[1]
    assert tests.boxed_outputs and tests.integer_keys
    listed = only(
        tmp_path,
        {
            "question_content": "f",
            "metadata": '{"func_name": "f"}',
            "public_test_cases": json.dumps(
                [{"input": "1", "output": "[5]", "testtype": "functional"}]
            ),
        },
    )[1]
    assert not listed.boxed_outputs
    big = {"fn_name": "f", "inputs": [[12345678901234567890123, "007"]], "outputs": ["0.50"]}
    tests = only(tmp_path, {"question": "f", "input_output": json.dumps(big)})[1]
    assert (tests.inputs, tests.outputs) == ([[12345678901234567890123, "007"]], ["0.50"])


def test_limits_of_the_rows(tmp_path):
    assert only(tmp_path, PROGRAM["code_contests"])[1].time_limit == 2.5
    assert only(tmp_path, PROGRAM["code_contests"])[1].memory_limit_mb == 256
    assert only(tmp_path, FUNCTION["taco"])[1].time_limit == 2
    assert (limit_of("1500 ms"), limit_of(None), limit_of("inf"), limit_of(0)) == (
        1.5,
        None,
        None,
        None,
    )


def test_asserts_of_mbpp(tmp_path):
    row = {
        "text": "Add.",
        "test_list": ["assert math.isclose(add(1, 2), 3)", "assert add(3, 4) == 7"],
        "test_setup_code": "",
        "test_imports": ["import math"],
        "challenge_test_list": ["assert add(0, 0) == 0"],
    }
    label, tests = only(tmp_path, row)
    assert (tests.number, tests.setup) == (3, "import math")
    assert label.problem == "Add.\n\nThe function is called `add` and takes 2 arguments."


def test_humaneval(tmp_path):
    prompt = "from typing import List\n\ndef helper(x):\n    return x\n\ndef add(a, b):\n    '''Adds.'''\n"
    row = {
        "prompt": prompt,
        "entry_point": "add",
        "test": "METADATA = {}\n\ndef check(candidate):\n    assert candidate(1, 2) == 3\n",
        "canonical_solution": "    return a + b\n",
    }
    label, tests = only(tmp_path, row)
    assert label.problem == prompt
    assert tests.asserts == ["check(add)"]
    space = {"add": lambda a, b: a + b}
    exec(tests.setup, space)
    exec(tests.asserts[0], space)
    exec(tests.preamble, found := {})
    assert "List" in found and "helper" in found


def test_kodcode(tmp_path):
    source = (
        "import pytest\nfrom solution import add\n\nLIMIT = 3\n\ndef test_one():\n    assert add(1, 2) == LIMIT\n\n"
        "@pytest.mark.parametrize('a', [1, 2])\n@pytest.mark.parametrize(['b'], [(1,), (2,)])\ndef test_many(a, b):\n    assert add(a, b) == pytest.approx(1.0 * a + b)\n\n"
        "def test_raises():\n    with pytest.raises(TypeError):\n        add(1, 'x')\n\n@pytest.mark.parametrize('a,', [1])\ndef test_call(a):\n    pytest.raises(TypeError, add, a, 'x')\n\n"
        "import unittest\nclass Cases(unittest.TestCase):\n    def setUp(self):\n        self.sum = 3\n    def test_a(self):\n        self.assertEqual(add(1, 2), self.sum)\n\n"
        "class TestZero:\n    def test_zero(self):\n        assert add(0, 0) == 0\n\nif __name__ == '__main__':\n    pytest.main()\n"
    )
    info = [{"function_name": "add", "function_declaration": "def add(a, b):"}]
    row = {"question": "Add.", "test": source, "test_info": info}
    label, tests = only(tmp_path, row)
    called = ["test_one()", "test_many()", "test_raises()", "test_call()"]
    assert tests.asserts == [*called, "Cases('test_a').debug()", "TestZero().test_zero()"]
    assert "def add(a, b)" in label.problem
    assert judged("def add(a, b): return a + b", label)[2] == 1.0
    assert judged("def add(a, b): return 0", label)[2] == 1 / 6


@pytest.mark.parametrize(
    "line",
    [
        "import pytest, numpy, zoneinfo",
        "from pytest import approx as near, raises",
        "import pytest as p",
    ],
)
def test_tests_that_are_loaded_import_what_they_say(tmp_path, line):
    rows = [
        {"text": "Write f.", "test_list": [f"{line}\nassert f(1) == 2"]},
        {
            "question": "f",
            "tests": json.dumps({"asserts": ["assert f(1) == 2"], "setup": line}),
        },
        {"question": "f", "test": f"{line}\ndef test_a():\n    assert f(1) == 2"},
    ]
    for row in rows:
        assert (
            judged("def f(x): return 2", load(tmp_path, [row], task="code").labels[0])[0]
            == "correct"
        )


def test_a_checker_and_what_the_problem_says_elsewhere(tmp_path):
    row = PROGRAM["codeforces"] | {"generated_checker": "print(1)"}
    label, tests = only(tmp_path, row)
    assert tests.checker == "print(1)"
    assert label.problem == f"{PROBLEM}\n\nInput format: Two numbers."


@pytest.mark.parametrize(("row", "said"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_run_is_refused_and_counted(tmp_path, row, said):
    with pytest.raises(DataError, match=said):
        load(tmp_path, [row], task="code")
    if "input_output" in row:
        good = [PROGRAM["apps"] | {"question": f"{PROBLEM} {number}"} for number in range(3)]
        problems = load(tmp_path, [row, *good], task="code")
        assert (len(problems.labels), problems.sources[0].num_unusable) == (3, 1)
        assert any(said in reason for reason in problems.sources[0].left_out)


def test_a_prompt_in_words_is_no_part_of_the_program(tmp_path):
    prompt = "Complete it:\n```python\ndef add(a, b):\n```"
    row = {
        "prompt": prompt,
        "entry_point": "add",
        "test": "def check(c):\n    assert c(1, 2) == 3",
    }
    tests = only(tmp_path, row)[1]
    assert (tests.preamble, tests.setup) == ("", row["test"])


def test_the_first_page_says_which_shape(tmp_path):
    problems = load(
        tmp_path, [PROGRAM["apps"], FUNCTION["apps"] | {"question": "Add again."}], task="code"
    )
    forms = "1 APPS or TACO, standard input; 1 APPS or TACO, a function"
    assert problems.sources[0].how_read == f"problem: question, answer: input_output ({forms})"


def test_a_column_of_ones_own(tmp_path):
    tests = {"asserts": ["assert add(1, 2) == 3"], "setup": "import math"}
    label, found = only(
        tmp_path,
        {"ask": "Add.", "mine": json.dumps(tests)},
        problem_key="ask",
        answer_key="mine",
    )
    assert (found.asserts, found.setup) == (tests["asserts"], "import math")
    assert "`add`" in label.problem
    with pytest.raises(DataError, match="no column that is known to hold the tests"):
        load(tmp_path, [{"problem": "Add.", "answer": "3"}], task="code")


def test_a_file_of_programs_without_the_task_says_so(tmp_path):
    with pytest.raises(
        DataError, match=r"or use data\.task=code, if input_output holds tests of programs"
    ):
        load(tmp_path, [PROGRAM["apps"]])


class _Evil:
    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (self.mark,)


def test_a_pickle_runs_nothing(tmp_path):
    mark = str(tmp_path / "mark")
    text = base64.b64encode(zlib.compress(pickle.dumps(_Evil(mark)))).decode()
    with pytest.raises(DataError, match="only one text"):
        unpacked(text)
    assert not os.path.exists(mark)
    pickle.loads(zlib.decompress(base64.b64decode(text)))  # the attack is one
    assert os.path.exists(mark)


@pytest.mark.parametrize(
    "damage", [lambda text: text[:-9], lambda text: "A" * 40, lambda text: "%%%"]
)
def test_damaged_packs(damage):
    with pytest.raises(DataError):
        unpacked(
            damage(base64.b64encode(zlib.compress(pickle.dumps(json.dumps(CASES)))).decode())
        )


def test_the_contract_is_its_own_inverse():
    text = json.dumps(
        {"inputs": ["1"], "outputs": ["2"], "checker": "print(1)", "time_limit": 3.0}
    )
    assert json.loads(write_tests(read_tests(text))) == json.loads(text)
    for bad, said in (
        ("{}", "no tests"),
        ("[1]", "contract"),
        ('{"inputs": ["1"], "outputs": [2]}', "not a text"),
        ("{", "not JSON"),
        ('{"inputs": ["1"], "outputs": ["2"], "time_limit": 0}', "limit"),
    ):
        with pytest.raises(DataError, match=said):
            read_tests(bad)
