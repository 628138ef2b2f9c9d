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


@pytest.mark.parametrize(
    ("problems", "said"),
    [("reasoning_gym:puzzle24", "scorer_attacks.py puzzle24"), ("none.jsonl", "none.jsonl")],
)
def test_what_is_refused_in_a_sentence(problems, said):
    done = run("--problems", problems)
    assert done.exit_code == 1 and said in done.output and "Traceback" not in done.output, (
        done.output
    )
