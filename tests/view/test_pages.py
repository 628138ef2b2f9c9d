"""What stands on the pages of a run, and that every control does what it says."""

import json
import math
import re
from urllib.parse import urlsplit

import pyarrow.parquet as pq
import pytest

from r3_openrlhf.config.loading import load_config
from r3_openrlhf.runs.directory import RunDirectory
from r3_openrlhf.runs.group_report import step_groups
from tests.view.charts import all_drawn, shown
from tests.view.conftest import wait_for_counts

STEP = 7


@pytest.fixture(scope="module")
def rows(story):
    return pq.read_table(story / "rollouts" / f"step_{STEP:06d}.parquet").to_pylist()


@pytest.fixture
def step(page, server):
    page.goto(f"{server}/story/step/{STEP}")
    return page


def group_of(address):
    context, uid = address.split("/")[-2:]
    return uid, context


def first_chart(page):
    """Its area, once all eight steps are counted and all charts are drawn: until then a page draws its charts anew."""
    wait_for_counts(page, 8)
    return page.locator(".chart .u-over").first


def test_the_curves_are_drawn(page, server, story):
    """They say their values under the mouse, zoom, and keep what is chosen in the address."""
    page.goto(server)
    assert page.url == f"{server}/story"
    area = first_chart(page)
    titles = page.locator(".chart figcaption").all_text_contents()
    for title in (
        "Reward",
        "Accuracy",
        "Collapsed groups",
        "Age of the recalled",
        "Tokens by kind of group",
    ):
        assert any(one.startswith(title) for one in titles), title
    rewards = [
        json.loads(line)["reward_mean"]
        for line in (story / "metrics.jsonl").read_text().splitlines()
    ]
    said = page.locator(".chart li b").first
    # without a mouse: the newest
    assert float(said.text_content()) == pytest.approx(rewards[-1], rel=5e-3)
    box = area.bounding_box()
    for number in (2, 5):
        area.hover(position={"x": 1 + (box["width"] - 2) * number / 7, "y": 40})
        assert float(said.text_content()) == pytest.approx(rewards[number], rel=5e-3)
    page.mouse.move(box["x"] + 30, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + 130, box["y"] + 60, steps=4)
    page.mouse.up()
    page.locator("#unzoom").wait_for(state="visible")
    page.locator("#unzoom").click()
    assert page.locator("#unzoom").is_hidden()
    names = ("generated tokens", "log scale", "smooth")
    for name in names:
        page.get_by_role("button", name=name).click()
    page.wait_for_url(
        lambda url: set(urlsplit(url).query.split("&")) == {"x=tokens", "log=1", "smooth=1"}
    )
    page.reload()
    for name in names:
        assert page.get_by_role("button", name=name).get_attribute("aria-pressed") == "true"
    all_drawn(page)


NEVER_IDLE = """window.requestIdleCallback = (act, { timeout } = {}) =>
  timeout && setTimeout(() => act({ didTimeout: true, timeRemaining: () => 0 }), timeout)"""


def test_a_browser_that_is_never_idle_shows_everything_all_the_same(page, server, rows):
    """A Chromium without windows drew eight of 26 charts and waited for ever."""
    page.add_init_script(NEVER_IDLE)
    page.goto(f"{server}/story")
    first_chart(page)
    all_drawn(page)
    page.goto(f"{server}/story/step/{STEP}/plain/{rows[0]['uid']}")
    page.locator("html[data-laid-out]").wait_for()
    page.locator(".statement .katex").first.wait_for()


def test_a_point_leads_to_its_step_on_either_axis(page, server, story):
    """Also of curves that were zoomed: what is chosen stands in the address."""
    lines = [json.loads(line) for line in (story / "metrics.jsonl").read_text().splitlines()]
    of_tokens = [
        (query, "generated_tokens_total") for query in ("?x=tokens", "?x=tokens&log=1")
    ]
    for query, key in (("", "step"), *of_tokens):
        for number in (1, 4, 6):
            page.goto(f"{server}/story{query}")
            area = first_chart(page)
            begin, end = lines[0][key], lines[-1][key]
            share = (lines[number][key] - begin) / (end - begin)
            area.click(position={"x": 1 + (area.bounding_box()["width"] - 2) * share, "y": 60})
            page.wait_for_url(f"{server}/story/step/{number + 1}")
    page.goto(f"{server}/story?from=2&to=4")
    area = first_chart(page)
    assert page.locator("#unzoom").is_visible()
    area.click(position={"x": area.bounding_box()["width"] / 2, "y": 60})
    page.wait_for_url(f"{server}/story/step/3")


