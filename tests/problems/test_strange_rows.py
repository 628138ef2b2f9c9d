"""Kinds of rows that strangers bring: each is made right, refused or named, and its harmless sibling is not."""

import gzip
import json

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from r3_openrlhf.method.errors import DataError
from r3_openrlhf.problems.columns import lettered
from r3_openrlhf.problems.references import as_meant
from r3_openrlhf.problems.training_file import prepare
from tests.problems.files import config_for, load, refused

ROWS = [
    {
        "problem": f"Ida has {n} keys and finds {n * n}. How many has she?",
        "answer": str(n + n * n),
    }
    for n in range(3, 43)
]
WRAPPINGS = (
    "jnp.array(%s)",
    "mpf('%s')",
    "%s pens (total)",
    "%s [in all]",
    "%s (see figure 2)",
    "<b>%s</b>",
    "<p><span class='a'>%s</span></p>",
    "np.int64(%s)",
    "np.float64(%s)",
    "Decimal('%s')",
    "tensor(%s)",
    "array(%s, dtype=int64)",
    "**%s**",
    "`%s`",
    "%s (apples)",
    "%s (one hundred)",
    "%s&nbsp;",
)
MATHS = (
    "3 (mod 5)",
    "2 (x + y)",
    "f(3)",
    r"\sin(2)",
    "1<b>2",
    "a<b and c>d",
    "(3, 5)",
    "0.30000000000000004",
    "3.14159265358979",
    "0.0009765625",
    "3.00000000000000000001",
    "A&B",
    r"\{x < 3\}",
)


@given(st.integers(-999_999, 999_999), st.integers(0, 5))
def test_a_reference_is_freed_of_what_a_program_put_around_it(digits, places):
    number = f"{digits / 10**places:.{places}f}"
    assert float(as_meant(repr(float(np.float32(number))))) == float(number)
    for wrapping in WRAPPINGS:
        assert as_meant(wrapping % number).strip().removesuffix(" pens") == number, wrapping


@pytest.mark.parametrize("text", MATHS)
def test_a_formula_is_left_as_it_is(text):
    assert as_meant(text) == text


def with_each(**cells):
    """The rows with further cells, or changed ones: functions of the row and its number."""
    return [
        row | {key: cell(row, n) for key, cell in cells.items()} for n, row in enumerate(ROWS)
    ]


def typed(row, n):
    return f"{row['problem']}\\nanswer shortly"


def asked(n, *more, **fields):
    """Messages with the problem of row n."""
    return [
        *([{"role": "system", "content": "S"}] * bool(fields.pop("system", 0))),
        {"role": "user", "content": ROWS[n]["problem"], **fields},
        *more,
    ]


