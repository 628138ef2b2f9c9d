"""Search, the history of a problem, evaluations, several runs; who may read; a run that continues."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from urllib.error import HTTPError
from urllib.request import HTTPCookieProcessor, Request, build_opener, urlopen

import numpy as np
import pyarrow.parquet as pq
import pytest

from r3_openrlhf.runs import lock
from r3_openrlhf.runs.directory import RunDirectory
from r3_openrlhf.runs.effect import effect_of
from r3_openrlhf.runs.report import quarter_means
from tests.commands import r3
from tests.view.charts import all_drawn, shown
from tests.view.conftest import (
    PATIENCE_MS,
    axe_faults,
    follow,
    script,
    serving,
    wait_for_counts,
)
from tests.view.evaluations import SAMPLES, SURROGATE, write_evaluation
from tests.view.story import Story


def rows_of(story, step):
    return pq.read_table(story / "rollouts" / f"step_{step:06d}.parquet").to_pylist()


@pytest.fixture(scope="module")
def evaluations(tmp_path_factory):
    directory = tmp_path_factory.mktemp("evaluations")
    return directory, {
        name: write_evaluation(directory / name, skill=skill, seed=seed, num_problems=12)
        for name, skill, seed in (("base", 0.35, 1), ("trained", 0.65, 2))
    }


@pytest.fixture(scope="module")
def many(story, evaluations, tmp_path_factory):
    """A server of a copy of the run, a run without rollouts as the lab's are, and two evaluations."""
    directory = tmp_path_factory.mktemp("many")
    shutil.copytree(story, directory / "copied")
    (directory / "lab").mkdir()
    for name in ("config.yaml", "metrics.jsonl", "evaluations.jsonl"):
        shutil.copy(story / name, directory / "lab")
    with serving(directory, evaluations[0]) as address:
        yield address


# ── search and problems ──


def test_a_search_finds_what_the_files_say_and_leads_there(page, server, story):
    page.goto(server)
    page.keyboard.press("/")
    page.keyboard.type("symmetry complement")
    page.keyboard.press("Enter")
    page.wait_for_url("**/search?q=*")
    texts = [row["text"] for step in range(1, 9) for row in rows_of(story, step)]
    expected = sum(
        all(re.search(word, text, re.I) for word in ("symmetry", "complement"))
        for text in texts
    )
    told = page.locator("main h2").last.text_content().split()
    assert int(told[0]) == min(expected, 30) > 0 and ("more" in told) == (expected > 30)
    first = page.locator(".hits li").first
    assert {text.lower() for text in first.locator("mark").all_text_contents()} <= {
        "symmetry",
        "complement",
    }
    page.select_option("[name=verdict]", "ungraded")
    follow(page, page.get_by_role("button", name="Search"), "**verdict=ungraded*")
    assert all(
        "ungraded" in text for text in page.locator(".hits li > span.faint").all_text_contents()
    )
    page.goto(f"{server}/search?q=symmetry&first_step=many")
    assert (
        page.locator("[role=alert]").text_content()
        == "first step is 'many'; use a whole number"
    )
    page.goto(f"{server}/search?q=symmetry")
    follow(page, page.locator(".hits li").nth(3).locator("a"), "**/step/**")
    assert "symmetry" in page.locator(".card:target").text_content().lower()


def test_the_life_of_a_problem_in_two_runs(page, story, tmp_path):
    """Every group with its numbers, of a recalled problem; the second run has other responses to it."""
    with Story(tmp_path / "runs" / "other", num_problems=20, seed=3) as other:
        for _ in range(4):
            other.step()
    shutil.copytree(story, tmp_path / "runs" / "one")
    uid = next(
        row["uid"]
        for step in range(1, 5)
        for row in rows_of(story, step)
        if row["recalled_from"] is not None
    )
    with serving(tmp_path / "runs", page=page) as address:
        page.goto(f"{address}/one/problem/{uid}")
        heads = page.locator("main section h2").all_text_contents()
        assert [head.partition(":")[0] for head in heads] == ["one", "other"]
        for section, run in zip(
            page.locator("main section").all(),
            (story, tmp_path / "runs" / "other"),
            strict=True,
        ):
            steps = range(1, 1 + len(list((run / "rollouts").iterdir())))
            rows = [row for step in steps for row in rows_of(run, step) if row["uid"] == uid]
            groups = sorted({(row["step"], row["context"]) for row in rows})
            assert section.locator("svg .dot").count() == len(groups)
            lines = section.locator("table.groups tbody tr").all()
            for line, (step, context) in zip(lines, groups, strict=True):
                of_group = [
                    row for row in rows if (row["step"], row["context"]) == (step, context)
                ]
                fresh = [
                    row["verdict"] == "correct"
                    for row in of_group
                    if row["recalled_from"] is None
                ]
                cells = line.locator("td")
                assert cells.nth(2).text_content() == f"{sum(fresh)}/{len(fresh)}"
                sources = {
                    row["recalled_from"] for row in of_group if row["recalled_from"] is not None
                }
                assert [
                    int(text) for text in cells.nth(5).locator("a").all_text_contents()
                ] == sorted(sources)
                joined = (
                    {row["step"] for row in rows if row["recalled_from"] == step}
                    if context == "plain"
                    else ()
                )
                assert [
                    int(text) for text in cells.nth(6).locator("a").all_text_contents()
                ] == sorted(joined)


