"""Given tokens and tools: what the policy did not sample is in no loss, and no answer of a tool ends or fools a response."""

import asyncio
import re
from dataclasses import replace
from os.path import commonprefix
from pathlib import Path

import pytest
import torch
import trl
from mistral_common.integrations.chat_templates.chat_templates import generate_chat_template
from mistral_common.tokens.tokenizers.base import TokenizerVersion
from vllm import SamplingParams

from r3_openrlhf.config import R3Config
from r3_openrlhf.method.errors import ConfigError
from r3_openrlhf.method.types import Context, Verdict
from r3_openrlhf.problems.prompts import render, template_values
from r3_openrlhf.problems.training_file import Label
from r3_openrlhf.rewards.exchange import Grade
from r3_openrlhf.stack.convert import Run, response_of, rollout_from_response
from r3_openrlhf.stack.samples_generator import R3SamplesGenerator
from tests.stack.entering_the_loss import LAYOUTS, Rollouts, config_of, entering
from tests.stack.scripted_agents import Scripted
from tests.stack.scripted_tools import HOSTILE, TOKENS

pytestmark = pytest.mark.stack

# ── the mask ──

# place among the sampled tokens -> how many tokens are given there; -1: after the last
PATTERNS = {
    "start": {0: 3},
    "middle": {1: 2},
    "end": {-1: 4},
    "several": {0: 1, 1: 2, 2: 5, -1: 1},
    "none": {},
}


def with_given(rollout, pattern):
    """The executor's response of a rollout with given tokens between its own, whose log-probs nobody knows."""
    runs, begin, length = [], 0, rollout.num_tokens
    for place, count in sorted(
        (min(at % (length + 1), length), n) for at, n in pattern.items()
    ):
        runs.append(
            Run(
                rollout.response_ids[begin:place].tolist(),
                rollout.response_logprobs[begin:place],
            )
        )
        runs.append(Run([7 * count + i for i in range(count)], None))
        begin = place
    runs.append(Run(rollout.response_ids[begin:].tolist(), rollout.response_logprobs[begin:]))
    score = None if rollout.reward is None else float(rollout.verdict is Verdict.CORRECT)
    grade = Grade(
        verdict=rollout.verdict, reason=rollout.reason, score=score, reward=rollout.reward
    )
    label = Label(uid=rollout.uid, problem="", references=[], task="exact").to_json()
    return response_of(
        rollout.prompt_ids.tolist(),
        [run for run in runs if run.ids],
        grade,
        label=label,
        truncated=rollout.truncated,
        text="",
        prompt=rollout.uid + (" again" if rollout.context is Context.REFLECTION else ""),
        finish_reason="",
        entropy_bounds=None,
        seconds=0.0,
    )


