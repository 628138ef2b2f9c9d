"""What the grader reads of a reference, and the grader as a library."""

import builtins
import subprocess
import sys

import pytest

import r3_openrlhf
from r3_openrlhf import grade, read_reference
from tests.tables import tables_beside

TABLES = tables_beside(__file__)


@pytest.mark.parametrize(("reference", "text"), TABLES["read"])
def test_what_is_read(reference, text):
    assert read_reference(reference) == r3_openrlhf.rewards.answers.references.ReferenceReading(
        text
    )


@pytest.mark.parametrize("text", ["12", r"\frac{1}{2}", "(1,2)", "x^2+1", "yes", "B", "3:30"])
@pytest.mark.parametrize(
    "marked", ["<answer>{}</answer>", "<answer> ${}$ </answer>", r"\boxed{{{}}}"]
)
def test_a_marked_reference_is_the_reference_that_it_marks(text, marked):
    reference = marked.format(text)
    assert grade(rf"So it is $\boxed{{{text}}}$.", reference).verdict == "correct"
    assert grade(r"So it is $\boxed{77}$.", reference).verdict == "wrong"


@pytest.mark.parametrize("reference", TABLES["no_answer"])
def test_no_answer_is_paid_for_a_reference_that_is_none(reference):
    assert read_reference(reference).unusable
    assert grade(rf"\boxed{{{reference}}}", reference).reason == "bad_reference"


def test_the_grader_is_a_function():
    assert grade(r"So it is \boxed{\frac12}.", "0.5").verdict == "correct"
    assert grade(r"\boxed{7}", ["5", "7"], task="exact").score == 1.0
    assert grade(r"\boxed{5}", "5", thinking_open=True).reason == "no_answer"
    assert grade(r"hm</think>\boxed{5}", "5", thinking_open=True).verdict == "correct"
    with pytest.raises(r3_openrlhf.method.errors.ConfigError, match="math"):
        grade("5", "5", task="maths")


def test_without_math_verify_it_says_which_extra_has_it(monkeypatch):
    load = builtins.__import__

    def without(name, *args, **kwargs):
        if name.partition(".")[0] == "math_verify":
            raise ModuleNotFoundError("No module named 'math_verify'", name="math_verify")
        return load(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    for name in ("mathematics", "formulas.algebra", "formulas.real_sets"):
        monkeypatch.delitem(sys.modules, f"r3_openrlhf.rewards.answers.{name}", raising=False)
    with pytest.raises(ImportError, match=r"pip install 'r3_openrlhf\[grading\]'"):
        grade("5", "5")


def test_it_loads_nothing_of_the_stack():
    code = "import sys; from r3_openrlhf import grade; grade('5', '5'); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    assert "math_verify" in loaded and not loaded & set(
        ["torch", "ray", "vllm", "openrlhf", "hydra", "omegaconf", "aiohttp"]
    )