# ── several runs and evaluations ──


def test_did_it_help(page, server, story):
    """The sentences on top of a run are those of `r3 show --effect`, and each leads to what it was made of."""
    effect = effect_of(RunDirectory.open(story))
    page.goto(f"{server}/story")
    page.locator("#effect a").first.wait_for()
    assert (
        page.locator("#effect a").all_text_contents() == effect.sentences()
        and len(effect.sentences()) >= 3
    )
    follow(page, page.locator("#effect a").nth(1), "**/story/effect#groups")
    said = page.locator("main ul.plain li").all_text_contents()
    assert said == effect.sentences() and "repaired by replay" in said[1]
    collapsed = sum(
        line["r3/groups/collapsed_before"] for line in RunDirectory.open(story).read_metrics()
    )
    # one definition: the sentence and the row above it count the same groups
    assert effect.collapsed == collapsed
    for part, _ in effect.parts():
        assert page.locator(f"#{part}").count() == 1
    rows = [
        row.locator("th, td").all_text_contents()
        for row in page.locator("#by-step tbody tr").all()
    ]
    assert [int(row[0]) for row in rows] == [8, 7, 6, 5, 4, 3, 2, 1]
    assert [sum(int(row[i]) for row in rows) for i in (1, 2, 3, 4, 7)] == [
        effect.groups,
        effect.collapsed,
        effect.recalled,
        effect.ranked,
        effect.reflected,
    ]
    follow(
        page,
        page.locator("#by-step a[href$='/7?show=recalled']"),
        "**/story/step/7?show=recalled",
    )
    assert (
        page.get_by_role("button", name="recalled", exact=True).get_attribute("aria-pressed")
        == "true"
    )


def test_runs_lie_over_each_other_and_a_run_without_rollouts_says_so(page, many):
    page.goto(many)
    assert page.locator("table.sortable tbody tr th a").all_text_contents() == ["copied", "lab"]
    assert "the lab keeps the curves of a run" in page.locator("p.note").first.text_content()
    all_drawn(page)
    follow(page, page.get_by_role("link", name="lab", exact=True), "**/lab")


def test_an_evaluation_has_its_results_and_problems(page, many, evaluations):
    page.goto(f"{many}/base")
    problems = evaluations[1]["base"]
    results = json.loads((evaluations[0] / "base" / "results.json").read_text())["benchmarks"][
        "math500"
    ]
    assert (
        f"{100 * results['pass_at_1']['value']:.1f} %"
        in page.locator("table.facts").text_content()
    )
    assert page.locator("#groups tbody tr").count() == len(problems)
    page.get_by_role("button", name="all wrong").click()
    unsolved = sum(
        all(one.verdict == "wrong" for one in problem.responses) for problem in problems
    )
    assert page.locator("#groups tbody tr:not([hidden])").count() == unsolved
    page.goto(f"{many}/base/sample/math500/{problems[0].uid}")
    assert page.locator(".pair section").count() == 2  # the other model beside it
    assert page.locator("article").count() == 2 * SAMPLES
    assert page.locator("article .text").first.text_content() == SURROGATE.replace(
        "\ud83d", "?"
    )


