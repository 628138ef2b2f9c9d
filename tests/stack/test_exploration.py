"""Everything beyond the paper at once, a LoRA adapter for the weights included, through the real stack on a tiny model, killed and resumed.

Nothing here depends on what is sampled: what the history store remembers is worked out again from the run's rollouts.
"""

import math

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")
torch = pytest.importorskip("torch")
if torch.cuda.is_available():
    pytest.skip("these runs are for the CPU platform", allow_module_level=True)

from r3_openrlhf.method.history.store import HistoryStore  # noqa: E402
from r3_openrlhf.method.r3 import R3  # noqa: E402
from r3_openrlhf.operations.store.verification import verify  # noqa: E402
from r3_openrlhf.runs.directory import RunDirectory  # noqa: E402
from r3_openrlhf.runs.models.locate import resolve_model  # noqa: E402
from tests.stack.training import Run, lines, rollouts_of, train  # noqa: E402

pytestmark = [pytest.mark.stack, pytest.mark.slow]
EVERYTHING = (
    "exploration.select=skip_collapsed",
    "exploration.first_samples=4",
    "exploration.prefix=fractions",
    "reflection.threshold=2",  # every problem is hard
    "reflection.max_per_step=2",
    "train.inner_epochs=2",
    "train.dual_clip=3",
    "train.num_epochs=4",
    "reflection.share_successes=true",
    "replay.recall_failures=false",
    "ranking.score=logprob",
    "advantage.success_scale=3",
    "checkpoint.save_steps=2",
    "openrlhf.ds.lora.rank=8",
    "train.learning_rate=3e-3",
)


@pytest.fixture(scope="module")
def resumed(tmp_path_factory):
    """Killed behind step 5, of which there is no checkpoint, and gone on with from step 4, inside the second epoch."""
    run_dir = tmp_path_factory.mktemp("runs") / "everything"
    with Run(run_dir, *EVERYTHING, "train.max_steps=8", held_in=6) as run:
        run.wait_for_step(5)
    train(run_dir, *EVERYTHING, "train.max_steps=8")
    return run_dir


def test_the_store_remembers_what_the_rollouts_show(resumed):
    """Independent: the selection of a run that was never interrupted, from the rollout files alone."""
    config = RunDirectory(resumed).load_config()
    expected = R3(config).selection
    rollouts = rollouts_of(resumed)
    with HistoryStore.open(resumed / "history.sqlite", writer=False) as history:
        for step in range(1, 9):
            fresh = [
                r for r in rollouts if r["step"] == step and r["recalled_from"] is None and r["context"] == "plain"
            ]
            graded = [r for r in fresh if r["verdict"] != "ungraded"]
            uids = {r["uid"] for r in graded}
            expected.observe(
                {
                    uid: (
                        sum(r["verdict"] == "correct" for r in graded if r["uid"] == uid),
                        sum(r["uid"] == uid for r in graded),
                    )
                    for uid in uids
                }
            )
            stored = history.state_of(step)
            assert stored is None or stored["selection"]["visits"] == expected.state()["visits"]
            assert stored is None or stored["selection"]["keep"] == pytest.approx(expected.state()["keep"])
        assert stored is not None  # of the newest step always


def test_no_problem_is_asked_twice_in_an_epoch_and_every_one_is_asked_or_counted_as_skipped(resumed):
    metrics, rollouts = lines(resumed / "metrics.jsonl"), rollouts_of(resumed)
    problems = len(lines(RunDirectory(resumed).data))
    assert [line["step"] for line in metrics] == list(range(1, 9))
    for epoch in {line["epoch"] for line in metrics}:
        steps = {line["step"] for line in metrics if line["epoch"] == epoch}
        asked = {(r["step"], r["uid"]) for r in rollouts if r["step"] in steps and r["recalled_from"] is None}
        assert len(asked) == len({uid for _, uid in asked})
    for line in metrics:
        asked = {r["uid"] for r in rollouts if r["step"] == line["step"] and r["recalled_from"] is None}
        assert len(asked) == line["r3/select/came_up"] - line["r3/select/skipped"]
    epochs = metrics[-1]["epoch"]
    assert problems * (epochs - 1) < sum(line["r3/select/came_up"] for line in metrics) <= problems * epochs


