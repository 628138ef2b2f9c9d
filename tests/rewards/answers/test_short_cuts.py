"""What is looked for first, because it is quickly found, never changes what is found."""

import re
import tomllib
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from r3_openrlhf.rewards.answers.formulas import spelling
from r3_openrlhf.rewards.answers.reading import scanner
from r3_openrlhf.rewards.answers.text import patterns
from r3_openrlhf.rewards.answers.text.patterns import compiled

HERE = Path(__file__).parent


def answers():
    """One text per pair of the lists beside this file."""
    lines = [
        line
        for name in ("pairs_correct.txt", "pairs_wrong.txt")
        for line in (HERE / name).read_text().splitlines()
    ]
    return [part for line in lines for part in line.split(" === ") if part]


PIECES = (
    *[
        r"\surd",
        r"\root",
        r"3",
        r"\of",
        r"{x}",
        r"\not=",
        r"\backslash",
        r"\lg",
        r"\bar{3}",
        r"\text{",
        r"or",
        r"}",
        r"\mathrm{d}",
        r"\pounds",
        r"\mapsto",
        r"\Pr",
        r"\underline{st}",
        r"\varnothing",
    ],
    *[
        r"\overline{AB}",
        r"\dot{3}",
        r"\frac12",
        r"\dfrac{1}{2}",
        r"\tfrac",
        r"ab",
        r"\sin30^\circ",
        r"\cos(60^\circ)",
        r"\square",
        r"\tag{1}",
        r"\left.",
        r"\right.",
        r"\left<",
        r"\right>",
    ],
    *[
        r"∛8",
        r"√2",
        r"√(3)",
        r"–",
        r"—",
        r"²",
        r"₃",
        r"…",
        r"12",
        r"x",
        r"=",
        r"(",
        r")",
        r"[",
        r"]",
        r",",
        r";",
        r":",
        r"{",
        r"}",
        r"^",
        r"_",
        r"1st",
        r"3rd",
        r"\checkmark",
        r"\approx",
        r"\hspace{2}",
        r"\Big",
        r"\displaystyle",
        r"\ast",
        r"cis",
        r"pi",
        r"oo",
    ],
    "\\text{ the }",
    "\\text{Area} =",
    "\\text{ out of }",
    "\\text{minus}",
    "~p",
    " ",
    "\\",
    "\\t",
)


def unify_by_all_rules(monkeypatch, text):
    with monkeypatch.context() as patched:
        patched.setattr(
            spelling,
            "_REWRITES",
            [(pattern.pattern, new) for pattern, new in spelling._REWRITES],
        )
        return spelling.unify(text)


def test_no_rule_is_passed_over_that_would_have_changed_an_answer(monkeypatch):
    @given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=6).map("".join))
    @settings(max_examples=1500, deadline=None)
    def looks(text):
        assert spelling.unify(text) == unify_by_all_rules(monkeypatch, text)

    looks()
    examples = tomllib.loads((HERE / "spelling.toml").read_text())["examples"]
    known = answers() + [example.partition(" => ")[0] for example in examples]
    assert len(known) > 300
    for text in known:
        assert spelling.unify(text) == unify_by_all_rules(monkeypatch, text), text


@given(st.lists(st.sampled_from(["<answer>", "</answer>", "<", "<a", "x" * 900, "5"])))
def test_tags_are_found_one_by_one_or_all_at_once(parts):
    text = "".join(parts)
    found = scanner._marks_behind("<", scanner._TAG, text)
    assert [tag.span() for tag in found] == [tag.span() for tag in scanner._TAG.finditer(text)]


SAID = [
    "The answer is 5. ",
    "final answer",
    " is",
    "answer:",
    "no, wait,",
    " it is",
    "答案",
    "：",
    "$x$",
    "7",
    "(",
    "\n",
    " ",
    "word " * 90,
    "Respuesta ",
    "correct option is ",
    "select A",
]


@given(st.lists(st.sampled_from(SAID), max_size=30).map("".join))
def test_statements_of_the_end_are_those_of_the_whole(text):
    start = max(0, len(text) - scanner.STATEMENT_CHARS)
    whole = scanner._statements(text, start, len(text))
    in_parts = scanner._statements_from_the_end(text)
    assert [mark.span() for mark in in_parts] == [mark.span() for mark in reversed(whole)]


FIRST_LETTERS = "(?=<BEGINS_A_QUESTION>)"
ADJECTIVES = [
    "",
    "next ",
    "the new ",
    "another ",
    "the second ",
    "similar ",
    "follow-up ",
    "bonus ",
]
WORDS_OF_A_QUESTION = scanner._NEXT_QUESTION.pattern.partition("(?P<word>")[2]
NOUNS = re.findall(r"(?:^|(?<=\|))[^\W\d_]{1,12}(?=[|)])", WORDS_OF_A_QUESTION)


def test_the_first_letters_of_a_line_pass_over_no_question():
    table = patterns._PHRASES
    text = table["in_small_letters"]["next_question"]
    assert FIRST_LETTERS in text
    by_all = compiled(text.replace(FIRST_LETTERS, ""), table["pieces"])
    assert {"question", "problem", "soru", "questão", "问题", "vraag"} <= set(NOUNS)
    for adjective in [*ADJECTIVES, "the practice "]:
        for noun in [*NOUNS, "вопрос", "下一题"]:
            line = f"\n{adjective}{noun} 2:"
            assert by_all.pattern.search(line), line
            assert scanner._NEXT_QUESTION.search(line), line
