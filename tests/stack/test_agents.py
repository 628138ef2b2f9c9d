"""Trajectories on the stack: the executor with a scripted engine, upstream's real tensors, and the real experience maker."""

import asyncio
import statistics
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from vllm import SamplingParams

from r3_openrlhf.config import R3Config
from r3_openrlhf.method.errors import TrainingStopped
from r3_openrlhf.method.history import HistoryStore
from r3_openrlhf.method.r3 import R3
from r3_openrlhf.method.types import Context, Verdict
from r3_openrlhf.problems.agents.replay import whole_trajectories
from r3_openrlhf.problems.agents.trajectory import End
from r3_openrlhf.problems.training_file import Label
from r3_openrlhf.stack.agents.experience import AgentExperienceMaker
from r3_openrlhf.stack.rollout_engine import R3RolloutActor
from r3_openrlhf.stack.samples_generator import NO_STATES, R3SamplesGenerator
from tests.method.history.samples import counts as counts_of
from tests.stack import experience_makers as of_responses
from tests.stack.scripted_agents import (
    LABEL,
    MAX_LEN,
    NEW_TOKENS,
    TASK,
    Scripted,
    play,
)

pytestmark = pytest.mark.stack


def test_every_turn_is_a_sample_with_the_prompt_of_its_memory(agent_executor, byte_tokenizer):
    """Memory of one turn, and a budget of tokens of its own for each."""
    found, asked = play(
        agent_executor(), byte_tokenizer, "up", "down", "hop", "up and so on", "up"
    )
    assert asked == [
        ("Goal: top\nNow: step 0", NEW_TOKENS),
        ("Goal: top\nBefore:\nstep 0 -> up\nNow: step 1", NEW_TOKENS),
        ("Goal: top\nBefore:\nstep 1 -> down\nNow: step 0", NEW_TOKENS),
        ("Goal: top\nBefore:\nstep 0 -> hop (impossible)\nNow: step 0", NEW_TOKENS),
        ("Goal: top\nBefore:\nstep 0 ->  (impossible)\nNow: step 0", NEW_TOKENS),
    ]
    texts = ["up", "down", "hop", "up and s", "up"]
    assert [one["r3"]["text"] for one in found] == texts
    for one, (prompt, _), text in zip(found, asked, texts, strict=True):
        start, end = one["action_ranges"][0]
        ids = one["observation_tokens"].tolist()
        assert byte_tokenizer.decode(ids[:start]) == prompt == one["r3"]["turn_prompt"]
        assert byte_tokenizer.decode(ids[start:end]) == text and len(ids) == end
        assert one["rollout_log_probs"][start:].tolist() == [
            -place / 4 for place in range(len(text))
        ]
        assert one["prompt"] == TASK and one["label"] == LABEL
    assert [one["truncated"] for one in found] == [False, False, False, True, False]


def test_what_travels_with_a_turn(agent_executor, byte_tokenizer):
    """Five turns end at agents.max_turns. gamma is 1/2, and an invalid action costs 1/2: R = -1/8 - 1/16, ... of the third and
    the fourth turn."""
    found, _ = play(agent_executor(), byte_tokenizer, "up", "down", "hop", "up and so on", "up")
    turns = [one["r3"]["turn"] for one in found]
    assert [turn.index for turn in turns] == [0, 1, 2, 3, 4] and len(
        {turn.trajectory for turn in turns}
    ) == 1
    assert [turn.state for turn in turns] == ["step 0", "step 1", "step 0", "step 0", "step 0"]
    assert [turn.valid for turn in turns] == [True, True, False, False, True]
    assert [turn.step_return for turn in turns] == [-0.1875, -0.375, -0.75, -0.5, 0.0]
    assert {one["r3"]["grade"].reason for one in found} == {"turn_limit"}
    assert {one["reward"] for one in found} == {0.0}  # the environment's own
    trajectory = found[0]["r3"]["trajectory"]
    assert trajectory.end is End.TURN_LIMIT and len(trajectory.turns) == 5
    assert all("trajectory" not in one["r3"] for one in found[1:])


def test_a_success_is_one_of_all_turns(agent_executor, byte_tokenizer):
    found, _ = play(agent_executor(), byte_tokenizer, "up", "up", "up")
    assert [one["r3"]["grade"].verdict for one in found] == [Verdict.CORRECT] * 3
    assert [one["reward"] for one in found] == [1.0] * 3
    assert [one["r3"]["turn"].step_return for one in found] == [0.25, 0.5, 1.0]
    assert [one["r3"]["turn"].reward for one in found] == [0.0, 0.0, 1.0]


