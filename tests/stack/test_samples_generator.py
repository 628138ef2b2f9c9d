"""What is sampled, dropped, kept and counted: upstream's own generation loop, with an engine that says what it is told.

Problem i is "p<i>"; its label holds the verdicts (C, W, w: wrong with partial credit, U: ungraded) and the lengths of
its responses.
"""

import functools
import json
import signal
from types import SimpleNamespace

import pytest
import ray
from torchdata.stateful_dataloader import StatefulDataLoader

from r3_openrlhf.config.loading import load_config
from r3_openrlhf.machine.ray_start import patient_raylet
from r3_openrlhf.method.history.store import HistoryStore
from r3_openrlhf.method.r3 import R3
from r3_openrlhf.problems.training_file import Label
from r3_openrlhf.stack.samples_generator import R3SamplesGenerator, keep_order
from tests.method.history.samples import make_rollout
from tests.stack.experience_makers import arguments
from tests.stack.prompt_lists import Problems

pytestmark = pytest.mark.stack
COUNTS = ("dropped_groups", "dropped_tokens", "left_over_groups", "left_over_tokens")


@pytest.fixture(scope="module")
def engine():
    class Scripted:  # in here Ray sends it whole; the worker need not import this file
        def get_num_unfinished_requests(self):
            return 0

        def generate_responses(self, prompt, label, sampling_params, num_samples, **others):
            from r3_openrlhf.method.types import Verdict
            from r3_openrlhf.problems.training_file import Label
            from r3_openrlhf.rewards.exchange import Grade
            from r3_openrlhf.stack.convert import Run, response_of

            script, given = (
                Label.from_json(label).metadata,
                len(Label.from_json(label).prefix or []),
            )
            found = []
            for letter, length in zip(
                script["verdicts"][:num_samples], script["lengths"], strict=False
            ):
                verdict = {"C": Verdict.CORRECT, "U": Verdict.UNGRADED}.get(
                    letter, Verdict.WRONG
                )
                score = {"C": 1.0, "W": 0.0, "w": 0.01, "U": None}[letter]
                grade = Grade(
                    verdict=verdict,
                    reason="",
                    score=score,
                    reward=None if score is None else score // 1,
                )
                runs = [Run([2] * given, None)] if given else []
                runs.append(Run([2] * length, [0.0] * length))
                facts = dict(text="", finish_reason="stop", entropy_bounds=None, seconds=0)
                found.append(
                    response_of(
                        [1], runs, grade, prompt=prompt, label=label, truncated=False, **facts
                    )
                )
            return found

    on_sigterm = signal.getsignal(signal.SIGTERM)  # ray.init puts its own there
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")  # and sets this
        with patient_raylet():
            # Ray's own is 15, and the worker imports vLLM beside other tests
            settings = {"worker_niceness": 0}
            ray.init(
                address="local",
                num_cpus=1,
                include_dashboard=False,
                log_to_driver=False,
                _system_config=settings,
            )
        yield ray.remote(Scripted).remote()
        ray.shutdown()
    signal.signal(signal.SIGTERM, on_sigterm)


def generator_for(engine, scripts, *, algo="dapo", ranks=1, **train):
    """Batches of 2 groups; the problems in the given order."""
    size = len(scripts[0])
    overrides = [
        f"algo={algo}",
        "run_dir=unused",
        "rollout.batch_size=2",
        f"rollout.n_samples_per_prompt={size}",
    ]
    overrides += ["train.micro_batch_size=1", "rollout.micro_batch_size=1"]
    config = load_config(
        "cpu_smoke", overrides + [f"train.{key}={value}" for key, value in train.items()]
    )
    args = arguments(ranks)
    args.rollout.n_samples_per_prompt, args.train.batch_size = size, 2 * size
    args.algo.dynamic_filtering_enable, args.algo.dynamic_filtering_range = (
        algo == "dapo",
        (0, 1),
    )
    args.algo.advantage.is_correction_level, args.vllm = (
        "off",
        SimpleNamespace(enable_sleep=False),
    )
    rows = Problems((f"p{i}", label_of(i, script)) for i, script in enumerate(scripts))
    loader = StatefulDataLoader(
        rows,
        batch_size=1,
        collate_fn=lambda items: (["x"], [items[0][0]], [items[0][1]], [None]),
    )
    made = R3SamplesGenerator(
        SimpleNamespace(args=args), loader, None, None, [engine], config=config, r3=R3(config)
    )
    made._seed_epoch = lambda: None  # the loader does not shuffle
    return made


