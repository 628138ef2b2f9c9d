"""`r3 status`: one line per run, in every state that a job goes through."""

import json
import re
import subprocess
import sys
from dataclasses import replace

import pytest

from r3_openrlhf.config.loading import load_config
from r3_openrlhf.method.errors import R3Error
from r3_openrlhf.operations.cluster import submissions
from r3_openrlhf.operations.cluster.status import find_runs, status_of, status_page
from r3_openrlhf.operations.cluster.submissions import runs_of
from r3_openrlhf.runs import lock
from r3_openrlhf.runs.directory import RunDirectory
from tests.commands import r3


def test_the_numbers_of_a_line_are_those_of_the_files(run):
    run.append_metrics({"step": 1, "reward_mean": 0.25, "generated_tokens_total": 10.0})
    run.append_metrics({"step": 2, "reward_mean": 0.5, "generated_tokens_total": 2500.0})
    run.append_evaluation({"step": 2, "pass_at_1": 0.75})
    latest = run.checkpoints / "_actor" / "latest"
    latest.parent.mkdir()
    latest.write_text("global_step2")
    seen = status_of(run.path, now=latest.stat().st_mtime + 180)
    assert (seen.step, seen.tokens, seen.reward, seen.held_out) == (2, 2500, 0.5, 0.75)
    assert (seen.checkpoint, seen.state, seen.job) == ("step 2, 3 min ago", "stopped", None)
    run.mark_finished()
    assert status_of(run.path).state == "finished"


ENDED = {
    "job": "7",
    "state": "ended",
    "code": 86,
    "why": "a reason",
    "nodes": ["node1", "node2"],
}


@pytest.mark.parametrize(
    ("code", "state"), [(0, "stopped"), (85, "preempted, saved"), (86, "failed"), (1, "failed")]
)
def test_how_a_job_ended(run, code, state):
    run.cluster.mkdir()
    (run.cluster / "state.json").write_text(json.dumps(ENDED | {"code": code}))
    seen = status_of(run.path)
    assert (seen.state, seen.job, seen.last, seen.nodes) == (
        state,
        "7",
        "a reason",
        "node1,node2",
    )


def test_a_long_path_and_a_long_reason_stay_in_the_line_of_their_run_where_no_terminal_shows_it(
    tmp_path,
):
    run = RunDirectory(tmp_path / ("a" * 150) / ("b" * 150) / "run")
    run.create(load_config("cpu_smoke", [f"run_dir={run.path}"]))
    run.cluster.mkdir()
    why = "a reason of many words " * 20
    (run.cluster / "state.json").write_text(json.dumps(ENDED | {"why": why}))
    heads, *lines = r3("status", str(run.path)).stdout.splitlines()
    (line,) = (dict(zip(heads.split("\t"), line.split("\t"), strict=True)) for line in lines)
    assert (line["run"], line["job"], line["state"], line["last"]) == (
        str(run.path),
        "7",
        "failed",
        why.strip(),
    )
    (line,) = r3("status", "--json", str(run.path)).stdout.splitlines()
    found = json.loads(line)
    assert (found["run"], found["last"], found["reward"]) == (str(run.path), why, None)
    page = status_page([status_of(run.path)], width=80).splitlines()
    assert [line for line in page if len(line) > 80] == [str(run.path)]  # to be copied whole


def test_a_run_at_work_has_a_time_to_go_and_fits_80_columns(run):
    run.first_page.write_text(json.dumps({"steps": 100}))
    for step in (1, 2):
        numbers = {
            "reward_mean": 0.25,
            "generated_tokens_total": 10.0,
            "timing/step_total": 6.0,
        }
        run.append_metrics({"step": step, **numbers})
    assert status_of(run.path).to_go_s is None  # nobody works on it
    with lock.held(run):
        seen = status_of(run.path)
    assert (seen.num_steps, seen.to_go_s) == (100, 98 * 6.0)
    heads, numbers, facts = status_page(
        [replace(seen, run="runs/quickstart")], width=80
    ).splitlines()
    assert numbers.split() == [
        "runs/quickstart",
        "running",
        "2",
        "of",
        "100",
        "0.250",
        "-",
        "10",
        "min",
    ]
    assert facts == "  10 tokens" and max(map(len, (heads, numbers))) <= 80