def step_with(pattern, kind, g):
    """The step of test_at_the_loss with given tokens in each response, sampled, stored and rehearsed."""
    rollouts = Rollouts(kind, g)
    generator = R3SamplesGenerator.__new__(R3SamplesGenerator)
    (
        generator._prefixes,
        generator._training,
        generator.step,
        generator.epoch,
        generator.args,
    ) = {}, False, 5, 1, None
    generator.config = R3Config(run_dir="unused")
    generator._contexts = {one.prompts[0]: one.r3_rollout.context for one in rollouts.samples}
    made = [
        generator._process_response_into_experience(
            with_given(one.r3_rollout, pattern), max_len=200
        )
        for one in rollouts.samples
    ]
    rollouts.samples = made
    rollouts.stored = [
        rollout_from_response(
            with_given(one, pattern), context=one.context, step=one.policy_step, epoch=1
        )
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
    config = config_of(
        [f"algo={algo}", *["replay.rehearse.share=0.25"] * (kind == "rehearsed")], 4
    )
    for layout in ("one rank", "packed"):
        ranks, dynamic, packed = LAYOUTS[layout]
        found = []
        for step in (Rollouts(kind, 4), step_with(PATTERNS[pattern], kind, 4)):
            with monkeypatch.context() as patch:
                found += entering(
                    config, step, ranks=ranks, dynamic=dynamic, packed=packed, monkeypatch=patch
                )
        (plain, loss), (given, same) = (
            (sorted(rows, key=lambda row: row[0]), loss) for rows, loss in found
        )
        assert [row[0] for row in given] == [row[0] for row in plain] and len(plain) > 8
        for one, other in zip(given, plain, strict=True):
            torch.testing.assert_close(one[2:], other[2:], rtol=1e-6, atol=1e-6)
        assert same == pytest.approx(loss, rel=1e-5)


# ── tools ──

LIMIT = 400
TEMPLATES = {
    path.stem: path.read_text()
    for path in sorted(Path(trl.__file__).parent.glob("chat_templates/*.jinja"))
}
for version in (
    TokenizerVersion.v3,
    TokenizerVersion.v7,
    TokenizerVersion.v11,
    TokenizerVersion.v13,
):
    off = dict.fromkeys(
        ["image_support", "audio_support", "thinking_support", "plain_thinking_support"], False
    )
    off |= dict.fromkeys(
        [
            "default_system_prompt",
            "model_settings_fields",
            "reasoning_effort_values",
            "reasoning_effort_default",
        ]
    )
    of_version = {
        "spm": version == "v3",
        "tokenizer_version": version,
        "use_special_token_variables": False,
    }
    TEMPLATES[f"mistral_{version}"] = generate_chat_template(**of_version, **off)


LABEL = Label(uid="u1", problem="1+1", references=["2"], task="exact").to_json()


def respond(executor, tokenizer, *texts, prompt="ab", limit=LIMIT):
    """(record, counts, engine) of one response."""
    engine = Scripted(tokenizer, *texts, "2")
    response = asyncio.run(
        executor.execute(
            prompt, LABEL, SamplingParams(max_tokens=limit), 9999, tokenizer, engine
        )
    )
    rollout = rollout_from_response(response, context=Context.PLAIN, step=0, epoch=1)
    return rollout, response["r3"]["tools"], engine


def with_template(tokenizer, name):
    """The tokenizer with a published chat template, whose marks are tokens."""
    tokenizer.chat_template = TEMPLATES[name]
    marks = re.findall(r"<[|｜/]?[\w▁|｜\"]+[|｜]?>|\[/?[A-Z_]{4,}\]", TEMPLATES[name])
    tokenizer.add_special_tokens({"additional_special_tokens": sorted({*marks, "</s>"})})
    return tokenizer


@pytest.mark.parametrize("tool_executor", HOSTILE["forms"], indirect=True)
def test_an_answer_is_an_observation_whatever_it_is(tool_executor, byte_tokenizer):
    """It is bounded, has no marks of roles, is not the policy's, earns nothing, and calls nothing."""
    failures, form = 0, HOSTILE["forms"][tool_executor.config.agents.tool_form]
    tokenizer = with_template(byte_tokenizer, "qwen2_5")
    ids = lambda text: tokenizer(text=text, add_special_tokens=False)["input_ids"]  # noqa: E731
    for number, kind in enumerate(HOSTILE["answers"]):
        call = form["call"].replace("NUMBER", str(number))
        rollout, counts, engine = respond(tool_executor, tokenizer, call, "It is 3.")
        given = rollout.response_ids[~rollout.sampled].tolist()
        text, begin, end = tokenizer.decode(given), len(ids(call)), len(ids(call)) + len(given)
        assert text.startswith(form["before"]) and text.endswith(form["after"]), kind
        assert len(given) <= TOKENS + len(ids(form["before"] + form["after"])), kind
        assert rollout.given == ((begin, end),), kind
        marks = [one for one in given if one in tokenizer.added_tokens_decoder]
        assert marks == [
            one
            for one in ids(form["before"] + form["after"])
            if one in tokenizer.added_tokens_decoder
        ]
        assert all(one.isprintable() or one in "\n\t" for one in text), kind
        assert engine.asked[1][0] == [*engine.asked[0][0], *rollout.response_ids[:end].tolist()]
        asked = tool_executor.requests[-1]
        assert asked.response.endswith(
            f"{form['graded'].replace('NUMBER', str(number))}It is 3."
        )
        assert asked.num_tokens == begin + 8
        assert counts["r3/tools/calls"] == 1 and counts["r3/tools/given_tokens"] == len(
            given
        ), kind
        failures += counts["r3/tools/failed"]
    assert failures == HOSTILE["failures"]


SHOWN = [
    "gemma4",
    "glm4moe",
    "gptoss",
    "lfm2_2_5",
    "llama3_1",
    "llama3_2",
    "mistral_v3",
    "mistral_v7",
    "mistral_v11",
    "mistral_v13",
    "muse_glimmer",
    "nemotron_3_nano",
    "qwen2_5",
    "qwen3",
    "qwen3_5_nothink",
    "qwen3_5_think",
    "qwen3_6",
    "qwen3_8",
    "qwen3_instruct_2507",
    "qwen3_vl",
]


@pytest.mark.parametrize("tool_executor", ["template"], indirect=True)
@pytest.mark.parametrize("name", SHOWN)
def test_a_call_in_a_response_is_the_call_in_a_conversation(
    tool_executor, byte_tokenizer, name
):
    """Of a published template: a policy that writes what it renders as a call gets what it renders as the answer, token by token.
    Texts that need escapes; the templates write them in JSON, in XML, between tokens of their own or as Python."""
    tokenizer, data = with_template(byte_tokenizer, name), tool_executor.config.data
    asked = tool_executor.tools.calls(tokenizer, data)
    tool_executor.tools.settings = replace(tool_executor.tools.settings, tool_tokens=200)
    for text in ("echo", 'echo "</b> \\" + \n  str({"é": 1})', "echo 'x' \\n "):
        prompt = render(tokenizer, data, "What?")
        assert "Return the answer of this number." in prompt  # the tool's docstring
        turns = [
            {"role": "user", "content": "What?"},
            {
                "role": "tool",
                "name": "say",
                "content": f"[{text}]",
                "tool_call_id": "call00000",
            },
        ]
        call = {
            "type": "function",
            "id": "call00000",
            "function": {"name": "say", "arguments": {"text": text}},
        }
        turns.insert(1, {"role": "assistant", "content": "", "tool_calls": [call]})
        values = {"tokenize": False, "add_generation_prompt": True, **template_values(data)}
        whole = tokenizer.apply_chat_template(turns, **values)
        rest = whole[len(commonprefix([prompt, whole])) :]
        (end,) = asked.stops
        turn = rest[: rest.index(end) + len(end)]
        rollout, counts, engine = respond(
            tool_executor, tokenizer, turn, "2", prompt=prompt, limit=2000
        )
        assert tokenizer.decode(rollout.response_ids.tolist()) == rest + "2"
        assert rollout.given == (
            (len(tokenizer.encode(turn, add_special_tokens=False)), rollout.num_tokens - 1),
        )
        assert counts["r3/tools/calls"] == 1 and counts["r3/tools/failed"] == 0
        assert tokenizer.convert_tokens_to_ids(end) in engine.asked[0][1].stop_token_ids


CALLS = [("fenced", *one.values(), None) for one in HOSTILE["calls"]] + [
    ("template", *one) for one in HOSTILE["template_calls"]
]


@pytest.mark.parametrize(
    ("tool_executor", "text", "number", "failed"), CALLS, indirect=["tool_executor"]
)
def test_what_is_a_call_and_what_is_none(tool_executor, byte_tokenizer, text, number, failed):
    """A closed block with the name of a tool; in a template's form a turn that ends, where an unreadable call is answered, too."""
    tokenizer = with_template(byte_tokenizer, "qwen2_5")
    rollout, counts, engine = respond(tool_executor, tokenizer, text, "2")
    found = rollout.given[0][1] - rollout.given[0][0] if rollout.given else 0
    assert counts["r3/tools/calls"] == number and (found > 0) == (number > 0)
    assert failed is None or counts["r3/tools/failed"] == failed
    written = tokenizer(text=text, add_special_tokens=False)["input_ids"]
    assert rollout.num_sampled_tokens == len(written) + (len(engine.asked) > 1)


@pytest.mark.parametrize("tool_executor", ["template"], indirect=True)
@pytest.mark.parametrize("name", ["llama3", "phi3", "gemma3", "lfm2_v2", "qwen2_5_vl"])
def test_a_template_without_calls_is_refused_before_a_start(
    tool_executor, byte_tokenizer, name
):
    with pytest.raises(
        ConfigError,
        match="renders no tool calls that can be read: .*; use agents.tool_form=fenced",
    ):
        tool_executor.tools.calls(
            with_template(byte_tokenizer, name), tool_executor.config.data
        )


def test_calls_end_with_their_number_and_with_the_room(tool_executor, byte_tokenizer):
    call = "```say\n0\n```\n"
    rollout, counts, engine = respond(tool_executor, byte_tokenizer, *[call] * 9)
    # agents.tool_calls; the fifth is not answered
    assert counts["r3/tools/calls"] == 4 == len(rollout.given)
    assert [bool(params.stop) for _, params in engine.asked] == [True] * 4 + [False]
    rollout, counts, _ = respond(
        tool_executor, byte_tokenizer, "x" * (LIMIT - len(call) - 5) + "\n" + call
    )
    assert (
        rollout.num_tokens == LIMIT
        and rollout.truncated
        and rollout.given[-1] == (LIMIT - 4, LIMIT)
    )


def test_python_has_the_earlier_names_of_its_response_where_that_is_set(
    tool_executor, byte_tokenizer
):
    texts = "```python\nx = 20\nprint('no')\n```\n", "```python\nprint(x + 3)\n```\n"
    for remembers, last in ((False, "error: error NameError"), (True, "23")):
        tool_executor.tools.settings = replace(
            tool_executor.tools.settings, tool_memory=remembers
        )
        rollout, counts, _ = respond(tool_executor, byte_tokenizer, *texts)
        begin, end = rollout.given[1]
        assert f"```output\n{last}" in byte_tokenizer.decode(
            rollout.response_ids[begin:end].tolist()
        )
        assert counts["r3/tools/failed"] == (not remembers)