@pytest.mark.parametrize(
    ("label", "max_len", "verdict"),
    [
        (LABEL.replace('"seed": 3', '"seed": 5'), MAX_LEN, Verdict.UNGRADED),
        (LABEL, 28, Verdict.WRONG),
    ],
    ids=["crashes at its reset", "no prompt fits"],
)
def test_a_trajectory_without_a_turn_is_counted(
    agent_executor, byte_tokenizer, label, max_len, verdict
):
    (only,), asked = play(agent_executor(), byte_tokenizer, label=label, max_len=max_len)
    assert asked == [] and only["r3"]["grade"].verdict is verdict
    assert only["r3"]["trajectory"].turns == () and only["action_ranges"] == [(2, 2)]


def test_an_engine_hands_the_turns_on_as_responses(agent_executor, byte_tokenizer):
    byte_tokenizer.pad_token = "<s>"
    actor = object.__new__(R3RolloutActor)
    actor.executor = agent_executor()
    scripted = Scripted(byte_tokenizer, *["up"] * 6)
    actor.generate = scripted.generate
    params = SamplingParams(max_tokens=NEW_TOKENS, logprobs=None)
    found = asyncio.run(
        actor.generate_responses(TASK, LABEL, params, MAX_LEN, byte_tokenizer, 2)
    )
    turns = [one["r3"]["turn"] for one in found]
    first, second = sorted({turn.trajectory for turn in turns})
    assert [(turn.trajectory, turn.index) for turn in turns] == [
        (name, i) for name in (first, second) for i in range(3)
    ]


# ── from responses to advantages ──


class Maker(of_responses.Given, AgentExperienceMaker):
    pass


def samples_of(responses, *, step=5, attempts=()):
    """Upstream's tensors and our records of these responses, as the generator makes them."""
    generator = object.__new__(R3SamplesGenerator)
    generator._prefixes, generator._training = {}, False
    generator._contexts = dict.fromkeys(attempts, Context.REFLECTION)
    generator.step, generator.epoch = step, 1
    generator.config = R3Config(run_dir="unused")
    return [
        generator._process_response_into_experience(response, max_len=256)
        for response in responses
    ]


def maker(config, *, ranks=1, history=None):
    return of_responses.maker(Maker, config=config, history=history, ranks=ranks)


def metrics_of(made, names):
    return {name: made.metrics[f"r3/agents/{name}"] for name in names}


PLAYS = (
    ("up", "up", "up"),
    ("up", "down", "up", "up", "up"),
    ("hop", "hop", "hop", "hop", "hop"),
)


@pytest.mark.parametrize("ranks", [1, 2])
def test_advantages_and_metrics_of_a_step(agent_executor, byte_tokenizer, ranks):
    """Two successes of 3 and 5 turns, a failure of 5, and a lost one, compared as whole trajectories: 13 rows, sums of rewards
    1, 1 and -2.5 (five invalid actions at 1/2)."""
    played = agent_executor("agents.estimator=grpo")
    rows = [row for texts in PLAYS for row in play(played, byte_tokenizer, *texts)[0]]
    rows += play(played, byte_tokenizer, "jump")[0]
    made = maker(played.config, ranks=ranks)
    made.config.reward.max_ungraded_rate = 0.25
    experiences = made.make_experience_batch(samples_of(rows))
    found = {}
    for experience in experiences:
        for position, index in enumerate(experience.index):
            mask = experience.action_mask[position].bool()
            # what is missing to a multiple of the ranks is filled up
            assert mask.any() == (index < 13)
            found[index] = experience.advantages[position][mask].unique().tolist()
    assert len(found) == (13 if ranks == 1 else 14)
    mean, std = -0.5 / 3, np.std([1, 1, -2.5], ddof=1)
    expected = [(1 - mean) / std] * 8 + [(-2.5 - mean) / std] * 5
    assert [found[index][0] for index in range(13)] == pytest.approx(expected, rel=1e-5)
    counts = dict(
        trajectories=4, lost=1, success_rate=2 / 3, turn_limit=1, rows=13, turns_mean=13 / 3
    )
    # all 13 begin at "step 0" but those at steps 1 and 2, which the two successes share
    counts |= dict(invalid_rate=5 / 13, alone_0=0)
    assert metrics_of(made, counts) == pytest.approx(counts) and made.metrics[
        "accuracy"
    ] == pytest.approx(2 / 3)
    records = made.records
    assert [(row["trajectory"], row["turn"]) for row in records][:4] == [
        ("0", 0),
        ("0", 1),
        ("0", 2),
        ("1", 0),
    ]
    assert records[1]["prompt"].endswith("Now: step 1") and records[0]["prompt"].endswith(
        "Now: step 0"
    )
    assert records[-1]["verdict"] == "ungraded" and records[-1]["advantage"] is None
    # without replay there is no history
    assert not played.config.keeps_history and "r3/agents/recalled" not in made.metrics
    assert all(row["recalled_from"] is None for row in records)


