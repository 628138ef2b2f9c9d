"""Which rows a teacher scores in a step, what it is shown, and the advantages of their tokens."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pytest import approx

from r3_openrlhf.method.core.distill import LessonFate, TeacherScores
from r3_openrlhf.method.core.reflection import CUT
from r3_openrlhf.method.core.teacher_prompt import REQUEST, SUCCESS_BEGINS, VERDICT
from r3_openrlhf.method.errors import ConfigError, TrainingStopped
from r3_openrlhf.method.history.store import HistoryStore
from r3_openrlhf.method.prompts import ChatPrompts, RowPrompts
from r3_openrlhf.method.r3 import R3
from r3_openrlhf.method.settings import DistillSettings
from r3_openrlhf.method.types import Context, Verdict
from tests.method.history.samples import make_rollout
from tests.method.steps import settings_of

C, W = Verdict.CORRECT, Verdict.WRONG
STEP = 7
OFF = {f"{name}__enabled": False for name in ("replay", "reflection", "ranking")}


def rollout(verdict, *, uid="a", ids=(7, 1), **more):
    more = {"policy_step": STEP, "reward": float(verdict is C)} | more
    return make_rollout(uid, ids=ids, prompt=(1, 2), verdict=verdict, **more)


class Render:
    """The teacher's prompt is what it shows; for problem "narrow" there is no room."""

    def teacher(self, problem, success, *, settings, error=None):
        if problem == "narrow":
            return None
        return problem, success, error


def r3_with(*stored, seed=0, **keys):
    keys = OFF | {f"distill__{name}": value for name, value in ({"coef": 1.0} | keys).items()}
    history = HistoryStore.open(":memory:")
    if stored:
        history.commit_step(STEP, 1, stored)
    return R3(settings_of(**keys), history=history, seed=seed)


def taught(r3, rollouts, *, groups=None):
    batch = r3.recall(rollouts, step=STEP, groups=groups)
    lessons = r3.lessons(batch, step=STEP, problems=lambda one: one.uid, render=Render())
    return batch, lessons


def fates(batch):
    return [batch.lesson_fates[row.index] for row in batch.rows if not row.recalled]


# ── who is taught ──


def test_a_failure_beside_a_success_of_its_group_is_taught_with_it():
    right = rollout(C, ids=(7, 9))
    batch, lessons = taught(r3_with(), [right, rollout(W), rollout(W, ids=(7, 2))])
    assert [lesson.row for lesson in lessons] == [1, 2]
    assert all(lesson.prompt == ("a", right, None) for lesson in lessons)
    assert fates(batch) == [LessonFate.NOT_FAILED, LessonFate.TAUGHT, LessonFate.TAUGHT]


def test_a_success_is_never_its_own_teacher():
    one, other = rollout(C, ids=(7, 9)), rollout(C, ids=(7, 8))
    _, lessons = taught(r3_with(rows="all"), [one, other])
    assert [lesson.success for lesson in lessons] == [other, one]
    batch, _ = taught(r3_with(rows="all"), [one, rollout(W)])
    assert fates(batch) == [LessonFate.WITHOUT_SUCCESS, LessonFate.TAUGHT]


@pytest.mark.parametrize(
    ("source", "shown"),
    [("any", [5]), ("group", None), ("stored", [5]), ("imported", [6])],
)
def test_an_all_wrong_group_is_taught_by_the_store(source, shown):
    stored = [
        rollout(C, ids=(7, 5), policy_step=STEP - 2),
        rollout(C, ids=(7, 6), policy_step=0, context=Context.IMPORTED),
    ]
    r3 = r3_with(*stored[: 2 if source == "imported" else 1], source=source)
    _, lessons = taught(r3, [rollout(W), rollout(W, ids=(7, 2))])
    if shown is None:
        assert lessons == []
    else:
        assert [lesson.success.response_ids[1] for lesson in lessons] == shown * 2


def test_a_success_of_another_problem_or_prompt_teaches_nobody():
    stored = [
        rollout(C, uid="b", policy_step=STEP - 1),
        rollout(C, ids=(7, 3), policy_step=STEP - 1, context=Context.REFLECTION),
    ]
    batch, lessons = taught(r3_with(*stored), [rollout(W), rollout(W, ids=(7, 2))])
    assert lessons == [] and fates(batch) == [LessonFate.WITHOUT_SUCCESS] * 2


def test_rows_that_start_elsewhere_are_not_taught():
    reflected = rollout(W, ids=(7, 2), context=Context.REFLECTION)
    right = rollout(C, ids=(7, 9), context=Context.REFLECTION)
    batch, _ = taught(r3_with(), [reflected, right])
    assert fates(batch) == [LessonFate.STARTS_ELSEWHERE, LessonFate.NOT_FAILED]


