"""Given tokens and tools: what the policy did not sample is in no loss, and no answer of a tool ends or fools a response."""

import asyncio
import tomllib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("openrlhf", reason="OpenRLHF is not installed")
pytest.importorskip("vllm", reason="vLLM is not installed")

from vllm import SamplingParams  # noqa: E402

from r3_openrlhf.config.loading import load_config  # noqa: E402
from r3_openrlhf.method.types import Context, Verdict  # noqa: E402
from r3_openrlhf.problems.training_file import Label  # noqa: E402
from r3_openrlhf.rewards.exchange import Grade  # noqa: E402
from r3_openrlhf.stack.convert import Run, response_of, rollout_from_response  # noqa: E402
from r3_openrlhf.stack.rollout_executor import AgentExecutor  # noqa: E402
from r3_openrlhf.stack.samples_generator import R3SamplesGenerator  # noqa: E402
from tests.stack.test_agents import Scripted  # noqa: E402
from tests.stack.test_at_the_loss import LAYOUTS, Rollouts, config_of, entering  # noqa: E402

pytestmark = pytest.mark.stack

# ── the mask ──

# place among the sampled tokens -> how many tokens are given there; -1: after the last
PATTERNS = {"start": {0: 3}, "middle": {1: 2}, "end": {-1: 4}, "several": {0: 1, 1: 2, 2: 5, -1: 1}, "none": {}}


def with_given(rollout, pattern):
    """The executor's response of a rollout with given tokens between its own, whose log-probs nobody knows."""
    runs, begin, length = [], 0, rollout.num_tokens
    for place, count in sorted((min(at % (length + 1), length), n) for at, n in pattern.items()):
        runs.append(Run(rollout.response_ids[begin:place].tolist(), rollout.response_logprobs[begin:place]))
        runs.append(Run([7 * count + i for i in range(count)], None))
        begin = place
    runs.append(Run(rollout.response_ids[begin:].tolist(), rollout.response_logprobs[begin:]))
    score = None if rollout.reward is None else float(rollout.verdict is Verdict.CORRECT)
    grade = Grade(verdict=rollout.verdict, reason=rollout.reason, score=score, reward=rollout.reward)
    label = Label(uid=rollout.uid, problem="", references=[], task="exact").to_json()
    return response_of(
        rollout.prompt_ids.tolist(), [run for run in runs if run.ids], grade, label=label, truncated=rollout.truncated, text="",
        prompt=rollout.uid + (" again" if rollout.context is Context.REFLECTION else ""), finish_reason="", entropy_bounds=None, seconds=0.0,
    )  # fmt: skip


def step_with(pattern, kind, g):
    """The step of test_at_the_loss with given tokens in each response, sampled, stored and rehearsed."""
    rollouts = Rollouts(kind, g)
    generator = R3SamplesGenerator.__new__(R3SamplesGenerator)
    generator._prefixes, generator._training, generator.step, generator.epoch, generator.args = {}, False, 5, 1, None
    generator._contexts = {one.prompts[0]: one.r3_rollout.context for one in rollouts.samples}
    made = [
        generator._process_response_into_experience(with_given(one.r3_rollout, pattern), max_len=200)
        for one in rollouts.samples
    ]
    rollouts.samples = made
    rollouts.stored = [
        rollout_from_response(with_given(one, pattern), context=one.context, step=one.policy_step, epoch=1)
        for one in rollouts.stored
    ]
    return rollouts


@pytest.mark.parametrize("algo", ["r3", "grpo"])
@pytest.mark.parametrize("kind", ["graded", "truncated", "recalled", "rehearsed"])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_step_with_given_tokens_is_the_step_without_them(pattern, kind, algo, monkeypatch):
    """Rows, advantages, old log-probs and the whole loss: a token's log-prob here is its own, so that a given one could only be seen
    where it is trained, counted or measured."""
    if algo == "grpo" and kind in ("recalled", "rehearsed"):
        pytest.skip("GRPO recalls nothing")
    config = config_of([f"algo={algo}", *["replay.rehearse.share=0.25"] * (kind == "rehearsed")], 4)
    for layout in ("one rank", "packed"):
        ranks, dynamic, packed = LAYOUTS[layout]
        found = []
        for step in (Rollouts(kind, 4), step_with(PATTERNS[pattern], kind, 4)):
            with monkeypatch.context() as patch:
                found += entering(config, step, ranks=ranks, dynamic=dynamic, packed=packed, monkeypatch=patch)
        (plain, loss), (given, same) = ((sorted(rows, key=lambda row: row[0]), loss) for rows, loss in found)
        assert [row[0] for row in given] == [row[0] for row in plain] and len(plain) > 8
        for one, other in zip(given, plain, strict=True):
            torch.testing.assert_close(one[2:], other[2:], rtol=1e-6, atol=1e-6)
        assert same == pytest.approx(loss, rel=1e-5)


