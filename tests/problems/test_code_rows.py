"""Rows of programming problems in the shapes of public data sets, made up here: each becomes the one contract, or a sentence."""

import base64
import json
import os
import pickle
import zlib

import pytest

from r3_openrlhf.config import DataConfig
from r3_openrlhf.config.code_tests import read_tests, write_tests
from r3_openrlhf.method.errors import DataError
from r3_openrlhf.problems.code_rows import _PYTEST, limit_of, unpacked
from r3_openrlhf.problems.sources import load_problems

ADD = {"inputs": ["1 2\n", "3 4\n"], "outputs": ["3\n", "7\n"]}
CALLS = {"fn_name": "add", "inputs": [[1, 2], [3, 4]], "outputs": [3, 7]}
CASES = [
    {"input": "1 2\n", "output": "3\n", "testtype": "stdin"},
    {"input": "3 4\n", "output": "7\n", "testtype": "stdin"},
]
LINES = [{"input": "[1, 2]\n3", "output": "[4, 5]", "testtype": "functional"}]
PROBLEM = "Add two numbers."


def packed(cases):
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(cases)))).decode()


PROGRAM = {
    "apps": {"question": PROBLEM, "input_output": json.dumps(ADD)},
    "apps lists of lines": {
        "question": PROBLEM, "input_output": json.dumps({"inputs": [["1 2", ""], ["3 4", ""]], "outputs": [["3", ""], ["7", ""]]}),
    },
    "code_contests": {
        "description": PROBLEM, "time_limit": {"seconds": 2, "nanos": 500_000_000}, "memory_limit_bytes": 2**28, "input_file": "",
        "public_tests": {"input": ["1 2\n"], "output": ["3\n"]}, "private_tests": {"input": [], "output": []},
        "generated_tests": {"input": ["3 4\n"], "output": ["7\n"]},
    },
    "livecodebench": {
        "question_content": PROBLEM, "starter_code": "", "metadata": "{}",
        "public_test_cases": json.dumps(CASES[:1]), "private_test_cases": packed(CASES[1:]),
    },
    "livecodebench as JSON": {
        "question_content": PROBLEM, "public_test_cases": json.dumps(CASES[:1]), "private_test_cases": json.dumps(CASES[1:]),
    },
    "deepcoder list": {"problem": PROBLEM, "tests": json.dumps([case | {"type": "stdin_stdout"} for case in CASES])},
    "deepcoder dict": {"problem": PROBLEM, "tests": json.dumps(ADD)},
    "prime": {
        "prompt": [{"role": "user", "content": PROBLEM}], "ability": "code",
        "reward_model": {"ground_truth": json.dumps(ADD), "style": "rule"},
    },
    "rllm": {"question": PROBLEM, "ground_truth": json.dumps(CASES)},
    "synthetic 1": {
        "prompt": PROBLEM,
        "verification_info": json.dumps({"language": "python", "test_cases": [
            {"type": "stdin_stdout", "input": case["input"], "output": case["output"]} for case in CASES]}),
    },
    "synthetic 2": {"prompt": PROBLEM, "verification_info": json.dumps({"test_cases": json.dumps(ADD)})},
    "open-r1 struct": {
        "problem": PROBLEM,
        "verification_info": {"language": "python", "test_cases": [
            {"fn_name": None, "type": "stdin_stdout", "input": case["input"], "output": case["output"]} for case in CASES]},
    },
    "codeforces": {
        "description": PROBLEM, "input_format": "Two numbers.", "input_mode": "stdio", "generated_checker": None,
        "official_tests": [{"input": case["input"], "output": case["output"]} for case in CASES],
    },
}  # fmt: skip
FUNCTION = {
    "apps": {"question": PROBLEM, "input_output": json.dumps(CALLS), "starter_code": "def add(a, b):"},
    "taco": {
        "question": PROBLEM, "input_output": json.dumps(CALLS), "time_limit": "2.0 seconds", "memory_limit": "256.0 megabytes",
    },
    "deepcoder taco": {"problem": PROBLEM, "tests": json.dumps(CALLS)},
    "deepcoder functional": {
        "problem": PROBLEM, "metadata": {"func_name": "add"},
        "tests": json.dumps([{"input": f"{a}\n{b}", "output": str(a + b), "testtype": "functional"} for a, b in ((1, 2), (3, 4))]),
    },
    "livecodebench": {
        "question_content": PROBLEM, "starter_code": "class Solution:\n    def add(self, a: int, b: int) -> int:\n        ",
        "metadata": json.dumps({"func_name": "add"}), "public_test_cases": "[]",
        "private_test_cases": packed([{"input": f"{a}\n{b}", "output": str(a + b), "testtype": "functional"} for a, b in ((1, 2), (3, 4))]),
    },
    "rllm": {
        "question": PROBLEM,
        "ground_truth": json.dumps([
            {"input": f"{a}\n{b}", "output": str(a + b), "testtype": "functional", "metadata": {"func_name": "add"}}
            for a, b in ((1, 2), (3, 4))]),
    },
    "synthetic 1": {
        "prompt": PROBLEM,
        "verification_info": json.dumps({"language": "python3", "test_cases": [
            {"type": "function_call", "fn_name": "add", "input": [a, b], "output": a + b} for a, b in ((1, 2), (3, 4))]}),
    },
}  # fmt: skip


