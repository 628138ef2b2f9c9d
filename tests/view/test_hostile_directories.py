"""Directories of somebody who means harm: files that never end, or that unpack to more than there is memory."""

import functools
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from omegaconf import OmegaConf
from starlette.testclient import TestClient

import r3_openrlhf
from r3_openrlhf.comparison import frames
from r3_openrlhf.comparison.runs import differences_between, settings_of
from r3_openrlhf.config.loading import load_config, of_others
from r3_openrlhf.method.errors import HistoryError, R3Error
from r3_openrlhf.method.history.store import HistoryStore
from r3_openrlhf.method.open_table import IMPORT_KEYS, load_object
from r3_openrlhf.runs import rollout_files
from r3_openrlhf.runs.directory import RunDirectory
from r3_openrlhf.runs.models.locate import resolve_model
from r3_openrlhf.view.app import create_app
from r3_openrlhf.view.library import Library
from tests.commands import r3
from tests.pickles import Planted
from tests.runs.records import rollout

LIMIT_S = 300  # of a machine that has other work, too
R3 = os.path.join(os.path.dirname(sys.executable), "r3")


@pytest.fixture(autouse=True)
def patience():
    """What waits for ever ends with a failure."""

    def ring(*_):
        raise TimeoutError("it waits for ever")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(LIMIT_S)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def run(run):
    run.append_metrics({"step": 1, "reward_mean": 0.5})
    run.write_rollouts(1, [rollout(step=1)])
    return run


def pipe(path):
    os.mkfifo(path)


def device(path):
    path.symlink_to("/dev/zero")


def sparse(path):
    with path.open("wb") as file:
        file.truncate(20 * 2**30)


@pytest.mark.parametrize("make", [pipe, device, sparse])
@pytest.mark.parametrize(
    "name",
    [
        "config.yaml",
        "metrics.jsonl",
        "evaluations.jsonl",
        "data/problems.jsonl",
        "rollouts/step_000001.parquet",
    ],
)
def test_a_file_without_an_end_is_a_sentence(run, tmp_path, make, name):
    path = run.path / name
    path.unlink(missing_ok=True)
    make(path)
    if name == "config.yaml" and make is not sparse:
        with pytest.raises(R3Error, match="is not a run directory"):
            RunDirectory.open(run.path)
    library = Library([run.path])
    with TestClient(create_app(library), base_url="http://localhost") as client:
        pages = [
            client.get(f"/run{page}")
            for page in ("", "/step/1", f"/problem/{rollout(step=1)['uid']}")
        ]
    assert any("cannot be read" in page.text or "damaged" in page.text for page in pages)
    for read in (
        run.load_config,
        run.read_metrics,
        run.read_evaluations,
        lambda: list(run.read_rollouts()),
    ):
        try:
            read()
        except R3Error as error:
            assert str(path) in str(error)  # noqa: PT017


def test_a_key_that_is_none_any_more_is_passed_over_and_told(run):
    """Of an earlier or a later version; and the sentence steers no terminal."""
    config = OmegaConf.to_container(OmegaConf.load(run.config))
    config["replay"]["gone"] = config["\x1b]0;title\a" + "x" * 500] = 1
    run.config.write_text(yaml.safe_dump(config))
    command = [R3, "report", run.path, "--out", run.path.with_name("page.html")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (
        "config.yaml sets '\\x1b]0;title\\x07xx" in done.stderr
        or "config.yaml sets 'replay.gone" in done.stderr
    )
    assert "which this version does not know" in done.stderr and "x" * 81 not in done.stderr
    assert "\x1b" not in done.stderr
    run.check(load_config("cpu_smoke", [f"run_dir={run.path}"]))  # and its user may continue


def test_a_table_of_many_rows_is_not_unpacked(run):
    file = rollout_files.file_of(run.rollouts, 1)
    row = pq.read_table(file)
    with pq.ParquetWriter(file, row.schema) as writer:
        column = pa.concat_tables([row] * 1000).combine_chunks()
        for _ in range(300):
            writer.write_table(column)
    with pytest.raises(R3Error, match="it has 300000 rows; a step has at most 262144"):
        list(rollout_files.read_step(file))


@pytest.mark.parametrize("column", ["uid", "text"])
def test_a_text_that_is_stored_once_is_not_unpacked_for_every_row(run, tmp_path, column):
    """10 kB that would be 40 GB."""
    file = rollout_files.file_of(run.rollouts, 1)
    row, rows = pq.read_table(file), 2000
    columns = {name: pa.concat_arrays(row[name].chunks * rows) for name in row.schema.names}
    once = pa.array(["a" * 20_000_000])
    columns[column] = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), once)
    pq.write_table(
        pa.table(columns), file, compression="zstd", use_dictionary=[column], store_schema=False
    )
    assert file.stat().st_size < 10**5
    with pytest.raises(R3Error, match="it unpacks to 40 GB; a step has at most 4"):
        list(rollout_files.read_step(file, uid_start="a" if column == "uid" else ""))
    library = Library([run.path])
    with TestClient(create_app(library), base_url="http://localhost") as client:
        assert client.get("/run/step/1").status_code in (200, 422)  # and in time


