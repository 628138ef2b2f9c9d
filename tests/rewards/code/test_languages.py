"""Another language is a command, behind the same barriers."""

import os
import re

import pytest

from r3_openrlhf.method.errors import ConfigError
from r3_openrlhf.rewards.code.run import Call, Limits, Runner, run_program

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
    (outcome,) = run_program(program, [Call(stdin=stdin)], limits=Limits(**limits), language=f"{HERE}:{language}")
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


def test_a_language_that_does_not_exist_and_one_without_functions():
    with pytest.raises(ConfigError, match="language is 'pyhton', which does not exist; did you mean python"):
        run_program("", [], language="pyhton")
    with pytest.raises(ConfigError, match="only python has functions"):
        run_program("", [Call(function="f")], language=f"{HERE}:shell")
    with pytest.raises(ConfigError, match=re.escape("which is no Language")):
        run_program("", [], language="json:loads")


def test_the_functions_of_the_module_share_a_process():
    tests = [Call(test=test, names=("f",)) for test in ("assert f(1) == 1", "assert f(1) == 2")]
    assert [outcome.value for outcome in run_program("def f(x): return x", tests)] == ["true", "false"]