def test_two_models_side_by_side(page, many, evaluations):
    page.goto(f"{many}/base")
    follow(page, page.get_by_role("link", name="trained"), "**/compare/base/trained")
    base, trained = (
        {
            p.uid
            for p in evaluations[1][name]
            if sum(r.verdict == "correct" for r in p.responses) > SAMPLES / 2
        }
        for name in ("base", "trained")
    )
    expected = trained - base
    page.get_by_role("button", name="base wrong, trained right").click()
    assert {address.rsplit("/", 1)[1] for address in shown(page)} == expected
    assert [int(n) for n in page.locator(".matrix b").all_text_contents()][2] == len(expected)


# ── who may read ──


def test_a_page_of_another_name_and_another_method_are_refused(server):
    for request, status in (
        (Request(server, headers={"Host": "example.invalid"}), 421),
        (Request(server, headers={"Host": "127.0.0.1.example.invalid:80"}), 421),
        (Request(server, method="POST", data=b"x"), 405),
    ):
        with pytest.raises(HTTPError) as refused:
            urlopen(request)
        assert refused.value.code == status
        assert "script-src 'self'" in refused.value.headers["Content-Security-Policy"]
    for name in ("localhost", "127.0.0.1", "[::1]"):
        assert urlopen(Request(server, headers={"Host": f"{name}:1234"})).status == 200


def test_an_address_for_others_needs_a_token(story, monkeypatch):
    monkeypatch.delenv("R3_VIEW_TOKEN", raising=False)
    done = r3("view", str(story), "--no-browser", "--host", "0.0.0.0")
    sentence = "Error: --host is 0.0.0.0, which others can reach: set R3_VIEW_TOKEN"
    assert (
        done.exit_code == 1
        and done.stderr.startswith(sentence)
        and done.stderr.count("\n") == 1
    )


def test_the_command_prints_its_address_and_ends_quietly(story):
    environment = {key: value for key, value in os.environ.items() if key != "R3_VIEW_TOKEN"}
    environment |= {"SSH_CONNECTION": "1 2 3 4"}
    command = [
        sys.executable,
        "-c",
        "from r3_openrlhf.cli import main; main()",
        "view",
        str(story),
        "--no-browser",
    ]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, **pipes) as server:
        address = server.stdout.readline().strip()
        port = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/\?token=[\w-]{32}", address)[1]
        assert build_opener(HTTPCookieProcessor()).open(address).status == 200
        server.send_signal(signal.SIGINT)
        rest, said = server.communicate()
    assert (server.returncode, rest) == (0, "")
    lines = said.splitlines()
    assert lines[0].startswith(f"From your own machine: ssh -N -L {port}:127.0.0.1:{port} ")
    assert lines[1:] == ["Ctrl-C ends it."]


# ── a run that goes on ──


def times_of(run):
    """When each file was written; but the lock, which the run that goes on renews."""
    files = (
        path for path in run.rglob("*") if path.is_file() and path.name != "history.sqlite.lock"
    )
    return {path: path.stat().st_mtime_ns for path in files}


def test_pages_follow_a_run_that_writes(page, browser, tmp_path):
    with Story(
        tmp_path / "run", num_problems=12, settings=("logging.token_values=all",)
    ) as run:
        run.step()
        run.step()
        before = times_of(tmp_path / "run")
        with serving(tmp_path / "run", page=page) as address:
            page.goto(f"{address}/run")
            wait_for_counts(page, 2)
            step = page.context.new_page()
            step.goto(f"{address}/run/step/2")
            for one in (page, step):
                one.evaluate("() => fetch('/api/state').then(() => true)")
            # looking has changed nothing, and no file has appeared
            assert times_of(tmp_path / "run") == before
            # it knows what there is before the next step comes
            with step.expect_response("**/api/state"):
                pass
            run.step()
            step.locator("#news a").wait_for()
            assert step.locator("#news").text_content() == "1 new step"
            page.bring_to_front()
            run.step()
            page.wait_for_function(
                "() => document.querySelector('[data-live-step]').textContent === '4'"
            )
            wait_for_counts(page, 4)
            # every number of the page that followed is that of the files, and of a page that is loaded now
            reward = quarter_means(run.run.read_metrics(), "fresh/reward")
            parts = ("tr[data-live] td", "nav.steps .step", "#effect a", ".chart li")
            all_drawn(page)
            followed = [page.locator(part).all_text_contents() for part in parts]
            assert f"{reward[0]:.3f} → {reward[1]:.3f}" in followed[0] and followed[1] == [
                "4",
                "3",
                "2",
                "1",
            ]
            page.reload()
            wait_for_counts(page, 4)
            all_drawn(page)
            assert [page.locator(part).all_text_contents() for part in parts] == followed
            step.wait_for_function(
                "() => document.querySelector('#news').textContent === '2 new steps'"
            )
            follow(step, step.locator("#news a"), "**/run/step/4")
            row = rows_of(tmp_path / "run", 3)[0]
            # a fresh one: actor and engine
            page.goto(f"{address}/run/tokens/3/0/{row['context']}/{row['uid']}")
            page.locator("[data-heat=ratio]").click()
            ratios = np.exp(
                np.subtract(row["token_policy_logprob"], row["token_logprob"], dtype=np.float64)
            )
            low, high = 1 - run.config.train.eps_clip_low, 1 + run.config.train.eps_clip_high
            outside = np.sum((ratios < low) | (ratios > high))
            assert (
                page.locator("#heat .peak").count() == pytest.approx(outside, abs=1)
                and outside > 1
            )
            assert "compares the actor with them" in page.locator("main").text_content()


