"""Trajectories turn by turn: of a run of the whole stack, as it was left by

    r3 train experiment=agent_smoke run_dir=runs/agent_smoke train.max_steps=2
    tar cJf agent_smoke.tar.xz config.yaml metrics.jsonl rollouts data

and of rows that were made by hand.
"""

import re
from html import unescape
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from r3_openrlhf.config.loading import load_config
from r3_openrlhf.runs.directory import RunDirectory
from r3_openrlhf.view.rendering import link
from tests.runs.records import rollout
from tests.view.conftest import axe_faults, serving, unpacked


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return unpacked("agent_smoke", tmp_path_factory.mktemp("real") / "agent_smoke")


@pytest.fixture(scope="module")
def address(run, tmp_path_factory):
    with serving(run.path) as address:
        yield address


def read(address):
    with urlopen(address) as answer:
        return answer.read().decode()


def text_of(html):
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", html)).split())


def turns_on(html):
    """number -> the HTML of the turn."""
    parts = re.split(r'<section class="card [^"]*" id="turn-(\d+)"', html)
    return {int(number): part for number, part in zip(parts[1::2], parts[2::2], strict=True)}


# ── a run of the whole stack ──


def test_every_trajectory_opens_with_its_turns(run, address):
    pages = 0
    for step in run.steps():
        for uid in sorted({row["uid"] for row in run.rows(step)}):
            rows = run.rows_with_text(step, uid)
            names = list(dict.fromkeys(row["trajectory"] for row in rows))
            for place, name in enumerate(names):
                html = read(
                    address + link("agent_smoke", "trajectory", step, place, "plain", uid)
                )
                turns, pages = turns_on(html), pages + 1
                mine = [row for row in rows if row["trajectory"] == name]
                assert list(turns) == [row["turn"] for row in mine]
                for row, turn in zip(mine, turns.values(), strict=True):
                    texts = dict(
                        re.findall(
                            r'class="text (prompt|response)"[^>]*>(.*?)</(?:pre|div)>',
                            turn,
                            re.S,
                        )
                    )
                    assert unescape(texts["prompt"]) == row["prompt"]
                    assert unescape(texts.get("response", "")) == (row["text"] or "")
                    assert row["state"] in text_of(turn) and (
                        row["answer"] or "none"
                    ) in text_of(turn)
                    assert ("invalid" in turn) == (not row["valid"])
                    shown = text_of(
                        re.search(r'<b class="advantage[^>]*>(.*?)</b>', turn, re.S)[1]
                    )
                    assert float(shown.replace("−", "-")) == pytest.approx(
                        row["advantage"], abs=5.1e-4
                    )
    assert pages == 64


def test_pages_of_the_run_lead_to_its_trajectories(run, address):
    uid = run.rows(1)[0]["uid"]
    task = link("agent_smoke", "trajectory", 1, 0, "plain", uid)
    assert f'href="{task}"' in read(f"{address}/agent_smoke/step/1")
    group = read(address + link("agent_smoke", "step", 1, "plain", uid))
    names = list(dict.fromkeys(row["trajectory"] for row in run.rows(1) if row["uid"] == uid))
    for row in (row for row in run.rows(1) if row["uid"] == uid):
        of_row = link(
            "agent_smoke", "trajectory", 1, names.index(row["trajectory"]), "plain", uid
        )
        assert f'href="{of_row}#turn-{row["turn"]}"' in group


def test_axe_and_the_console_find_no_fault(page, run, address):
    uid = run.rows(1)[0]["uid"]
    page.goto(address + link("agent_smoke", "trajectory", 1, 1, "plain", uid))
    assert axe_faults(page) == []
    page.keyboard.press("p")
    page.wait_for_url("**/trajectory/1/0/plain/**")


@pytest.mark.parametrize(
    ("tail", "says"),
    [
        ("1/4/plain/UID", "has trajectories 0 to 3, and no 4"),
        ("1/x/plain/UID", "There is no page"),
        ("9/0/plain/UID", "has no rollouts of step 9"),
        ("1/0/reflection/UID", "has no reflection group"),
    ],
)
def test_a_page_that_is_not_there_is_a_sentence(run, address, tail, says):
    uid = run.rows(1)[0]["uid"]
    with pytest.raises(HTTPError) as refused:
        read(f"{address}/agent_smoke/trajectory/{tail.replace('UID', uid.replace('/', '%2F'))}")
    assert refused.value.code in (404, 422) and says in unescape(refused.value.read().decode())


# ── by hand ──


def test_a_lost_trajectory(tmp_path):
    directory = RunDirectory(tmp_path / "run")
    directory.create(load_config("agent_smoke", [f"run_dir={directory.path}"]))
    words = dict.fromkeys(("text", "answer", "prompt", "state"), "go")
    place = {
        "trajectory": "0",
        "turn": 0,
        "turn_reward": None,
        "step_return": None,
        "valid": None,
    }
    lost = {
        "verdict": "ungraded",
        "reason": "timeout",
        "num_tokens": 0,
        "reward": None,
        "advantage": None,
    }
    directory.write_rollouts(1, [rollout(uid="lost", group=None, **words, **place) | lost])
    with serving(directory.path) as address:
        html = read(f"{address}/run/trajectory/1/0/plain/lost")
        assert "lost: no rewards" in html and "was lost (timeout)" in html
