"""Paused responses in the parts of the stack: executor, engine, generator, experiences, records and history."""

import asyncio
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torchdata.stateful_dataloader import StatefulDataLoader
from vllm import SamplingParams

from r3_openrlhf.config.loading import load_config
from r3_openrlhf.method.errors import ConfigError, InvalidValue
from r3_openrlhf.method.history.store import HistoryStore
from r3_openrlhf.method.r3 import R3
from r3_openrlhf.method.types import Context, Verdict
from r3_openrlhf.method.values import read_rollouts
from r3_openrlhf.problems.training_file import Label
from r3_openrlhf.rewards.exchange import Grade
from r3_openrlhf.runs.rollout_records import record_of
from r3_openrlhf.stack.convert import rollout_from_response
from r3_openrlhf.stack.partial_rollouts import Piece
from r3_openrlhf.stack.rollout_engine import PausableEngine, R3RolloutActor
from r3_openrlhf.stack.rollout_executor import AgentExecutor
from r3_openrlhf.stack.samples_generator import R3SamplesGenerator
from tests.method.history.samples import make_rollout
from tests.stack.experience_makers import (
    OFF,
    C,
    Ours,
    Recording,
    W,
    by_row,
    config_with,
    group,
    maker,
)
from tests.stack.experience_makers import arguments as arguments_of
from tests.stack.prompt_lists import Problems
from tests.stack.whole_engines import WholeEngines, as_plain

pytestmark = pytest.mark.stack
LABEL = Label(uid="u1", problem="1+1", references=["2"], task="exact").to_json()


# ── executor and engine ──


class Model:
    """vLLM's engine as far as it is asked: token t is 10 + t, one each time that the others had their turn.

    Response `sample` ends by itself after `lengths[sample]` tokens; a request that goes on is of `whose`."""

    def __init__(self, lengths, *, known_after=0.0):
        self.lengths, self.known_after = lengths, known_after
        self.prompts, self.params, self.whose = [], [], 0
        self.known, self.aborted, self.num_stopped, self.num_tokens = set(), set(), 0, 0
        self.model_config = SimpleNamespace(get_vocab_size=lambda: 100)

    async def abort(self, requests):
        self.aborted.update(self.known.intersection(requests))  # as vLLM, which ignores others

    async def generate(self, prompt, params, request_id):
        ids_before = list(prompt["prompt_token_ids"])
        is_new = len(ids_before) == 2
        sample = len(self.prompts) % len(self.lengths) if is_new else self.whose
        if request_id != "held out":
            self.prompts.append(ids_before)
            self.params.append(params)
        await asyncio.sleep(self.known_after)
        self.known.add(request_id)
        begin, ids, reason = len(ids_before) - 2, [], None
        while reason is None:
            await asyncio.sleep(0.002)
            if request_id in self.aborted:
                reason = "abort"
                break
            ids.append(10 + begin + len(ids))
            self.num_tokens += 1
            if begin + len(ids) == self.lengths[sample] and request_id != "held out":
                reason = "stop"
                self.num_stopped += 1
            elif len(ids) == params.max_tokens:
                reason = "length"
        logprobs = SimpleNamespace(logprobs=[-0.1 * one for one in ids])
        one = SimpleNamespace(token_ids=ids, logprobs=logprobs, finish_reason=reason)
        yield SimpleNamespace(outputs=[one])


class Actor(R3RolloutActor):
    def __init__(self, executor, model):
        self.executor, self.llm = executor, model
        self.pausable = PausableEngine(self, places=9)

    async def generate(self, prompt_ids, params):
        """Upstream's, for requests that are not paused."""
        async for output in self.llm.generate(
            {"prompt_token_ids": prompt_ids}, params, request_id="held out"
        ):
            return output


class Grader:
    async def grade(self, request):
        return Grade(
            verdict=Verdict.CORRECT, reason="", score=1.0, reward=float(request.num_tokens)
        )


@pytest.fixture
def executor(in_a_job):
    in_a_job(
        load_config(
            "cpu_smoke",
            [
                "run_dir=unused",
                "reward.urls=[http://localhost:9]",
                "rollout.partial=1",
                *("ranking.enabled=false",),
            ],
        )
    )
    made = AgentExecutor()
    made.grader = Grader()
    return made


def asked_of(tokenizer, **others):
    return {
        "prompt": "ab",
        "label": LABEL,
        "sampling_params": SamplingParams(max_tokens=30, min_tokens=1),
        "max_length": 40,
        "hf_tokenizer": tokenizer,
    } | others


