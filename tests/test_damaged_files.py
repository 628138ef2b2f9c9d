"""Every command on every damaged file and wrong value: exit code 1 or 2, one sentence, no traceback, nothing unexpected."""

import io
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from r3_openrlhf.cli import main
from r3_openrlhf.runs.directory import RunDirectory
from tests.comparison.synthetic import config_text
from tests.tables import rows_of

ALIAS_BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
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
    "tabs": b"algo:\tr3\n\ttrain: 1\n",
    "tag": b"algo: !!python/object/apply:os.system [true]\n",
    "unknown key": b"nonsense: 1\n",
    "interpolation": b"run_dir: ${run_dir}\n",
    "wrong section": b"train: 5\n",
    "wrong type": b"train: {seed: many}\n",
    "nan": b"train: {learning_rate: .nan}\n",
    "empty": b"",
}
STEP = {"step": 1, "generated_tokens_total": 10, "reward_mean": 0.5}
EVALUATION = {
    "step": 1, "generated_tokens": 10, "pass_at_1": 0.5, "pass_at_n": 0.5, "n_samples": 2, "num_problems": 3, "name": "held_out",
}  # fmt: skip
ROLLOUT = {
    "step": 1, "uid": "p", "context": "plain", "verdict": "wrong", "reward": 0.0, "recalled_from": None, "advantage": 0.1,
    "num_tokens": 3, "truncated": False, "ranked": False, "reason": "wrong", "text": "x",
}  # fmt: skip
COUNTS = {"num_problems": 1, "num_dropped_overlong": 0, "num_duplicates": 0, "num_unusable": 0}


def changed(line, **changes):
    return json.dumps({**line, **changes}).encode() + b"\n"


def without(line, key):
    return json.dumps({name: value for name, value in line.items() if name != key}).encode() + b"\n"


def parquet(row=None, left_out=None, **columns):
    """One row, without one of its columns, or any other columns."""
    columns = columns or {key: [value] for key, value in row.items() if key != left_out}
    stream = io.BytesIO()
    pq.write_table(pa.table(columns), stream)
    return stream.getvalue()


DAMAGE = {
    "config.yaml": {**ANY_FILE, **YAML},
    "metrics.jsonl": {
        **ANY_FILE,
        "no step": without(STEP, "step"),
        "text step": changed(STEP, step="one"),
        "negative step": changed(STEP, step=-1),
        "huge step": changed(STEP, step=2**63),
        "NaN": changed(STEP, reward_mean=float("nan")),
        "infinity": b'{"step": 1, "reward_mean": 1e999}\n',
        "text": changed(STEP, reward_mean="high"),
        "list value": changed(STEP, generated_tokens_total=[1]),
        "truth": changed(STEP, reward_mean=True),
    },
    "evaluations.jsonl": {
        **ANY_FILE,
        "no step": without(EVALUATION, "step"),
        "text step": changed(EVALUATION, step="one"),
        "NaN": changed(EVALUATION, pass_at_1=float("nan")),
        "accuracy 5.0": changed(EVALUATION, pass_at_1=5.0),
        "negative accuracy": changed(EVALUATION, pass_at_n=-0.1),
        "text accuracy": changed(EVALUATION, pass_at_1="good"),
        "list tokens": changed(EVALUATION, generated_tokens=[1]),
        "text samples": changed(EVALUATION, n_samples="two"),
    },
    "rollouts/step_000001.parquet": {
        **ANY_FILE,
        "other columns": parquet(a=[1]),
        **{
            f"no {key}": parquet(ROLLOUT, key)
            for key in ("step", "uid", "context", "verdict", "num_tokens", "truncated")
        },
        "null problem": parquet({**ROLLOUT, "uid": None}),
        "text step": parquet({**ROLLOUT, "step": "one"}),
        "negative step": parquet({**ROLLOUT, "step": -1}),
        "cut": parquet(ROLLOUT)[:-9],
    },
    "data/counts.json": {
        **ANY_FILE,
        "text count": changed(COUNTS, num_problems="many"),
        "no count": without(COUNTS, "num_unusable"),
    },
    "finished.yaml": {"binary": ANY_FILE["binary"]},
    "code_state.txt": {"binary": ANY_FILE["binary"]},
    "history.sqlite": {key: ANY_FILE[key] for key in ("binary", "text", "directory", "deep")},
}
COMMANDS = {
    "show": ["show", "{run}"],
    "show step": ["show", "{run}", "--step", "1"],
    "show uid": ["show", "{run}", "--uid", "p"],
    "show rollouts": ["show", "{run}", "--rollouts"],
    "compare": ["compare", "{run}"],
    "eval": ["eval", "{run}", "--benchmark", "gsm8k"],
    "train": ["train", "experiment=cpu_smoke", "run_dir={run}"],
    "history stats": ["history", "stats", "{run}"],
    "history show": ["history", "show", "{run}", "p"],
    "history verify": ["history", "verify", "{run}"],
    "history compact": ["history", "compact", "{run}"],
}
# The commands that read each file.
READ_BY = {
    "config.yaml": ["compare", "eval"],
    "metrics.jsonl": ["show", "compare"],
    "evaluations.jsonl": ["show", "compare"],
    "rollouts/step_000001.parquet": ["show step", "show uid", "show rollouts"],
    "data/counts.json": ["show"],
    "finished.yaml": ["train"],
    "code_state.txt": ["compare"],
    "history.sqlite": [name for name in COMMANDS if name.startswith("history")],
}


@pytest.fixture
def run(tmp_path):
    """A finished run, as far as these commands look at it."""
    path = tmp_path / "run"
    (path / "data").mkdir(parents=True)
    (path / "config.yaml").write_text(config_text(path))
    (path / "finished.yaml").write_text(config_text(path))
    (path / "metrics.jsonl").write_bytes(changed(STEP))
    (path / "evaluations.jsonl").write_bytes(changed(EVALUATION, step=0, generated_tokens=0) + changed(EVALUATION))
    RunDirectory(path).write_rollouts(1, [ROLLOUT])
    (path / "data" / "counts.json").write_bytes(changed(COUNTS))
    (path / "code_state.txt").write_text("commit unknown\n")
    return path


def call(command, run):
    return CliRunner().invoke(main, [argument.format(run=run) for argument in COMMANDS[command]])


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


@pytest.mark.parametrize(("name", "kind"), [(name, kind) for name, kinds in DAMAGE.items() for kind in kinds])
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
        "broken_tokenizer.json": b'{"version": 1}',
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    files = {"<run>": str(run), "\\udcff": "\udcff"}
    files |= {f"<{name.partition('.')[0]}>": str(tmp_path / name) for name in [*contents, "missing"]}
    for name, path in files.items():
        words, sentence = words.replace(name, path), sentence.replace(name, path)
    assert sentence in refused(CliRunner().invoke(main, words.split()))


def test_what_nobody_expected_is_one_sentence_with_the_place_of_its_traceback(run, monkeypatch, tmp_path):
    def fail(self):
        raise ZeroDivisionError("by\nnothing")

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(RunDirectory, "read_metrics", fail)
    result = CliRunner().invoke(main, ["show", str(run)])
    assert result.exit_code == 1 and result.output.count("\n") == 1
    assert "an unexpected ZeroDivisionError (by nothing) ended the command" in result.output
    (written,) = tmp_path.glob("r3-*-traceback.txt")
    assert str(written) in result.output and "in fail" in written.read_text()