def test_a_step_shows_the_groups_of_its_file(step, story, rows):
    expected = step_groups(RunDirectory(story), step=STEP)  # what `r3 show` says
    assert [group_of(address) for address in shown(step)] == [
        (one["uid"], one["context"]) for one in expected
    ]
    for line, one in zip(step.locator("#groups tbody tr").all(), expected, strict=True):
        chips = line.locator(".chip")
        assert chips.count() == one["rows"]
        assert line.locator(".chip.recalled").count() == one["recalled"]
        assert line.locator(".chip.ranked").count() == one["ranked"]
        assert line.locator(".chip.correct:not(.recalled)").count() == one["correct"]
    shares = [
        float(text.removesuffix(" %"))
        for text in step.locator("#groups td.share").all_text_contents()
    ]
    total = sum(one["sum |advantage|"] for one in expected)
    assert shares == pytest.approx(
        [100 * one["sum |advantage|"] / total for one in expected], abs=0.051
    )


FILTERS = {
    "mixed": lambda fresh, old: {"correct", "wrong"} <= {row["verdict"] for row in fresh},
    "all wrong": lambda fresh, old: not any(row["verdict"] == "correct" for row in fresh),
    "all wrong, nothing recalled": lambda fresh, old: (
        not old and not any(r["verdict"] == "correct" for r in fresh)
    ),
    "recalled": lambda fresh, old: bool(old),
    "recalled older than": lambda fresh, old: any(
        STEP - row["recalled_from"] > 3 for row in old
    ),
    "right in under": lambda fresh, old: any(
        r["verdict"] == "correct" and r["num_tokens"] < 60 for r in fresh
    ),
    "ungraded": lambda fresh, old: any(row["verdict"] == "ungraded" for row in fresh),
    "cut": lambda fresh, old: any(row["truncated"] for row in fresh),
    "ranked": lambda fresh, old: any(row["ranked"] for row in fresh),
    "reflection": lambda fresh, old: fresh[0]["context"] == "reflection",
}


def test_filters_and_columns(step, rows):
    """A filter shows the groups that it names, also when the page is loaded again; columns sort."""
    groups = {}
    for row in rows:
        groups.setdefault((row["uid"], row["context"]), []).append(row)
    fresh = {
        key: [row for row in found if row["recalled_from"] is None]
        for key, found in groups.items()
    }
    old = {
        key: [row for row in found if row["recalled_from"] is not None]
        for key, found in groups.items()
    }
    for name, fits in FILTERS.items():
        step.locator("#older").fill("3")  # a page that is loaded again has its own numbers
        step.locator("#short").fill("60")
        expected = {key for key in groups if fits(fresh[key], old[key])}
        button = step.get_by_role("button", name=name, exact=True)
        button.click()
        assert {group_of(address) for address in shown(step)} == expected, name
        assert step.locator("#shown").text_content() == str(len(expected))
        if name == "recalled older than":
            before = shown(step)
            step.reload()  # the filter stands in the address
            assert shown(step) == before
        button.click()
    step.locator("th[data-sort=tokens] button").click()
    means = {
        key: sum(row["num_tokens"] for row in found) / len(found)
        for key, found in fresh.items()
    }
    assert [means[group_of(address)] for address in shown(step)] == sorted(
        means.values(), reverse=True
    )
    assert step.locator("th[data-sort=tokens]").get_attribute("aria-sort") == "descending"


def test_a_group_shows_what_its_rows_say(page, server, story, rows):
    uid = next(
        row["uid"]
        for row in rows
        if row["recalled_from"] is not None and row["context"] == "plain"
    )
    page.goto(f"{server}/story/step/{STEP}/plain/{uid}")
    mine = [row for row in rows if row["uid"] == uid and row["context"] == "plain"]
    cards = page.locator("article.card")
    assert cards.count() == len(mine)
    for place, row in enumerate(mine):
        card = page.locator(f"article[data-place='{place}']")
        words = " ".join(card.text_content().split())
        assert {"correct": "right", "wrong": "wrong", "ungraded": "ungraded"}[
            row["verdict"]
        ] in words
        if row["verdict"] == "ungraded":
            assert "no reward" in words and "left out" in words
            continue
        assert f"{row['advantage']:+.3f}".replace("-", "−") in words
        parts = re.findall(r"([+−]?\d\.\d+) (?:verdict|length|ranking|centring)", words)
        assert sum(float(part.replace("−", "-")) for part in parts) == pytest.approx(
            row["reward"], abs=2e-3
        )
        if row["recalled_from"] is not None:
            link = card.locator("a.recalled")
            assert link.text_content().startswith(
                f"recalled from step {row['recalled_from']}, "
            )
            assert page.request.get(server + link.get_attribute("href")).status == 200
            # the grader's, from the file of that step
            boxed = re.findall(r"boxed\{(-?\d+)\}", row["text"])
            answer = card.locator("dt:text-is('answer') + dd").text_content().replace("−", "-")
            assert boxed[-1] in answer if boxed else "none found" in answer
    page.locator(".statement .katex").first.wait_for()
    page.get_by_text("The prompt as the model saw it").click()
    prompt = page.locator("details pre").first.text_content()
    assert prompt.startswith("<|user|>") and prompt.endswith("<|assistant|>")