async def pieces_of(actor, asked, *, pause_after):
    """Pause one response after each of these numbers of tokens, and let it end then."""
    samples = [[]]
    for number, tokens in enumerate((*pause_after, None)):
        going = asyncio.ensure_future(
            actor.continue_group(samples=samples, policy_step=3 + number, **asked)
        )
        if tokens is not None:
            while actor.llm.num_tokens < tokens:
                await asyncio.sleep(0.001)
            await actor.pause_groups()
        samples = await going
        if not isinstance(samples[0], list):
            break
    return samples[0]


def test_a_response_that_was_paused_goes_on_after_its_tokens(executor, byte_tokenizer):
    """Its tokens, log-probs, limit and reward are those of one response, whose pieces say which weights sampled them."""
    asked = asked_of(byte_tokenizer)
    whole = asyncio.run(pieces_of(Actor(executor, Model([20])), asked, pause_after=()))
    actor = Actor(executor, Model([20]))
    found = asyncio.run(pieces_of(actor, asked, pause_after=(3, 9)))
    assert found["observation_tokens"].tolist() == whole["observation_tokens"].tolist()
    pieces = found["r3"]["pieces"]
    assert [step for _, step in pieces] == [3, 4, 5] and sum(one for one, _ in pieces) == 20
    assert found["r3"]["policy_step"] == 3 and whole["r3"]["pieces"] == [(20, 3)]
    assert found["reward"] == whole["reward"] == 20.0
    assert found["r3"]["finish_reason"] == "stop" and not found["truncated"]
    before = 0
    asked_so_far = zip(actor.llm.prompts, actor.llm.params, pieces, strict=True)
    for prompt, params, (count, _) in asked_so_far:
        assert len(prompt) - 2 == before and params.max_tokens == 30 - before
        assert params.min_tokens == (0 if before else 1)  # it may end at once
        before += count
    rollout = rollout_from_response(found, context=Context.PLAIN, step=3, epoch=1)
    assert rollout.policy_step == 3 and len(rollout.pieces) == 3
    # one of a single piece says nothing more than policy_step
    assert rollout_from_response(whole, context=Context.PLAIN, step=9, epoch=1).pieces == ()


def test_a_response_that_is_paused_at_its_limit_is_whole(executor, byte_tokenizer):
    earlier = [
        Piece(ids=list(range(29)), logprobs_TK=np.zeros((29, 1), np.float32), policy_step=0)
    ]

    class Full:
        is_pausing, llm = True, None

        async def generate(self, prompt_ids, params):
            self.is_pausing = True
            one = SimpleNamespace(
                token_ids=[7], logprobs=SimpleNamespace(logprobs=[-1.0]), finish_reason="abort"
            )
            return SimpleNamespace(outputs=[one])

    engine = Full()
    asked = asked_of(byte_tokenizer, llm_engine=engine, policy_step=1)
    # paused before it is asked: nothing is lost, nothing is sampled
    assert asyncio.run(executor.execute(**asked, earlier=earlier)) == earlier
    engine.is_pausing = False
    found = asyncio.run(executor.execute(**asked, earlier=earlier))
    assert found["truncated"] and found["r3"]["finish_reason"] == "length"
    assert found["r3"]["pieces"] == [(29, 0), (1, 1)]


def test_an_abort_that_nobody_asked_for_is_a_fault(executor, byte_tokenizer):
    class Dying:
        llm = None

        async def generate(self, prompt_ids, params):
            one = SimpleNamespace(
                token_ids=[7], logprobs=SimpleNamespace(logprobs=[-1.0]), finish_reason="abort"
            )
            return SimpleNamespace(outputs=[one])

    asked = asked_of(byte_tokenizer, llm_engine=Dying(), policy_step=1)
    found = asyncio.run(executor.execute(**asked, earlier=[]))
    assert found["r3"]["grade"].verdict is Verdict.UNGRADED