def test_without_any_success_the_reference_answer_teaches_where_it_may():
    rows = [rollout(W), rollout(W, ids=(7, 2))]
    _, lessons = taught(r3_with(answer=True), rows)
    assert [lesson.prompt for lesson in lessons] == [("a", None, None)] * 2
    assert taught(r3_with(), rows)[1] == []


def test_a_prompt_without_room_is_no_lesson():
    right = rollout(C, uid="narrow", ids=(7, 9))
    batch, lessons = taught(r3_with(), [right, rollout(W, uid="narrow")])
    assert lessons == [] and fates(batch)[1] == LessonFate.WITHOUT_ROOM


def test_at_most_a_share_of_the_fresh_rows_is_taught():
    rows = [rollout(C, ids=(7, 99)), *(rollout(W, ids=(7, n)) for n in range(7))]
    batch, lessons = taught(r3_with(max_share=0.25), rows)
    assert len(lessons) == 2 and fates(batch).count(LessonFate.CUT) == 5
    others = {
        tuple(one.row for one in taught(r3_with(max_share=0.25, seed=s), rows)[1])
        for s in range(6)
    }
    assert len(others) > 1


def test_off_means_off():
    r3 = r3_with(coef=0.0)
    batch, lessons = taught(r3, [rollout(C, ids=(7, 9)), rollout(W)])
    assert lessons == [] and batch.lesson_fates == {}


def test_a_recalled_row_is_neither_taught_nor_a_sibling():
    stored = rollout(C, ids=(7, 5), policy_step=STEP - 1)
    r3 = r3_with(stored, source="group")
    r3.settings.replay.enabled = True
    batch, lessons = taught(r3, [rollout(W), rollout(W, ids=(7, 2))])
    assert [row.recalled for row in batch.rows] == [False, False, True]
    assert lessons == [] and set(batch.lesson_fates) == {0, 1}


def test_a_stored_error_is_shown_where_that_is_wanted():
    stored = [rollout(W, ids=(7, 4), policy_step=STEP - 1)]
    r3 = r3_with(*stored, shows="error")
    _, lessons = taught(r3, [rollout(C, ids=(7, 9)), rollout(W)])
    assert lessons[0].prompt[2].response_ids.tolist() == [7, 4]


# ── advantages ──


def scores(*gaps):
    return TeacherScores(np.array(gaps, np.float32) - 2, np.full(len(gaps), -2, np.float32))


@pytest.mark.parametrize(
    ("group_advantage", "advantages", "tokens"),
    [
        ("all", [2**-0.5, -(2**-0.5)], [-(2**-0.5) + 0.5, -(2**-0.5) - 0.25]),
        ("untaught", [2**-0.5, 0.0], [0.5, -0.25]),
        ("none", [0.0, 0.0], [0.5, -0.25]),
    ],
)
def test_the_advantage_of_a_token_by_hand(group_advantage, advantages, tokens):
    r3 = r3_with(coef=0.5, group_advantage=group_advantage)
    batch, _ = taught(r3, [rollout(C, ids=(7, 9)), rollout(W)])
    r3.assign_advantages(batch)
    metrics = r3.teach(batch, {1: scores(1.0, -0.5)})
    assert [row.advantage for row in batch.rows] == approx(advantages)
    assert batch.rows[1].token_advantages == approx(tokens)
    assert batch.rows[0].token_advantages is None
    assert metrics["r3/distill/taught"] == 1 and metrics["r3/distill/gap"] == approx(0.25)


def test_a_teacher_that_agrees_leaves_the_groups_advantage():
    r3 = r3_with()
    batch, _ = taught(r3, [rollout(C, ids=(7, 9)), rollout(W)])
    r3.assign_advantages(batch)
    r3.teach(batch, {1: scores(0.0, 0.0)})
    assert (batch.rows[1].token_advantages == np.float32(batch.rows[1].advantage)).all()


def test_taught_rows_of_a_collapsed_group_are_not_idle():
    """Both fail, and the store has a success: without a teacher they would have advantage 0."""
    stored = rollout(C, ids=(7, 5), policy_step=STEP - 1)
    r3 = r3_with(stored, max_share=0.5)
    batch, lessons = taught(r3, [rollout(W), rollout(W, ids=(7, 2))])
    assert len(lessons) == 1
    assert r3.idle_rows(batch) == {0, 1} - {lessons[0].row}


def test_a_broken_logprob_stops_the_training_and_names_the_problem():
    r3 = r3_with()
    batch, _ = taught(r3, [rollout(C, ids=(7, 9)), rollout(W)])
    r3.assign_advantages(batch)
    with pytest.raises(TrainingStopped, match="problem a cannot be taught"):
        r3.teach(batch, {1: scores(1.0, np.nan)})


