"""Weights & Biases by its offline files, which no network is asked for, and the function of logging.tracker."""

import argparse
import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from r3_openrlhf.config.loading import load_config
from r3_openrlhf.method.errors import ConfigError
from r3_openrlhf.method.open_table import load_object
from r3_openrlhf.runs.directory import RunDirectory
from r3_openrlhf.runs.problem_files import Problem, ShownLabel
from r3_openrlhf.stack import trackers


@pytest.fixture
def wandb(tmp_path, monkeypatch):
    # what is set stays no longer than the test
    for name in (
        "RUN_ID",
        "RESUME",
        "RUN_GROUP",
        "TAGS",
    ):
        monkeypatch.setenv(f"WANDB_{name}", "")
        monkeypatch.delenv(f"WANDB_{name}")
    for name, value in {
        "SILENT": "true",
        "MODE": "offline",
        "DIR": str(tmp_path),
        "API_KEY": "x" * 40,
    }.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    return pytest.importorskip("wandb", reason="wandb is not installed")


def written(file):
    """The records of an offline run, by kind. Its file is a LevelDB log: blocks of 32 KiB with pieces of checksum (4 bytes),
    length (2), kind (1: whole, 2: first, 3: middle, 4: last)."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, place, piece, records = file.read_bytes(), 7, b"", {}
    while place + 7 <= len(data):
        if (left := 32768 - place % 32768) < 7:
            place += left
            continue
        length, kind = struct.unpack_from("<HB", data, place + 4)
        piece += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):
            record = Record.FromString(piece)
            records.setdefault(record.WhichOneof("record_type"), []).append(record)
            piece = b""
    return records


def test_two_starts_are_one_run_with_the_settings_of_r3(wandb, tmp_path, monkeypatch):
    """Through OpenRLHF's own logger, as it is called."""
    from openrlhf.utils.logging_utils import WandbLogger

    config = load_config("cpu_smoke", [f"run_dir={tmp_path}/run", "train.seed=7", "arm=mine"])
    (tmp_path / "run").mkdir()
    names = argparse.Namespace(
        key="from_the_environment", org=None, project="p", group=None, run_name="run"
    )
    for start in (1, 2):
        for name in ("RUN_ID", "RESUME", "RUN_GROUP", "TAGS"):
            monkeypatch.delenv(f"WANDB_{name}", raising=False)  # another process
        trackers.name_wandb_run(config, RunDirectory(tmp_path / "run"))
        logger = WandbLogger(argparse.Namespace(logger=argparse.Namespace(wandb=names)))
        trackers.describe_wandb_run(logger.handle, config)
        logger.log_eval(20 * start, {"held_out/pass_at_1": 0.5})
        logger.close()
        wandb.teardown()  # its process has written all when it ends
    starts = [written(file) for file in sorted((tmp_path / "wandb").rglob("*.wandb"))]
    headers = [records["run"][0].run for records in starts]
    assert {header.run_id for header in headers} == {
        (tmp_path / "run" / "wandb_id").read_text()
    } and len(starts) == 2
    assert {(header.display_name, header.run_group) for header in headers} == {("run", "mine")}
    assert {tuple(header.tags) for header in headers} == {
        ("algo=r3", "seed=7", "replay", "reflection", "ranking")
    }
    for start, records in enumerate(starts, start=1):
        updates = [update for record in records["config"] for update in record.config.update]
        settings = json.loads(
            next(update.value_json for update in updates if update.key == "r3")
        )
        assert (settings["train.seed"], settings["replay.k"]) == (7, config.replay.k)
        metrics = {
            record.metric.glob_name: record.metric.step_metric for record in records["metric"]
        }
        assert metrics["eval/*"] == "eval/global_step"
        (line,) = [
            {
                item.key or "/".join(item.nested_key): item.value_json
                for item in record.history.item
            }
            for record in records["history"]
        ]
        assert (line["eval/held_out/pass_at_1"], line["eval/global_step"]) == (
            "0.5",
            str(20 * start),
        )


def test_a_table_of_a_step_has_problems_and_groups_from_all_over_it(wandb, tmp_path):
    run = wandb.init(project="p")
    problems = {"u0": Problem(ShownLabel("u0", "What is 1+1?", ["2", "two"], "math"), "")}
    records = [
        {
            "uid": f"u{n}",
            "context": "plain",
            "group": n,
            "recalled_from": None,
            "text": "x" * 9999,
            "advantage": k,
        }
        for n in range(40)
        for k in range(8)
    ]
    trackers.log_completions(wandb, records, problems, step=7)
    folder = Path(run.dir)
    wandb.finish()
    (file,) = folder.rglob("completions*.table.json")
    table = json.loads(file.read_text())
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    first = {name: rows[0][name] for name in ("step", "uid", "problem", "reference")}
    assert first == {"step": 7, "uid": "u0", "problem": "What is 1+1?", "reference": "2; two"}
    assert len(rows[0]["text"]) == trackers.MOST_CHARS and rows[-1]["problem"] is None
    assert (
        len(rows) == 64 and len({row["uid"] for row in rows}) == 16 and rows[-1]["uid"] == "u37"
    )
    assert [row["advantage"] for row in rows[:4]] == [0, 2, 4, 6]