def test_an_engine_pauses_all_that_it_was_asked_before(executor, byte_tokenizer):
    """Responses that are whole by then are returned as such; what vLLM has not seen yet is paused all the same."""

    async def play():
        actor = Actor(executor, Model([2, 200], known_after=0.03))
        asked = asked_of(
            byte_tokenizer, sampling_params=SamplingParams(max_tokens=300), max_length=400
        )
        groups = [
            asyncio.ensure_future(
                actor.continue_group(samples=[[], []], policy_step=0, **asked)
            )
            for _ in range(3)
        ]
        # another request of the same engine, such as a held-out problem, is not paused
        ask = asked | {"sampling_params": SamplingParams(max_tokens=50), "llm_engine": actor}
        held_out = asyncio.ensure_future(executor.execute(**ask))
        while actor.llm.num_stopped < 3:  # the short ones of the three groups
            await asyncio.sleep(0.005)
        late = asyncio.ensure_future(
            actor.continue_group(samples=[[], [], None], policy_step=0, **asked)
        )
        await asyncio.sleep(0.002)  # on its way into vLLM, which does not know it yet
        await actor.pause_groups()
        assert not actor.pausable.is_pausing
        share = await actor.take_occupancy()
        return [await one for one in groups], await late, await held_out, share

    groups, late, held_out, share = asyncio.run(play())
    assert held_out["action_ranges"] == [(2, 52)] and 0 < share <= 1
    for whole, paused in groups:
        assert whole["action_ranges"] == [(2, 4)]
        assert 0 < len(paused[0].ids) < 200
    paused = [one for one in late if isinstance(one, list)]
    assert late[2] is None and paused
    assert all(sum(len(piece.ids) for piece in one) < 200 for one in paused)


# ── generator ──


def generator_for(scripts, *overrides, algo="grpo", engines=None, state=None):
    """Problems p0, p1, ... in order, without Ray and vLLM: the engines are played."""
    config = load_config(
        "cpu_smoke",
        [
            f"algo={algo}",
            "run_dir=unused",
            "rollout.batch_size=2",
            "rollout.n_samples_per_prompt=2",
            "rollout.partial=1",
            "train.micro_batch_size=1",
            "rollout.micro_batch_size=1",
            *overrides,
        ],
    )
    args = arguments_of(1)
    args.rollout.n_samples_per_prompt, args.train.batch_size = 2, 4
    args.algo.dynamic_filtering_enable = algo == "dapo"
    args.algo.dynamic_filtering_range = (0, 1)
    args.vllm = SimpleNamespace(enable_sleep=False)
    labels = [
        Label(uid=f"p{number}", problem="", references=[], task="exact").to_json()
        for number in range(len(scripts))
    ]
    rows = Problems((f"p{number}", label) for number, label in enumerate(labels))
    loader = StatefulDataLoader(
        rows,
        batch_size=1,
        collate_fn=lambda items: (["x"], [items[0][0]], [items[0][1]], [None]),
    )
    if state:
        loader.load_state_dict(state)
    made = R3SamplesGenerator(
        SimpleNamespace(args=args), loader, None, None, [], config=config, r3=R3(config)
    )
    made._seed_epoch = lambda: None  # the loader does not shuffle
    played = engines or WholeEngines(
        lambda prompt, sample: scripts[int(prompt[1:])][sample], places=99
    )

    def engines_of_step(**_):
        played.policy_step = made.step
        return played

    made._engines = engines_of_step
    return made


SCRIPTS = [(1, 9), (2, 2), (3, 4), (30, 1), (5, 5), (4, 3), (2, 1), (9, 8), (7, 6)]


def steps_of(generator, *, most=100):
    found = []
    for _ in range(most):
        rows, _, _, exhausted = generator.generate_samples(max_len=10**6, max_new_tokens=8)
        if rows:
            generator.step += 1
            found.append((rows, generator.take_facts()))
        if exhausted:
            break
    return found


def uids_of(rows):
    return [row.r3_rollout.uid for row in rows][::2]


def test_an_epoch_of_paused_steps_trains_each_problem_once_and_counts_each_token_once():
    made = generator_for(SCRIPTS)
    steps = steps_of(made)
    uids = [uids_of(rows) for rows, _ in steps]
    assert sorted(sum(uids, [])) == [f"p{number}" for number in range(9)]
    # p3 takes longest: it is passed, and then waited for
    assert "p3" not in uids[0] + uids[1] and [len(one) for one in uids] == [2, 2, 2, 2, 1]
    assert made.epoch == 2 and made.partial.groups == []
    total = sum(sum(script) for script in SCRIPTS)
    counts = [facts.metrics for _, facts in steps]
    assert sum(line["generated_tokens"] for line in counts) == total
    assert (
        counts[-1]["generated_tokens_total"] == made.totals["generated_tokens_total"] == total
    )
    assert counts[0]["partial/paused"] == 2 and counts[-1]["partial/paused"] == 0
    for number, (rows, _) in enumerate(steps):
        for row in rows:
            rollout = row.r3_rollout
            # the log-probs of the played engine tell the weights
            assert (-rollout.response_logprobs).astype(
                int
            ).tolist() == rollout.policy_steps.tolist()
            assert rollout.policy_steps.max() <= number
            assert row.rollout_log_probs[0, -rollout.num_tokens :].tolist() == pytest.approx(
                rollout.response_logprobs.tolist()
            )
            read_rollouts([rollout], step=number)
    # a second epoch begins anew
    assert len(steps_of(made)) == 5 and made.epoch == 3


