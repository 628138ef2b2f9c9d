"""Whatever is wrong with a file of a run or an evaluation, every page is there, or is one sentence that names the file."""

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from anyio.from_thread import start_blocking_portal
from starlette.testclient import TestClient

from r3_openrlhf.view.app import UNREADABLE, create_app
from r3_openrlhf.view.library import Library
from tests.view.evaluations import write_evaluation

STEP = 7
DEEP = "[" * 100_000
LINES = {
    "nothing": b"",
    "no text": bytes(range(256)) * 20,
    "a list": b"[]\n",
    "an empty object": b"{}\n",
    "too deep": DEEP.encode() + b"\n",
    "a word for a step": b'{"step": "one"}\n',
    "a long number": b'{"step": 1, "reward_mean": 1'
    + b"0" * 400
    + b', "generated_tokens": 1'
    + b"0" * 30
    + b"}\n",
    "a fraction of a token": b'{"step": 1, "generated_tokens": 1.5, "pass_at_1": "all"}\n',
}
OBJECTS = {
    "a null": b"null",
    "a half": b'{"model": {"name": "a"}',
    "another one": b'{"model": 3}',
}
PROBLEM = {"uid": "u", "problem": "p", "references": "not a list", "task": "math"}


def changed(file, **columns):
    """The step's file with other values in some columns of its first row."""
    rows = pq.read_table(file).to_pylist()
    rows[0] |= columns
    pq.write_table(pa.Table.from_pylist(rows, schema=pq.read_schema(file)), file)


def cut(file):
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def as_directory(file):
    file.unlink()
    file.mkdir()


FILES = (
    "metrics.jsonl",
    "evaluations.jsonl",
    "config.yaml",
    "data/problems.jsonl",
    "data/held_out.jsonl",
    "history.sqlite",
    "final_model/tokenizer.json",
    f"rollouts/step_{STEP:06d}.parquet",
)
DAMAGES = {
    **{
        f"{file}: {name}": (file, lambda path, c=content: path.write_bytes(c))
        for file in FILES
        for name, content in LINES.items()
    },
    **{
        f"{file}: {name}": (file, lambda path, c=content: path.write_bytes(c))
        for file in ("../eval/results.json", "../eval/samples.jsonl")
        for name, content in (LINES | OBJECTS).items()
    },
    **{
        f"{file}: its half": (file, cut)
        for file in (*FILES, "../eval/samples.jsonl")
        if file != "data/held_out.jsonl"
    },
    **{
        f"{file}: a directory": (file, as_directory)
        for file in FILES
        if file not in ("config.yaml", "data/held_out.jsonl")
    },
    "a problem of another kind": (
        FILES[3],
        lambda path: path.write_text(
            json.dumps({"input": "", "label": json.dumps(PROBLEM)}) + "\n"
        ),
    ),
    **{
        f"a rollout with {columns}": (FILES[-1], lambda path, c=columns: changed(path, **c))
        for columns in (
            {"verdict": "maybe"},
            {"context": "elsewhere"},
            {"advantage": float("nan")},
            {"reward": float("inf")},
            {"reason": None},
            {"group": -1},
            {"recalled_from": 10**15},
            {"advantage": 1e308},
            {"num_tokens": 2**60},
            {"entropy_peak": 1.0, "ranked": True, "entropy_global": None},
            {"token_chars": [1, 2]},
        )
    },
    "a table of somebody else": (
        FILES[-1],
        lambda path: pq.write_table(pa.table({"a": [1]}), path),
    ),
}


@pytest.fixture(scope="module")
def whole(story, tmp_path_factory):
    directory = tmp_path_factory.mktemp("whole")
    shutil.copytree(story, directory / "run")
    write_evaluation(directory / "eval", skill=0.5, seed=3, num_problems=2)
    rows = pq.read_table(story / "rollouts" / f"step_{STEP:06d}.parquet").to_pylist()
    group = next(
        f"{row['context']}/{row['uid']}"
        for row in rows
        if row["recalled_from"] is not None and row["context"] == "plain"
    )
    sample = json.loads((directory / "eval" / "samples.jsonl").read_text().splitlines()[0])
    uid = group.partition("/")[2]
    addresses = [
        "/",
        "/run",
        "/eval",
        "/api/state",
        "/api/curves",
        f"/run/step/{STEP}",
        f"/run/step/{STEP}/{group}",
        f"/run/step/3/{group}",
        f"/run/tokens/{STEP}/0/{group}",
        f"/api/tokens/run/step/{STEP}/{group}",
        f"/run/problem/{uid}",
        "/search?q=symmetry",
        "/search?verdict=wrong",
        f"/eval/sample/{sample['benchmark']}/{sample['uid']}",
        "/compare/eval/eval",
        "/run?counted=1",
    ]
    return directory, addresses


def look(directory, addresses):
    """Address -> the answer of its page. An exception of a page is one here."""
    library = Library([directory])
    client = TestClient(create_app(library), base_url="http://127.0.0.1", follow_redirects=True)
    # else each request has an event loop and a thread of its own
    with start_blocking_portal() as client.portal:
        return {address: client.get(address) for address in addresses}


def test_a_whole_run_has_all_pages(whole):
    directory, addresses = whole
    answers = look(directory, addresses)
    assert {address for address, answer in answers.items() if answer.status_code != 200} <= {
        addresses[7]
    }


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_file_is_a_sentence(whole, tmp_path, name):
    directory, addresses = whole
    shutil.copytree(directory, tmp_path / "runs")
    file, damage = DAMAGES[name]
    damage(tmp_path / "runs" / "run" / file)
    answers = look(tmp_path / "runs", addresses)
    for address, answer in answers.items():
        assert answer.status_code in (200, 404, UNREADABLE), (address, answer.text)
        if answer.status_code == UNREADABLE:
            assert file.rpartition("/")[2] in answer.text, (address, answer.text)
    assert answers["/run"].status_code == 200 and answers["/"].status_code == 200
    if file in (
        "metrics.jsonl",
        "evaluations.jsonl",
        "config.yaml",
        "data/problems.jsonl",
        "history.sqlite",
    ):
        assert answers[addresses[5]].status_code == answers[addresses[6]].status_code == 200


def test_the_overview_says_what_it_leaves_out(whole, tmp_path):
    """Lines before the damaged one are drawn."""
    directory, _ = whole
    shutil.copytree(directory, tmp_path / "runs")
    file = tmp_path / "runs" / "run" / "evaluations.jsonl"
    with file.open("a") as stream:
        stream.write('{"step": 9, "pass_at_1": 0.5, "generated_tokens": 1.5}\n')
    text = look(tmp_path / "runs", ["/run"])["/run"].text
    assert "evaluations.jsonl, line 4 is damaged" in text and "held_out:pass_at_1" in text


ODD_ADDRESSES = json.loads(Path(__file__).with_name("odd_addresses.json").read_text())


@pytest.mark.parametrize("address", ODD_ADDRESSES)
def test_an_address_that_nobody_links_to_is_a_sentence(whole, address):
    answer = look(whole[0], [address])[address]
    assert answer.status_code in (200, 404, UNREADABLE), answer.text