IMAGES = (
    "<image> %d ",
    "<img src='%d.png' width='3'> ",
    r"\includegraphics[scale=2]{%d.pdf} ",
    "![x](%d) ",
    "[figure %d] ",
    "<image_%d>",
)
SAID = {  # kind -> (rows, settings, a part of the sentence; "": nothing is said)
    "a passage": (
        with_each(passage=lambda row, n: f"{n} apples are in a basket."),
        {},
        "data.prompt_template='{passage} {problem}'",
    ),
    "a story of many questions": (
        with_each(meta=lambda row, n: {"story": f"{n // 8} apples are in a big basket."}),
        {},
        "{meta.story} {problem}",
    ),
    "numbers to use": (with_each(nums=lambda row, n: [n, n + 1]), {}, "{nums} {problem}"),
    "a passage of some": (
        with_each(passage=lambda row, n: f"{n} apples are in it." * (n % 3 == 0)),
        {},
        "data.prompt_template='{passage} {problem}'",
    ),
    "a turn to go on with": (
        with_each(
            problem=lambda row, n: asked(n, {"role": "assistant", "content": "Let me add."})
        ),
        {},
        "a turn after the problem, 'Let me add.'",
    ),
    "a turn in parts to go on with": (
        with_each(
            problem=lambda row, n: asked(
                n, {"role": "assistant", "content": [{"type": "text", "text": "Let me add."}]}
            )
        ),
        {},
        "a turn after the problem, 'Let me add.'",
    ),
    "turns in parts": (
        with_each(
            problem=lambda row, n: [
                {"role": role, "content": [{"type": "text", "text": text} for text in texts]}
                for role, texts in (
                    ("system", ["S"]),
                    ("user", [row["problem"][:3], row["problem"][3:]]),
                )
            ]
        ),
        {},
        "",
    ),
    "an answer in parts after it": (
        with_each(
            problem=lambda row, n: asked(
                n, {"from": "gpt", "value": [{"type": "text", "text": f"So {row['answer']}."}]}
            )
        ),
        {},
        "",
    ),
    "wrong answers to choose from": (
        with_each(
            **{f"Incorrect Answer {k}": lambda row, n, k=k: f"{n}.{k}" for k in (1, 2, 3)}
        ),
        {},
        "Incorrect Answer 1 and Incorrect Answer 2 and Incorrect Answer 3 hold wrong answers to choose from, which 40 of",
    ),
    "a list of wrong answers": (
        with_each(distractors=lambda row, n: [f"{n}.5", f"{n}.7"]),
        {},
        "distractors hold wrong answers",
    ),
    "wrong answers that are shown": (
        with_each(
            wrong_answer=lambda row, n: f"{n}.5",
            problem=lambda row, n: f"{row['problem']} (A) {n}.5 (B) {row['answer']}",
        ),
        {},
        "",
    ),
    "a printed dictionary": (
        with_each(problem=lambda row, n: str({"question": row["problem"], "n": n})),
        {},
        "40 of 40 problems are a printed structure, like",
    ),
    "a printed list": (
        with_each(problem=lambda row, n: str([row["problem"], f"page {n}"])),
        {},
        "are a printed structure",
    ),
    "lists and sets in a text": (
        with_each(problem=lambda row, n: f"[{n}, 2] and {{1, {n}}}: {row['problem']} [a]"),
        {},
        "",
    ),
    "an answer after it": (
        with_each(
            problem=lambda row, n: asked(
                n, {"role": "assistant", "content": f"So {row['answer']}."}
            )
        ),
        {},
        "",
    ),
    "calls of tools": (
        with_each(problem=lambda row, n: asked(n, tool_calls=[{"id": 1}])),
        {},
        "40 of the first 40 rows have tool_calls in their messages",
    ),
    "functions": (
        with_each(functions=lambda row, n: [{"name": "f", "parameters": {}}]),
        {},
        "functions for a chat template",
    ),
    "an address of no kind": (
        with_each(image_url=lambda row, n: f"https://x.org/{n}"),
        {},
        "the column image_url of 40",
    ),
    "breaks in an example": (
        ROWS,
        {"few_shot": [{"problem": "1 + 1", "response": "So.\\n2"}]},
        "data.few_shot holds",
    ),
    "breaks of a program": (
        with_each(problem=lambda row, n: f"print('\\n' * {n}) {row['problem']}"),
        {},
        "",
    ),
    "codes of letters": (
        with_each(problem=lambda row, n: f"\\u00e9 {row['problem']}"),
        {},
        "letters as codes",
    ),
    "half of them leak": (
        with_each(
            problem=lambda row, n: row["problem"] + f" Answer: {row['answer']}" * (n % 2)
        ),
        {},
        "20 of 40 problems say their answer",
    ),
    "copies but for signs": (
        sum(
            (
                [
                    {"problem": f"$\\frac{{{n}}}{{7}}$ – “{n}”?", "answer": str(n * n)},
                    {"problem": f'\\(\\dfrac{{{n}}}{{7}}\\) - "{n}"?', "answer": str(n * n)},
                ]
                for n in range(3, 9)
            ),
            [],
        ),
        {},
        "6 of 12 problems differ",
    ),
    "numbered splits": (
        with_each(part=lambda row, n: "test_1" if n % 4 else "train"),
        {},
        "30 of the first 40 rows call themselves test_1",
    ),
    "quotes after letters": (
        with_each(problem=lambda row, n: f"« café\xa0» „groß“ {row['problem']}"),
        {},
        "",
    ),
    "spellings of one number": (
        with_each(
            answer=lambda row, n: [row["answer"], f"{row['answer']}.0", f"{row['answer']} keys"]
        ),
        {},
        "",
    ),
    "lists among numbers": (
        with_each(answer=lambda row, n: [n * n, n + 1] if n % 9 == 0 else n * n + 2),
        {},
        "5 of 40 answers (answer) are several, and each is accepted alone",
    ),
    "judgements": (with_each(answer=lambda row, n: ["Yes", "no", "maybe"][n % 3]), {}, ""),
    "images in words": (
        with_each(problem=lambda row, n: IMAGES[n % 6] % n + row["problem"]),
        {},
        "40 of 40 problems name an image",
    ),
    "a table in lists": (
        with_each(table=lambda row, n: [["day", "keys"], ["Monday", n]]),
        {},
        "{table} {problem}",
    ),
    "texts in lists in a structure": (
        with_each(page=lambda row, n: {"lines": [[f"{n} keys."], ["So."]]}),
        {},
        "{page.lines} {problem}",
    ),
    "the whole talk beside it": (
        with_each(talk=lambda row, n: [{"text": f"{row['problem']} We add {n}."}]),
        {},
        "",
    ),
    "tools as a text": (
        with_each(can=lambda row, n: json.dumps([{"name": f"f{n}", "parameters": {}}])),
        {},
        "can for a chat template",
    ),
    "a page as a text": (
        with_each(page=lambda row, n: json.dumps({"lines": [f"{n} keys.", "So."]})),
        {},
        "{page.lines} {problem}",
    ),
    "nothing as a text": (
        with_each(
            tools=lambda row, n: "[]", images=lambda row, n: [], meta=lambda row, n: "{}"
        ),
        {},
        "",
    ),
    "a flag of training": (
        with_each(is_train=lambda row, n: n % 4 > 0),
        {},
        "10 of the first 40 rows call themselves test",
    ),
    "torn letters in answers": (
        with_each(answer=lambda row, n: f"RenÃ©e {n}"),
        {"task": "exact"},
        "of another encoding",
    ),
    "a call of a speaker": (
        with_each(problem=lambda row, n: f"Instruct: {row['problem']}\nOutput:"),
        {},
        "40 of 40 problems end with 'Output:'",
    ),
    "a tag where the answer begins": (
        with_each(problem=lambda row, n: f"<u_1>{row['problem']}<u_2>"),
        {},
        "end with '<u_2>'",
    ),
    "an order with a colon": (
        with_each(problem=lambda row, n: f"{row['problem']} Give the sum of {n}:"),
        {},
        "",
    ),
    "marks of HTML": (
        with_each(problem=lambda row, n: f"Is {n} &lt; 9?<br>{row['problem']}"),
        {},
        "have tags or entities of HTML",
    ),
    "an answer in the formula": (
        [{"problem": f"Solve (x-{n})(x-{n + 1})=0 for x.", "answer": n} for n in range(30, 70)],
        {},
        "",
    ),
    "an address of an image": (
        with_each(pic=lambda row, n: f"https://x.org/{n}.jpg?size=2"),
        {},
        "the column pic of 40",
    ),
    "an image in base64": (
        with_each(pic=lambda row, n: f"iVBORw0KGgo{n}"),
        {},
        "the column pic of 40",
    ),
    "a flag of the split": (
        with_each(is_test=lambda row, n: n % 4 == 0),
        {},
        "10 of the first 40 rows call themselves test",
    ),
    "a worked example": (
        ROWS,
        {"few_shot": [{"problem": ROWS[9]["problem"].lower(), "response": "So."}]},
        "1 of 40 problems are worked examples",
    ),
    "a topic": (
        with_each(subject=lambda row, n: ["Number Theory", "Algebra", "Plane Geometry"][n % 3]),
        {},
        "",
    ),
    "a leak at the beginning": (
        with_each(problem=lambda row, n: f"Answer: {row['answer']}. {row['problem']}"),
        {},
        "40 of 40 problems say their answer",
    ),
    "copies but for marks": (
        ROWS + with_each(problem=lambda row, n: row["problem"].replace(".", " ;")),
        {},
        "40 of 80 problems differ",
    ),
    "other numbers": (
        sum(
            (
                [
                    {"problem": f"What is f({n}, {n + 1})? Is it {n}!?", "answer": str(n + 50)},
                    {"problem": f"What is f({n}{n + 1})? Is it {n}?", "answer": str(n + 70)},
                ]
                for n in range(9)
            ),
            [],
        ),
        {},
        "",
    ),
    "training rows": (with_each(part=lambda row, n: "training"), {}, ""),
    "rates in percent": (
        with_each(answer=lambda row, n: f"{n % 9 * 12.5}%"),
        {},
        "0 to 100%, as pass rates are",
    ),
    "a solution": (
        with_each(work=lambda row, n: "We add, and so on and on. " * 4 + row["answer"]),
        {},
        "",
    ),
    "images": (
        with_each(pictures=lambda row, n: [f"a/{n}.png"]),
        {},
        "the column pictures of 40 of the first 40 rows holds images",
    ),
    "tools": (with_each(tools=lambda row, n: [{"name": "f"}]), {}, "tools for a chat template"),
    "another split": (
        with_each(info=lambda row, n: {"split": "test" if n % 4 else "train"}),
        {},
        "30 of the first 40 rows call themselves test",
    ),
    "a system turn": (
        with_each(problem=lambda row, n: asked(n, system=1)),
        {"system_prompt": "T"},
        "40 of 40 problems have a system turn, which data.system_prompt replaces",
    ),
    "near copies": (
        ROWS + with_each(problem=lambda row, n: row["problem"].upper().replace(" ", r"\, ")),
        {},
        "40 of 80 problems differ",
    ),
    "torn letters": (
        with_each(
            problem=lambda row, n: "Où est l’été?".encode().decode("cp1252") + row["problem"]
        ),
        {},
        "of another encoding",
    ),
    "whole letters": (
        with_each(problem=lambda row, n: "Où est l’été? 中文 «é»" + row["problem"]),
        {},
        "",
    ),
    "typed breaks": (with_each(problem=typed), {}, "line breaks as two characters"),
    "yes and no": (with_each(answer=lambda row, n: ["yes", "no"][n % 2]), {}, ""),
}
REFUSED = {  # kind -> (rows, a part of the sentence)
    "places": (
        with_each(
            problem=lambda row, n: f"{row['problem']}\n(A) {n}x\n(B) {n}y\n(C) {n}z",
            answer=lambda row, n: n % 3,
        ),
        "places of options",
    ),
    "places of columns": (
        with_each(
            **{f"op{letter}": lambda row, n: f"x {n}" for letter in "abcd"},
            answer=lambda row, n: n % 4,
        ),
        "prompt_template='{problem} (0) {opa} (1) {opb} (2) {opc} (3) {opd}'",
    ),
    "places of words in it": (
        with_each(
            option1=lambda row, n: "keys",
            option2=lambda row, n: "Ida",
            answer=lambda row, n: 1 + n % 2,
        ),
        "(1) {option1} (2) {option2}",
    ),
    "letters of columns": (
        with_each(
            A=lambda row, n: n,
            B=lambda row, n: n + 1,
            C=lambda row, n: 2,
            answer=lambda row, n: "ABC"[n % 3],
        ),
        "{problem} (A) {A} (B) {B} (C) {C}",
    ),
    "small letters of columns": (
        with_each(
            **{f"choice_{letter}": lambda row, n: n for letter in "abc"},
            answer=lambda row, n: "abc"[n % 3],
        ),
        "{problem} (A) {choice_a} (B) {choice_b} (C) {choice_c}",
    ),
    "a template with numbers": (
        with_each(problem=lambda row, n: f"[UNUSED_TOKEN_146]user\n{row['problem']}"),
        "in a chat template already",
    ),
    "messages as Python prints them": (
        with_each(problem=lambda row, n: str(asked(n))),
        "what Python prints of messages",
    ),
    "successes in words": (
        with_each(answer=lambda row, n: f"pass: {n % 9}/8 runs"),
        "count successes in 8 tries",
    ),
    "questions on passages": (
        with_each(
            problem=lambda row, n: f"How many are in box {n // 8}?",
            passage=lambda row, n: f"Of {n} pens some are red.",
        ),
        "can be used, so repair them or name other columns; texts of passage are not in the prompt",
    ),
    "marks in brackets": (
        with_each(problem=lambda row, n: f"[|user|]{row['problem']}\n[|assistant|]"),
        "in a chat template already ([|user|])",
    ),
    "another template": (
        with_each(problem=lambda row, n: f"USER: {row['problem']} ASSISTANT:"),
        "in a chat template already",
    ),
}