def test_a_start_that_fails_says_why_until_the_next_start(run):
    sentence = "model.path is '/nowhere', which does not exist. Use a directory"
    failed = r3("train", "experiment=cpu_smoke", f"run_dir={run.path}", "model.path=/nowhere")
    assert failed.exit_code == 1 and sentence in failed.stderr
    seen = status_of(run.path)
    assert seen.state == "failed" and seen.last.startswith(sentence)
    run.mark_finished()
    assert status_of(run.path).last is None


def test_nobody_writes_an_error_into_the_run_of_another(run):
    with lock.held(run):
        lock.note_error(run, "mine is the wrong run_dir")
        seen = status_of(run.path)
    assert (seen.state, seen.last) == ("running", None)


def test_a_killed_run_is_dead(run):
    code = f"from r3_openrlhf.runs import directory, lock; held = lock.acquire(directory.RunDirectory('{run.path}')); os._exit(9)"
    subprocess.run([sys.executable, "-c", f"import os; {code}"], timeout=600)
    seen = status_of(run.path)
    assert seen.state == "dead" and re.fullmatch(r"process \d+ on .* was killed", seen.last)


def test_an_array_is_its_runs(run, tmp_path):
    submissions.note(tmp_path / "seeds", {"job": "12", "seeds": [1, 3]})
    assert find_runs(tmp_path / "seeds") == [
        tmp_path / "seeds" / "seed1",
        tmp_path / "seeds" / "seed3",
    ]
    assert runs_of(tmp_path / "seeds") == find_runs(tmp_path / "seeds") and runs_of(
        run.path
    ) == [run.path]
    told = ENDED | {"job": "14", "task": "12_3", "code": 1}
    (tmp_path / "seeds" / "seed3" / "cluster" / "state.json").write_text(json.dumps(told))
    seen = [status_of(path) for path in runs_of(tmp_path / "seeds")]
    told = [("12_1", "not started", None), ("12_3", "failed", "a reason")]
    assert [(each.job, each.state, each.last) for each in seen] == told


def test_runs_below_a_folder(run, tmp_path):
    (tmp_path / "queued" / "cluster").mkdir(parents=True)
    (tmp_path / "queued" / "cluster" / "job.sh").touch()
    (tmp_path / "no_run").mkdir()
    assert find_runs(tmp_path) == [tmp_path / "queued", tmp_path / "run"]
    with pytest.raises(R3Error, match="no_run is not a run directory"):
        status_of(tmp_path / "no_run")


def test_a_run_that_fails_in_a_job_says_why(slurm, run_dir):
    """The real `r3 train`, which ends before it starts a stack."""
    number = slurm.submit(run_dir, "model.path=/nowhere")
    assert slurm.wait(number, "FAILED", "COMPLETED")["JobState"] == "FAILED"
    seen = " ".join(slurm.call("r3", "status", str(run_dir)).split())
    assert " failed " in seen and "model.path is '/nowhere'" in seen
    slurm.assert_nothing_left(number)


HOSTILE = {
    "submitted.jsonl": [
        *(
            '{"job": [1]}',
            '{"job": 5}',
            '{"seeds": 5}',
            '{"seeds": [{}]}',
            '{"job": "1\\n#SBATCH --comment=theirs"}',
        ),
    ],
    "state.json": [
        '{"state": "ended", "code": "x"}',
        '{"nodes": [1]}',
        '{"job": "--help"}',
        '{"why": {}}',
    ],
}


@pytest.mark.parametrize(
    ("name", "text"), [(name, text) for name, texts in HOSTILE.items() for text in texts]
)
def test_a_foreign_record_of_jobs_is_a_sentence(run, name, text):
    run.cluster.mkdir()
    (run.cluster / name).write_text(text + "\n")
    result = r3("status", str(run.path))
    assert result.exit_code == 1 and name in result.output and "is damaged" in result.output, (
        result.output
    )


def test_an_incomplete_record_of_jobs_is_no_job(run):
    run.cluster.mkdir()
    (run.cluster / "submitted.jsonl").write_text('{"ray_job": "x"}\n')
    (run.cluster / "state.json").write_text('{"job": "7", "state": "ended"}\n')
    assert status_of(run.path).state == "failed"