@settings(max_examples=30, deadline=None)
@given(st.permutations(range(9)), st.sampled_from([1.0, 0.3]))
def test_the_order_of_rows_changes_nothing(order, max_share):
    """Neither who is taught, nor by which of several successes."""
    verdicts = [C, W, W, C, W, W, C, W, C]
    uids = [*"aaaaabbbb"]
    rows = [
        rollout(verdict, uid=uid, ids=(7, place))
        for place, (verdict, uid) in enumerate(zip(verdicts, uids, strict=True))
    ]

    def advantages(rows):
        r3 = r3_with(group_advantage="untaught", max_share=max_share)
        batch, lessons = taught(r3, rows)
        r3.assign_advantages(batch)
        r3.teach(
            batch,
            {one.row: scores(0.1, one.success.response_ids[1]) for one in lessons},
        )
        return {
            int(row.rollout.response_ids[1]): (
                row.advantage,
                None if row.token_advantages is None else row.token_advantages.tolist(),
            )
            for row in batch.rows
        }

    assert advantages([rows[place] for place in order]) == advantages(rows)


# ── the prompt ──


class Letters:
    """One token a character."""

    def decode(self, ids, **_):
        return "".join(map(chr, ids))

    def apply_chat_template(self, turns, **_):
        return "".join(turn["content"] for turn in turns)

    def __call__(self, text, **_):
        return {"input_ids": [ord(letter) for letter in text]}


PROBLEM = SimpleNamespace(uid="a", problem="What is 17 + 25?", references=["42"])


def prompts(max_prompt_tokens=40):
    return ChatPrompts(Letters(), max_prompt_tokens=max_prompt_tokens, max_attempt_tokens=10)


def success(text):
    return rollout(C, ids=tuple(map(ord, text)))


def test_the_teacher_reads_the_problem_a_success_and_the_request():
    prompt = prompts().teacher(PROBLEM, success("It is 42."), settings=DistillSettings())
    assert prompt.startswith("What is 17 + 25?\n\n") and prompt.endswith(REQUEST)
    assert f"{SUCCESS_BEGINS}\nIt is 42.\n" in prompt and VERDICT not in prompt
    shown = prompts().teacher(
        PROBLEM, success("It is 42."), settings=DistillSettings(shows="verdict")
    )
    assert VERDICT in shown


@settings(max_examples=60, deadline=None)
@example(65, 288)
@given(st.integers(1, 3000), st.integers(100, 900))
def test_only_the_success_is_ever_shortened(length, limit):
    """And the whole prompt is within its limit; else there is none."""
    text = "".join(chr(ord("a") + place % 26) for place in range(length))
    options = DistillSettings(max_prompt_tokens=limit, max_success_tokens=500)
    prompt = prompts().teacher(PROBLEM, success(text), settings=options)
    empty = prompts().teacher(PROBLEM, success("-"), settings=DistillSettings())
    if prompt is None:
        shortest = length if length <= 64 else min(length, 64 + len(CUT))
        assert len(empty) - 1 + shortest > limit
        return
    assert len(prompt) <= limit
    assert prompt.startswith("What is 17 + 25?\n\n") and prompt.endswith(REQUEST)
    shown = prompt.split(f"{SUCCESS_BEGINS}\n")[1].split("\n--- right")[0]
    if CUT in shown:
        first, last = shown.split(CUT)
        assert text.startswith(first) and text.endswith(last) and len(shown) <= 500
    else:
        assert shown == text


def test_the_reference_answer_alone():
    options = DistillSettings(answer=True)
    assert "is known: 42" in prompts().teacher(PROBLEM, None, settings=options)
    without = SimpleNamespace(uid="a", problem="What is 17 + 25?")
    assert prompts().teacher(without, None, settings=options) is None
    tight = DistillSettings(answer=True, max_prompt_tokens=20)
    assert prompts().teacher(PROBLEM, None, settings=tight) is None


def test_a_template_of_ones_own():
    options = DistillSettings(template="{problem}\nSee: {solution}")
    prompt = prompts().teacher(PROBLEM, success("a {problem} of 42"), settings=options)
    assert prompt == "What is 17 + 25?\nSee: a {problem} of 42"
    with pytest.raises(ConfigError, match=r"distill.template .* has no \{solution\}"):
        prompts().teacher(
            PROBLEM, success("x"), settings=DistillSettings(template="{problem} alone")
        )


def test_rows_of_a_data_set_show_it_in_their_last_message():
    made = RowPrompts(Letters(), max_prompt_tokens=900, max_attempt_tokens=10)
    row = SimpleNamespace(uid="a", prompt="Add 1 and 2.")
    assert made.teacher(row, success("3"), settings=DistillSettings()).startswith(
        "Add 1 and 2."
    )
    chat = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "1 + 2?"}]
    row = SimpleNamespace(uid="a", prompt=chat)
    first, last = made.teacher(row, success("3"), settings=DistillSettings())
    assert first == chat[0] and last["content"].startswith("1 + 2?\n\n")
