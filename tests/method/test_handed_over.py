"""A loop of one's own may hand over anything: it is taken as it is meant, or one sentence says what is wrong."""

import dataclasses
import functools
import typing
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from r3_openrlhf.method.errors import R3Error
from r3_openrlhf.method.history.store import HistoryStore
from r3_openrlhf.method.r3 import R3
from r3_openrlhf.method.settings import R3Settings, RankingSettings, ReplaySettings
from r3_openrlhf.method.types import (
    Context,
    EntropyBounds,
    EntropyStatistics,
    PromisingState,
    Rollout,
    TurnFacts,
)
from tests.method.history.samples import make_rollout, make_turn

RECORDS = {
    "entropy": EntropyStatistics(
        peak=1.0, global_=0.5, source="exact", tokens=np.ones(3, np.float16)
    ),
    "entropy_bounds": EntropyBounds(
        peak_lower=1.0, peak_upper=2.0, global_lower=0.0, global_upper=1.0
    ),
    "state": PromisingState(num_tokens=1, value=0.5),
    "turn": TurnFacts(
        trajectory="t", index=0, state="s", reward=0.0, step_return=None, valid=True
    ),
}
FIELDS = [(field.name,) for field in dataclasses.fields(Rollout)]
FIELDS += [
    (name, part.name) for name, record in RECORDS.items() for part in dataclasses.fields(record)
]
numbers = (
    st.integers(-(2**65), 2**65) | st.floats() | st.sampled_from([0, 1, 2, 0.5, -0.5, 1e308])
)
scalars = (
    numbers
    | st.none()
    | st.booleans()
    | st.text(st.characters(), max_size=3)
    | st.binary(max_size=2)
)
scalars |= st.sampled_from(["correct", "wrong", "plain", "exact", "corect", object(), len, 3j])
lists = (
    st.lists(numbers, max_size=3)
    | st.lists(scalars, max_size=3)
    | st.lists(st.lists(numbers, max_size=2), max_size=3)
)
lists |= st.lists(st.floats(-9, 0, width=32), min_size=3, max_size=3) | st.lists(
    st.integers(0, 9), min_size=3, max_size=3
)
kinds = st.sampled_from(
    [
        np.int64,
        np.int32,
        np.uint8,
        np.float64,
        np.float32,
        np.float16,
        np.bool_,
        ">i4",
        object,
        "U3",
    ]
)
arrays = st.builds(
    lambda values, kind: np.array(values).astype(kind),
    st.lists(st.integers(-2, 9), max_size=3),
    kinds,
)
tensors = st.lists(st.floats(-9, 1, width=32), max_size=3).map(torch.tensor)
anything = scalars | lists | arrays | tensors | tensors.map(lambda one: one.requires_grad_())
anything |= st.dictionaries(
    scalars.filter(lambda key: isinstance(key, str | int)), scalars, max_size=2
)


def group(*path, value=None):
    """Two truncated failures and a failure with `value` at the path of one field."""
    rows = [make_rollout("a", ids=(4, 5, i), truncated=True, epoch=1) for i in range(3)]
    if len(path) == 2:
        record = RECORDS[path[0]]
        made = object.__new__(type(record))  # as any loop can make it: without its checks
        for field in dataclasses.fields(record):
            object.__setattr__(
                made,
                field.name,
                value if field.name == path[1] else getattr(record, field.name),
            )
        value = made
    setattr(rows[2], path[0], value)
    return rows


def same(read, handed):
    if isinstance(read, np.ndarray):
        return (
            np.array_equal(read, np.asarray(handed).astype(read.dtype))
            and np.isfinite(read).all()
        )
    return read == handed or (isinstance(read, tuple) and list(read) == handed)


@pytest.mark.parametrize("path", FIELDS, ids=".".join)
@settings(max_examples=60, deadline=None)
@given(value=anything)
def test_every_field_is_taken_exactly_or_refused_by_name(path, value):
    r3 = R3(
        R3Settings(ranking=RankingSettings(score="logprob")),
        history=HistoryStore.open(":memory:"),
    )
    with r3.history:
        rows = group(*path, value=value)
        try:
            batch = r3.mix(rows, step=0, groups=[0, 0, 0])
        except R3Error as error:
            assert (
                str(error).startswith("rollouts[2]")
                and path[-1] in str(error)
                and "; " in str(error)
            )
            assert "\n" not in str(error) and r3.history.last_step is None
            with pytest.raises(R3Error):
                r3.remember(rows, step=0, epoch=1)
            return
        read = rows[2]
        for name in path:
            read = getattr(read, name)
        assert same(read, value)
        assert all(np.isfinite([row.advantage, row.reward]).all() for row in batch.rows)
        r3.remember(rows, step=0, epoch=1)
        for found in r3.history.recall(
            "a", "wrong", k=9, step=1, max_policy_lag=2**60, contexts=tuple(Context)
        ):
            assert found.rollout.response_logprobs.max() <= 1e-4


@given(st.integers(0, 9), st.integers(0, 9))
def test_no_rollout_is_of_weights_that_do_not_exist_yet(policy_step, step):
    """Its age would be below 0, and it would outlive replay.max_policy_lag."""
    rows = group("policy_step", value=policy_step)
    sentence = rf"^rollouts\[2\] of problem 'a': policy_step is '?{policy_step}'?; use at most {step}, "
    settings = R3Settings(ranking=RankingSettings(score="logprob"))
    with HistoryStore.open(":memory:") as history:
        r3 = R3(settings, history=history)
        for call in (r3.mix, functools.partial(r3.remember, epoch=1)):
            if policy_step <= step:
                call(rows, step=step)
                continue
            with pytest.raises(R3Error, match=sentence):
                call(rows, step=step)