def test_equal_numbers_are_counted_before_they_are_unpacked(run, monkeypatch):
    """Five million of them take 80 bytes of a file."""
    file = rollout_files.file_of(run.rollouts, 1)
    row = pq.read_table(file)
    many = pa.ListArray.from_arrays(
        pa.array([0, 5_000_000], pa.int32()), pa.array([1] * 5_000_000, pa.uint16())
    )
    pq.write_table(
        row.set_column(row.schema.get_field_index("token_chars"), "token_chars", many), file
    )
    assert file.stat().st_size < 10**5
    monkeypatch.setattr(rollout_files, "MAX_TABLE_BYTES", 9_000_000)
    with pytest.raises(R3Error, match="it unpacks to"):
        list(rollout_files.read_tokens(file))


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE VIEW steps AS WITH RECURSIVE n(step) AS (SELECT 1 UNION ALL SELECT step + 1 FROM n) SELECT step FROM n",
        "CREATE VIRTUAL TABLE steps USING fts5(step)",
        "CREATE TABLE steps (step INTEGER, epoch INTEGER GENERATED ALWAYS AS (length(zeroblob(step))))",
        "CREATE TRIGGER t AFTER INSERT ON problems BEGIN DELETE FROM rollouts; END",
    ],
)
def test_a_store_runs_nothing_of_its_author(tmp_path, statement):
    path = tmp_path / "history.sqlite"
    HistoryStore.open(path, seed=0).close()
    HistoryStore.open(path, seed=0, writer=False).close()
    with closing(sqlite3.connect(path)) as store:
        if " steps" in statement:
            store.execute("DROP TABLE steps")
        store.execute(statement)
        store.commit()
    with pytest.raises(
        HistoryError,
        match=r"is no history store \(the (view|table|trigger) (steps|steps_idx|t) is of another kind\)",
    ):
        HistoryStore.open(path, seed=0, writer=False)


def test_every_key_that_is_imported_is_known():
    """IMPORT_KEYS against the calls in the code: all tables, and all other places that import."""
    calls = re.compile(
        r"""(?:OpenTable\(|load_object\(|reward_function\()\s*"([\w.]+)"(?: if .* else "([\w.]+)")?"""
    )
    files = Path(r3_openrlhf.__file__).parent.rglob("*.py")
    named = {
        key
        for file in files
        for found in calls.finditer(file.read_text())
        for key in found.groups()
        if key
    }
    like_data_path = {"data.sources", "held_out.path"}
    assert named - {"language"} | {"reward.code.languages"} | like_data_path == set(IMPORT_KEYS)


