"""Files of strangers that would take hours or all memory: `r3 train --dry-run` says so."""

import gzip
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from r3_openrlhf.runs.models.locate import resolve_model

R3 = Path(sys.executable).with_name("r3")
MOST_BYTES = 24 * 2**30  # of address space; the libraries reserve most of it


def dry_run(tmp_path, *settings):
    command = [
        R3,
        "train",
        "experiment=cpu_smoke",
        f"run_dir={tmp_path}/run",
        "--dry-run",
        *settings,
    ]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=300,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES)),
    )


@pytest.mark.parametrize(
    "template",
    [
        pytest.param(
            "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %}{% endfor %}",
            id="time",
        ),
        pytest.param(
            "{% set n = namespace(x='abcdefgh') %}{% for a in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x }}",
            id="memory",
        ),
        pytest.param(
            "{% macro m(x) %}{{ x }}{{ x }}{% endmacro %}{% for a in range(99999) %}{% for m in messages * 99999 %}{{ a }}{% endfor %}{% endfor %}",
            id="both",
            marks=pytest.mark.soak,
        ),
    ],
)
def test_a_chat_template_without_an_end(tmp_path, template):
    model = tmp_path / "model"
    shutil.copytree(resolve_model("tiny"), model)
    (model / "chat_template.jinja").write_text(template)
    done = dry_run(tmp_path, f"model.path={model}")
    assert (
        done.returncode == 1
        and f"the chat template of {model} needs more than 10 s or 1 GB" in done.stderr
    ), done.stderr


def packed(path, line, number):
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(number):
            file.write(line)


def test_data_that_unpacks_to_more_than_there_is(tmp_path):
    data, settings = tmp_path / "data.jsonl.gz", ["data.task=math", "data.reasoning_gym={}"]
    packed(data, b"a" * 2**20, 300)
    done = dry_run(tmp_path, f"data.path={data}", *settings)
    assert (
        done.returncode == 1 and "line 1 has more than 100 MB, which is no row" in done.stderr
    ), done.stderr
    packed(data, b'{"problem": "' + b"a" * 2**20 + b'", "answer": "1"}\n', 1100)
    done = dry_run(tmp_path, f"data.path={data}", *settings)
    assert done.returncode == 1 and "unpacks to more than 1024 MB" in done.stderr, done.stderr


def test_a_table_with_cells_of_hundreds_of_megabytes(tmp_path):
    data = tmp_path / "data.parquet"
    text = pa.array(["a" * 150_000_000, "1 + 1"])
    pq.write_table(
        pa.table({"problem": text, "answer": pa.array(["1", "2"])}), data, compression="zstd"
    )
    done = dry_run(tmp_path, f"data.path={data}", "data.task=math", "data.reasoning_gym={}")
    assert (
        done.returncode == 1
        and "row 1: it has a cell of 150 MB; none has more than 100" in done.stderr
    ), done.stderr