def test_a_generator_that_goes_on_from_a_checkpoint_is_the_undisturbed_one():
    """At every step, those among them at which the loader is at its end and groups are in flight."""
    undisturbed = steps_of(generator_for(SCRIPTS))
    for kept in range(1, len(undisturbed)):
        first = generator_for(SCRIPTS)
        steps = steps_of(first, most=kept)
        facts = steps[-1][1]
        # as the trainer saves it
        state = {} if facts.is_drawn_out else first.prompts_dataloader.state_dict()
        again = generator_for(SCRIPTS, state=state)
        again.restore_paused(first.paused_state())
        again.step, again.totals = first.step, dict(first.totals)
        steps += steps_of(again)
        assert len(steps) == len(undisturbed) and again.epoch == 2
        for (rows, facts), (others, expected) in zip(steps, undisturbed, strict=True):
            assert [plain_of(row) for row in rows] == [plain_of(row) for row in others]
            times = {"r3/time/generator_s"}
            assert {k: v for k, v in facts.metrics.items() if k not in times} == {
                k: v for k, v in expected.metrics.items() if k not in times
            }


def plain_of(row):
    rollout = row.r3_rollout
    return (
        rollout.uid,
        rollout.response_ids.tolist(),
        rollout.response_logprobs.tolist(),
        rollout.pieces,
        rollout.policy_step,
        rollout.verdict,
        rollout.epoch,
        rollout.entropy_bounds,
        row.sequences.tolist(),
        row.rollout_log_probs.tolist(),
    )


def test_the_last_steps_of_a_run_train_what_is_in_flight():
    made = generator_for(SCRIPTS, "train.max_steps=3")
    uids = [uids_of(rows) for rows, _ in steps_of(made)]
    assert sorted(sum(uids, [])) == [f"p{number}" for number in range(6)] and len(uids) == 3
    assert made.generate_samples(max_len=99, max_new_tokens=8) == ([], None, 0, True)


def test_a_budget_ends_the_drawing_and_what_is_drawn_is_trained():
    """Of 25 tokens 4 groups have been drawn; after them nothing is."""
    made = generator_for(SCRIPTS, "train.max_generated_tokens=5")
    steps = steps_of(made)
    uids = sorted(sum((uids_of(rows) for rows, _ in steps), []))
    assert uids == [f"p{number}" for number in range(len(uids))] and 4 <= len(uids) < 9
    assert made.partial.groups == []
    total = sum(sum(script) for script in SCRIPTS[: len(uids)])
    assert made.totals["generated_tokens_total"] == total


def test_dynamic_sampling_keeps_its_counts():
    """A response is right if its length is even: p1 and p4 are collapsed, as is p0 (1 and 9 are odd)."""
    made = generator_for(SCRIPTS, algo="dapo")
    steps = steps_of(made)
    collapsed = [n for n, (a, b) in enumerate(SCRIPTS) if a % 2 == b % 2]
    kept = [n for n in range(9) if n not in collapsed]
    assert sorted(sum((uids_of(rows) for rows, _ in steps), [])) == [f"p{n}" for n in kept]
    counts = [facts.metrics for _, facts in steps]
    assert sum(line["r3/filter/dropped_groups"] for line in counts) == len(collapsed)
    dropped = sum(line["r3/filter/dropped_tokens"] for line in counts)
    assert dropped == sum(sum(SCRIPTS[n]) for n in collapsed)
    assert sum(line["generated_tokens"] for line in counts) == dropped + sum(
        sum(SCRIPTS[n]) for n in kept
    )


def test_responses_that_are_played_back_are_not_paused(monkeypatch, tmp_path):
    monkeypatch.setenv("R3_PLAYBACK", str(tmp_path))
    with pytest.raises(ConfigError, match="rollout.partial is 1.* and R3_PLAYBACK is set"):
        generator_for(SCRIPTS)


# ── the update ──


def paused(rows):
    """The first row was begun by weights of step 3, and ended by those of this step 5; the second is of step 4."""
    rows[0].r3_rollout.policy_step, rows[0].r3_rollout.pieces = 3, ((1, 3), (1, 5))
    rows[1].r3_rollout.policy_step = 4
    return rows


PARTIAL = {"rollout": {"partial": 1.0}, **OFF}


