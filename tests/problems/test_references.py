"""How an answer stands in a column, and columns that hold none: each row in the spelling of a public data set."""

from contextlib import nullcontext

import pandas
import pytest

from r3_openrlhf.config import DataConfig
from r3_openrlhf.config.no_answer import says_no_answer
from r3_openrlhf.method.errors import DataError
from r3_openrlhf.problems import references as forms
from r3_openrlhf.problems.references import AFTER_MARKS, AS_IT_IS, OF_JSON, references_of
from r3_openrlhf.problems.sources import load_problems
from tests.problems.files import load, refused
from tests.tables import tables_beside

TABLES = tables_beside(__file__)


@pytest.mark.parametrize(("cell", "answers", "form"), TABLES["published"])
def test_an_answer_is_cut_out_of_what_is_published(cell, answers, form):
    assert references_of(cell, key="answer") == (answers, getattr(forms, form))


def test_cells_that_are_no_text():
    # verl
    assert references_of({"style": "rule", "ground_truth": "34"}, key="a") == (
        ["34"],
        OF_JSON,
    )
    assert references_of(["1", None, "one"], key="a") == (["1", "one"], AS_IT_IS)
    assert references_of(float("nan"), key="a") == references_of(" ", key="a") == ([], AS_IT_IS)
    with pytest.raises(
        DataError,
        match="a. has the keys inputs, outputs; name the one with the answer, as in a.KEY",
    ):
        references_of('{"inputs": ["1"], "outputs": ["2"]}', key="a")
    with pytest.raises(DataError, match="two boxes side by side"):
        references_of("so $x=\\boxed{3}$ or $x=\\boxed{5}$", key="a")


def test_many_open_boxes_are_read_in_one_pass():
    text = "\\boxed{" * 50_000 + "5" + "}" * 25_000
    assert references_of(text, key="a")[1] == AS_IT_IS


def rows_of(answers):
    return [
        {"problem": f"What is problem {n}?", "answer": answer}
        for n, answer in enumerate(answers)
    ]


def test_what_was_read_and_how_is_counted(tmp_path):
    rows = rows_of(
        [*(f"work {n}\n#### {n}" for n in range(30)), "work without mark", "proof", "a\n#### 5"]
    )
    problems = load(tmp_path, [*rows, rows[0]])
    assert [label.references for label in problems.labels] == [
        [str(n)] for n in [*range(30), 5]
    ]
    (counts,) = problems.sources
    assert (counts.num_rows, counts.num_used, counts.num_duplicates) == (34, 31, 1)
    assert counts.forms == {AFTER_MARKS: 32} and sorted(counts.left_out.values()) == [1, 1]
    assert counts.how_read == "problem: problem, answer: answer (32 cut at ####)"
    assert "2 of 34 rows are left out" in problems.findings[0].sentence


@pytest.mark.parametrize("task", ["math", "exact"])
def test_whole_numbers_that_a_table_made_floats(tmp_path, task):
    """pandas makes a column with a missing answer a float; one 1.5 among them, and they were floats."""

    def references(answers):
        table = pandas.DataFrame(
            {"problem": [f"p{n}" for n in range(len(answers))], "answer": answers}
        )
        table.to_parquet(tmp_path / "t.parquet")
        labels = load_problems(DataConfig(path=str(tmp_path / "t.parquet"), task=task)).labels
        return [label.references[0] for label in labels]

    whole = [*range(1, 20), None]
    assert references(whole) == [str(n) for n in range(1, 20)]
    assert references([1.0, 2.0, 1.5]) == ["1.0", "2.0", "1.5"]


def contains(response, reference):
    return reference in response


def test_a_grader_of_the_user_s_own_gets_the_cell(tmp_path):
    cells = [f"work {n}\n#### {n}" for n in range(9)] + ['{"a": "1", "b": 2}']
    problems = load(tmp_path, rows_of(cells), task=f"{__name__}:contains")
    assert [label.references for label in problems.labels] == [[cell] for cell in cells]


