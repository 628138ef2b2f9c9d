"""A run of full size in a browser: 945 steps on the curves, steps of 128 problems x 16 rollouts, a group of 18 responses of 8,192
tokens. The steps between have two problems each, with responses of 512 tokens (benchmarks/_synthetic_run.py), so that it is made in seconds."""

import sys
from pathlib import Path

import pytest

from r3_openrlhf.runs.rollout_files import read_step
from tests.view.charts import all_drawn
from tests.view.conftest import serving

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from _synthetic_run import RECALLED, Size, SyntheticRun  # noqa: E402

pytestmark = pytest.mark.slow
SIZE = Size(few_problems=2, few_tokens=16)
MOST = SIZE.max_tokens
PATIENCE_MS = 1_200_000  # 945 steps are counted


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    run = SyntheticRun(tmp_path_factory.mktemp("full") / "full", SIZE)
    for _ in range(SIZE.steps):
        run.write()
    return run.run


@pytest.fixture(scope="module")
def address(run, tmp_path_factory):
    with serving(run.path) as address:
        yield f"{address}/full"


@pytest.fixture(scope="module")
def rows(run):
    found = list(
        read_step(run.rollouts / f"step_{SIZE.steps:06d}.parquet", without=("text", "prompt"))
    )
    assert len(found) >= SIZE.problems * SIZE.samples
    return found


@pytest.fixture
def page(page):
    page.set_default_timeout(PATIENCE_MS)
    return page


def test_the_curves_of_945_steps(page, address):
    page.goto(address)
    # counted, and drawn with the counts
    page.locator(f"#charts[data-seen='{SIZE.steps}']").wait_for()
    all_drawn(page)
    assert page.locator("[data-live-step]").text_content() == f"{SIZE.steps:,}"
    box = page.locator(".chart .u-over").first.bounding_box()
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + 40)
    page.wait_for_url("**/step/*")
    steps_a_pixel = SIZE.steps / box["width"]
    assert int(page.url.rsplit("/", 1)[1]) == pytest.approx(
        SIZE.steps / 2, abs=2 * steps_a_pixel + 1
    )


def test_a_group_of_18_full_responses_and_its_tokens(page, address, rows):
    """Recalled rows have log-probs of the history and ratios; ranked ones entropies. All of them come into view and are coloured."""
    mine = [row for row in rows if row["group"] == 0]
    assert len(mine) == SIZE.samples + RECALLED and all(
        row["num_tokens"] >= MOST - 2 for row in mine
    )
    page.goto(f"{address}/step/{SIZE.steps}/plain/{mine[0]['uid']}")
    cards = page.locator("#cards .card")
    assert cards.count() == len(mine)
    assert page.locator("#cards .card.recalled").count() == RECALLED
    assert len(page.locator("#cards .response").nth(5).text_content()) >= 4 * (MOST - 2)
    response = cards.nth(3).locator(".response")
    response.hover()  # what is out of its box is laid out when somebody wants it
    assert response.locator(".later").count() == 0
    assert response.evaluate("box => box.scrollHeight > 10 * box.clientHeight")
    for kind, wanted in (
        ("entropy", ".card:not(.recalled)"),
        ("ratio", ".card.recalled"),
        ("logprob", ".card"),
    ):
        page.locator(f"[data-heat={kind}]").click()
        for card in page.locator(f"#cards {wanted}").all():
            card.scroll_into_view_if_needed()
            card.locator(".heat span span").nth(200).wait_for(state="attached")
    page.reload()  # the colour stands in the address
    page.locator("#cards .card.recalled").first.scroll_into_view_if_needed()
    page.locator("#cards .card.recalled .heat span span").nth(200).wait_for(state="attached")
    tokens = page.locator("#cards .card.recalled .heat").first
    assert len(tokens.text_content()) >= 4 * (MOST - 2)
    tokens.locator("span span").nth(3).hover()
    said = page.locator("#token-said").text_content()
    assert "log-prob -" in said and "ratio " in said
