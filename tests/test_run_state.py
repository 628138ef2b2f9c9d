"""`r3 status`, `r3 view`, `r3 show` and `r3 report` say one state of a run, and one that failed or died never looks healthy."""

import contextlib
import json
import os
import re
import subprocess
import sys

import pytest
from starlette.testclient import TestClient

from r3_openrlhf.runs import lock
from r3_openrlhf.view.app import create_app
from r3_openrlhf.view.library import Library
from tests.commands import r3

KILLED = """
import os, sys
from r3_openrlhf.runs import lock
from r3_openrlhf.runs.directory import RunDirectory
held = lock.acquire(RunDirectory(sys.argv[1]))
os._exit(9)
"""
ERROR = "the disk is full; free space"
LOST_JOB = {"job": "7", "state": "running", "nodes": ["node1"]}
SAVED_JOB = {"job": "7", "state": "ended", "code": 85, "why": "asked to end"}


def take_steps(run, count=5):
    """Healthy steps of a run of eight, and its last phase."""
    run.first_page.write_text(json.dumps({"steps": 8}))
    for step in range(1, count + 1):
        run.append_metrics(
            {
                "step": step,
                "fresh/accuracy": 0.5,
                "fresh/truncated": 0.0,
                "grad_norm": 1.0,
                "r3/grading/ungraded_rate": 0.0,
                "timing/step_total": 25.0,
            }
        )
    run.events.write_text(json.dumps({"time": 1.0, "phase": "stopping Ray"}) + "\n")


@contextlib.contextmanager
def left_as(state, run):
    """A run directory as a run in this state leaves it."""
    if state == "finished":
        run.mark_finished()
    if state == "failed":
        lock.note_error(run, ERROR)
    if state == "dead":
        subprocess.run([sys.executable, "-c", KILLED, str(run.path)], timeout=600)
    if state in ("dead in a job", "preempted, saved"):
        run.cluster.mkdir()
        record = LOST_JOB if state == "dead in a job" else SAVED_JOB
        (run.cluster / "state.json").write_text(json.dumps(record))
    with lock.held(run) if state == "running" else contextlib.nullcontext():
        yield


def strip_of(run):
    """Question -> answer on top of the page of a run."""
    client = TestClient(create_app(Library([run.path])), base_url="http://localhost")
    page = client.get(f"/{run.path.name}").text
    (strip,) = re.findall(r'<dl class="answers".*?</dl>', page, re.S)
    answers = re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", strip, re.S)
    return {question: re.sub("<[^>]*>", "", answer).strip() for question, answer in answers}


STATES = {
    "finished": "finished",
    "failed": f"failed after step 5 of 8: {ERROR}",
    "dead": "dead after step 5 of 8: process ",
    "dead in a job": "dead after step 5 of 8: the end of its job was not recorded",
    "preempted, saved": "preempted, saved: asked to end",
    "stopped": "stopped after step 5 of 8",
    "running": "running",
}


@pytest.mark.parametrize("state", STATES)
def test_every_command_says_the_same_state(run, tmp_path, state):
    take_steps(run)
    word = "dead" if state == "dead in a job" else state
    with left_as(state, run):
        strip = strip_of(run)
        status = json.loads(r3("status", "--json", run.path).stdout)
        summary = json.loads(r3("show", run.path, "--json").stdout)
        shown = r3("show", run.path).stdout
        assert r3("report", run.path, "--out", tmp_path / "page.html").exit_code == 0
    report = (tmp_path / "page.html").read_text()
    is_bad = word in ("failed", "dead")
    assert (status["state"], summary["state"]) == (word, word)
    assert strip["State"].removeprefix("✗ ").startswith(STATES[state])
    assert strip["State"].startswith("✗") == is_bad
    assert f": 5 steps, {word}" in shown
    assert shown.startswith("State: ") == is_bad
    assert re.search(rf'<span class="tag[^"]*">{word}</span>', report)
    for text in (" ".join(shown.split()), report):
        assert not is_bad or STATES[state] in text
    assert ("Time left" in strip) == (word == "running")
    assert ("✓ good" in strip["Healthy?"]) == (not is_bad)


def test_the_time_left_is_that_of_a_running_run(run):
    take_steps(run)
    with lock.held(run):
        assert strip_of(run)["Time left"] == "about 75 s"


@pytest.mark.parametrize("state", ["failed", "dead", "stopped"])
def test_a_run_that_ended_before_its_first_step_shows_no_phase(run, state):
    run.events.write_text(json.dumps({"time": 1.0, "phase": "stopping Ray"}) + "\n")
    with left_as(state, run):
        strip = strip_of(run)
        told = r3("show", run.path).stderr
    assert strip.keys() == {"State"}
    assert f"{state} before its first step" in strip["State"]
    assert (f"{state} before its first step" in told) == (state != "stopped")


def test_a_run_that_was_not_started(run):
    assert strip_of(run) == {"State": "not started", "Learning?": "before its first step"}
    assert json.loads(r3("status", "--json", run.path).stdout)["state"] == "not started"


def test_among_several_runs_the_failed_ones_come_first(run, tmp_path):
    take_steps(run)
    other = type(run)(tmp_path / "other")
    other.create(run.load_config())
    take_steps(other)
    lock.note_error(other, ERROR)
    client = TestClient(create_app(Library([tmp_path])), base_url="http://localhost")
    page = client.get("/").text
    sentence = page.index(f"<b>other:</b> failed after step 5 of 8: {ERROR}")
    assert sentence < page.index("<table")
    assert "<b>run:</b> stopped" not in page
    followed = json.loads(re.findall(r'id="state">(.*?)</script>', page, re.S)[0])
    assert followed["other"]["state"] == "failed"


@pytest.mark.parametrize("name", ["error.txt", "cluster/state.json"])
def test_a_damaged_file_leaves_the_page_readable(run, name):
    take_steps(run)
    run.cluster.mkdir()
    file = run.path / name
    file.unlink(missing_ok=True)
    os.mkfifo(file) if name == "error.txt" else file.write_text("[")
    assert r3("show", run.path).exit_code == 0
    expected = {
        "error.txt": "stopped after step 5 of 8",
        "cluster/state.json": "not known: ",
    }
    assert strip_of(run)["State"].startswith(expected[name])
