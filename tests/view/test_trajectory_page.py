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

from r3_openrlhf.config import AgentsConfig
from r3_openrlhf.config.loading import load_config
from r3_openrlhf.runs.directory import RunDirectory
from r3_openrlhf.runs.step_groups import groups_of
from r3_openrlhf.runs.trajectories import MAX_MEMBERS, explain, trajectories_of
from r3_openrlhf.view.rendering import link
from tests.view.conftest import HOSTILE, axe_faults, script, serving, unpacked


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


def test_advantages_are_those_that_the_step_wrote(run):
    """The groups are made again from the file and the settings: they give every advantage that the trainer wrote."""
    compared = 0
    for step in run.steps():
        for group in groups_of(run.rows(step), step=step):
            played = trajectories_of(group.rows)
            explained = explain(played, run.config.agents)
            assert not explained.differs
            for one in played:
                for t, row in enumerate(one.rows):
                    levels = [level for level in explained.levels[one.place][t] if level.size > 1]
                    total = sum(level.share * level.advantage for level in levels)
                    assert row["advantage"] == pytest.approx(total, abs=1e-6)
                    compared += len(levels)
    assert compared > 100


def test_every_trajectory_opens_with_its_turns_and_their_groups(run, address):
    """Sizes of groups by counting, without the library of groups: equal states, and equal states before."""
    pages = 0
    for step in run.steps():
        for uid in sorted({row["uid"] for row in run.rows(step)}):
            rows = run.rows_with_text(step, uid)
            names = list(dict.fromkeys(row["trajectory"] for row in rows))
            states = {name: [row["state"] for row in rows if row["trajectory"] == name] for name in names}
            places = [(its_states, t) for its_states in states.values() for t in range(len(its_states))]
            contexts = [tuple(its_states[max(0, t - k) : t + 1]) for its_states, t in places for k in range(3)]
            for place, name in enumerate(names):
                html = read(address + link("agent_smoke", "trajectory", step, place, "plain", uid))
                turns, pages = turns_on(html), pages + 1
                mine = [row for row in rows if row["trajectory"] == name]
                assert list(turns) == [row["turn"] for row in mine]
                for t, (row, turn) in enumerate(zip(mine, turns.values(), strict=True)):
                    texts = dict(re.findall(r'class="text (prompt|response)"[^>]*>(.*?)</(?:pre|div)>', turn, re.S))
                    assert unescape(texts["prompt"]) == row["prompt"]
                    assert unescape(texts.get("response", "")) == (row["text"] or "")
                    assert row["state"] in text_of(turn) and (row["answer"] or "none") in text_of(turn)
                    assert ("invalid" in turn) == (not row["valid"])
                    shown = text_of(re.search(r'<b class="advantage[^>]*>(.*?)</b>', turn, re.S)[1])
                    assert float(shown.replace("−", "-")) == pytest.approx(row["advantage"], abs=5.1e-4)
                    sizes = re.findall(r'<tr data-k="(\d)">.*?<td class="r">(\d+)</td>', turn, re.S)
                    assert [(int(k), int(size)) for k, size in sizes] == [
                        (k, contexts[k::3].count(tuple(states[name][max(0, t - k) : t + 1]))) for k in range(3)
                    ]
    assert pages == 64


def test_pages_of_the_run_lead_to_its_trajectories(run, address):
    uid = run.rows(1)[0]["uid"]
    task = link("agent_smoke", "trajectory", 1, 0, "plain", uid)
    assert f'href="{task}"' in read(f"{address}/agent_smoke/step/1")
    group = read(address + link("agent_smoke", "step", 1, "plain", uid))
    names = list(dict.fromkeys(row["trajectory"] for row in run.rows(1) if row["uid"] == uid))
    for row in (row for row in run.rows(1) if row["uid"] == uid):
        of_row = link("agent_smoke", "trajectory", 1, names.index(row["trajectory"]), "plain", uid)
        assert f'href="{of_row}#turn-{row["turn"]}"' in group


def test_a_member_leads_to_its_turn(run, address):
    """Every link among the groups of a page is the address of a turn that is there."""
    uid = run.rows(2)[0]["uid"]
    html = read(address + link("agent_smoke", "trajectory", 2, 0, "plain", uid))
    links = {unescape(one) for cell in re.findall(r'class="members">(.*?)</td>', html) for one in re.findall(r'href="([^"]*)"', cell)}  # fmt: skip
    assert links
    for one in links:
        page, _, turn = one.partition("#")
        assert f'id="{turn}"' in read(address + page)


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


def turn(number, state, reward, following, *, trajectory="0", valid=True, advantage=0.0, uid="t", **other):
    return {
        "step": 1, "uid": uid, "context": "plain", "group": 0, "group_replay": "not_collapsed", "group_ranking": "off", "ranking_reward": None, "verdict": "wrong", "reason": "failure", "outcome_reward": 0.0,
        "reward": following, "ranked": False, "advantage": advantage, "recalled_from": None, "truncated": False, "num_tokens": 2,
        "text": "go", "answer": "go", "prompt": f"Now: {state}", "trajectory": trajectory, "turn": number, "state": state,
        "turn_reward": reward, "step_return": following, "valid": valid,
    } | other  # fmt: skip


SETTINGS = AgentsConfig(estimator="hgpo", depth=1, gamma=1.0, invalid_penalty=0.0)
# of two values that differ; of three of which one does: T, T, -2 T
S, T = 0.5 / (2**-0.5 + 1e-6), 1 / 3 / (3**-0.5 + 1e-6)


