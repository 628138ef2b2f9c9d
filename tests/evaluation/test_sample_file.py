"""samples.jsonl: what is written is read again, a torn line is dropped, a shorter limit is a cut."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from r3_openrlhf.evaluation.sample_file import (
    SampleFile,
    cut,
    pack,
    unpack,
)
from r3_openrlhf.method.errors import DataError
from r3_openrlhf.method.types import Verdict
from tests.evaluation.problems import problem, response


def test_what_is_written_is_read(tmp_path):
    file = SampleFile(tmp_path / "samples.jsonl")
    assert list(file.read()) == []
    written = [
        problem(
            "a",
            response([1, 2, 70000]),
            response([5], verdict=Verdict.UNGRADED, extracted=None),
        ),
        problem(
            "b",
            response(
                [7], finish_reason="length", text="lone \ud800 surrogate, \u2028 and a \n line"
            ),
        ),
    ]
    for one in written:
        file.append(one)
    assert list(SampleFile(file.path).read()) == written
    assert file.path.read_bytes().count(b"\n") == 2


@given(st.lists(st.integers(0, 2**31 - 1), max_size=50))
def test_token_ids_survive(token_ids):
    assert unpack(pack(token_ids)) == token_ids
    assert unpack(pack(np.array(token_ids, dtype=np.int64))) == token_ids


@pytest.mark.parametrize("kept", [0, 1, 40])
def test_a_torn_line_is_dropped_and_the_next_one_starts_afresh(tmp_path, kept):
    file = SampleFile(tmp_path / "samples.jsonl")
    file.append(problem("a", response([1])))
    whole = file.path.read_bytes()
    file.path.write_bytes(whole + whole[:kept])
    again = SampleFile(file.path)
    again.drop_torn_line()
    again.append(problem("b", response([2])))
    assert [one.uid for one in again.read()] == ["a", "b"]


@pytest.mark.parametrize(
    "line",
    [
        "nonsense",
        "{}",
        json.dumps({"benchmark": "m", "uid": "u", "content": "", "responses": [{}]}),
    ],
)
def test_a_line_that_is_no_problem_is_named(tmp_path, line):
    path = tmp_path / "samples.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(DataError, match="line 1 is not a finished problem"):
        list(SampleFile(path).read())


def ids_and_truncated(response, *limits):
    for limit in limits:
        response = cut(response, limit, str)
    return unpack(response.token_ids), response.truncated


def test_a_cut_by_hand():
    ended = response([1, 2, 3, 4])  # the fourth token is the end
    assert ids_and_truncated(ended, 3) == ([1, 2, 3], True)
    # the end token is looked for before tokens are counted
    assert cut(ended, 4, str) is cut(ended, 9, str) is ended and not ended.truncated
    unended = response([1, 2, 3, 4], finish_reason="length")
    assert cut(unended, 4, str) is unended and ids_and_truncated(unended, 2) == ([1, 2], True)
    shorter = cut(ended, 2, str)
    assert (shorter.text, shorter.is_waiting) == ("[1, 2]", True)


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=20), st.integers(1, 25), st.integers(1, 25)
)
def test_cutting_twice_is_cutting_at_the_smaller_limit(token_ids, first, second):
    whole = response(token_ids)
    assert ids_and_truncated(whole, first, second) == ids_and_truncated(
        whole, min(first, second)
    )