def test_turns_in_the_same_state_are_compared(agent_executor, byte_tokenizer):
    """hgpo with depth 0: of the turns at step 2 of two trajectories both went up, and those at step 0 differ."""
    played = agent_executor(
        "agents.estimator=hgpo", "agents.depth=0", "agents.invalid_penalty=0"
    )
    rows = [
        row
        for texts in (("up",) * 3, ("hop", *("up",) * 3))
        for row in play(played, byte_tokenizer, *texts)[0]
    ]
    made = maker(played.config)
    made.make_experience_batch(samples_of(rows))
    # returns with gamma 1/2: .25 .5 1 and .125 .25 .5 1; of the three turns at step 0 one differs
    t = 3**-0.5
    assert [row["advantage"] for row in made.records] == pytest.approx(
        [t, 0, 0, -2 * t, t, 0, 0], abs=1e-4
    )
    assert [row["reward"] for row in made.records] == [0.25, 0.5, 1, 0.125, 0.25, 0.5, 1]


def test_too_many_lost_trajectories_stop_the_run(agent_executor, byte_tokenizer):
    played = agent_executor()
    rows = [
        *play(played, byte_tokenizer, "up", "up", "up")[0],
        *play(played, byte_tokenizer, "jump")[0],
    ]
    with pytest.raises(
        TrainingStopped,
        match="50% of this step's trajectories were lost \\(raised\\), more than",
    ):
        maker(played.config).make_experience_batch(samples_of(rows))


def test_held_out_trajectories_are_counted_once(agent_executor, byte_tokenizer):
    played = agent_executor()
    rows = [
        row
        for texts in (("up",) * 3, ("hop",) * 5)
        for row in play(played, byte_tokenizer, *texts)[0]
    ]
    rows += play(played, byte_tokenizer, label=LABEL.replace('"seed": 3', '"seed": 5'))[0]
    whole = whole_trajectories([sample.r3_rollout for sample in samples_of(rows)])
    assert [one.verdict for one in whole] == [Verdict.CORRECT, Verdict.WRONG, Verdict.UNGRADED]
    assert [one.num_tokens for one in whole] == [6, 15, 0]
    assert all(len(one.response_ids) == len(one.response_logprobs) for one in whole)


def test_a_step_s_rows_are_neither_cut_nor_dropped(agent_executor):
    """Upstream makes batch_size * n_samples_per_prompt rows of them (samples_generator.py:128)."""
    generator = object.__new__(R3SamplesGenerator)
    generator.config = agent_executor().config
    rows = [torch.zeros(1)] * (generator.config.rows_per_step + 3)
    assert generator._rows_that_divide(rows) is rows


# ── environments that fail, under load ──

AWKWARD = "tests.problems.agents.awkward:Awkward"
DISASTERS = {
    "hang": "timeout",
    "spin": "timeout",
    "segfault": "crashed",
    "exit": "crashed",
    "raise": "raised",
    "novel": "talkative",
}
# of the task with this seed; the others do "count"
SECOND_ACTIONS = [
    *DISASTERS,
    *["work"] * 6,
    *["count"] * 12,
]


class Reckless:
    """An engine that writes the second action of a task in its second turn, a byte a token, whoever else is waiting."""

    def __init__(self, tokenizer):
        self.tokenizer, self.asked = tokenizer, {}

    async def generate(self, prompt_ids, params):
        seed = int(self.tokenizer.decode(prompt_ids).rpartition(" ")[2])
        turn = self.asked[seed] = self.asked.get(seed, -1) + 1
        await asyncio.sleep(0)
        text = SECOND_ACTIONS[seed] if turn == 1 else "count"
        return await Scripted(self.tokenizer, text).generate(prompt_ids, params)


