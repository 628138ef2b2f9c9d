"""Directories of somebody who means harm: files that never end, or that unpack to more than there is memory."""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing, suppress

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from omegaconf import OmegaConf
from starlette.testclient import TestClient

from r3_openrlhf.cli import main as cli
from r3_openrlhf.config.loading import config_from_yaml, load_config
from r3_openrlhf.method.errors import HistoryError, R3Error
from r3_openrlhf.method.history.store import HistoryStore
from r3_openrlhf.runs import rollout_files
from r3_openrlhf.runs.directory import RunDirectory
from r3_openrlhf.runs.models.locate import resolve_model
from r3_openrlhf.view.app import create_app
from r3_openrlhf.view.library import Library
from tests.runs.test_rollout_files import rollout

LIMIT_S = 60
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
@pytest.mark.parametrize("name", ["config.yaml", "metrics.jsonl", "evaluations.jsonl", "data/problems.jsonl", "rollouts/step_000001.parquet"])  # fmt: skip
def test_a_file_without_an_end_is_a_sentence(run, tmp_path, make, name):
    path = run.path / name
    path.unlink(missing_ok=True)
    make(path)
    if name == "config.yaml" and make is not sparse:
        with pytest.raises(R3Error, match="is not a run directory"):
            RunDirectory.open(run.path)
    library = Library([run.path])
    with TestClient(create_app(library), base_url="http://localhost") as client:
        pages = [client.get(f"/run{page}") for page in ("", "/step/1", f"/problem/{rollout(step=1)['uid']}")]
    assert any("cannot be read" in page.text or "damaged" in page.text for page in pages)
    for read in (run.load_config, run.read_metrics, run.read_evaluations, lambda: list(run.read_rollouts())):
        try:
            read()
        except R3Error as error:
            assert str(path) in str(error)  # noqa: PT017


def test_a_sentence_steers_no_terminal(run):
    run.config.write_text('"\\e]0;title\\a' + "x" * 500 + '": 1\n')
    done = subprocess.run([R3, "config", "--diff", run.path, run.path], capture_output=True, text=True)
    assert done.returncode == 1 and "\\x1b]0;title\\x07xxx" in done.stderr and "x" * 81 not in done.stderr
    assert "\x1b" not in done.stderr


def test_an_evaluation_without_its_samples_and_a_number_without_an_end(run):
    run.evaluations.write_text('{"step": 0, "pass_at_1": 0.25}\n{"step": 1, "pass_at_1": 0.5}\n{"step": 1}\n')
    shown = subprocess.run([R3, "show", run.path], capture_output=True, text=True)
    assert shown.returncode == 0 and "0.250 -> 0.500" in shown.stdout, shown.stderr
    for digits in (400, 5000):
        run.metrics.write_text('{"step": 1, "reward_mean": ' + "9" * digits + "}\n")
        with pytest.raises(R3Error, match=r"metrics.jsonl, line 1 is damaged"):
            run.read_metrics()


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
    pq.write_table(pa.table(columns), file, compression="zstd", use_dictionary=[column], store_schema=False)
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
    many = pa.ListArray.from_arrays(pa.array([0, 5_000_000], pa.int32()), pa.array([1] * 5_000_000, pa.uint16()))
    pq.write_table(row.set_column(row.schema.get_field_index("token_chars"), "token_chars", many), file)
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
    with pytest.raises(HistoryError, match=r"is no history store \(it has (view|table|trigger) (steps|t)\)"):
        HistoryStore.open(path, seed=0, writer=False)


def test_a_page_that_takes_long_holds_up_no_other_run(run, tmp_path):
    other = RunDirectory(tmp_path / "other")
    other.create(load_config("cpu_smoke", [f"run_dir={other.path}"]))
    other.append_metrics({"step": 1})
    library = Library([tmp_path])
    begun, go_on = threading.Event(), threading.Event()

    def slow():
        begun.set()
        assert go_on.wait(LIMIT_S)

    slow_run = library.runs["run"]
    with TestClient(create_app(library), base_url="http://localhost") as client:
        holding = threading.Thread(target=slow_run.fresh, args=("slow", 1, slow))
        holding.start()
        assert begun.wait(LIMIT_S)
        waiting = threading.Thread(target=client.get, args=("/run",))
        waiting.start()
        try:
            assert client.get("/other").status_code == 200
        finally:
            go_on.set()
            waiting.join()
            holding.join()


@pytest.mark.parametrize("key", ["data.task", "ranking.score", "replay.order", "reward.function", "algo"])
def test_looking_at_a_run_runs_no_code_that_it_names(run, tmp_path, key):
    canary, code = tmp_path / "canary", tmp_path / "theirs.py"
    code.write_text(f"open({str(canary)!r}, 'w')\n\ndef f(*_, **__):\n    return 0.0\n")
    config = OmegaConf.load(run.config)
    OmegaConf.update(config, key, f"{code}:f")
    OmegaConf.save(config, run.config)
    (run.final_model).mkdir()
    (run.final_model / "config.json").write_text("{}")
    page = TestClient(create_app(Library([run.path]))).get("/", headers={"host": "127.0.0.1"}, follow_redirects=True)
    assert page.status_code == 200
    # the attack itself: whoever reads these settings to train with them runs the code
    commands = (["show", run.path], ["history", run.path], ["compare", run.path, run.path], ["status", run.path],
                ["eval", run.path, "--benchmark", "aime24", "--data-dir", tmp_path])  # fmt: skip
    for command in commands:
        done = CliRunner().invoke(cli, [str(part) for part in command])
        assert "unexpected" not in done.output, done.output
        if command[0] == "eval" and key == "reward.function":
            assert done.exit_code == 1 and f"add reward.function={code}:f to the command" in done.output
        if command[0] == "show":
            assert done.exit_code == 0, done.output
    assert not canary.exists()
    with suppress(R3Error):
        config_from_yaml(run.config.read_text(), source="config.yaml")
    assert canary.exists()