def load(tmp_path, *rows, **settings):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return load_problems(DataConfig(path=str(path), task="code", **settings))


def only(tmp_path, row, **settings):
    (label,) = load(tmp_path, row, **settings).labels
    assert label.task == "code"
    return label, read_tests(label.references[0])


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
    assert (tests.kind, tests.fn_name, tests.inputs, tests.outputs) == ("a function", "add", [[1, 2], [3, 4]], [3, 7])
    assert "add" in label.problem  # else nobody could know it


def test_a_line_is_an_argument(tmp_path):
    row = {"question_content": PROBLEM, "metadata": '{"func_name": "f"}', "public_test_cases": json.dumps(LINES)}
    assert only(tmp_path, row)[1].inputs == [[[1, 2], 3]]
    assert only(tmp_path, row)[1].outputs == [[4, 5]]


def test_limits_of_the_rows(tmp_path):
    assert only(tmp_path, PROGRAM["code_contests"])[1].time_limit == 2.5
    assert only(tmp_path, PROGRAM["code_contests"])[1].memory_limit_mb == 256
    assert only(tmp_path, FUNCTION["taco"])[1].time_limit == 2
    assert (limit_of("1500 ms"), limit_of(None), limit_of("inf"), limit_of(0)) == (1.5, None, None, None)


def test_outputs_in_lists_and_keys_that_were_numbers(tmp_path):
    boxed = {"fn_name": "f", "inputs": [[{"1": 2}]], "outputs": [[5]]}
    tests = only(tmp_path, {"question": "f", "input_output": json.dumps(boxed)})[1]
    assert tests.boxed_outputs and tests.integer_keys
    listed = only(tmp_path, {"question_content": "f", "metadata": '{"func_name": "f"}', "public_test_cases": json.dumps(
        [{"input": "1", "output": "[5]", "testtype": "functional"}])})[1]  # fmt: skip
    assert not listed.boxed_outputs


def test_integers_of_any_size_and_texts_that_look_like_numbers(tmp_path):
    big = {"fn_name": "f", "inputs": [[12345678901234567890123, "007"]], "outputs": ["0.50"]}
    tests = only(tmp_path, {"question": "f", "input_output": json.dumps(big)})[1]
    assert (tests.inputs, tests.outputs) == ([[12345678901234567890123, "007"]], ["0.50"])


def test_asserts_of_mbpp(tmp_path):
    row = {"text": "Add.", "test_list": ["assert math.isclose(add(1, 2), 3)", "assert add(3, 4) == 7"],
           "test_setup_code": "", "test_imports": ["import math"], "challenge_test_list": ["assert add(0, 0) == 0"]}  # fmt: skip
    label, tests = only(tmp_path, row)
    assert (tests.number, tests.setup) == (3, "import math")
    assert label.problem == "Add.\n\nThe function is called `add` and takes 2 arguments."
    assert "7" not in label.problem