def test_hung_crashing_and_slow_environments_beside_each_other_cost_their_own_trajectories_alone(
    agent_executor, byte_tokenizer
):
    """24 trajectories at once in real processes: in the second of three turns two hang, two crash, one raises, one answers with
    10 MB, and six compute for half a second each, of a limit of three. Every other turn is a row with its own reward."""
    byte_tokenizer.pad_token = "<s>"
    made = agent_executor(
        f"agents.environment={AWKWARD}",
        "agents.memory_turns=0",
        "agents.max_turns=3",
        "agents.timeout_s=3",
        "agents.estimator=grpo",
        "reward.max_ungraded_rate=0.25",
    )
    params, engine = (
        SamplingParams(max_tokens=NEW_TOKENS, logprobs=None),
        Reckless(byte_tokenizer),
    )

    def label(seed):
        uid = f"awkward/{seed}"
        return Label(
            uid=uid, problem=uid, references=[], task="environment", metadata={"seed": seed}
        ).to_json()

    async def play_all():
        return await asyncio.gather(
            *(
                made.execute(
                    f"awkward/{seed}", label(seed), params, MAX_LEN, byte_tokenizer, engine
                )
                for seed in range(len(SECOND_ACTIONS))
            )
        )

    with made.environments:
        played = asyncio.run(play_all())
    for seed, (found, action) in enumerate(zip(played, SECOND_ACTIONS, strict=True)):
        turns = [one["r3"]["turn"] for one in found]
        assert [one["r3"]["text"] for one in found] == (
            ["count", action] if seed < 6 else ["count", action, "count"]
        )
        if seed < 6:
            assert {one["r3"]["grade"].verdict for one in found} == {Verdict.UNGRADED}
            assert found[0]["r3"]["trajectory"].reason == DISASTERS[action]
            assert [turn.reward for turn in turns] == [1.0, None]
        else:
            assert [turn.state for turn in turns] == [
                f"{done}task {seed}" for done in ("", "count in ", f"{action} in ")
            ]
            assert [(turn.reward, turn.valid) for turn in turns] == [(1.0, True)] * 3
            assert {one["reward"] for one in found} == {3.0}


# ── replay of whole trajectories ──

FAILURES = (("hop",) * 5, ("up", "down", "up", "down", "hop"))


def replaying(played, tokenizer, history, *, step):
    made = maker(played.config, history=history)
    made.step, made.gap = step, 0.0625
    made.tokenizer = SimpleNamespace(pad_token_id=0, decode=tokenizer.decode)
    return made


@pytest.fixture
def history():
    with HistoryStore.open(":memory:") as store:
        yield store


def stepped(made, tokenizer, executor, plays, *, step):
    """A step of these plays; what it leaves is committed as step + 1, as the trainer does."""
    rows = [row for texts in plays for row in play(executor, tokenizer, *texts)[0]]
    experiences = made.make_experience_batch(samples_of(rows, step=step))
    made.r3.history.commit_step(step + 1, 1, made.kept_rollouts())
    return experiences


def test_a_stored_success_joins_a_task_that_failed(agent_executor, byte_tokenizer, history):
    """A success of step 1 and two failures of step 5, sums of rewards 1, -2.5 and -0.5 (invalid actions at 1/2): each turn of
    the success is a row with its own prompt, and its ratio is taken against the log-probs that it was sampled with."""
    played = agent_executor("agents.estimator=grpo", "replay.enabled=true")
    first = replaying(played, byte_tokenizer, history, step=0)
    stepped(first, byte_tokenizer, played, [("up", "up", "up"), ("hop",) * 5], step=0)
    assert first.metrics["r3/agents/recalled"] == 0 == first.metrics["r3/replay/recalled"]
    made = replaying(played, byte_tokenizer, history, step=5)
    experiences = stepped(made, byte_tokenizer, played, FAILURES, step=5)
    metrics, counts = made.metrics, dict(recalled=1, rows=13, trajectories=2, success_rate=0)
    assert metrics_of(made, counts) == counts and metrics["r3/replay/recalled"] == 3
    assert (
        metrics["r3/replay/hits"] == 1
        and metrics["r3/history/coverage"] == 1
        and metrics["r3/replay/max_lag"] == 5
    )
    mean = (1 - 2.5 - 0.5) / 3
    records = made.records
    assert [row["recalled_from"] for row in records] == [None] * 10 + [1] * 3
    std = statistics.stdev([1, -2.5, -0.5])
    assert [row["advantage"] for row in records] == pytest.approx(
        [(-2.5 - mean) / std] * 5 + [(-0.5 - mean) / std] * 5 + [(1 - mean) / std] * 3, abs=1e-5
    )
    recalled = records[10:]
    assert [row["prompt"] for row in recalled] == [
        "Goal: top\nNow: step 0",
        "Goal: top\nBefore:\nstep 0 -> up\nNow: step 1",
        "Goal: top\nBefore:\nstep 1 -> up\nNow: step 2",
    ]
    assert [(row["trajectory"], row["turn"], row["state"]) for row in recalled] == [
        ("0@1", t, f"step {t}") for t in range(3)
    ]
    assert [row["step_return"] for row in recalled] == [0.25, 0.5, 1.0] and {
        row["text"] for row in recalled
    } == {"up"}
    for experience in experiences:
        for position, index in enumerate(experience.index):
            mask = experience.action_mask[position].bool()
            if index < 10:  # the actor is 1/16 off the engine
                gap = (
                    experience.action_log_probs[position]
                    - experience.rollout_log_probs[position]
                )
                assert gap[mask].tolist() == [0.0625] * int(mask.sum())
            else:
                ids = experience.sequences[position][
                    experience.attention_mask[position].bool()
                ].tolist()
                assert byte_tokenizer.decode(ids) == recalled[index - 10]["prompt"] + "up"
                assert experience.action_log_probs[position][mask].tolist() == [0.0, -0.25]
    assert metrics["r3/replay/ratio_mean"] == pytest.approx(np.exp(0.0625))


