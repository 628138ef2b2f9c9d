"""What a step asks: whom it reflects on, who starts from a stored state, and why the others do not."""

from types import SimpleNamespace

import pytest

from r3_openrlhf.method.core.reflection import reflection_message
from r3_openrlhf.method.history.store import HistoryStore
from r3_openrlhf.method.prompts import ChatPrompts, ReflectionFate
from r3_openrlhf.method.r3 import R3
from r3_openrlhf.method.types import Context, Verdict
from tests.method.history.samples import make_rollout
from tests.method.steps import settings_of

C, W = Verdict.CORRECT, Verdict.WRONG
STEP, LAG = 9, 5


def rollout(uid, verdict, *, ids=(1, 2, 3, 4, 5, 6, 7, 8), step=STEP - 1):
    return make_rollout(
        uid,
        ids=ids,
        prompt=(1, 2),
        verdict=verdict,
        reward=float(verdict is C),
        policy_step=step,
    )


def problems(*uids):
    return [SimpleNamespace(uid=uid, problem=f"problem {uid}") for uid in uids]


class Render:
    def plain(self, problem):
        return problem.uid

    def reflection(self, problem, error):
        return None if problem.uid == "narrow" else (problem.uid, error.response_ids.tolist())


@pytest.fixture
def history():
    stored = [rollout(uid, W) for uid in ("hard", "harder", "narrow")]
    stored += [rollout("old", W, step=1), rollout("easy", C), rollout("short", W, ids=(1,))]
    with HistoryStore.open(":memory:") as store:
        store.commit_step(STEP, 1, stored)
        yield store


def asked_of(history, *uids, epoch=2, **keys):
    keys = {"replay__max_policy_lag": LAG, "reflection__max_share": 1.0} | keys
    r3 = R3(settings_of(**keys), history=history)
    return r3.prompts(problems(*uids), step=STEP, epoch=epoch, render=Render())


@pytest.mark.parametrize(
    ("hard_by", "threshold", "hard"),
    [
        ("success_rate", 0.2, ["none"]),
        ("success_rate", 0.3, ["none", "rare"]),
        ("reward", 0.2, ["none"]),
        ("reward", 0.45, ["none"]),
        ("reward", 0.5, ["none", "rare"]),
    ],
)
def test_hardness_is_a_share_of_right_rollouts_or_a_mean_reward(hard_by, threshold, hard):
    """One of four is right, with reward 1.9: 0.25 and 0.475."""
    with HistoryStore.open(":memory:") as store:
        right = rollout("rare", C)
        right.reward = 1.9
        wrong = [
            rollout(uid, W, ids=(1, 2, 3, number))
            for uid in ("rare", "none")
            for number in range(3)
        ]
        store.commit_step(STEP, 1, [right, *wrong])
        keys = {"reflection__threshold": threshold, "reflection__hard_by": hard_by}
        asked = asked_of(store, "rare", "none", "new", **keys)
    assert sorted(one.problem.uid for one in asked if one.context is Context.REFLECTION) == hard


@pytest.mark.parametrize(
    ("include", "fates"), [(False, ["asked", "without_error"]), (True, ["not_hard", "asked"])]
)
@pytest.mark.parametrize("hard_by", ["success_rate", "reward"])
def test_with_include_reflection_those_rollouts_decide_and_are_shown_too(
    hard_by, include, fates
):
    """ "a" has one of four right, behind an error; the only error of "b" that is young enough was behind one."""
    with HistoryStore.open(":memory:") as store:
        shown = [rollout("a", C), rollout("b", W, ids=(5,))]
        for one in shown:
            one.context = Context.REFLECTION
        wrong = [rollout("a", W, ids=(1, number)) for number in range(3)]
        store.commit_step(STEP, 1, [*shown, *wrong, rollout("b", W, step=1)])
        keys = {"replay__include_reflection": include, "reflection__hard_by": hard_by}
        asked = asked_of(store, "a", "b", **keys)
    assert [fate.value for fate in asked.reflection] == fates


def test_every_problem_has_its_fate(history):
    uids = ("hard", "narrow", "old", "easy", "new")
    asked = asked_of(history, *uids)
    fate = ReflectionFate
    assert asked.reflection == [
        fate.ASKED,
        fate.WITHOUT_ROOM,
        fate.WITHOUT_ERROR,
        fate.NOT_HARD,
        fate.UNKNOWN_PROBLEM,
    ]
    assert [(one.prompt, one.context, one.place) for one in asked] == [
        *((uid, Context.PLAIN, place) for place, uid in enumerate(uids)),
        (("hard", [1, 2, 3, 4, 5, 6, 7, 8]), Context.REFLECTION, 0),
    ]
    assert asked.metrics() == {
        "r3/reflection/hard_prompts": 3.0,
        "r3/reflection/before_first_epoch": 0.0,
        "r3/reflection/unknown_problem": 1.0,
        "r3/reflection/not_hard": 1.0,
        "r3/reflection/cut_by_max_share": 0.0,
        "r3/reflection/without_error": 1.0,
        "r3/reflection/without_room": 1.0,
    }


def test_reflection_waits_for_its_epoch_and_its_turn(history):
    fate = ReflectionFate
    assert asked_of(history, "hard", epoch=1).reflection == [fate.BEFORE_FIRST_EPOCH]
    assert asked_of(history, "hard", reflection__enabled=False).reflection == [fate.OFF]
    assert asked_of(None, "hard").reflection == [fate.OFF]
    cut = asked_of(history, "hard", "harder", reflection__max_share=0.5)
    assert sorted(cut.reflection) == [fate.ASKED, fate.CUT] and len(cut.prompts) == 3


class Letters:
    """A tokenizer with a token for every character."""

    def __call__(self, *, text, add_special_tokens):
        assert not add_special_tokens
        return {"input_ids": list(text)}

    def decode(self, ids, *, skip_special_tokens):
        assert skip_special_tokens
        return "".join(chr(96 + number) for number in ids)

    def apply_chat_template(self, turns, *, tokenize, add_generation_prompt):
        assert not tokenize and add_generation_prompt
        return f"<{turns[0]['content']}>"


def test_chat_prompts_show_the_stored_attempt_where_there_is_room():
    (problem,), error = problems("a"), rollout("a", W)
    chat = ChatPrompts(Letters(), max_prompt_tokens=2000)
    assert chat.plain(problem) == "<problem a>"
    assert chat.reflection(problem, error) == f"<{reflection_message('problem a', 'abcdefgh')}>"
    assert ChatPrompts(Letters(), max_prompt_tokens=50).reflection(problem, error) is None
    own = ChatPrompts(
        Letters(), max_prompt_tokens=50, message=lambda one: one.uid, render=str.upper
    )
    assert own.plain(problem) == "A"
