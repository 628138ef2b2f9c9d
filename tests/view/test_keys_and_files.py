"""Every key as a chart, what words mean, and the files of a run: starts, settings, log."""

import json
import shutil

from r3_openrlhf.runs.step_groups import groups_of
from r3_openrlhf.view.files_page import END_BYTES, Event, end_of, events_in
from r3_openrlhf.view.rendering import glossary, meanings
from tests.view.conftest import follow, serving, unpacked


def test_every_key_of_the_metrics_can_be_drawn(page, server, story):
    """By a regular expression; what is chosen stands in the address, and each chart says its key and what it is."""
    keys = {
        key
        for line in (story / "metrics.jsonl").read_text().splitlines()
        for key in json.loads(line)
    }
    page.goto(f"{server}/story")
    page.locator("#match").fill("^(loss|timing/)")
    page.locator(".chart .how code", has_text="timing/step_total").wait_for(state="attached")
    shown = set(page.locator(".chart .how code").all_text_contents())
    assert {key for key in keys if key == "loss" or key.startswith("timing/")} <= shown
    assert "timing/step_total" in shown and not any(key.startswith("r3/") for key in shown)
    how = page.locator("figcaption", has_text="loss").locator("details")
    how.locator("summary").click()
    assert meanings()["loss"] in how.locator("p").last.text_content()
    page.reload()
    page.locator("figcaption", has_text="loss").wait_for()
    page.locator("#match").fill("(")
    assert page.locator("#match").get_attribute("aria-invalid") == "true"
    page.locator("#match").fill("no such key")
    assert (
        page.locator("#charts .note").text_content()
        == "No chart and no key matches no such key."
    )


def test_keys_and_words_have_the_meaning_of_the_documentation():
    # its path is that of the key before
    assert meanings()["r3/groups/none_correct"] == "groups by verdict, before replay"
    assert meanings()["timing/ppo_train"] == meanings()["timing/generation"]
    texts = "".join([*meanings().values(), *glossary().values()])
    assert "`" not in "".join(meanings().values()) and "](" not in texts
    assert glossary()["collapsed"].startswith("A group whose verdicts are all equal")


def test_a_trajectory_counts_as_one_rollout(tmp_path):
    """Agents: as many as were played, not as many as there are turns."""
    run = unpacked("agent_smoke", tmp_path / "run")
    step = run.steps()[-1]
    rows = run.rows(step)
    groups = groups_of(rows, step=step)
    played = {(row["uid"], row["trajectory"]) for row in rows if row["recalled_from"] is None}
    assert sum(group.num_fresh for group in groups) == len(played) < len(rows)
    fresh = (
        row for row in rows if row["verdict"] == "correct" and row["recalled_from"] is None
    )
    won = {(row["uid"], row["trajectory"]) for row in fresh}
    assert sum(group.num_correct for group in groups) == len(won) > 0


def test_damaged_lines_are_left_out(tmp_path):
    file = tmp_path / "events.jsonl"
    lines = ['{"time": 5, "phase": "sampling"}', '{"time": 1e300, "phase": "x"}', "not json"]
    lines.append('{"time": 6, "phase": 3}')
    file.write_text("\n".join(lines))
    assert events_in(file) == [Event(5.0, "sampling")] and events_in(tmp_path / "none") == []


def test_the_files_of_a_run(page, story, tmp_path):
    """Error and log as text, without passwords."""
    one = shutil.copytree(story, tmp_path / "runs" / "one")
    (one / "error.txt").write_text("the disk <b>is</b> full")
    hostile = "\n<script>window.hacked=1</script>\nhttps://me:secret@host.invalid/\n"
    (one / "train.log").write_text("x" * END_BYTES + hostile)
    events = '{"time": 5, "phase": "<i>"}\n{"time": 8, "phase": "policy update", "step": 3}\n'
    (one / "events.jsonl").write_text(events)
    assert end_of(story / "error.txt") is None
    with serving(tmp_path / "runs", page=page) as address:
        page.goto(f"{address}/one")
        follow(page, page.get_by_role("link", name="Settings and log"))
        cells = [
            row.locator("th, td").all_text_contents()
            for row in page.locator("table.facts tbody tr").all()
        ]
        assert cells == [
            ["1970-01-01 00:00:08", "3", "policy update", "last seen"],
            ["1970-01-01 00:00:05", "–", "<i>", "3.0"],
        ]
        assert "the disk <b>is</b> full" in page.locator("p.note").first.text_content()
        log = page.get_by_role("group", name="train.log").text_content()
        assert log.startswith("[…]") and "<script>" in log and "secret" not in log
        assert page.evaluate("window.hacked") is None