def test_a_stored_failure_joins_a_task_that_succeeded_unless_it_is_switched_off(
    agent_executor, byte_tokenizer, history
):
    plays = [("up", "up", "up"), ("up", "down", "up", "up", "up")]
    for overrides, expected in (((), 1), (("replay.recall_failures=false",), 0)):
        played = agent_executor("replay.enabled=true", *overrides)
        made = replaying(played, byte_tokenizer, history, step=(history.last_step or 0) + 1)
        stepped(made, byte_tokenizer, played, [("hop",) * 5, *plays], step=made.step)
        assert made.metrics["r3/agents/recalled"] == 0  # the task has both
        made = replaying(played, byte_tokenizer, history, step=made.step + 1)
        stepped(made, byte_tokenizer, played, plays, step=made.step)
        assert made.metrics["r3/agents/recalled"] == expected


def test_lost_trajectories_are_counted_in_the_history_and_never_recalled(
    agent_executor, byte_tokenizer, history
):
    played = agent_executor("replay.enabled=true", "reward.max_ungraded_rate=1")
    made = replaying(played, byte_tokenizer, history, step=0)
    stepped(made, byte_tokenizer, played, [("up", "jump"), *FAILURES], step=0)
    assert counts_of(history, TASK)[Context.PLAIN, Verdict.UNGRADED][0] == 1
    assert counts_of(history, TASK)[Context.PLAIN, Verdict.WRONG][0] == 2
    assert history.recall(TASK, Verdict.UNGRADED, k=4, step=5, max_policy_lag=9) == []


# ── reflection on a failed trajectory ──

WIDE = 640  # tokens of a prompt with an attempt in it
ATTEMPTS = [
    "\n".join(
        [
            "Below is an earlier attempt at this task. It failed.",
            "--- earlier attempt begins ---",
            *lines,
            "--- earlier attempt ends ---",
            "Find the first action that was wrong, and do not repeat it.",
        ]
    )
    for lines in (
        ["step 0 -> hop (impossible)"] * 5,
        [
            "step 0 -> up",
            "step 1 -> down",
            "step 0 -> up",
            "step 1 -> down",
            "step 0 -> hop (impossible)",
        ],
    )
]


def reflecting(config, tokenizer, history, *, epoch):
    generator = object.__new__(R3SamplesGenerator)
    generator.config, generator.tokenizer = config, tokenizer
    generator.r3 = R3(config, history=history, seed=config.train.seed)
    generator.step, generator.epoch, generator.states = 1, epoch, NO_STATES
    generator._prefixes, generator._contexts = {}, {}
    return generator