# ── tools ──

HOSTILE = tomllib.loads(Path(__file__).with_name("hostile_tools.toml").read_text())
LIMIT, TOKENS = 400, 40


@pytest.fixture
def executor(in_a_job, tmp_path):
    (tmp_path / "own_tool.py").write_text(f"CASES = {HOSTILE['answers']!r}\n{HOSTILE['tool']}")
    keys = ["run_dir=unused", "ranking.enabled=false", f"agents.tool_tokens={TOKENS}", "agents.tool_seconds=1.5"]
    in_a_job(load_config("cpu_smoke", [*keys, f"agents.tools=[python,{tmp_path}/own_tool.py:say]"]))
    made = AgentExecutor()
    made.requests = []

    async def grade(request):
        made.requests.append(request)
        return Grade(verdict=Verdict.WRONG, reason="wrong", score=0.0, reward=0.0)

    made.grader = SimpleNamespace(grade=grade)
    yield made
    made.tools.close()


LABEL = Label(uid="u1", problem="1+1", references=["2"], task="exact").to_json()


def respond(executor, tokenizer, *texts):
    """(record, counts, engine) of one response."""
    engine = Scripted(tokenizer, *texts, "2")
    response = asyncio.run(
        executor.execute("ab", LABEL, SamplingParams(max_tokens=LIMIT), LIMIT + 10, tokenizer, engine)
    )
    rollout = rollout_from_response(response, context=Context.PLAIN, step=0, epoch=1)
    return rollout, response["r3"]["tools"], engine


def test_an_answer_is_an_observation_whatever_it_is(executor, byte_tokenizer):
    """It is bounded, has no marks of roles, is not the policy's, earns nothing, and calls nothing."""
    failures = 0
    for number, kind in enumerate(HOSTILE["answers"]):
        call = f"I ask.\n```say\n{number}\n```\n"
        rollout, counts, engine = respond(executor, byte_tokenizer, call, "It is 3.")
        given = rollout.response_ids[~rollout.sampled].tolist()
        text = byte_tokenizer.decode(given)
        assert text.startswith("```output\n") and text.endswith("\n```\n"), kind
        assert len(given) <= TOKENS + len("```output\n\n```\n"), kind
        assert rollout.given == ((len(call), len(call) + len(given)),), kind
        assert not set(given) & set(byte_tokenizer.added_tokens_decoder), kind
        assert all(one.isprintable() or one in "\n\t" for one in text), kind
        assert engine.asked[1][0] == [*engine.asked[0][0], *rollout.response_ids[: len(call) + len(given)].tolist()]
        asked = executor.requests[-1]
        assert asked.response.endswith(f"{call}It is 3.") and asked.num_tokens == len(call) + 8
        assert counts["r3/tools/calls"] == 1 and counts["r3/tools/given_tokens"] == len(given), kind
        failures += counts["r3/tools/failed"]
    assert failures == HOSTILE["failures"]


@pytest.mark.parametrize(("text", "number"), [tuple(one.values()) for one in HOSTILE["calls"]])
def test_a_call_is_a_closed_block_with_the_name_of_a_tool(executor, byte_tokenizer, text, number):
    rollout, counts, engine = respond(executor, byte_tokenizer, text, "2")
    assert counts["r3/tools/calls"] == number == len(rollout.given)
    written = byte_tokenizer(text=text, add_special_tokens=False)["input_ids"]
    assert rollout.num_sampled_tokens == len(written) + (len(engine.asked) > 1)


def test_calls_end_with_their_number_and_with_the_room(executor, byte_tokenizer):
    call = "```say\n0\n```\n"
    rollout, counts, engine = respond(executor, byte_tokenizer, *[call] * 9)
    assert counts["r3/tools/calls"] == 4 == len(rollout.given)  # agents.tool_calls; the fifth is not answered
    assert [bool(params.stop) for _, params in engine.asked] == [True] * 4 + [False]
    rollout, counts, _ = respond(executor, byte_tokenizer, "x" * (LIMIT - len(call) - 5) + "\n" + call)
    assert rollout.num_tokens == LIMIT and rollout.truncated and rollout.given[-1] == (LIMIT - 4, LIMIT)


def test_python_has_the_earlier_names_of_its_response_where_that_is_set(executor, byte_tokenizer):
    texts = "```python\nx = 20\nprint('no')\n```\n", "```python\nprint(x + 3)\n```\n"
    for remembers, last in ((False, "error: error NameError"), (True, "23")):
        executor.tools.settings = replace(executor.tools.settings, tool_memory=remembers)
        rollout, counts, _ = respond(executor, byte_tokenizer, *texts)
        begin, end = rollout.given[1]
        assert f"```output\n{last}" in byte_tokenizer.decode(rollout.response_ids[begin:end].tolist())
        assert counts["r3/tools/failed"] == (not remembers)
