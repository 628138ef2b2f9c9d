"""Another language is a command, behind the same barriers."""

import json
import os
import re

import pytest

from r3_openrlhf.method.errors import ConfigError
from r3_openrlhf.rewards.answers.request import Item
from r3_openrlhf.rewards.code import run as module
from r3_openrlhf.rewards.code.grading import grader
from r3_openrlhf.rewards.code.languages import LANGUAGES, Language
from r3_openrlhf.rewards.code.run import Call, Limits, Runner, run_program
from tests.rewards.code.processes import descendants
from tests.rewards.code.programs import SETTINGS
from tests.tables import tables_beside

HERE = "tests.rewards.code.languages"
needs_node = pytest.mark.skipif(not os.path.exists("/usr/bin/node"), reason="no node")


@pytest.fixture(autouse=True)
def floor():
    with Runner() as runner:
        try:
            runner.start()
        except OSError as error:
            pytest.skip(str(error))


def run(language, program, stdin="", **limits):
    (outcome,) = run_program(
        program, [Call(stdin=stdin)], limits=Limits(**limits), language=f"{HERE}:{language}"
    )
    return outcome


def test_a_shell_program_reads_and_prints_and_starts_nothing():
    assert run("shell", "read a b\necho $((a + b))", "1 2\n").stdout == "3\n"
    assert run("shell", "cat /etc/passwd").stdout == ""
    assert run("shell", "(echo forked)").stdout == ""
    assert run("shell", "echo x > own; read y < own; echo $y").stdout == "x\n"
    assert run("shell", "while :; do :; done", seconds_per_test=0.5).status == "timeout"


@needs_node
def test_javascript():
    program = "const x = require('fs').readFileSync(0, 'utf8').split(' ').map(Number);\nconsole.log(x[0] + x[1])"
    assert run("javascript", program, "1 2").stdout == "3\n"
    read = "console.log(require('fs').readFileSync('/etc/passwd', 'utf8').length)"
    assert (run("javascript", read).status, run("javascript", read).stdout) == ("crashed", "")
    flood = "const x = []; while (true) x.push(new Uint8Array(1e6).fill(1))"
    assert run("javascript", flood, memory_mb=256).status in ("memory", "crashed")


CPP = {case["program"]: tuple(case["says"]) for case in tables_beside(__file__)["cpp"]}


@pytest.mark.skipif(not os.path.exists("/usr/bin/g++"), reason="no g++")
def test_cpp_is_compiled_once_behind_the_barriers():
    tests = json.dumps({"inputs": ["4 0\n", "1 2\n"], "outputs": ["4", "3"], "language": "cpp"})
    judged = grader(SETTINGS | {"seconds_per_test": 1.0})
    graded = {
        program: judged(Item("code", f"```c++\n{program}\n```", (tests,), False))[:2]
        for program in CPP
    }
    assert graded == CPP


@pytest.mark.skipif(not os.path.exists("/usr/bin/g++"), reason="no g++")
def test_a_compilation_without_end_is_wrong_and_leaves_no_process(monkeypatch):
    monkeypatch.setattr(module, "COMPILE_S", 1.0)
    endless = "#include __FILE__\n#include __FILE__\nint main() {}"
    with Runner(LANGUAGES["cpp"]) as runner:
        for program, status in ((endless, "timeout"), ("int main() {", "syntax_error")):
            (outcome,) = runner.run_program(
                program, [Call(stdin="")], limits=Limits(seconds_per_test=1.0)
            )
            assert outcome.status == status
        assert {"g++", "cc1plus", "as"}.isdisjoint(descendants(runner._zygote.process.pid))


def test_a_compiler_that_is_not_there_leaves_programs_ungraded(monkeypatch):
    with Runner(
        Language(compile=("/usr/bin/no-such-compiler",), command=("{file}",))
    ) as runner:
        (outcome,) = runner.run_program("", [Call(stdin="")], limits=Limits())
    assert (outcome.status, outcome.detail) == (
        "unavailable",
        "/usr/bin/no-such-compiler is not installed here",
    )


def test_a_language_that_does_not_exist_and_one_without_functions():
    with pytest.raises(
        ConfigError, match="language is 'pyhton', which does not exist; did you mean python"
    ):
        run_program("", [], language="pyhton")
    with pytest.raises(ConfigError, match="only python has functions"):
        run_program("", [Call(function="f")], language=f"{HERE}:shell")
    with pytest.raises(ConfigError, match=re.escape("which is no Language")):
        run_program("", [], language="json:loads")