def test_a_task_that_failed_is_played_behind_a_stored_attempt_as_a_group_of_its_own(
    agent_executor, byte_tokenizer, history
):
    """Step 1 failed twice. In step 2 sums of rewards are -2.5 and -0.5 from the plain prompt, and 1 and -2.5 behind the attempt;
    the two groups were played by engines that number their trajectories alike."""
    settings = ("agents.estimator=grpo", "reflection.enabled=true", f"data.max_len={WIDE}")
    played = agent_executor(*settings)
    stepped(
        replaying(played, byte_tokenizer, history, step=0),
        byte_tokenizer,
        played,
        FAILURES,
        step=0,
    )
    assert (
        reflecting(played.config, byte_tokenizer, history, epoch=1)._further([TASK], [LABEL])
        == []
    )
    generator = reflecting(played.config, byte_tokenizer, history, epoch=2)
    ((attempt, label),) = generator._further([TASK], [LABEL])
    assert (
        attempt in ATTEMPTS
        and label == LABEL
        and generator.prompts.metrics()["r3/reflection/hard_prompts"] == 1
    )

    plain, other = agent_executor(*settings), agent_executor(*settings)
    rows = [row for texts in FAILURES for row in play(plain, byte_tokenizer, *texts)[0]]
    found, asked = play(other, byte_tokenizer, "up", "up", "up", prompt=attempt, max_len=WIDE)
    assert [prompt for prompt, _ in asked] == [
        f"Goal: top\n{attempt}\nNow: step 0",
        f"Goal: top\n{attempt}\nBefore:\nstep 0 -> up\nNow: step 1",
        f"Goal: top\n{attempt}\nBefore:\nstep 1 -> up\nNow: step 2",
    ]
    rows += found + play(other, byte_tokenizer, *["hop"] * 5, prompt=attempt, max_len=WIDE)[0]
    made = replaying(played, byte_tokenizer, history, step=1)
    made.make_experience_batch(samples_of(rows, step=1, attempts=generator._contexts))
    records = made.records
    assert [row["context"] for row in records] == ["plain"] * 10 + ["reflection"] * 8
    s = 2**-0.5  # of two sums that differ
    assert [row["advantage"] for row in records] == pytest.approx(
        [-s] * 5 + [s] * 8 + [-s] * 5, abs=1e-5
    )
    assert (
        records[0]["trajectory"] == records[10]["trajectory"] == "0"
        and attempt in records[10]["prompt"]
    )
    counts = dict(trajectories=2, success_rate=0, recalled=0, rows=18)
    counts |= dict(reflected=2, reflected_lost=0, reflected_success_rate=0.5)
    assert metrics_of(made, counts) == counts
    assert made.metrics["r3/reflection/groups"] == 1 and made.metrics["accuracy"] == 0
    history.commit_step(2, 2, made.kept_rollouts())
    counts = counts_of(history, TASK)
    assert [
        counts.get((context, verdict), (0,))[0]
        for context in (Context.PLAIN, Context.REFLECTION)
        for verdict in (Verdict.CORRECT, Verdict.WRONG)
    ] == [0, 4, 1, 1]


def test_a_stored_success_joins_the_plain_group_alone(agent_executor, byte_tokenizer, history):
    """It keeps prompts that show no attempt."""
    played = agent_executor(
        "replay.enabled=true", "reflection.enabled=true", f"data.max_len={WIDE}"
    )
    first = replaying(played, byte_tokenizer, history, step=0)
    stepped(first, byte_tokenizer, played, [("up", "up", "up"), *FAILURES], step=0)
    rows = [
        row
        for prompt in (TASK, ATTEMPTS[0])
        for texts in FAILURES
        for row in play(played, byte_tokenizer, *texts, prompt=prompt, max_len=WIDE)[0]
    ]
    made = replaying(played, byte_tokenizer, history, step=1)
    made.make_experience_batch(samples_of(rows, step=1, attempts=ATTEMPTS[:1]))
    assert made.metrics["r3/agents/recalled"] == 1 and made.metrics["r3/replay/hits"] == 1
    assert [(row["context"], row["recalled_from"]) for row in made.records] == [
        *[("plain", None)] * 10,
        *[("plain", 1)] * 3,
        *[("reflection", None)] * 10,
    ]


def test_an_attempt_that_leaves_no_room_is_counted(agent_executor, byte_tokenizer, history):
    """An attempt needs 64 of its characters and the lines around them."""
    played = agent_executor("reflection.enabled=true", f"data.max_len={WIDE}")
    stepped(
        replaying(played, byte_tokenizer, history, step=0),
        byte_tokenizer,
        played,
        FAILURES,
        step=0,
    )
    played.config.data.max_len = 300
    generator = reflecting(played.config, byte_tokenizer, history, epoch=2)
    assert generator._further([TASK], [LABEL]) == []
    assert generator.prompts.metrics()["r3/reflection/without_room"] == 1