NUMBERS = [str(n * 7) for n in range(60)]
REFUSED = {  # what the column is -> (answers, a part of the sentence)
    "solutions": (
        [f"We see that x is {n}. " * 20 for n in NUMBERS],
        "longer than 200 characters",
    ),
    "lists of options in a text": (
        [f"A) {n}\nB) {n}1\nC) {n}2" for n in NUMBERS],
        "have several lines",
    ),
    "options": (
        [[n, n + "1", n + "2", n + "3"] for n in NUMBERS],
        "accept 4 different answers",
    ),
    "options in a line": ([f"a ) {n} , b ) {n}1 , c ) {n}2" for n in NUMBERS], "list options"),
    "options as Python prints them": (
        [str([n, n + "1", n + "2"]) for n in NUMBERS],
        "accept 3 different answers",
    ),
    "the problem": ([f"What is problem {n}?" for n in range(60)], "are the problem itself"),
    "the problem in a frame": (
        [f"Q:  what is problem {n}? " for n in range(60)],
        "are the problem itself",
    ),
    "rows": ([f"train_{n}" for n in range(60)], "are names of files or rows"),
    "addresses": (
        [f"https://example.org/{n}" for n in range(60)],
        "are names of files or rows",
    ),
    "sentences": (
        [f"She has {n} pens left in the box by then." for n in NUMBERS],
        "have 8 words or more",
    ),
    "constant": (["yes"] * 60, "all 60 answers"),
    "levels": (
        ["Easy", "Medium", "Very hard"] * 20,
        "are only 3 words ('Easy', 'Medium', 'Very hard' ...)",
    ),
    "sources": (["olympiads", "aops_forum", "cn_k12"] * 20, "are only 3 words"),
    "letters without options": (["A", "B", "C", "D"] * 15, "letters of options"),
    "nothing": (["proof", "notfound", "N/A", "see solution"] * 15, "no row can be used"),
    "test cases": (['{"inputs": [], "outputs": []}'] * 60, "has the keys inputs, outputs"),
}


SUSPICIOUS = {
    "row numbers": (list(range(60)), "are the numbers of the rows"),
    "pass rates": (
        [n % 17 / 16 for n in range(60)],
        "are from 0 to 1 or 0 to 100%, as pass rates are",
    ),
    "flags": ([n % 3 == 0 for n in range(60)], "are only 2 words"),
    "two options": ([[n, n + "1"] for n in NUMBERS], "are several, and each is accepted alone"),
    "short sentences": ([f"She has {n} pens left." for n in NUMBERS], "have 4 words or more"),
}


@pytest.mark.parametrize("column", [*REFUSED, *SUSPICIOUS])
def test_a_column_that_is_no_answer_is_refused_or_worth_a_word(tmp_path, column):
    answers, sentence = (REFUSED | SUSPICIOUS)[column]
    with refused(DataError, sentence) if column in REFUSED else nullcontext():
        assert sentence in load(tmp_path, rows_of(answers)).findings[0].sentence


FINE = {
    "numbers": NUMBERS,
    "yes and no": ["yes", "no"] * 30,
    "parity": ["odd", "even", "neither"] * 20,
    "one long answer": [*NUMBERS, "\\frac{1}{2}" * 50] + [f"{n}x" for n in range(100)],
}


@pytest.mark.parametrize("column", FINE)
def test_a_column_of_answers_is_taken(tmp_path, column):
    rows = rows_of(FINE[column])
    if column == "parity":
        rows = [
            {**row, "problem": row["problem"] + " Is it odd, even or neither?"} for row in rows
        ]
    problems = load(tmp_path, rows)
    assert len(problems.labels) == len(rows)
    assert [finding for finding in problems.findings if "words" not in finding.sentence] == []


def test_what_is_worth_a_word(tmp_path):
    problems = load(tmp_path, rows_of([str(n % 9 / 2) for n in range(600)]))
    assert (
        "600 answers (answer) are only 9 different ones, like '0.0', as levels are"
        in problems.findings[0].sentence
    )
    answers = [[f"name {n}-{alias}" for alias in range(3 + n % 5)] for n in range(60)]
    assert load(tmp_path, rows_of(answers), task="exact").findings == []
    problems = load(tmp_path, rows_of([*NUMBERS, *["none given"] * 20]))
    assert "20 of 80 answers (answer) are 'none given'" in problems.findings[-1].sentence


@pytest.mark.parametrize("column", ["choices", "endings"])  # MMLU, HellaSwag
def test_the_places_of_options_that_stand_in_another_column(column, tmp_path):
    rows = [row | {column: ["1", "2", "3", "4"]} for row in rows_of([n % 4 for n in range(60)])]
    with refused(
        DataError,
        f"the answers are places of {column}, like '0', which the problem does not hold",
    ):
        load(tmp_path, rows)


@pytest.mark.parametrize("text", TABLES["no_answer"])
def test_notes_that_there_is_no_answer(text):
    assert says_no_answer(text)


@pytest.mark.parametrize("text", [*TABLES["maybe_an_answer"], "a" * 100])
def test_words_that_may_be_an_answer(text):
    assert not says_no_answer(text)


def test_line_breaks_that_are_two_characters(tmp_path):
    (finding,) = load(
        tmp_path, rows_of(NUMBERS), prompt_template="{problem}\\n\\nThink first."
    ).findings
    assert "'\\\\n' as two characters" in finding.sentence
    (finding,) = load(tmp_path, rows_of(NUMBERS), system_prompt="Be brief.\\n").findings
    assert finding.sentence.startswith("data.system_prompt holds")
    assert (
        load(
            tmp_path, rows_of(NUMBERS), prompt_template="{problem} has $x \\neq \\nu$"
        ).findings
        == []
    )