@pytest.mark.parametrize("kind", SAID)
def test_a_strange_row_is_named(kind, tmp_path):
    rows, settings, words = SAID[kind]
    sentences = [finding.sentence for finding in load(tmp_path, rows, **settings).findings]
    assert len(sentences) == bool(words) and all(words in sentence for sentence in sentences), (
        sentences
    )


@pytest.mark.parametrize("kind", REFUSED)
def test_a_strange_row_is_refused(kind, tmp_path):
    rows, words = REFUSED[kind]
    with refused(DataError, words):
        load(tmp_path, rows)


@pytest.mark.parametrize("page", ["cp1251", "cp1252", "cp866", "koi8_r", "gbk", "cp1253"])
def test_letters_that_another_code_page_made_are_named(page, tmp_path):
    """Law: bytes of UTF-8 that were read in a code page are named, and the letters themselves are not."""
    for text in ("Сколько книг у него сейчас", "Πόσα βιβλία", "你好世界今天天气很好"):
        torn = text.encode().decode(page, "replace").encode("utf-8", "replace").decode()
        for words, is_torn in ((text, False), (torn, True)):
            rows = with_each(problem=lambda row, n, words=words: f"{words} {row['problem']}")
            found = [one.sentence for one in load(tmp_path, rows).findings]
            assert ["of another encoding" in sentence for sentence in found] == [
                True
            ] * is_torn, words


