"""A person reads these in the first minutes of a run; by hand."""

from r3_openrlhf.method.types import Verdict
from r3_openrlhf.runs.early_warnings import early_warnings
from tests.method.history.samples import make_rollout

C, W, U = Verdict.CORRECT, Verdict.WRONG, Verdict.UNGRADED


def rollout(verdict, *, reward=None, truncated=False, reason="", **extras):
    made = make_rollout(ids=[1], verdict=verdict)
    made.reward = {C: 1.0, W: 0.0, U: None}[verdict] if reward is None else reward
    made.truncated, made.reason, made.extras = truncated, reason, extras
    return made


def kinds(*rollouts, step=1):
    return set(early_warnings(rollouts, step=step))


def test_a_usual_step_is_silent():
    assert kinds(rollout(C), rollout(W), rollout(W, truncated=True)) == set()
    assert kinds() == set()


def test_each_trouble_has_its_sentence():
    assert kinds(rollout(C, truncated=True), rollout(W, truncated=True)) == {"truncated"}
    assert kinds(rollout(W), rollout(W)) == {"none correct"}
    assert kinds(rollout(U), rollout(U)) == {"ungraded"}
    # paid the other way round, and not at all
    assert kinds(rollout(C, reward=-1.0), rollout(W, reward=1.0)) == {"contradiction"}
    assert kinds(rollout(C, reward=0.0), rollout(W, reward=0.0)) == {"contradiction"}
    assert kinds(rollout(C, reward=-1.0), rollout(W, reward=-2.0)) == set()


def test_the_sentence_says_what_the_function_said():
    error = "odd: LookupError: no such word (my_rewards.py, line 22)"
    mine = [rollout(U, reason="raised LookupError", error=error)] * 2 + [rollout(U, reason="timeout"), rollout(C)]
    assert early_warnings(mine, step=2)["ungraded"] == (
        f"step 2: 3 of 4 responses could not be graded: raised LookupError (2), timeout (1); {error}"
    )


def test_later_steps_speak_of_what_could_not_be_graded_alone():
    assert kinds(rollout(W), rollout(W), step=4) == set()
    assert kinds(rollout(W, truncated=True), rollout(U, truncated=True), step=4) == {"ungraded"}
