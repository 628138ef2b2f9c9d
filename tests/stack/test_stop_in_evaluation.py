"""The evaluation between steps: a stop that is asked for during it ends it (no step follows, nothing is lost, a part of the
responses is no result), and how it samples."""

from types import SimpleNamespace

import pytest

from r3_openrlhf.config.loading import load_config
from r3_openrlhf.method.types import Verdict
from r3_openrlhf.runs.stop_request import RunInterrupted
from r3_openrlhf.stack import trainer
from r3_openrlhf.stack.samples_generator import BatchFacts
from tests.method.history.samples import make_rollout

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
    steps._facts = BatchFacts({}, next_epoch=1)
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


def test_without_all_responses_nothing_is_written(monkeypatch):
    """What was sampled before the stop measures nothing; the run that continues asks again."""
    steps, _ = steps_with("signal SIGTERM", 3)
    del steps._evaluate
    steps.config = SimpleNamespace(held_out=SimpleNamespace(n_samples=1, temperature=1.0))
    steps.generate_kwargs, asked = {}, []

    def generate_held_out(_prompts, _labels, *, asked_to_end, **_others):
        asked.append(asked_to_end)

    steps.samples_generator = SimpleNamespace(
        step=STEP, totals={}, generate_held_out=generate_held_out
    )
    # whatever would write, or read its responses, is missing
    steps.run = SimpleNamespace(read_metrics=lambda: [], held_out=None)
    monkeypatch.setattr(trainer, "announce", lambda *_args, **_others: None)
    monkeypatch.setattr(trainer, "read_prompts", lambda _path: ([], []))
    steps._evaluate()
    assert asked == [steps.stop.reason]


@pytest.mark.parametrize("save_steps", [1, 3, 4, float("inf")])
@pytest.mark.parametrize("was_stopped", [True, False])
def test_the_evaluation_after_the_last_step_ends_too(monkeypatch, save_steps, was_stopped):
    """A checkpoint of the last step is there, by which the run continues; a request that came when
    it was over lets the run finish."""
    asked = iter([False, True, was_stopped])
    steps, did = steps_with("signal SIGTERM", save_steps)
    steps._evaluation_is_due = lambda **_last: next(asked)
    steps.samples_generator = SimpleNamespace(step=STEP)
    steps.history = steps.tensorboard_logger = None
    steps._counts_after_last_step = lambda: {"generated_tokens": 0}
    monkeypatch.setattr(trainer, "announce", lambda *_args, **_others: did.append("finish"))

    def last_step(self, _step):
        self.save_logs_and_checkpoints(STEP, {"loss": 0.5}, {"episode": 0})

    upstream = trainer.ppo_trainer.BasePPOTrainer
    monkeypatch.setattr(upstream, "fit", last_step, raising=False)
    if not was_stopped:
        steps.fit()
        assert did[-1] == "finish"
        return
    with pytest.raises(RunInterrupted, match=r"preempted at step 4, saved \(signal SIGTERM\)"):
        steps.fit()
    assert did.count("save") == 1 and "finish" not in did


def test_held_out_problems_are_sampled_at_their_own_temperature(monkeypatch):
    """Training's is in generate_kwargs, and in the line of evaluations.jsonl is what was used."""
    settings = ["held_out.temperature=0.4", "held_out.n_samples=2", "rollout.temperature=0.9"]
    steps, seen, lines = object.__new__(trainer.RecordedSteps), [], []
    steps.config = load_config("cpu_smoke", [*settings, "held_out.path=unused"])
    steps.generate_kwargs = {"temperature": 0.9, "n_samples_per_prompt": 8, "top_p": 1.0}
    steps.stop = SimpleNamespace(reason=lambda: None)

    def generate_held_out(_prompts, _labels, *, asked_to_end, **kwargs):
        seen.append(kwargs)
        return []

    steps.samples_generator = SimpleNamespace(
        step=STEP,
        totals={"generated_tokens_total": 7.0},
        generate_held_out=generate_held_out,
    )
    steps.run = SimpleNamespace(
        held_out="unused",
        read_metrics=list,
        write_held_out=lambda *_: None,
        append_evaluation=lines.append,
    )
    steps.wandb_logger = steps.tensorboard_logger = None
    steps.tracker = steps._warn = lambda *_: None
    made = [make_rollout("a", ids=[0], verdict=Verdict.CORRECT)]
    monkeypatch.setattr(trainer, "announce", lambda *_, **__: None)
    monkeypatch.setattr(trainer, "read_prompts", lambda _: ([], []))
    monkeypatch.setattr(trainer, "work_of", lambda _: SimpleNamespace(evaluated=lambda _: made))
    steps._evaluate()
    assert seen == [{"temperature": 0.4, "n_samples_per_prompt": 2, "top_p": 1.0}]
    assert (lines[0]["temperature"], lines[0]["n_samples"]) == (0.4, 2)
