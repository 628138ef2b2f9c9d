"""`r3 check-tests`: rows of public shapes whose tests and solutions agree, or do not (check_tests.jsonl).

The flaky solution looks at how often its own text ends: the second run has a line more."""

import json
from itertools import groupby
from pathlib import Path

from tests.commands import r3
from tests.problems.files import write_jsonl

CASES = list(
    map(
        json.loads,
        Path(__file__).with_name("check_tests.jsonl").read_text("utf-8").splitlines(),
    )
)


def test_what_is_said_of_rows_and_which_are_kept(tmp_path):
    for number, group in groupby(CASES, key=lambda case: case["file"]):
        cases, into = list(group), tmp_path / f"kept{number}.jsonl"
        source = write_jsonl(tmp_path / f"{number}.jsonl", [case["row"] for case in cases])
        done = r3("check-tests", source, "--into", str(into))
        *lines, last = done.output.splitlines()
        said = dict(line.split(": ", 1) for line in lines)
        assert (done.exit_code, len(said)) == (0, sum(bool(case["said"]) for case in cases)), (
            done.output
        )
        for line, case in enumerate(cases, 1):
            assert said.get(f"data.path {source}, line {line}", "").startswith(case["said"]), (
                done.output
            )
        assert list(map(json.loads, into.open())) == [
            case["row"] for case in cases if not case["said"]
        ]
    assert last == "1 hold up; 1 hold up, without a solution"
    refused = r3("check-tests", source, "--into", str(into))
    assert refused.exit_code == 1 and "exists; name a new file" in refused.output
    assert r3("check-tests", str(tmp_path / "0.jsonl")).exit_code == 1