@pytest.mark.parametrize("key", IMPORT_KEYS)
def test_looking_at_a_run_runs_no_code_that_it_names(run, tmp_path, key, monkeypatch):
    canary, code, problems = (
        tmp_path / "canary",
        tmp_path / "theirs.py",
        tmp_path / "sums.jsonl",
    )
    code.write_text(f"open({str(canary)!r}, 'w')\n\ndef f(*_, **__):\n    return 0.0\n")
    problems.write_text(
        json.dumps(
            {"problem": "Add.", "answer": {"inputs": ["1"], "outputs": ["1"], "language": "c"}}
        )
        + "\n"
    )
    value = f"{code}:f"
    RunDirectory(tmp_path / "agents").create(
        load_config("agent_smoke", [f"run_dir={tmp_path}/agents"])
    )
    config = OmegaConf.load(
        tmp_path / "agents/config.yaml" if key == "agents.environment" else run.config
    )
    shapes = dict.fromkeys(("reward.functions", "agents.tools", "data.sources"), [value])
    shapes["reward.code.languages"] = {"c": value}
    OmegaConf.update(config, key, shapes.get(key, value))
    for path in {
        "agents.environment": ("data.path", "held_out.path"),
        "data.sources": ("data.path",),
    }.get(key, ()):
        OmegaConf.update(
            config, path, "sources" if key == "data.sources" else f"environment:{value}"
        )
    OmegaConf.save(config, run.config)
    shutil.copytree(resolve_model("tiny"), run.final_model)
    monkeypatch.setattr("r3_openrlhf.evaluation.engine.Engine", lambda *_, **__: None)
    page = TestClient(create_app(Library([run.path]))).get(
        "/", headers={"host": "127.0.0.1"}, follow_redirects=True
    )
    assert page.status_code == 200
    # the attack itself: whoever reads these settings to train with them runs the code
    commands = (
        ["show", run.path],
        ["history", run.path],
        ["compare", run.path, run.path],
        ["status", run.path],
        ["report", run.path, "--out", tmp_path / "report.html"],
        ["eval", run.path, "--benchmark", problems, "data.task=code"],
    )
    for command in commands:
        done = r3(*command)
        assert "unexpected" not in done.output or command[0] == "eval", done.output
        if command[0] == "eval" and key.startswith("reward."):
            typed = {
                "reward.functions": f"[{value}]",
                "reward.code.languages": f"{{c:'{value}'}}",
            }.get(key, value)
            assert done.exit_code == 1 and f"add {key}={typed} to the command" in done.output, (
                done.output
            )
        if command[0] == "show":
            assert done.exit_code == 0, done.output
    with suppress(R3Error):
        frames.Run(run.path).config.flag("actor.eps_clip")
    assert not canary.exists()
    load_object(key, value)
    assert canary.exists()


ADDRESSES = [key for key, kind in of_others().items() if kind == "an address"]


@pytest.mark.parametrize("key", [*ADDRESSES, "data.system_prompt"])
@pytest.mark.parametrize(
    "text", ["http://host/${oc.env:SECRET}", r"http://host/\${oc.env:SECRET}", "http://host/"]
)
def test_a_run_gets_no_request_and_no_variable_of_its_reader(
    run, tmp_path, monkeypatch, key, text
):
    secret = os.urandom(8).hex()  # code_state.txt has the text of this file
    monkeypatch.setenv("SECRET", secret)
    config = OmegaConf.to_container(OmegaConf.load(run.config))
    *sections, name = key.split(".")
    functools.reduce(dict.get, sections, config)[name] = [text] if name.endswith("s") else text
    run.config.write_text(yaml.safe_dump(config))
    run.final_model.mkdir()
    (run.final_model / "config.json").write_text("{}")
    with TestClient(create_app(Library([run.path])), base_url="http://localhost") as client:
        shown = [client.get(page).text for page in ("/run", "/run/files")]
    commands = (
        ["show", run.path],
        ["compare", run.path, run.path],
        ["status", run.path],
        ["report", run.path, "--out", tmp_path / "page.html"],
        ["eval", run.path, "--benchmark", "aime24", "--data-dir", tmp_path],
    )
    shown += [r3(*command).output for command in commands]
    with suppress(R3Error):
        shown.append(str(frames.Run(run.path).config))
    assert not any(secret in page for page in shown)
    if "/$" in text:
        assert "holds an interpolation" in shown[6]
    elif "$" in text or key in ADDRESSES:
        assert f"the run's {key} is" in shown[6] and f"add {key}=" in shown[6]


