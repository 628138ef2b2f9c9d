"""The table with which docs/rewards.md begins: each verdict is the grader's."""

import re

import pytest

from r3_openrlhf import grade
from tests.docs.pages import DOCS

ROW = re.compile(r"\| `(.+?)` \| `(.+?)` \| (correct|wrong|ungraded) \| (?:`(\w+)`)?.* ?\|")
ROWS = [
    match.groups()
    for line in (DOCS / "rewards.md").read_text().splitlines()
    if (match := ROW.fullmatch(line))
]


@pytest.mark.parametrize(("response", "reference", "verdict", "reason"), ROWS)
def test_the_verdict_is_what_the_page_says(response, reference, verdict, reason):
    graded = grade(response, reference)
    assert (graded.verdict, graded.reason if reason else None) == (verdict, reason)


def test_the_table_is_read_and_a_copy_of_the_problem_is_wrong():
    assert len(ROWS) == 21
    assert grade(r"\boxed{12-5}", "7", problem="What is 12-5?").reason == "restated"
