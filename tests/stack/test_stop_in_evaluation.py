"""A stop that is asked for while the held-out problems are asked: no step follows, and nothing is lost."""

from types import SimpleNamespace

import pytest

from r3_openrlhf.runs.stop_request import RunInterrupted
from r3_openrlhf.stack import trainer

STEP = 4


def steps_with(asked, save_steps, evaluation_is_due=True):
    """A trainer whose evaluation takes the request `asked`; it lists what it did."""
    steps, did = object.__new__(trainer.RecordedSteps), []
    reason = None

    def evaluate():
        nonlocal reason
        reason = asked
        did.append("evaluate")

    def nothing(*_args):
        return None

    steps._next_epoch, steps._saving, steps._trends, steps.wandb_logger = 0, {}, [], None
    steps.args = SimpleNamespace(ckpt=SimpleNamespace(save_steps=save_steps))
    steps.run = SimpleNamespace(write_rollouts=nothing, append_metrics=nothing)
    steps.experience_maker = SimpleNamespace(records=[])
    steps.stop = SimpleNamespace(reason=lambda: reason)
    steps.clock = SimpleNamespace(
        step_ended=nothing,
        next_step=nothing,
        reason_to_stop=nothing,
        is_time_to_save=lambda: False,
    )
    steps.tracker = steps._warn = steps._forget_what_no_checkpoint_needs = nothing
    steps._evaluation_is_due, steps._evaluate = lambda: evaluation_is_due, evaluate
    steps._save = lambda step, logs, states, *, now: did.append(
        "save" if now or step % save_steps == 0 else "log"
    )
    return steps, did


@pytest.mark.parametrize(
    ("save_steps", "expected"),
    [(1, ["save", "evaluate"]), (3, ["log", "evaluate", "save"])],
)
def test_the_run_ends_after_it_with_the_step_saved(save_steps, expected):
    steps, did = steps_with("signal SIGTERM", save_steps)
    with pytest.raises(RunInterrupted, match=r"preempted at step 4, saved \(signal SIGTERM\)"):
        steps.save_logs_and_checkpoints(STEP, {"loss": 0.5})
    assert did == expected


def test_without_a_request_the_next_step_follows():
    steps, did = steps_with(None, 3)
    steps.save_logs_and_checkpoints(STEP, {"loss": 0.5})
    assert did == ["log", "evaluate"]