ROLLOUT = make_rollout("a", turns=(3,))


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (
            lambda r3: R3(history=5),
            "history is 5; use a HistoryStore, the path of its file, or None",
        ),
        (
            lambda r3: R3("replay"),
            "settings is 'replay'; use R3Settings(...) or a dict of its keys",
        ),
        (lambda r3: R3(seed="x"), "seed is 'x'; use a whole number"),
        (
            lambda r3: R3(max_response_tokens=1.5),
            "max_response_tokens is 1.5; use a whole number",
        ),
        (lambda r3: R3Settings(replay={"kk": 1}), "replay.kk does not exist; did you mean k?"),
        (
            lambda r3: R3Settings(replay=True),
            "replay is True; use ReplaySettings(...) or a dict of its keys",
        ),
        (
            lambda r3: R3({"replay": {"rehearse": {"share": "half"}}}),
            "replay.rehearse.share is 'half'; use a number",
        ),
        (lambda r3: ReplaySettings(k="2"), "replay.k is '2'; use 1 to 10000"),
        (lambda r3: ReplaySettings(k=2.5), "replay.k is 2.5; use a whole number"),
        (
            lambda r3: ReplaySettings(enabled="false"),
            "replay.enabled is 'false'; use true or false",
        ),
        (
            lambda r3: R3Settings(ranking={"score": 5}),
            "ranking.score is '5', which fails on two made-up rollouts",
        ),
        (lambda r3: r3.mix(5, step=0), "rollouts is 5; use a list of Rollout"),
        (
            lambda r3: r3.mix([{"uid": "a"}], step=0),
            "rollouts[0] is {'uid': 'a'}; use r3_openrlhf.Rollout",
        ),
        (lambda r3: r3.mix([make_rollout()], step="0"), "step is '0'; use a whole number"),
        (
            lambda r3: r3.mix([make_rollout()], step=0, groups=[]),
            "groups is []; use 1 ids, one for each rollout, not 0",
        ),
        (
            lambda r3: r3.mix(group("uid", value="a"), step=0, entropy=[[1, 2]] * 3),
            "entropy[0] is 'an array of 2'; use 3 values",
        ),
        (
            lambda r3: r3.mix(group("uid", value="a"), step=0, entropy=[[1, 2, np.nan]] * 3),
            "entropy[0][2] is nan",
        ),
        (
            lambda r3: r3.remember([make_rollout()], step=None, epoch=1),
            "step is None; use a whole number",
        ),
        (
            lambda r3: r3.stored("a", "corect", step=0),
            "verdict is 'corect'; did you mean 'correct'?",
        ),
        (
            lambda r3: r3.prompts([SimpleNamespace(uid=5)], step=0, epoch=1, render=None),
            "problems[0].uid is 5; use text",
        ),
        (
            lambda r3: r3.prompts([{"uid": "a"}], step=0, epoch=1, render=None),
            "problems[0].uid is None; use text",
        ),
    ],
)
def test_one_sentence_for_each_kind(call, sentence):
    with pytest.raises(R3Error) as refusal:
        call(R3(history=":memory:"))
    assert str(refusal.value).startswith(sentence) and "\n" not in str(refusal.value)


def test_what_a_loop_has_at_hand_is_taken(tmp_path):
    """Lists, tensors, plain words, a file for the history, a dict of settings, a function for a score."""
    scores = []

    def longest(rollouts):
        scores.append([one.num_tokens for one in rollouts])
        return scores[-1]

    r3 = R3(
        {"replay": {"k": np.int64(1)}, "ranking": {"score": longest}},
        history=tmp_path / "history.sqlite",
    )
    rows = group("response_logprobs", value=[-1, -0.5, -0.25])
    rows[0].response_ids, rows[0].verdict, rows[0].policy_step = (
        torch.tensor([7, 8, 9]),
        "wrong",
        np.int64(0),
    )
    batch = r3.mix(iter(rows), step=np.int64(0), groups=torch.zeros(3))
    assert scores[-1] == [3, 3, 3] and len(batch.groups) == 1 and batch.rows[0].tied
    r3.remember(rows, step=0, epoch=1)
    r3.history.close()
    r3 = R3(history=str(tmp_path / "history.sqlite"))
    stored = {
        tuple(one.response_ids): one.response_logprobs.tolist()
        for one in r3.stored("a", "wrong", step=1)
    }
    assert len(stored) == 2 and stored.get((4, 5, 2), [-1, -0.5, -0.25]) == [-1, -0.5, -0.25]
    r3.history.close()


def test_a_whole_trajectory_is_read_turn_by_turn():
    hints = typing.get_type_hints(Rollout, include_extras=True)
    assert set(hints) == {field.name for field in dataclasses.fields(Rollout)}
    rows = [dataclasses.replace(ROLLOUT, turns=(make_turn(0, 3, reward=1), "a turn"))]
    with pytest.raises(
        R3Error,
        match=r"rollouts\[0\] of problem 'a': turns\[1\] is 'a turn'; use r3_openrlhf.method",
    ):
        R3(history=":memory:").remember(rows, step=0, epoch=1)


@example(RankingSettings, "score", len)
@example(ReplaySettings, "order", 5)
@given(st.sampled_from([RankingSettings, ReplaySettings]), st.text(max_size=5), anything)
def test_a_setting_is_taken_or_refused_by_name(section, name, value):
    names = [field.name for field in dataclasses.fields(section)]
    for key in [name] if name in names else names:
        try:
            section(**{key: value})
        except R3Error as error:
            assert key in str(error)