def label_of(i, script):
    """The lengths tell problems apart: 1, 10, 100, ... tokens for each response."""
    metadata = {"verdicts": script, "lengths": [10**i] * len(script)}
    return Label(
        uid=f"p{i}", problem="", references=[], task="exact", metadata=metadata
    ).to_json()


def steps_of(generator, epochs=1):
    """(problems, counts) of each step, and the counts of what led to no step."""
    found = []
    for _ in range(epochs):
        exhausted = False
        while not exhausted:
            rows, _, _, exhausted = generator.generate_samples(max_len=10**9, max_new_tokens=8)
            if rows:
                size = generator.args.rollout.n_samples_per_prompt
                found.append(
                    ([row.prompts[0] for row in rows][::size], generator.take_counts())
                )
    return found, generator.take_counts()


def filter_counts(counts):
    return tuple(counts[f"r3/filter/{key}"] for key in COUNTS)


@pytest.mark.parametrize(
    ("order", "in_order"), [("file", True), ("level", True), ("shuffled", False)]
)
def test_upstreams_loader_keeps_the_order_of_the_file_or_shuffles_it(
    order, in_order, tmp_path, byte_tokenizer
):
    from openrlhf.trainer.ppo_trainer import prepare_datasets
    from openrlhf.utils.deepspeed import DeepspeedStrategy

    lines = [
        json.dumps({"input": f"p{n}", "label": f"{n}", "datasource": "x"}) + "\n"
        for n in range(30)
    ]
    (tmp_path / "p.jsonl").write_text("".join(lines))
    args = arguments(1)
    args.data = SimpleNamespace(
        prompt_dataset=str(tmp_path / "p.jsonl"),
        prompt_probs=None,
        max_samples=99,
        prompt_split="train",
        input_template=None,
        dataloader_num_workers=0,
        input_key="input",
        label_key="label",
        apply_chat_template=False,
        image_key="images",
    )
    args.eval, args.use_ms = SimpleNamespace(dataset=None), False
    args.train.seed, args.train.num_episodes, args.train.max_epochs, args.train.batch_size = (
        1,
        1,
        1,
        1,
    )
    strategy = SimpleNamespace(args=args, print=print, is_rank_0=lambda: True)
    strategy.setup_dataloader = functools.partial(DeepspeedStrategy.setup_dataloader, strategy)
    config = load_config("cpu_smoke", ["run_dir=unused", f"data.order={order}"])
    keep_order(strategy, config)
    loader, _, _ = prepare_datasets(strategy, byte_tokenizer)
    made = R3SamplesGenerator(strategy, loader, None, None, [], config=config, r3=R3(config))
    epochs = []
    for made.epoch in (1, 2):
        made._seed_epoch()
        epochs.append([prompts[0] for _, prompts, _, _ in loader])
    asked = [f"p{n}" for n in range(30)]
    assert [epoch == asked for epoch in epochs] == [in_order] * 2 and all(
        sorted(epoch) == sorted(asked) for epoch in epochs
    )
    assert (epochs[0] == epochs[1]) == in_order


def test_what_dynamic_sampling_drops_is_counted(engine):
    """Of six problems p1, p3 and p4 are collapsed; p4's partial credit does not make it a mixed group."""
    (first, second), rest = steps_of(
        generator_for(engine, ["CW", "WW", "WC", "CC", "ww", "CW"])
    )
    # the short batch of the epoch's end is not lost
    assert first[0] == ["p0", "p2"] and second[0] == ["p5"]
    assert filter_counts(first[1]) == (1, 20, 0, 0)
    assert filter_counts(second[1]) == (2, 2 * 11_000, 0, 0)
    assert (first[1]["generated_tokens"], second[1]["generated_tokens"]) == (222, 222_000)
    assert second[1]["generated_tokens_total"] == 222_222
    assert rest["generated_tokens"] == 0