def test_options_are_listed_by_their_letters():
    for cell in (
        {"A": "x", "B": "y"},
        {"label": ["A", "B"], "text": ["x", "y"]},
        ["x", "y"],
        [{"key": "A", "value": "x"}, {"key": "B", "value": "y"}],
    ):
        assert lettered(cell) == lettered(json.dumps(cell)) == "(A) x\n(B) y", cell


def test_another_column_is_filled_into_the_prompt(tmp_path, byte_tokenizer):
    rows = with_each(
        info=lambda row, n: {"text": f"Page {n}."}, problem=lambda row, n: "How many?"
    )
    (tmp_path / "a.parquet").unlink(missing_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    config = config_for(
        str(tmp_path / "a.parquet"),
        prompt_template=r"{info.text} {problem} In \boxed{x}, {{y}}.",
    )
    lines = prepare(config, byte_tokenizer, tmp_path / "p.jsonl").path.read_text().splitlines()
    assert (
        json.loads(lines[7])["input"]
        == r"<user>Page 7. How many? In \boxed{x}, {y}.</user><assistant>"
    )
    with refused(DataError, "has no column 'page' (data.prompt_template)"):
        load(tmp_path, ROWS, prompt_template="{page} {problem}")


@given(
    st.lists(
        st.one_of(
            st.integers(-99, 99), st.floats(-9, 9), st.text("ab1", min_size=1, max_size=3)
        ),
        min_size=1,
        max_size=8,
    )
)
@settings(max_examples=30, deadline=None)
def test_a_column_orders_the_rows(tmp_path_factory, values):
    """Law: as Python sorts numbers, if all are; else texts; equal ones stay in their order."""
    rows = [ROWS[n] | {"level": {"of": value}} for n, value in enumerate(values)]
    labels = load(tmp_path_factory.mktemp("order"), rows, order="level.of").labels
    try:
        keys = list(map(float, values))
    except ValueError:
        keys = [json.dumps(value).strip('"') for value in values]
    order = sorted(range(len(rows)), key=keys.__getitem__)
    assert [label.problem for label in labels] == [rows[n]["problem"] for n in order]


def test_a_row_without_the_columns_value_and_a_revision_of_a_file_are_refused(tmp_path):
    with refused(DataError, "line 2: data.order is n, and the row has nothing there"):
        load(tmp_path, [ROWS[0] | {"n": 1}, ROWS[1] | {"n": None}], order="n")
    with refused(DataError, "has no column 'm' (data.order)"):
        load(tmp_path, ROWS, order="m")
    with refused(DataError, "data.revision is 'v1', and data.path"):
        load(tmp_path, ROWS, revision="v1")


LFS = ("a.jsonl", "a.csv", "a.parquet", "A.PARQUET", "a.arrow")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.parquet", b"PK\x03\x04", "a zip archive"),
        ("a.arrow", b"PAR1", "is a Parquet file; rename it to end in .parquet"),
        ("a.parquet", b"<!doctype html>", "is a web page"),
        (
            "a.jsonl",
            gzip.compress(b"{}", mtime=0),
            "is packed with gzip; rename it to end in .gz",
        ),
        *(
            (name, b"version https://git-lfs.github.com/spec/v1\n", "a pointer of Git LFS")
            for name in LFS
        ),
        ("a.jsonl", json.dumps(ROWS[0]).encode("utf-16"), "is UTF-16; save it as UTF-8"),
        (
            "a.jsonl",
            json.dumps(ROWS[0]).encode("utf-16-le"),
            "is UTF-16 or UTF-32; save it as UTF-8",
        ),
        ("a.jsonl", b"PAR1", "is a Parquet file; rename it to end in .parquet"),
        ("a.csv", b"problem;answer\n1;2\n", "has ';' between its columns, not ','"),
        (
            "a.json",
            json.dumps({"train": ROWS, "test": ROWS[:2]}).encode(),
            "one object of train, test, each of which holds rows",
        ),
        (
            "a.json",
            json.dumps({str(n): row for n, row in enumerate(ROWS)}).encode(),
            "18, 19 and 20 more, each of which",
        ),
    ],
)
def test_a_strange_file_says_what_it_is(name, content, words, tmp_path, byte_tokenizer):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / name).write_bytes(content)
    for path in (tmp_path / "folder" / name, tmp_path / "folder"):
        if path.is_file() or name.endswith((".parquet", ".arrow")):
            with refused(DataError, words):
                prepare(config_for(str(path)), byte_tokenizer, tmp_path / "p.jsonl")