def test_a_page_from_before_the_first_step_gets_every_part(page, tmp_path):
    """Its phase follows; an evaluation before step 1 has numbers to draw, when there are neither steps nor rollouts."""
    with (
        Story(tmp_path / "run", num_problems=12) as run,
        lock.held(run.run),
        serving(tmp_path / "run", page=page) as address,
    ):
        evaluations = run.run.read_evaluations()
        run.run.evaluations.unlink(missing_ok=True)
        page.goto(f"{address}/run")
        for number, phase in enumerate(
            ("loading", "starting the engine", "held-out problems", "step 1")
        ):
            with run.run.events.open("a") as events:
                events.write(json.dumps({"time": 1.0 + number, "phase": phase}) + "\n")
            page.locator(".answers", has_text=f"before its first step: {phase}").wait_for()
            if number == 1:
                assert page.locator("#charts").count() == 0
                run.run.append_evaluation(evaluations[0])
                page.locator("#charts").wait_for()
        run.step()
        page.locator("#effect a").first.wait_for()
        assert page.locator("nav.steps .step").all_text_contents() == ["1"]


# ── everybody can read it ──


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing(browser, server, many, story, evaluations, theme):
    rows = rows_of(story, 7)
    plain, reflection = (
        next(row for row in rows if row["context"] == one)["uid"]
        for one in ("plain", "reflection")
    )
    context = browser.new_context(color_scheme=theme)
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    faults = {}
    pages = {
        server: (
            "/story",
            "/story?match=time",
            "/story/effect",
            "/story/files",
            "/story/step/7",
            f"/story/step/7/plain/{plain}",
            f"/story/step/7/reflection/{reflection}",
            f"/story/tokens/7/0/plain/{plain}",
            f"/story/problem/{plain}",
            "/search?q=symmetry",
        ),
        many: (
            "/",
            "/compare",
            "/?run=copied&run=lab",
            "/copied/problems",
            "/base",
            f"/base/sample/math500/{evaluations[1]['base'][0].uid}",
            "/compare/base/trained",
        ),
    }
    for address in (base + path for base, paths in pages.items() for path in paths):
        page.goto(address)
        what_a_theme_changes = ", runOnly: ['color-contrast', 'link-in-text-block']"
        if violations := axe_faults(page, what_a_theme_changes if theme == "dark" else ""):
            faults[address] = violations
        page.set_viewport_size({"width": 360, "height": 800})
        if (width := page.evaluate(script("width_on_a_phone"))) > 360:
            faults[f"{address} on a phone"] = width
        page.set_viewport_size({"width": 1360, "height": 900})
    context.close()
    assert not faults, json.dumps(faults, indent=1)


def test_every_link_leads_somewhere(browser, server, many):
    """From the first page on, each kind of address a few times."""
    context = browser.new_context()
    context.set_default_timeout(PATIENCE_MS)
    seen, todo, kinds = set(), [f"{server}/", f"{many}/"], {}
    while todo:
        address = todo.pop()
        answer = context.request.get(address)
        assert answer.status == 200, address
        for link in re.findall(r'href="(/[^"#]*)', answer.text()):
            whole = address[: address.index("/", 8)] + link.replace("&amp;", "&")
            kind = (whole[:22], re.sub(r"/[^/]*\d[^/]*", "/N", link))
            if whole not in seen and kinds.get(kind, 0) < 3:
                seen.add(whole)
                kinds[kind] = kinds.get(kind, 0) + 1
                todo.append(whole)
    context.close()
    assert len(kinds) > 20
