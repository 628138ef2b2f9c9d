"""The list of problems: its numbers are those of the steps, and what it says to look at."""

import json
import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from r3_openrlhf.runs.step_groups import groups_of
from r3_openrlhf.view.problems_page import SHORT, suspicions
from r3_openrlhf.view.run_reader import RunReader
from tests.view.conftest import axe_faults, follow


def row(uid="u", verdict="wrong", tokens=100, answer="1", tail=""):
    return {
        "uid": uid,
        "verdict": verdict,
        "num_tokens": tokens,
        "answer": answer,
        "tail": tail,
        "step": 1,
    }


def test_reasons_by_hand():
    rows = [
        row("a", tail="It is 7.\nSo \\boxed{17} or 7"),
        row("b", tail="7 first\nSo the answer is 17"),
        row("c", "correct", tokens=5, answer="3"),
        *(row(f"d{n}", "correct", tokens=100, answer="3") for n in range(3)),
        row("e", "correct", answer="2"),
        row("e", "wrong", answer="2"),
        row("f", "ungraded", answer="2"),
        row("f", "wrong", answer="2"),
    ]
    references = {"a": ["7"], "b": ["7"], "e": ["9"]}
    assert {uid: list(reasons) for uid, reasons in suspicions(rows, references).items()} == {
        "a": ["wrong, and the reference is in its last line"],
        "c": ["right in very few tokens"],
        "e": ["equal answers, different verdicts"],
    }


WORDS = st.text(alphabet="abc17 .,{}\\", min_size=1, max_size=6).filter(str.strip)
ROWS = st.lists(
    st.builds(
        row,
        st.sampled_from("ab"),
        st.sampled_from(("correct", "wrong", "ungraded")),
        st.integers(1, 999),
        WORDS,
        WORDS,
    ),
    max_size=12,
)


@given(ROWS, WORDS)
def test_reasons_hold_for_their_row_and_the_order_of_rows_says_nothing(rows, reference):
    found, turned = (suspicions(some, {"a": [reference]}) for some in (rows, rows[::-1]))
    assert {uid: set(reasons) for uid, reasons in found.items()} == {
        u: set(reasons) for u, reasons in turned.items()
    }
    right = sorted(one["num_tokens"] for one in rows if one["verdict"] == "correct")
    for uid, reasons in found.items():
        for reason, one in reasons.items():
            same = {
                each["verdict"]
                for each in rows
                if (each["uid"], each["answer"]) == (uid, one["answer"])
            }
            assert (
                one["uid"] == uid
                and {
                    "wrong": one["verdict"] == "wrong"
                    and uid == "a"
                    and reference.strip() in one["tail"],
                    "right": bool(right)
                    and one["num_tokens"] * SHORT <= right[len(right) // 2],
                    "equal": {"correct", "wrong"} <= same,
                }[reason[:5]]
            )


@pytest.fixture(scope="module")
def groups(story):
    run = RunReader(story, name="story")
    return [
        (step, group) for step in run.steps() for group in groups_of(run.rows(step), step=step)
    ]


def test_the_numbers_are_those_of_the_steps(page, server, groups):
    page.goto(f"{server}/story")
    follow(page, page.get_by_role("link", name="Problems", exact=True), "**/story/problems")
    plain = {}
    for step, group in groups:
        if group.context == "plain":
            plain.setdefault(group.uid, []).append((step, group))
    lines = page.locator("#groups tbody tr").all()
    assert len(lines) == len(plain)
    for line in lines:
        visits = plain[line.get_attribute("data-uid")]
        shares = [
            group.num_correct / group.num_graded for _, group in visits if group.num_graded
        ]
        last = max((step for step, group in visits if group.num_correct), default=None)
        fates = Counter(group.fate for _, group in visits if group.fate)
        cells = line.locator("td").all_text_contents()
        assert cells[:4] == [
            str(len(visits)),
            f"{100 * shares[0]:.0f} %",
            f"{100 * shares[-1]:.0f} %",
            f"step {last}" if last else "never",
        ]
        assert line.locator(".fate").evaluate_all(
            "all => all.map(one => one.dataset.fate)"
        ) == sorted(fates)
        assert re.findall(r"(\d+)×", cells[4]) == [
            str(n) for _, n in sorted(fates.items()) if n > 1
        ]
    page.locator("th[data-sort=right] button").click()
    values = [
        float(line.get_attribute("data-right"))
        for line in page.locator("#groups tbody tr").all()
    ]
    assert values == sorted(values, reverse=True)
    assert axe_faults(page) == []


def test_what_is_marked_stays_and_what_is_shown_is_exported(page, server):
    page.goto(f"{server}/story/problems")
    first = page.locator("#groups tbody tr").nth(2)
    uid = first.get_attribute("data-uid")
    first.locator("input").check()
    page.reload()
    page.get_by_role("button", name="marked", exact=True).click()
    assert page.locator("#shown").text_content() == "1"
    with page.expect_download() as download:
        page.get_by_role("button", name="Export what is shown").click()
    (line,) = [json.loads(text) for text in download.value.path().read_text().splitlines()]
    assert (
        line["uid"] == uid and line["marked"] is True and line["problem"] and line["visits"] > 0
    )
    page.get_by_role("button", name="marked", exact=True).click()
    page.get_by_role("button", name="suspicious", exact=True).click()
    for link in page.locator("#groups tbody tr:not([hidden]) a.tag").all()[:3]:
        step = page.request.get(f"{server}{link.get_attribute('href')}")
        assert step.status == 200