def test_passes_and_numbers(resumed):
    config, metrics = RunDirectory(resumed).load_config(), lines(resumed / "metrics.jsonl")
    for line in metrics:
        assert all(math.isfinite(value) for value in line.values())
        assert line["actor_lr"] == pytest.approx(config.train.learning_rate)
        assert line["trained_tokens"] > 2 * line["response_tokens"] > 0
        groups = ("mixed", "all_correct", "none_correct", "reflection", "prefix")
        assert sum(line[f"r3/tokens/{kind}"] for kind in groups) == line["response_tokens"] == line["generated_tokens"]
    assert max(line["r3/sync/abs_logprob_gap"] for line in metrics) < 0.02


def test_only_successes_are_recalled_and_shared_ones_come_from_the_same_step(resumed):
    recalled = [r for r in rollouts_of(resumed) if r["recalled_from"] is not None]
    assert all(r["verdict"] == "correct" for r in recalled)
    for step, line in enumerate(lines(resumed / "metrics.jsonl"), start=1):
        shared = [r for r in recalled if r["step"] == step == r["recalled_from"]]
        assert len(shared) == line["r3/replay/shared"] and all(r["context"] != "plain" for r in shared)


def test_groups_start_from_stored_states(resumed):
    rollouts, metrics = rollouts_of(resumed), lines(resumed / "metrics.jsonl")
    limit = RunDirectory(resumed).load_config().rollout.max_new_tokens
    continued = [r for r in rollouts if r["context"] == "prefix" and r["recalled_from"] is None]
    for line in metrics:
        groups = {r["group"] for r in continued if r["step"] == line["step"] and r["verdict"] != "ungraded"}
        assert line["r3/prefix/groups"] == len(groups) <= 2
        # every problem is hard in the second epoch, and something is stored of all that were asked
        assert line["epoch"] == 1 or groups
        fresh = [r for r in rollouts if r["step"] == line["step"] and r["recalled_from"] is None]
        assert line["generated_tokens"] == sum(r["num_tokens"] - r["prefix_tokens"] for r in fresh)
    for one in continued:
        assert 1 <= one["prefix_tokens"] < one["num_tokens"] <= limit
    with HistoryStore.open(resumed / "history.sqlite", writer=False) as history:
        for uid in {r["uid"] for r in continued}:
            graded = [r for r in continued if r["uid"] == uid and r["verdict"] != "ungraded"]
            known = history.continuations(uid).values()
            assert sum(one.tries for one in known) == len(graded)
            assert sum(one.successes for one in known) == sum(r["verdict"] == "correct" for r in graded)
    assert verify(resumed / "history.sqlite").findings == []


def test_an_engine_without_the_adapter_would_have_been_noticed_and_the_final_model_has_it(resumed):
    """On tokens that nobody sampled: the log-probs of the base model's own responses are far from those of the final model.
    test_passes_and_numbers would see that distance, and it sees less than 0.02 nats. The base stayed as it was."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base, final = (
        AutoModelForCausalLM.from_pretrained(path) for path in (resolve_model("tiny"), resumed / "final_model")
    )
    ids = torch.randint(base.config.vocab_size, (1, 500), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        of_base, of_final = (model(ids).logits.float().log_softmax(-1) for model in (base, final))
    assert (of_base.exp() * (of_base - of_final).abs()).sum(-1).mean() > 0.1
    adapted = PeftModel.from_pretrained(base, resumed / "final_model" / "adapter", autocast_adapter_dtype=False)
    saved = dict(final.named_parameters())
    for name, weight in adapted.merge_and_unload().named_parameters():
        assert torch.equal(weight.data, saved[name].data), name
