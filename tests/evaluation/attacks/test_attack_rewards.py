"""`r3 attack-rewards`: a sound file, and one whose references accept too much."""

import pytest

from tests.commands import command
from tests.problems.files import write_jsonl

run = command("attack-rewards")


SOUND = "Compute $17 \\cdot 3 + 1$."
FILES = {  # options and rows -> exit code and what is said
    "a sound file": ((), [(SOUND, "52")], 0, ["references: 1, of which refused: 0"]),
    "a choice that is compared exactly": (
        ("--task", "exact"),
        [("Which one?", "A")],
        0,
        ["two answers", "taken back"],
    ),
    # 52 and 53 are both accepted by this row, and 53 is an attack on 52
    "a reference that accepts too much": (
        (),
        [(SOUND, ["52", "53"])],
        1,
        ["accepted (another value)", "53"],
    ),
    "a reference that is refused": (
        (),
        [("Which?", "9^{9^{9^{9}}}+x"), ("Or?", "5")],
        0,
        ["references: 2"],
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_files(tmp_path, name):
    options, rows, code, said = FILES[name]
    done = run(
        *options,
        "--problems",
        write_jsonl(tmp_path / "p.jsonl", [{"problem": p, "answer": a} for p, a in rows]),
    )
    assert code in (done.exit_code, None) and all(text in done.output for text in said), (
        done.output
    )


OWN = """
def last(response, reference):
    return response.rpartition("{")[2].rstrip("}") == reference

def whole(response, *, reference, row):
    return 2.0 if response == "\\\\boxed{%s}" % row["answer"] else -1.0

def part(response, reference):
    return 0.5 * (reference in response)

def breaks(response, reference):
    raise KeyError(reference)
"""


@pytest.mark.parametrize(
    ("function", "options", "code", "said"),
    [
        ("last", (), 1, ["accepted (two answers)", "references: 1, of which refused: 0"]),
        ("whole", (), 0, ["references: 1, of which refused: 0"]),
        ("part", (), 0, ["references: 1, of which refused: 1"]),
        (
            "part",
            ("--correct-from", "0.5"),
            1,
            ["accepted (not solved)", "of which refused: 0"],
        ),
        ("breaks", (), 0, ["ungraded (", "references: 1, of which refused: 1"]),
        ("nosuch", (), 1, ["mine.py has no nosuch"]),
        ("last", ("--url", "http://127.0.0.1:9"), 1, ["a server has its own reward"]),
    ],
)
def test_a_function_of_yours_is_attacked(tmp_path, function, options, code, said):
    """--task my_reward.py:f was refused as no grader."""
    (tmp_path / "mine.py").write_text(OWN)
    rows = write_jsonl(tmp_path / "p.jsonl", [{"problem": SOUND, "answer": "52"}])
    done = run("--task", f"{tmp_path}/mine.py:{function}", "--problems", rows, *options)
    assert done.exit_code == code, done.output
    assert all(text in done.output for text in said), done.output


def test_rows_without_answers_are_a_sentence(tmp_path):
    (tmp_path / "mine.py").write_text("def long(response):\n    return len(response) > 3\n")
    rows = write_jsonl(tmp_path / "p.jsonl", [{"problem": SOUND}])
    done = run("--task", f"{tmp_path}/mine.py:long", "--problems", rows)
    assert done.exit_code == 1 and "have no answers, of which attacks are made" in done.output


@pytest.mark.parametrize(
    ("problems", "said"),
    [("reasoning_gym:puzzle24", "scorer_attacks.py puzzle24"), ("none.jsonl", "none.jsonl")],
)
def test_what_is_refused_in_a_sentence(problems, said):
    done = run("--problems", problems)
    assert done.exit_code == 1 and said in done.output and "Traceback" not in done.output, (
        done.output
    )