def test_the_pass_rate_is_that_of_groups(engine):
    made = generator_for(engine, ["CW", "WW", "CW", "CW"])
    _, pass_rate, consumed, _ = made.generate_samples(max_len=10**9, max_new_tokens=8)
    assert consumed == 3 and pass_rate == pytest.approx(200 / 3)


def test_groups_that_led_to_no_step_are_counted_with_the_next_or_at_the_end(engine):
    steps, rest = steps_of(generator_for(engine, ["CW", "WC", "WW", "CC"]), epochs=2)
    assert [problems for problems, _ in steps] == [["p0", "p1"]] * 2
    assert [counts["generated_tokens"] for _, counts in steps] == [22, 2222]
    assert filter_counts(steps[1][1]) == (2, 2200, 0, 0)
    assert (rest["generated_tokens"], rest["generated_tokens_total"]) == (2200, 4444)


def test_a_group_that_could_not_be_graded_is_not_taken_for_a_collapsed_one(engine):
    ((problems, counts),), _ = steps_of(generator_for(engine, ["UW", "CW"]))
    assert problems == ["p0", "p1"] and filter_counts(counts) == (0, 0, 0, 0)


def test_ranks_get_the_same_number_of_rows_at_the_end_of_an_epoch(engine):
    """Three groups of three rows on two ranks: the last batch has three rows, which two ranks cannot share."""
    ((problems, counts),), rest = steps_of(
        generator_for(engine, ["CWC"] * 3, algo="grpo", ranks=2)
    )
    assert problems == ["p0", "p1"] and filter_counts(counts) == (0, 0, 0, 0)
    assert filter_counts(rest) == (0, 0, 1, 300) and rest["generated_tokens_total"] == 333
    steps, rest = steps_of(generator_for(engine, ["CWC"] * 3, algo="grpo", ranks=1))
    assert steps[1][0] == ["p2"] and rest["generated_tokens"] == 0


def test_the_budget_ends_the_run_and_not_the_epoch(engine):
    """p0 and p1 are dropped and two more asked, then 2,222 tokens are spent: the rest of the epoch is left alone."""
    made = generator_for(
        engine, ["WW", "WW", "CW", "WW", "CW", "CW"], max_generated_tokens=2000
    )
    steps, rest = steps_of(made, epochs=2)
    assert [problems for problems, _ in steps] == [["p2"]]
    assert steps[0][1]["generated_tokens_total"] == 2222 and rest["generated_tokens"] == 0
    assert made.epoch == 1
    # with a larger one the same epoch goes on where it stood
    made = generator_for(engine, ["WC", "CW", "CW", "CW"], algo="grpo", max_generated_tokens=22)
    assert [problems for problems, _ in steps_of(made)[0]] == [["p0", "p1"]] and made.epoch == 1


def test_held_out_problems_leave_no_trace_in_training(engine):
    made = generator_for(engine, ["CW", "WC", "CC"])
    rows, _, _, _ = made.generate_samples(max_len=10**9, max_new_tokens=8)
    before = made.take_counts()
    prompts, labels = ["h3", "h4", "h5"], [label_of(i, "WWWW") for i in (3, 4, 5)]
    found = made.generate_held_out(
        prompts, labels, n_samples_per_prompt=4, temperature=0.5, max_len=10**9
    )
    # all wrong, none dropped
    assert sorted(rollout.uid for rollout in found) == ["p3"] * 4 + ["p4"] * 4 + ["p5"] * 4
    steps, rest = steps_of(made)
    assert (steps, made.totals["generated_tokens_total"], before["generated_tokens_total"]) == (
        [],
        222,
        22,
    )
    assert filter_counts(rest) == (1, 200, 0, 0)


