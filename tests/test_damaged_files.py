"""Every command on every damaged file and wrong value: exit code 1 or 2, one sentence, no traceback, nothing unexpected."""

import io
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from r3_openrlhf.runs.directory import RunDirectory
from tests.commands import r3
from tests.comparison.synthetic import config_text
from tests.tables import rows_of

TABLES = json.loads(Path(__file__).with_name("damaged_files.json").read_text())
# name -> words; file -> the commands that read it
COMMANDS, READ_BY = (
    TABLES["commands"],
    TABLES["read_by"],
)
ALIAS_BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n"
    for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)
ANY_FILE = {
    "binary": b"\x00\xff\xfe\x80" * 64,
    "list": b"[1, 2]\n",
    "scalar": b"5\n",
    "null": b"null\n",
    "text": b'"text"\n',
    "garbage": b"}{ not anything: [\n",
    "deep": b"[" * 50_000 + b"]" * 50_000 + b"\n",
    "deep objects": b'{"a":' * 50_000 + b"1" + b"}" * 50_000 + b"\n",
    "directory": None,
}
YAML = {
    "alias bomb": ALIAS_BOMB.encode(),
    **{name: text.encode() for name, text in TABLES["yaml"].items()},
}
STEP = {"step": 1, "generated_tokens_total": 10, "reward_mean": 0.5}
EVALUATION = {
    "step": 1,
    "generated_tokens": 10,
    "pass_at_1": 0.5,
    "pass_at_n": 0.5,
    "n_samples": 2,
    "num_problems": 3,
    "name": "held_out",
}
ROLLOUT = {
    "step": 1,
    "uid": "p",
    "context": "plain",
    "verdict": "wrong",
    "reward": 0.0,
    "recalled_from": None,
    "advantage": 0.1,
    "num_tokens": 3,
    "truncated": False,
    "ranked": False,
    "reason": "wrong",
    "text": "x",
}
COUNTS = {"num_problems": 1, "num_dropped_overlong": 0, "num_duplicates": 0, "num_unusable": 0}


def with_changes(line, changes):
    """`line` with these values; "GONE" takes a key away."""
    return {key: value for key, value in (line | changes).items() if value != "GONE"}


def changed(line, **changes):
    return json.dumps(with_changes(line, changes)).encode() + b"\n"


def parquet(**columns):
    stream = io.BytesIO()
    pq.write_table(pa.table(columns), stream)
    return stream.getvalue()


def row(**changes):
    return parquet(**{key: [value] for key, value in with_changes(ROLLOUT, changes).items()})


WRITTEN = {"metrics.jsonl": STEP, "evaluations.jsonl": EVALUATION, "data/counts.json": COUNTS}
DAMAGE = {
    "config.yaml": {**ANY_FILE, **YAML},
    **{
        name: ANY_FILE
        | {kind: changed(line, **changes) for kind, changes in TABLES["lines"][name].items()}
        for name, line in WRITTEN.items()
    },
    "rollouts/step_000001.parquet": {
        **ANY_FILE,
        "other columns": parquet(a=[1]),
        "cut": row()[:-9],
        **{
            kind: row(**changes)
            for kind, changes in TABLES["lines"]["rollouts/step_000001.parquet"].items()
        },
    },
    "finished.yaml": {"binary": ANY_FILE["binary"]},
    "code_state.txt": {"binary": ANY_FILE["binary"]},
    "history.sqlite": {key: ANY_FILE[key] for key in ("binary", "text", "directory", "deep")},
}
DAMAGE["metrics.jsonl"]["infinity"] = b'{"step": 1, "reward_mean": 1e999}\n'


@pytest.fixture
def run(tmp_path):
    """A finished run, as far as these commands look at it."""
    path = tmp_path / "run"
    (path / "data").mkdir(parents=True)
    (path / "config.yaml").write_text(config_text(path))
    (path / "finished.yaml").write_text(config_text(path))
    (path / "metrics.jsonl").write_bytes(changed(STEP))
    (path / "evaluations.jsonl").write_bytes(
        changed(EVALUATION, step=0, generated_tokens=0) + changed(EVALUATION)
    )
    RunDirectory(path).write_rollouts(1, [ROLLOUT])
    (path / "data" / "counts.json").write_bytes(changed(COUNTS))
    (path / "code_state.txt").write_text("commit unknown\n")
    return path


def call(command, run):
    return r3(*(argument.format(run=run) for argument in COMMANDS[command]))


def refused(result):
    """The sentence of a command that had to refuse."""
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    assert result.exit_code in (1, 2) and result.stdout == "", (result.exit_code, result.output)
    assert "Traceback" not in result.output and "unexpected" not in result.output, result.output
    (sentence,) = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert len(sentence) < 1000
    return sentence


def test_the_run_of_these_tests_is_read_by_every_command(run):
    for name in ("show", "show step", "show uid", "show rollouts", "compare", "train"):
        assert call(name, run).exit_code == 0, name


@pytest.mark.parametrize(
    ("name", "kind"), [(name, kind) for name, kinds in DAMAGE.items() for kind in kinds]
)
def test_a_damaged_file_is_one_sentence(name, kind, run):
    content = DAMAGE[name][kind]
    file = run / name
    file.unlink(missing_ok=True)
    if content is None:
        file.mkdir()
    else:
        file.write_bytes(content)
    if name == "config.yaml":
        (run / "finished.yaml").unlink()
        (run / "final_model").mkdir()
        (run / "final_model" / "config.json").write_text("{}")
    for command in READ_BY[name]:
        result = call(command, run)
        if content is None and result.exit_code == 0:
            # A directory of that name is no file, as far as some of the commands are concerned.
            continue
        sentence = refused(result)
        assert file.name in sentence or str(run) in sentence or "config.yaml" in sentence


WRONG_VALUES = rows_of(Path(__file__).with_name("wrong_values.txt"))


@pytest.mark.parametrize(("words", "sentence"), WRONG_VALUES)
def test_a_wrong_value_is_one_sentence(words, sentence, run, tmp_path):
    contents = {
        "file": b"x",
        "useless.jsonl": b'{"problem": "", "answer": "1"}\n' * 3,
        "binary.jsonl": ANY_FILE["binary"],
        "newline_token": b"0123456789abcdef\n0123456789abcdef",
        "blank_token": b" " * 32,
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    files = {"<run>": str(run), "\\udcff": "\udcff"}
    files |= {
        f"<{name.partition('.')[0]}>": str(tmp_path / name) for name in [*contents, "missing"]
    }
    for name, path in files.items():
        words, sentence = words.replace(name, path), sentence.replace(name, path)
    assert sentence in refused(r3(*words.split()))


def test_what_nobody_expected_is_one_sentence_with_the_place_of_its_traceback(
    run, monkeypatch, tmp_path
):
    def fail(self):
        raise ZeroDivisionError("by\nnothing")

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(RunDirectory, "read_metrics", fail)
    result = r3("show", run)
    assert result.exit_code == 1 and result.output.count("\n") == 1
    assert "an unexpected ZeroDivisionError (by nothing) ended the command" in result.output
    (written,) = tmp_path.glob("r3-*-traceback.txt")
    assert str(written) in result.output and "in fail" in written.read_text()