def test_a_reflection_group_shows_the_stored_attempt(page, server, rows):
    uid = next(row["uid"] for row in rows if row["context"] == "reflection")
    page.goto(f"{server}/story/step/{STEP}/reflection/{uid}")
    attempt = page.locator("details[open] pre.attempt").text_content()
    page.get_by_text("The prompt as the model saw it").click()
    assert attempt and attempt in page.locator("details").first.text_content()
    assert "earlier attempt begins" not in attempt


def test_tokens_have_the_values_of_the_history(page, server, story, rows):
    from r3_openrlhf.method.history.numbers import sampled_in

    place, row = next((i, row) for i, row in enumerate(rows) if row["verdict"] != "ungraded")
    stored = sampled_in(story / "history.sqlite", row["uid"], step=STEP)
    page.goto(f"{server}/story/tokens/{STEP}/{place}/plain/{row['uid']}")
    page.locator("#heat").focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    said = page.locator("#token-said").text_content()
    number, logprob = int(said.split()[0]), float(re.search(r"log-prob (-?[\d.]+)", said)[1])
    values = [
        one.rollout.response_logprobs[number]
        for one in stored
        if one.rollout.num_tokens == row["num_tokens"]
    ]
    assert any(logprob == pytest.approx(value, abs=1e-4) for value in values)
    page.locator("#heat span span").nth(7).hover()
    assert "log-prob" in page.locator("#token-said").text_content()
    assert row["text"].strip() in page.locator("#heat").text_content()


def test_order_and_colour_of_a_group_stand_in_the_address(page, server, rows):
    page.goto(f"{server}/story/step/{STEP}/plain/{rows[0]['uid']}")
    page.locator("[data-order=tokens]").click()
    page.locator("button[data-verdict=wrong]").click()
    page.locator("[data-heat=logprob]").click()
    page.wait_for_url("**?order=tokens&verdict=wrong&heat=logprob")
    page.reload()
    page.locator("#cards .card:visible .response .h0").first.wait_for()
    lengths = [
        int(card.get_attribute("data-tokens"))
        for card in page.locator("#cards .card:visible").all()
    ]
    mine = [row for row in rows if row["uid"] == rows[0]["uid"] and row["context"] == "plain"]
    assert lengths == sorted(row["num_tokens"] for row in mine if row["verdict"] == "wrong")
    page.locator("#render-math").click()  # the texts as they are
    page.locator("[data-heat='']").click()
    page.locator("#cards .heat").first.wait_for(state="detached")
    assert page.locator("#cards .card:visible .response").first.text_content() in {
        row["text"] for row in mine
    }


def test_underlined_are_the_peak_and_what_is_clipped(page, server, story, rows):
    """As many tokens as METHOD says make the peak entropy; of a recalled row those whose ratio leaves the clip range."""
    config = load_config("cpu_smoke", [])
    ranked = next(row for row in rows if row["ranked"])
    old = next(
        row for row in rows if row["recalled_from"] is not None and row["context"] == "plain"
    )
    for row, kind in ((ranked, "entropy"), (old, "ratio")):
        mine = [
            one for one in rows if (one["uid"], one["context"]) == (row["uid"], row["context"])
        ]
        page.goto(
            f"{server}/story/tokens/{STEP}/{mine.index(row)}/{row['context']}/{row['uid']}"
        )
        page.locator(f"[data-heat={kind}]").click()
        if kind == "entropy":
            expected = max(1, int(config.ranking.peak_fraction * row["num_tokens"]))
        else:
            ratios = [
                math.exp(b - a)
                for a, b in zip(row["token_logprob"], row["token_policy_logprob"], strict=True)
            ]
            low, high = 1 - config.train.eps_clip_low, 1 + config.train.eps_clip_high
            expected = sum(not low <= ratio <= high for ratio in ratios)
            assert page.locator(".scale > span").all_text_contents() == [
                "ratio 1",
                "far from it",
            ]
        found = page.locator("#heat .peak").count()
        # float16 may lie on either side of a bound
        assert found > 0 and abs(found - expected) <= (kind == "ratio")


def test_keys(page, server):
    page.goto(f"{server}/story/step/{STEP}")
    page.keyboard.press("j")
    page.keyboard.press("j")
    second = page.locator("#groups tbody tr").nth(1).locator("a").get_attribute("href")
    assert page.evaluate("document.activeElement.getAttribute('href')") == second
    page.keyboard.press("Enter")
    page.wait_for_url(server + second)
    page.keyboard.press("u")
    page.wait_for_url(f"{server}/story/step/{STEP}")
    page.keyboard.press("n")
    page.wait_for_url(f"{server}/story/step/{STEP + 1}")
    page.keyboard.press("?")
    assert page.locator("#help").is_visible()
    page.keyboard.press("Escape")
    theme = page.evaluate("document.documentElement.dataset.theme")
    page.keyboard.press("t")
    assert page.evaluate("document.documentElement.dataset.theme") != theme