def test_humaneval(tmp_path):
    prompt = "from typing import List\n\ndef helper(x):\n    return x\n\ndef add(a, b):\n    '''Adds.'''\n"
    row = {"prompt": prompt, "entry_point": "add", "test": "METADATA = {}\n\ndef check(candidate):\n    assert candidate(1, 2) == 3\n",
           "canonical_solution": "    return a + b\n"}  # fmt: skip
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
        "@pytest.mark.parametrize(['a', 'b'], [(1, 1), (2, 2)])\ndef test_many(a, b):\n    assert add(a, b) == pytest.approx(2.0 * a)\n\n"
        "def test_raises():\n    with pytest.raises(TypeError):\n        add(1, 'x')\n\n@pytest.mark.parametrize('a,', [1])\ndef test_call(a):\n    pytest.raises(TypeError, add, a, 'x')\n\nif __name__ == '__main__':\n    pytest.main()\n"
    )
    row = {
        "question": "Add.",
        "test": source,
        "test_info": [{"function_name": "add", "function_declaration": "def add(a, b):"}],
    }
    label, tests = only(tmp_path, row)
    assert tests.asserts == ["test_one()", "test_many()", "test_raises()", "test_call()"]
    assert "def add(a, b)" in label.problem
    for add, held in ((lambda a, b: a + b, 4), (lambda a, b: 0, 0)):
        space = {"add": add}
        exec(tests.setup, space)
        passed = 0
        for line in tests.asserts:
            try:
                exec(line, space)
                passed += 1
            except AssertionError:
                continue
        assert passed == held


@pytest.mark.parametrize("given", [[1.0000001, 2.0], 5.0])
def test_the_stand_in_of_approx_says_what_pytest_says(given):
    exec(_PYTEST, space := {})
    for other in (given, [1.0, 2.0], [1.0], 5.1, 5.0000001):
        if isinstance(other, list) == isinstance(given, list):
            assert (space["pytest"].approx(given) == other) is (pytest.approx(given) == other)


def test_a_checker_and_what_the_problem_says_elsewhere(tmp_path):
    row = PROGRAM["codeforces"] | {"generated_checker": "print(1)"}
    label, tests = only(tmp_path, row)
    assert tests.checker == "print(1)"
    assert label.problem == f"{PROBLEM}\n\nInput format: Two numbers."


REFUSED = {
    "no tests": ({"question": "x", "input_output": '{"inputs": [], "outputs": []}'}, "no tests"),
    "an empty cell": ({"question": "x", "input_output": ""}, "no tests"),
    "null": ({"question": "x", "input_output": None}, "no tests"),
    "lengths": ({"question": "x", "input_output": '{"inputs": ["1"], "outputs": []}'}, "one length"),
    "empty outputs": ({"question": "x", "input_output": '{"inputs": ["1"], "outputs": [" "]}'}, "does nothing would pass"),
    "a file": (PROGRAM["code_contests"] | {"input_file": "in.txt"}, "a file"),
    "a checker in another language": (PROGRAM["codeforces"] | {"generated_checker": "print 1"}, "not Python"),
    "a judge": (PROGRAM["codeforces"] | {"interaction_format": "ask"}, "talk to a judge"),
    "mathematics": (PROGRAM["prime"] | {"ability": "math"}, "ability"),
    "a function asked, text tested": (PROGRAM["apps"] | {"question": "Your task is to complete the function f."}, "asks for a function"),
    "kinds": ({"problem": "x", "tests": '[{"input": "1", "output": "1", "testtype": "interactive"}]'}, "not known"),
    "a function marked as stdin": (
        {"problem": "x", "tests": '[{"input": [1], "output": 1, "testtype": "stdin", "fn_name": "f"}]'}, "standard input"),
    "no name": ({"problem": "x", "tests": '[{"input": "1", "output": "1", "testtype": "functional"}]'}, "which one"),
    "two marks": (
        {"question": "x", "test": "@pytest.mark.parametrize('a', [1])\n@pytest.mark.parametrize('b', [1])\ndef test_a(a, b):\n    assert f(a)"},
        "several marks"),
    "a mark": ({"question": "x", "test": "@pytest.mark.skip\ndef test_a():\n    assert f(1)"}, "the mark"),
    "a fixture and a mark": (
        {"question": "x", "test": "@pytest.mark.parametrize('a', [1])\ndef test_a(a, capsys):\n    assert f(a)"}, "fixtures"),
    "a number for a table": (PROGRAM["code_contests"] | {"public_tests": "[1]"}, "no form that is known"),
    "a number for lines": ({"problem": "x", "tests": '{"assert_case": 5}'}, "no form that is known"),
    "a limit in words": ({"problem": "x", "tests": '{"inputs": ["1"], "outputs": ["1"], "time_limit": "2 s"}'}, "no form that is known"),
    "fixtures": ({"question": "x", "test": "def test_a(tmp_path):\n    assert f(1)"}, "fixtures"),
    "a class": ({"question": "x", "test": "from solution import Stack\ndef test_a():\n    assert Stack()"}, "class"),
    "not Python": ({"question": "x", "test": "def test("}, "no Python"),
    "an unknown key": ({"problem": "x", "tests": '{"asserts": ["assert f()"], "assert_count": 1}'}, "contract"),
    "half a pair": ({"problem": "x", "tests": '{"inputs": ["1"], "outputs": ["\\\\ud800"]}'.replace("\\\\", "\\")}, "surrogate"),
}  # fmt: skip


