"""What the first page shows, and what stops a run there."""

import json
from dataclasses import replace

import pytest

from r3_openrlhf.config import DataConfig, R3Config, RewardConfig
from r3_openrlhf.config.finding import Finding
from r3_openrlhf.method.errors import ConfigError
from r3_openrlhf.method.settings import DistillSettings
from r3_openrlhf.problems.label import Label
from r3_openrlhf.problems.prompts import render
from r3_openrlhf.runs.first_page import Example, FirstPage, make_page, probe
from r3_openrlhf.runs.overview import odd_rows, overview
from tests.families import FAMILIES, load_tokenizer, write_model


def page_of(tmp_path, references, *, name="Qwen2.5-Instruct", distill=None, **model):
    directory = str(write_model(tmp_path / "m", FAMILIES[name], **model))
    tokenizer, data = load_tokenizer(directory), DataConfig()
    labels = [
        Label(uid=f"u{n}", problem=f"Problem {n}?", references=[text], task="math")
        for n, text in enumerate(references)
    ]
    rows = [(label, render(tokenizer, data, label.problem)) for label in labels]
    config = R3Config(
        run_dir="run",
        data=data,
        reward=RewardConfig(num_workers=1, timeout_s=60),
        distill=distill or DistillSettings(),
    )
    start = FirstPage(used=60, left_out={"longer than 90 tokens": 4}, steps=7)
    return make_page(start, config, tokenizer, directory, rows)


def test_what_is_read_and_what_the_grader_says(tmp_path):
    page = page_of(tmp_path, ["72", r"so it is \boxed{3}", "5"])
    first, second, _ = page.examples
    assert first.prompt == "<|im_start|>user\nProblem 0?<|im_end|>\n<|im_start|>assistant\n"
    assert second.read_as == ["3"]
    wrong = (r"\boxed{so it is \boxed{3}}", "wrong")
    assert first.said == [(r"\boxed{72}", "correct"), ("The answer is 72.", "correct"), wrong]
    assert page.findings == []
    page.check()
    text = "\n".join(page.lines())
    assert (
        "64 rows read, 60 used; left out: 4 longer than 90 tokens" in text
        and "Steps      7" in text
    )
    assert "  prompt     <|im_start|>user\n             Problem 0?<|im_end|>\n" in text
    assert json.loads(json.dumps(page.as_dict()))["read"] == 64


def test_the_page_shows_one_teachers_prompt_as_the_model_reads_it(tmp_path):
    assert page_of(tmp_path, ["72"]).teacher == ""
    page = page_of(tmp_path, ["72"], distill=DistillSettings(coef=0.1))
    assert page.teacher.startswith("<|im_start|>user\nProblem 0?\n\nBelow is a solution")
    assert page.teacher.endswith("<|im_end|>\n<|im_start|>assistant\n")
    text = "\n".join(page.lines())
    assert "\n           (a right response of this problem)\n" in text


def test_a_line_that_is_cut_says_so_and_the_rewards_are_not_cut(tmp_path):
    said = (
        " ".join(f"response {n}: wrong, reward 0;" for n in range(9))
        + " an empty response: correct, reward 1"
    )
    example = Example(uid="u", prompt="word " * 40, references=[], read_as=[])
    lines = FirstPage(used=1, rewards=[said], examples=[example]).lines()
    (prompt,) = [line for line in lines if line.startswith("  prompt")]
    assert prompt.endswith("…") and max(map(len, lines)) < 130
    rewards = " ".join(" ".join(lines[-4:]).split())
    assert said in rewards


def test_thinking_that_the_prompt_opens_is_closed_in_the_tries(tmp_path):
    page = page_of(tmp_path, ["72", "3"], name="DeepSeek-R1-Distill-Qwen")
    assert [verdict for _, verdict in page.examples[0].said] == ["correct", "correct", "wrong"]


def test_a_grader_that_pays_no_reference_is_refused(tmp_path):
    page = page_of(tmp_path, ["see solution", "proof"])
    with pytest.raises(
        ConfigError,
        match="pays the reference of 2 of 2 examples neither in a box nor in a sentence",
    ):
        page.check()


def test_a_function_is_asked_with_the_row(tmp_path):
    """One that judges by a reference needs one."""
    (tmp_path / "mine.py").write_text(
        "def level(row): return row['level']\ndef short(response): return -len(response)\ndef right(response, reference): return True\n"
    )

    def probed(function, references):
        label = Label(
            uid="u", problem="P?", references=references, task="math", row={"level": 3}
        )
        return probe(
            RewardConfig(num_workers=1, function=f"{tmp_path}/mine.py:{function}"),
            [(label, "P?")],
        )

    for function, said in (
        ("level", "right: correct, reward 3"),
        ("short", "right: wrong, reward -10"),
    ):
        found = probed(function, ["72"])
        assert said in found.rewards[0] and not any(
            finding.refuses for finding in found.findings
        )
    assert probed("short", []).findings == []
    (finding,) = probed("right", []).findings
    assert (
        finding.refuses
        and "judges by a reference, and the problems have none" in finding.sentence
    )


def test_a_tokenizer_that_loses_spaces_is_refused(tmp_path):
    page = page_of(
        tmp_path,
        ["72", "3"],
        name="DeepSeek-R1-Distill-Llama",
        tokenizer_class="LlamaTokenizerFast",
    )
    assert "Problem0?" in page.examples[0].prompt  # what the model would have read
    with pytest.raises(ConfigError, match="loses spaces"):
        page.check()


def test_a_strangers_text_cannot_write_on_the_terminal():
    page = FirstPage(used=1, findings=[Finding("\x1b[2Jgone\nRefused: all")])
    assert page.lines()[1:] == [r"Warning: \x1b[2Jgone\nRefused: all"]


@pytest.mark.parametrize(
    ("measure", "other"),
    [
        ("characters of the problem", {"problem": "What is 1 plus 1? " * 9}),
        ("characters of the reference", {"references": ["200" * 9]}),
        ("percent letters in the problem", {"problem": "101 + 101 + 202 = ?"}),
        ("percent letters in the reference", {"references": ["two"]}),
        ("references", {"references": ["200"] * 9}),
        ("earlier turns", {"turns": [{"role": "user", "content": "Hello"}] * 9}),
    ],
)
def test_the_row_that_is_least_like_the_others_is_named(measure, other):
    rows = [
        Label(
            uid=f"{i}", problem=f"What is {i} plus {i}?", references=[f"{2 * i}"], task="math"
        )
        for i in range(100, 200)
    ]
    assert odd_rows(rows) == []
    for place in (0, 50, 99):
        changed = [*rows[:place], replace(rows[place], **other), *rows[place + 1 :]]
        assert (
            measure in odd_rows(changed)[0]
            and len(overview(changed, [row.problem for row in rows])) == 5
        )