def test_groups_by_hand():
    """Trajectory 0: a b a (returns 1 1 1), trajectory 1: b a (returns 0 0), one that was lost.

    k = 0: state a has turns 0.0, 0.2, 1.1 with the mean 2/3, b has 0.1 and 1.0 with the mean 1/2. k = 1: (b, a) are 0.2 and 1.1;
    the others are alone. Weights 1 and 2. Of the episodes: sums 1 and 0.
    """
    rows = [turn(t, state, float(t == 2), 1.0) for t, state in enumerate("aba")]
    rows += [turn(t, state, 0.0, 0.0, trajectory="1") for t, state in enumerate("ba")]
    rows += [turn(0, "a", None, None, trajectory="2", advantage=None, verdict="ungraded", valid=None)]
    played = trajectories_of(rows)
    assert [one.is_lost for one in played] == [False, False, True]
    found = explain(played, SETTINGS)
    first, second, lost = found.levels
    assert [[level.size for level in levels] for levels in first] == [[3, 1], [2, 1], [3, 2]]
    assert [[level.size for level in levels] for levels in second] == [[2, 1], [3, 2]]
    assert [level for levels in lost for level in levels] == []
    assert [(place, turn) for place, _, turn in first[2][0].members] == [(0, 0), (1, 1)]
    assert [(place, turn) for place, _, turn in first[2][1].members] == [(1, 1)] and first[2][1].context == ["b", "a"]
    assert first[2][0].mean == pytest.approx(2 / 3) and first[2][0].advantage == pytest.approx(T)
    assert first[2][1].advantage == pytest.approx(S) and first[1][1].advantage is None
    assert [level.share for level in first[2]] == pytest.approx([1 / 3, 2 / 3])
    assert [level.share for level in first[0]] == [1.0, 0.0]
    plus, minus = [T, S, (T + 2 * S) / 3], [-S, -2 * (T + S) / 3]
    assert found.of_steps == [pytest.approx(plus), pytest.approx(minus), [0.0]]
    assert found.of_episode == pytest.approx([S, -S, 0.0]) and found.episode_weight == 0.0
    assert found.differs  # the rows say 0.0
    for row, value in zip(rows, [*plus, *minus, None], strict=True):
        row["advantage"] = value
    assert not explain(trajectories_of(rows), SETTINGS).differs


def test_a_recalled_trajectory_is_another_one_than_the_fresh_one_of_its_name():
    rows = [turn(0, "a", 0.0, 0.0), turn(0, "a", 1.0, 1.0, recalled_from=3)]
    played = trajectories_of(rows)
    assert [(one.place, one.recalled_from, len(one.rows)) for one in played] == [(0, None, 1), (1, 3, 1)]
    assert [len(levels[0].members) for (levels,) in explain(played, SETTINGS).levels] == [1, 1]
    assert trajectories_of([turn(0, "a", 0, 0) | {"trajectory": None}]) == []  # responses to problems have none


def test_whole_trajectories_have_no_levels():
    rows = [turn(0, "a", 1.0, 1.0), turn(0, "a", 0.0, 0.0, trajectory="1")]
    settings = AgentsConfig(estimator="grpo", invalid_penalty=0.0)
    found = explain(trajectories_of(rows), settings)
    assert found.levels == [[[]], [[]]] and found.of_episode == pytest.approx([S, -S]) and found.episode_weight == 1.0


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """Every text of a turn is hostile, and a group is larger than a page lists."""
    path = tmp_path_factory.mktemp("hostile") / "run"
    directory = RunDirectory(path)
    directory.create(load_config("agent_smoke", [f"run_dir={path}"]))
    rows = []
    for number, text in enumerate(HOSTILE):
        shown = text.replace("\x00", "")
        words = dict(text=shown, answer=shown, prompt=shown, reason=shown, uid="<b>uid</b>")
        rows += [turn(t, shown, 0.0, 0.0, trajectory=f"{number} {shown}", **words) for t in range(2)]
    rows += [turn(t, "same", 0.0, 0.0, uid="many", group=1, trajectory="long") for t in range(MAX_MEMBERS + 3)]
    rows += [turn(0, "same", None, None, uid="lost", group=None, valid=None, verdict="ungraded", reason="timeout", advantage=None, num_tokens=0, text="")]  # fmt: skip
    directory.write_rollouts(1, rows)
    return path


def test_hostile_texts_are_text(page, hostile, tmp_path):
    with serving(hostile, page=page) as address:
        for place, text in enumerate(HOSTILE):
            page.goto(address + link("run", "trajectory", 1, place, "plain", "<b>uid</b>"))
            expected = text.replace("\x00", "").replace("\r\n", "\n").replace("\r", "\n")
            for part in ("response", "prompt", "state", "action"):
                assert page.locator(f"section .{part}").first.text_content() == expected
            found = page.evaluate(script("foreign_elements"))
            nothing = dict.fromkeys(("hacked", "refused")) | dict.fromkeys(
                ("scripts", "elements", "handlers", "forms"), 0
            )
            nothing["links"] = []
            assert {key: found[key] for key in nothing} == nothing


def test_a_large_group_and_a_lost_trajectory(hostile, tmp_path):
    with serving(hostile) as address:
        html = read(f"{address}/run/trajectory/1/0/plain/many")
        first = turns_on(html)[0]
        assert f'<td class="r">{MAX_MEMBERS + 3}</td>' in first and "and 2 more" in text_of(first)
        html = read(f"{address}/run/trajectory/1/0/plain/lost")
        assert "lost: no rewards" in html and "was lost (timeout)" in html and "levels" not in turns_on(html)[0]
        (hostile / "config.yaml").rename(hostile / "config.moved")
        try:
            html = read(f"{address}/run/trajectory/1/0/plain/many")
        finally:
            (hostile / "config.moved").rename(hostile / "config.yaml")
        assert "which this version cannot read" in html and '<table class="facts levels">' not in html