@pytest.mark.parametrize(("row", "said"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_run_is_refused_and_counted(tmp_path, row, said):
    with pytest.raises(DataError, match=said):
        load(tmp_path, row)
    if "input_output" in row:
        good = [PROGRAM["apps"] | {"question": f"{PROBLEM} {number}"} for number in range(3)]
        problems = load(tmp_path, row, *good)
        assert (len(problems.labels), problems.num_unusable) == (3, 1)
        assert any(said in reason for reason in problems.sources[0].left_out)


def test_a_prompt_in_words_is_no_part_of_the_program(tmp_path):
    row = {
        "prompt": "Complete it:\n```python\ndef add(a, b):\n```",
        "entry_point": "add",
        "test": "def check(c):\n    assert c(1, 2) == 3",
    }
    tests = only(tmp_path, row)[1]
    assert (tests.preamble, tests.setup) == ("", row["test"])


def test_an_empty_list_is_near_no_number_in_the_tests_of_evalplus(tmp_path):
    """numpy spreads it over whatever it is compared with."""
    source = (
        "import numpy as np\ndef assertion(out, exp, atol):\n    assert np.allclose(out, exp, rtol=1e-07, atol=atol)\n"
    )
    row = {
        "prompt": "def f(x):\n",
        "entry_point": "f",
        "test": source + "def check(c):\n    assertion(c(1), 2.5, 1e-6)",
    }
    tests = only(tmp_path, row)[1]
    for setup, returned, passes in ((row["test"], [], True), (tests.setup, [], False), (tests.setup, 2.5, True)):
        exec(setup, space := {})
        if passes:
            space["check"](lambda _, value=returned: value)
        else:
            with pytest.raises(AssertionError):
                space["check"](lambda _, value=returned: value)


def test_the_first_page_says_which_shape(tmp_path):
    problems = load(tmp_path, PROGRAM["apps"], FUNCTION["apps"] | {"question": "Add again."})
    said = problems.sources[0].how_read
    assert (
        said == "problem: question, answer: input_output (1 APPS or TACO, standard input; 1 APPS or TACO, a function)"
    )


def test_a_column_of_ones_own(tmp_path):
    tests = {"asserts": ["assert add(1, 2) == 3"], "setup": "import math"}
    label, found = only(tmp_path, {"ask": "Add.", "mine": json.dumps(tests)}, problem_key="ask", answer_key="mine")
    assert (found.asserts, found.setup) == (tests["asserts"], "import math")
    assert "`add`" in label.problem
    with pytest.raises(DataError, match="no column that is known to hold the tests"):
        load(tmp_path, {"problem": "Add.", "answer": "3"})


def test_a_file_of_programs_without_the_task_says_so(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(PROGRAM["apps"]))
    with pytest.raises(DataError, match=r"or use data\.task=code, if input_output holds tests of programs"):
        load_problems(DataConfig(path=str(path)))


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


@pytest.mark.parametrize("damage", [lambda text: text[:-9], lambda text: "A" * 40, lambda text: "%%%"])
def test_damaged_packs(damage):
    with pytest.raises(DataError):
        unpacked(damage(packed(CASES)))


def test_the_contract_is_its_own_inverse():
    text = json.dumps({"inputs": ["1"], "outputs": ["2"], "checker": "print(1)", "time_limit": 3.0})
    assert json.loads(write_tests(read_tests(text))) == json.loads(text)
    for bad, said in (("{}", "no tests"), ("[1]", "contract"), ('{"inputs": ["1"], "outputs": [2]}', "not a text"), ("{", "not JSON"),
                      ('{"inputs": ["1"], "outputs": ["2"], "time_limit": 0}', "limit")):  # fmt: skip
        with pytest.raises(DataError, match=said):
            read_tests(bad)
