"""Solutions that a run begins with: which, how likely, and what is stored and trained."""

import numpy as np
import pytest

from r3_openrlhf.method.errors import ConfigError
from r3_openrlhf.method.history.store import HistoryStore
from r3_openrlhf.method.types import Context, Verdict
from r3_openrlhf.problems.sources import load_problems
from r3_openrlhf.runs.models.locate import resolve_model
from research import load, successes
from research.loop import Lab
from research.worlds import is_earned


@pytest.fixture(scope="module")
def model_dir():
    return resolve_model("research.facts:table")


def lab_of(tmp_path, model_dir, *settings):
    settings = [f"data.reasoning_gym.{one}" for one in settings]
    return Lab(
        load("lab_own_skills", ["algo=r3_earned", f"run_dir={tmp_path / 'run'}", *settings]),
        model_dir=model_dir,
    )


@pytest.mark.parametrize("style", successes.STYLES)
def test_each_solution_is_right_and_has_the_policys_log_probs(tmp_path, model_dir, style):
    lab = lab_of(tmp_path, model_dir)
    labels = load_problems(lab.config.data).labels
    rollouts = successes.solutions(lab, labels, share=0.05, style=style)
    problems = {label.uid: label.problem for label in labels}
    assert len({one.uid for one in rollouts}) == len(rollouts) == round(0.05 * len(labels))
    assert all(is_earned("own_skills")(problems[one.uid], one.text) for one in rollouts)
    assert all(one.num_tokens <= lab.config.rollout.max_new_tokens for one in rollouts)
    again = successes.measured(lab, rollouts)
    for one, other in zip(rollouts, again, strict=True):
        assert len(one.response_logprobs) == one.num_tokens
        assert np.allclose(one.response_logprobs, other.response_logprobs, atol=1e-4)
    nats = np.mean([one.response_logprobs.sum() for one in rollouts])
    assert nats < -50 if style == "foreign" else -12 < nats < 0


def test_the_own_style_is_drawn_as_the_policy_draws(model_dir):
    rng = np.random.default_rng(0)
    drawn = [successes.STYLES["own"](np.log([0.06, 0.03, 0.01]), rng) for _ in range(4000)]
    assert np.bincount(drawn) / len(drawn) == pytest.approx([0.6, 0.3, 0.1], abs=0.03)


def test_solutions_are_stored_as_imported_and_too_unlikely_ones_set_aside(tmp_path, model_dir):
    for style, kept in (("own", 13), ("foreign", 0)):
        lab = lab_of(tmp_path, model_dir, "solved=0.05", f"style={style}")
        with HistoryStore.open(":memory:", limits=lab.config.history, seed=1) as history:
            metrics = successes.begin(lab, load_problems(lab.config.data).labels, history)
            rows = [
                history.recall(
                    label.uid,
                    Verdict.CORRECT,
                    k=1,
                    step=1,
                    max_policy_lag=9,
                    contexts=(Context.IMPORTED,),
                )
                for label in load_problems(lab.config.data).labels
            ]
        assert sum(map(len, rows)) == kept and metrics["successes/set_aside"] == 13 - kept


def test_warm_up_makes_the_solutions_likely_and_counts_its_tokens(tmp_path, model_dir):
    lab = lab_of(tmp_path, model_dir)
    rollouts = successes.solutions(
        lab, load_problems(lab.config.data).labels, share=0.05, style="own"
    )
    tokens = successes.train(lab, rollouts, learning_rate=3e-3)
    assert tokens == successes.EPOCHS * sum(one.num_tokens for one in rollouts)
    before, after = (
        np.mean([one.response_logprobs.mean() for one in each])
        for each in (rollouts, successes.measured(lab, rollouts))
    )
    assert before < -0.3 and after > -0.1


def test_what_does_nothing_is_refused(tmp_path, model_dir):
    lab = lab_of(tmp_path, model_dir, "solved=0.05")
    with pytest.raises(ConfigError, match="nothing uses the solutions"):
        successes.begin(lab, [], None)
    with pytest.raises(ConfigError, match="solvd does not exist"):
        load_problems(lab_of(tmp_path, model_dir, "solvd=0.05").config.data)