def test_a_link_shows_no_line_of_its_target(run, tmp_path):
    """Of a file that its reader may read and the owner of the directory may not."""
    secret = tmp_path / "secret.yaml"
    secret.write_text("api_key: hunter2\nreward: {urls: [http://me:hunter2@host]}\n")
    other = RunDirectory(tmp_path / "other")
    other.create(load_config("cpu_smoke", [f"run_dir={other.path}"]))
    run.cluster.mkdir()
    for file in (
        run.config,
        run.metrics,
        run.cluster / "state.json",
        run.cluster / "submitted.jsonl",
        run.error,
    ):
        before = file.read_text() if file.exists() else ""
        file.unlink(missing_ok=True)
        file.symlink_to(secret)
        commands = (
            ["show", run.path],
            ["compare", run.path, other.path],
            ["status", run.path],
            ["submit", "slurm", "experiment=cpu_smoke", f"run_dir={run.path}", "--dry-run"],
        )
        for command in commands:
            result = r3(*command)
            assert "hunter2" not in result.output and "unexpected" not in result.output, (
                command,
                result.output,
            )
        for name, read in (
            ("config.yaml", run.load_config),
            ("metrics.jsonl", run.read_metrics),
        ):
            if file.name == name:
                with pytest.raises(
                    R3Error, match=f"{name} cannot be read: it is a symbolic link"
                ):
                    read()
        file.unlink()
        if before:
            file.write_text(before)


def test_passwords_of_urls_are_the_owners_alone(run):
    """Files with them have mode 600, and what shows settings shows none."""
    public = run.config.stat().st_mode & 0o777
    run.create(
        load_config(
            "cpu_smoke", [f"run_dir={run.path}", "reward.urls=[http://me:hunter2@host]"]
        )
    )
    run.mark_finished()
    assert (
        [file.stat().st_mode & 0o777 for file in (run.config, run.finished)]
        == [0o600, 0o600]
        != [public] * 2
    )
    assert "http://host" in run.changes.read_text() and "hunter2" not in run.changes.read_text()
    other = RunDirectory(run.path.with_name("other"))
    other.create(load_config("cpu_smoke", [f"run_dir={other.path}", "replay.k=3"]))
    differences = differences_between(*(settings_of(one.load_config()) for one in (run, other)))
    assert ("reward.urls", ["http://host"], []) in differences and (
        "replay.k",
        2,
        3,
    ) in differences
    with pytest.raises(R3Error) as error:
        run.check(
            load_config(
                "cpu_smoke",
                [f"run_dir={run.path}", f"model.path=http://me:hunter2@{'x' * 200}/\x1b"],
            )
        )
    assert (
        "hunter2" not in str(error.value)
        and "x" * 81 not in str(error.value)
        and str(error.value).isprintable()
    )


def test_what_looks_at_a_run_unpickles_nothing(run, tmp_path, monkeypatch):
    """Everywhere where a run, its model or an evaluation could have a pickle."""
    torch = pytest.importorskip("torch")
    ran = tmp_path / "ran"
    tiny, actor = resolve_model("tiny"), run.checkpoints / "_actor" / "global_step1"
    shutil.copytree(tiny, run.final_model)
    (run.final_model / "model.safetensors").unlink()
    actor.mkdir(parents=True)
    actor.with_name("latest").write_text("global_step1")
    places = [
        actor / "mp_rank_00_model_states.pt",
        actor / "r3.json",
        run.data_counts,
        run.history,
        run.rollouts / "step_000002.parquet",
    ]
    places += [
        run.final_model / name
        for name in ("pytorch_model.bin", "training_args.bin", "optimizer.pt")
    ]
    for place in places:
        torch.save(Planted(ran), place)
    with suppress(Exception):
        torch.load(places[0], weights_only=False)
    assert ran.exists()  # the attack is real
    ran.unlink()

    task = "reasoning_gym:basic_arithmetic"
    commands = (
        ["show", run.path],
        ["show", run.path, "--step", 1],
        ["status", run.path],
        ["compare", run.path, run.path],
        ["history", "verify", run.path],
        ["eval", run.path, "--benchmark", task, "--max-problems", 1, "--max-new-tokens", 8],
    )
    monkeypatch.setattr(
        "r3_openrlhf.evaluation.engine.Engine",
        lambda *_, **__: (_ for _ in ()).throw(R3Error("an engine")),
    )
    for command in commands:
        result = r3(*command)
        assert "unexpected" not in result.output and not ran.exists(), (command, result.output)
    assert "an engine" in result.output  # it came as far as the weights
    client = TestClient(create_app(Library([run.path])), base_url="http://127.0.0.1")
    for page in ("/", "/run/run", "/run/run/1"):
        assert client.get(page).status_code < 600
    assert not ran.exists()