def test_a_link_shows_no_line_of_its_target(run, tmp_path):
    """Of a file that its reader may read and the owner of the directory may not."""
    secret = tmp_path / "secret.yaml"
    secret.write_text("api_key: hunter2\nreward: {urls: [http://me:hunter2@host]}\n")
    other = RunDirectory(tmp_path / "other")
    other.create(load_config("cpu_smoke", [f"run_dir={other.path}"]))
    run.cluster.mkdir()
    for file in (run.config, run.metrics, run.cluster / "state.json", run.cluster / "submitted.jsonl", run.error):
        before = file.read_text() if file.exists() else ""
        file.unlink(missing_ok=True)
        file.symlink_to(secret)
        commands = (["show", run.path], ["compare", run.path, other.path], ["status", run.path],
                    ["config", "--diff", run.path, other.path], ["submit", "slurm", "experiment=cpu_smoke", f"run_dir={run.path}", "--dry-run"])  # fmt: skip
        for command in commands:
            result = CliRunner().invoke(cli, [*map(str, command)])
            assert "hunter2" not in result.output and "unexpected" not in result.output, (command, result.output)
        for name, read in (("config.yaml", run.load_config), ("metrics.jsonl", run.read_metrics)):
            if file.name == name:
                with pytest.raises(R3Error, match=f"{name} cannot be read: it is a symbolic link"):
                    read()
        file.unlink()
        if before:
            file.write_text(before)


def test_passwords_of_urls_are_the_owners_alone(run):
    """Files with them have mode 600, and what shows settings shows none."""
    public = run.config.stat().st_mode & 0o777
    run.create(load_config("cpu_smoke", [f"run_dir={run.path}", "reward.urls=[http://me:hunter2@host]"]))
    run.mark_finished()
    assert [file.stat().st_mode & 0o777 for file in (run.config, run.finished)] == [0o600, 0o600] != [public] * 2
    assert "http://host" in run.changes.read_text() and "hunter2" not in run.changes.read_text()
    other = RunDirectory(run.path.with_name("other"))
    other.create(load_config("cpu_smoke", [f"run_dir={other.path}", "replay.k=3"]))
    result = CliRunner().invoke(cli, ["config", "--diff", str(run.path), str(other.path)])
    assert "reward.urls: ['http://host'] -> []" in result.output and "replay.k: 2 -> 3" in result.output
    with pytest.raises(R3Error) as error:
        run.check(load_config("cpu_smoke", [f"run_dir={run.path}", f"model.path=http://me:hunter2@{'x' * 200}/\x1b"]))
    assert "hunter2" not in str(error.value) and "x" * 81 not in str(error.value) and str(error.value).isprintable()


class Planted:
    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return open, (self.path, "w")


def test_what_looks_at_a_run_unpickles_nothing(run, tmp_path, monkeypatch):
    """Everywhere where a run, its model or an evaluation could have a pickle."""
    torch = pytest.importorskip("torch")
    ran = tmp_path / "ran"
    tiny, actor = resolve_model("tiny"), run.checkpoints / "_actor" / "global_step1"
    shutil.copytree(tiny, run.final_model)
    (run.final_model / "model.safetensors").unlink()
    actor.mkdir(parents=True)
    actor.with_name("latest").write_text("global_step1")
    places = [actor / "mp_rank_00_model_states.pt", actor / "r3.json", run.data_counts, run.history, run.rollouts / "step_000002.parquet"]  # fmt: skip
    places += [run.final_model / name for name in ("pytorch_model.bin", "training_args.bin", "optimizer.pt")]
    for place in places:
        torch.save(Planted(ran), place)
    with suppress(Exception):
        torch.load(places[0], weights_only=False)
    assert ran.exists()  # the attack is real
    ran.unlink()

    task = "reasoning_gym:basic_arithmetic"
    commands = (["show", run.path], ["show", run.path, "--step", 1], ["status", run.path], ["compare", run.path, run.path],
                ["history", "verify", run.path], ["eval", run.path, "--benchmark", task, "--max-problems", 1, "--max-new-tokens", 8])  # fmt: skip
    monkeypatch.setattr(
        "r3_openrlhf.evaluation.engine.Engine", lambda *_, **__: (_ for _ in ()).throw(R3Error("an engine"))
    )
    for command in commands:
        result = CliRunner().invoke(cli, [*map(str, command)])
        assert "unexpected" not in result.output and not ran.exists(), (command, result.output)
    assert "an engine" in result.output  # it came as far as the weights
    client = TestClient(create_app(Library([run.path])), base_url="http://127.0.0.1")
    for page in ("/", "/run/run", "/run/run/1"):
        assert client.get(page).status_code < 600
    assert not ran.exists()