@pytest.mark.parametrize("cls", [Ours, Recording])
def test_tokens_of_older_weights_have_the_ratio_to_their_own_logprobs(cls):
    """Every other token has the ratio 1 before the update, as without pauses."""
    made = maker(cls, config=config_with(**PARTIAL))
    made.gap = 0.01
    made.args.algo.advantage.is_correction_level = "off"
    made.config.algo = "r3" if cls is Ours else "grpo"
    experiences = made.make_experience_batch(paused(group(C, W, C, W)))
    sampled, old = (
        by_row(experiences, "rollout_log_probs"),
        by_row(experiences, "action_log_probs"),
    )
    torch.testing.assert_close(old[0] - sampled[0], torch.tensor([0.0, 0.01]))
    torch.testing.assert_close(old[1] - sampled[1], torch.zeros(3))
    for row in (2, 3):
        torch.testing.assert_close(old[row] - sampled[row], torch.full((row + 2,), 0.01))


def test_the_gap_is_that_of_tokens_of_the_current_weights():
    made = maker(Ours, config=config_with(**PARTIAL))
    made.args.algo.advantage.is_correction_level = "off"
    rows = paused(group(C, W, C, W))
    given = made.make_experience

    def make_experience(samples_list):
        found = given(samples_list)
        for experience in found:
            for position, index in enumerate(experience.index):
                if index == 1:  # far off, but of older weights
                    experience.action_log_probs[position] += 3.0
        return found

    made.make_experience = make_experience
    made.make_experience_batch(rows)
    assert made.metrics["r3/sync/abs_logprob_gap"] == 0.0 and made.metrics["r3/sync/rows"] == 3
    ages = [2, 0, 1, 1, 1, *[0] * 9]
    assert made.metrics["partial/mean_age"] == pytest.approx(np.mean(ages))
    assert made.metrics["partial/max_age"] == 2
    assert made.metrics["partial/old_tokens"] == pytest.approx(4 / 14)


def test_a_correction_keeps_the_log_probs_that_it_weighs():
    made = maker(Ours, config=config_with(**PARTIAL))
    made.gap = 0.01
    made.args.algo.advantage.is_correction_level = "token"
    experiences = made.make_experience_batch(paused(group(C, W, C, W)))
    for old, sampled in zip(
        by_row(experiences, "action_log_probs"),
        by_row(experiences, "rollout_log_probs"),
        strict=True,
    ):
        torch.testing.assert_close(old - sampled, torch.full_like(old, 0.01))


# ── records ──


def test_history_and_rollouts_keep_the_policy_step_of_every_token():
    paused_one = make_rollout(
        ids=(1, 2, 3), verdict=Verdict.CORRECT, policy_step=4, pieces=((1, 4), (2, 6))
    )
    plain = make_rollout(ids=(4, 5), verdict=Verdict.CORRECT, policy_step=6)
    assert paused_one.policy_steps.tolist() == [4, 6, 6] and plain.policy_steps.tolist() == [
        6,
        6,
    ]
    with HistoryStore.open(":memory:") as store:
        store.commit_step(6, 1, [paused_one, plain])
        found = {
            tuple(one.rollout.response_ids.tolist()): one.rollout.pieces
            for one in store.recall("p", Verdict.CORRECT, k=2, step=7, max_policy_lag=9)
        }
    assert found == {(1, 2, 3): ((1, 4), (2, 6)), (4, 5): ()}
    # steps count from 1 there, as in the file's other columns
    assert json.loads(record_of(paused_one, step=7, row=None)["pieces"]) == [[1, 5], [2, 7]]
    assert record_of(plain, step=7, row=None)["pieces"] is None


@pytest.mark.parametrize(
    "pieces",
    [
        ((1, 4),),
        ((1, 3), (2, 6)),
        ((1, 4), (2, 4)),
        ((2, 4), (1, 3)),
        ((3,),),
        ((3, 4), (0, 5, 6)),
    ],
)
def test_pieces_that_are_not_those_of_the_response_are_refused(pieces):
    rollout = make_rollout(ids=(1, 2, 3), policy_step=4, pieces=pieces)
    with pytest.raises(InvalidValue, match="pieces"):
        read_rollouts([rollout])


def test_no_token_is_of_later_weights():
    rollout = make_rollout(ids=(1, 2, 3), policy_step=4, pieces=((1, 4), (2, 6)))
    read_rollouts([rollout], step=6)
    with pytest.raises(InvalidValue, match="policy_step"):
        read_rollouts([rollout], step=5)


def test_the_played_engine_is_compared_bit_for_bit():
    """Else the laws above would compare too little."""
    made = generator_for(SCRIPTS)
    steps_of(made, most=1)
    samples = [one for group in made.partial.groups for one in group.samples]
    assert any(isinstance(one, list) and one for one in samples)
    assert as_plain(next(one for one in samples if isinstance(one, dict)))