def slow_engine():
    class Slow:
        """An engine that never answers."""

        def __init__(self):
            self.given_up = 0

        async def get_num_unfinished_requests(self):
            return 0

        async def generate_responses(self, prompt, **_others):
            import asyncio

            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.given_up += 1
                raise

        async def number_given_up(self):
            return self.given_up

    return ray.remote(Slow).remote()


@pytest.mark.parametrize("asked", ["at once", "after two questions"])
def test_a_request_to_end_stops_held_out_problems_that_would_go_on(engine, asked):  # noqa: ARG001
    """Nothing of them is returned, and no request stays with the engine."""
    slow = slow_engine()
    made = generator_for(slow, ["WWWW"])
    questions = iter(["signal SIGTERM"] if asked == "at once" else [None, "signal SIGTERM"])
    found = made.generate_held_out(
        ["h0", "h1", "h2"],
        [label_of(i, "WWWW") for i in range(3)],
        asked_to_end=lambda: next(questions),
        n_samples_per_prompt=4,
        max_len=10**9,
    )
    assert found is None
    assert ray.get(slow.number_given_up.remote(), timeout=30) == 3
    assert list(questions) == []


def test_groups_from_states_take_the_places_of_problems(engine):
    """Half of a batch of 2 starts from a state of p3, which the step does not ask. The loader keeps
    what was not asked, and an epoch ends with a batch that is short by nothing."""
    generator = generator_for(engine, ["CW", "WW", "WC", "WW"], algo="rrl")
    generator.config.exploration.rrl.ratio = 0.5
    with HistoryStore.open(":memory:") as history:
        generator.r3 = R3(generator.config, history=history)
        history.commit_step(
            1,
            1,
            [
                make_rollout(
                    "p3", ids=[1, 8], logprobs=[-0.5, -1.0], prompt=[1], state=(1, 0.25)
                )
            ],
        )
        generator.step = 1
        rows, _, consumed, exhausted = generator.generate_samples(
            max_len=10**9, max_new_tokens=8
        )
        assert (
            [row.prompts[0] for row in rows] == ["p0", "p0", "p3", "p3"]
            and consumed == 1
            and not exhausted
        )
        found = [row.r3_rollout for row in rows]
        assert [(one.context, one.prefix_tokens) for one in found] == [("plain", 0)] * 2 + [
            ("prefix", 1)
        ] * 2
        assert found[2].response_logprobs[0] == -0.5 and Label.from_json(
            rows[2].labels[0]
        ).prefix == [1]
        facts = generator.take_facts()
        assert facts.metrics["r3/rrl/continued"] == 1 and facts.metrics["r3/rrl/not_drawn"] == 0
        # what was given cost nothing
        assert facts.metrics["generated_tokens"] == 2 * 1 + 2 * 1000


def test_collection_asks_what_is_not_solved_until_its_share_is_spent(engine):
    """p0 is solved already, p1 (10 tokens) at once; p2 (100) and p3 (1,000) never are, so rounds go on: 1,110 and 1,100 tokens of
    the 1,500. Successes are no plain rollouts, and every token counts."""
    made = generator_for(
        engine, ["CC", "CW", "WC", "WW"], algo="r3", max_generated_tokens=15_000
    )
    made.config.rollout.collect.share = 0.1
    (found,) = made.collect(["p0"], max_len=10**9, max_new_tokens=8, n_samples_per_prompt=1)
    assert (found.uid, found.context, found.origin, found.has_logprobs) == (
        "p1",
        "imported",
        "collected",
        True,
    )
    counts = made.take_counts()
    assert counts == dict.fromkeys(counts, 0.0) | {
        "generated_tokens_total": 2210.0,
        "collected_tokens_total": 2210.0,
    }
    assert (
        made.collect(
            ["p0", "p1", "p2", "p3"], max_len=10**9, max_new_tokens=8, n_samples_per_prompt=1
        )
        == []
    )