def test_the_function_of_a_user_gets_the_keys_of_wandb_and_ends_no_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = "seen = []\ndef track(step, numbers):\n    seen.append((step, numbers))\n    1 / (step - 4)\nnone = 3\n"
    (tmp_path / "mine.py").write_text(f"{code}def few(step):\n    pass\n")
    config = load_config("cpu_smoke", ["run_dir=x", "logging.tracker=mine.py:track"])
    os.chdir("/")  # the trainer may have another working directory
    track = trackers.user_tracker(config, RunDirectory(tmp_path / "run"))
    assert track("train", 3, {"fresh/reward": 0.5, "loss": None}) is None
    assert "failed at step 4, and is called again: ZeroDivisionError" in track("eval", 4, {})
    assert load_object("logging.tracker", config.logging.tracker).__globals__["seen"] == [
        (3, {"train/fresh/reward": 0.5}),
        (4, {}),
    ]
    for name, sentence in {
        "none": "cannot be called",
        "few": "cannot be called",
        "gone": "has no gone",
    }.items():
        with pytest.raises(ConfigError, match=f"logging.tracker is .*{sentence}"):
            trackers.check_tracker(
                load_config(
                    "cpu_smoke", ["run_dir=x", f"logging.tracker={tmp_path}/mine.py:{name}"]
                )
            )


@pytest.mark.parametrize("name", ["mlflow", "trackio"])
def test_a_tracker_by_name_says_what_to_install(name, monkeypatch):
    monkeypatch.setattr(trackers.importlib.util, "find_spec", lambda _: None)
    config = load_config("cpu_smoke", ["run_dir=x", f"logging.tracker={name}"])
    with pytest.raises(ConfigError, match=f"needs {name}.*pip install {name}"):
        trackers.check_tracker(config)


def test_an_unknown_tracker_is_refused_with_the_nearest():
    config = load_config("cpu_smoke", ["run_dir=x", "logging.tracker=mlflo"])
    with pytest.raises(ConfigError, match="did you mean mlflow"):
        trackers.check_tracker(config)


def test_a_tracker_that_cannot_begin_ends_no_run(tmp_path, monkeypatch):
    calls = []

    def begin(config, run):
        calls.append(run.path)
        if len(calls) == 1:
            raise OSError("no server")
        return lambda step, numbers: calls.append((step, numbers))

    monkeypatch.setitem(trackers.TRACKERS._entries, "trackio", trackers.Tracker(begin))
    config = load_config("cpu_smoke", ["run_dir=x", "logging.tracker=trackio"])
    track = trackers.user_tracker(config, RunDirectory(tmp_path / "run"))
    assert "no server" in track("train", 1, {})
    assert track("train", 2, {"loss": 0.5, "none": None}) is None
    assert track("eval", 2, {"pass_at_1": 1}) is None
    begun = [tmp_path / "run"] * 2
    assert calls == [*begun, (2, {"train/loss": 0.5}), (2, {"eval/pass_at_1": 1})]


def test_only_numbers_go_to_a_tracker_that_takes_nothing_else():
    numbers = {"a": 1, "b": 0.5, "c": "text", "d": True, "e": None}
    assert trackers.numeric(numbers) == {"a": 1.0, "b": 0.5}


TRIED = """
import sys
sys.path.append(sys.argv[2])
from r3_openrlhf.config.loading import load_config
from r3_openrlhf.runs.directory import RunDirectory
from r3_openrlhf.stack import trackers

config = load_config("cpu_smoke", [f"run_dir={sys.argv[3]}", f"logging.tracker={sys.argv[1]}"])
track = trackers.user_tracker(config, RunDirectory(config.run_dir))
step = int(sys.argv[4])
assert track("train", step, {"fresh/reward": step / 4, "note": "text"}) is None
if sys.argv[1] == "trackio":
    import trackio
    trackio.finish()
    print(len(trackio.Api().runs("runs")))
else:
    import mlflow
    run = mlflow.active_run().info.run_id
    found = mlflow.MlflowClient().get_metric_history(run, "train/fresh/reward")
    print([(one.step, one.value) for one in found])
"""


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize(
    ("name", "package", "wanted"),
    [
        ("mlflow", "mlflow-skinny==3.17.2", "[(1, 0.25), (2, 0.5)]"),
        ("trackio", "trackio==0.43.0", "1"),
    ],
)
def test_two_starts_are_one_run_of_the_real_tracker(name, package, wanted, tmp_path):
    """In an environment of its own: the packages bring servers that nothing else here needs."""
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "env"], check=True)
    python = tmp_path / "env" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", package], check=True)
    (packages,) = (tmp_path / "env").glob("lib/python*/site-packages")
    run = tmp_path / "runs" / "one"
    run.mkdir(parents=True)
    environment = os.environ | {
        "MLFLOW_TRACKING_URI": f"file:{tmp_path / 'mlruns'}",
        "MLFLOW_ALLOW_FILE_STORE": "true",
        "TRACKIO_DIR": str(tmp_path / "trackio"),
    }
    for step in ("1", "2"):
        result = subprocess.run(
            [sys.executable, "-c", TRIED, name, packages, run, step],
            env=environment,
            capture_output=True,
            text=True,
        )
        assert result.returncode == 0, result.stderr
    assert result.stdout.strip().splitlines()[-1] == wanted
