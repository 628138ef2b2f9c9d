"""What an engine's finish reason does: in a response, between tools, in a trajectory, in an evaluation."""

import asyncio
import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from vllm import SamplingParams
from vllm.v1.engine import FINISH_REASON_STRINGS

from r3_openrlhf.evaluation.engine import Engine
from r3_openrlhf.evaluation.sample_file import sampled
from r3_openrlhf.method.errors import R3Error, TrainingStopped
from r3_openrlhf.method.types import Context, Verdict
from r3_openrlhf.runs.endings import Ending, ending_of
from r3_openrlhf.stack.convert import rollout_from_response
from r3_openrlhf.stack.samples_generator import R3SamplesGenerator
from r3_openrlhf.view.evaluation import Response
from tests.stack import experience_makers as of_responses
from tests.stack import scripted_agents
from tests.stack.scripted_endings import LABEL, Ends

pytestmark = pytest.mark.stack
MEANING = {
    "stop": "stop",
    "length": "cut",
    "repetition": "cut",
    "abort": "ungraded",
    "error": "ungraded",
}
GIVEN = Path(__file__).parents[3] / "shared/data/turn5/engine_endings.json"


def respond(executor, tokenizer, text, reason):
    engine = Ends(tokenizer, text, reason)
    made = asyncio.run(
        executor.execute("ab", LABEL, SamplingParams(max_tokens=60), 99, tokenizer, engine)
    )
    if executor.reads_groups:
        (made,) = asyncio.run(executor.graded([made]))
    return made, rollout_from_response(made, context=Context.PLAIN, step=0, epoch=1)


def test_every_reason_of_the_engine_has_a_meaning_and_others_are_ungraded():
    assert set(MEANING) == set(FINISH_REASON_STRINGS)
    for reason, meaning in MEANING.items():
        assert ending_of(reason) == meaning
        assert ending_of(reason, num_tokens=0) is Ending.UNGRADED
    for reason in (None, "None", "", "tool_calls", "content_filter", "STOP"):
        assert ending_of(reason) is Ending.UNGRADED


@pytest.mark.parametrize("reason", [*MEANING, "unheard of", None])
@pytest.mark.parametrize("text", ["So \\boxed{42}", "So I think that", ""])
def test_a_response_is_what_its_ending_means(ends_executor, byte_tokenizer, text, reason):
    made, rollout = respond(ends_executor, byte_tokenizer, text, reason)
    meaning = MEANING.get(reason, "ungraded") if text else "ungraded"
    assert rollout.truncated == made["truncated"] == (
        meaning == "cut"
    ) and rollout.finish_reason == str(reason)
    assert rollout.num_tokens == len(text)
    requests = ends_executor.grader.requests
    if meaning == "ungraded":
        assert (rollout.verdict, rollout.reward, made["reward"], made["scores"]) == (
            Verdict.UNGRADED,
            None,
            None,
            None,
        )
        assert not requests and rollout.reason.startswith("engine: ")
        assert "the rollout engine in process" in rollout.extras["error"]
    else:
        assert rollout.verdict is Verdict.CORRECT and [one.truncated for one in requests] == [
            meaning == "cut"
        ]


def test_the_given_endings(ends_executor, byte_tokenizer):
    if not GIVEN.is_file():
        pytest.skip("no shared folder beside the checkout")
    for row in json.loads(GIVEN.read_text())["rows"]:
        rollout = respond(ends_executor, byte_tokenizer, row["text"], row["finish_reason"])[1]
        expected = (False, True) if row["expected"] == "ungraded" else (True, False)
        assert (rollout.truncated, rollout.verdict is Verdict.UNGRADED) == expected


@pytest.mark.parametrize("reason", MEANING)
def test_a_call_is_made_where_the_model_ended_with_it(tool_executor, byte_tokenizer, reason):  # noqa: F811
    """Whatever else ended the response: nobody asked for the call."""
    text = "```python\nprint(6*7)\n```\n"
    engine = Ends(byte_tokenizer, text, reason)
    params = SamplingParams(max_tokens=3 * len(text))
    made = asyncio.run(tool_executor.execute("ab", LABEL, params, 9999, byte_tokenizer, engine))
    assert (
        (made["r3"]["tools"]["r3/tools/calls"] > 0) == (engine.asked > 1) == (reason == "stop")
    )


class EndsTurns:
    """An engine whose turns end so."""

    def __init__(self, engine, reasons):
        self.engine, self.reasons, self.texts, self.asked = (
            engine,
            list(reasons),
            engine.texts,
            engine.asked,
        )

    async def generate(self, prompt_ids, params):
        output = await self.engine.generate(prompt_ids, params)
        output.outputs[0].finish_reason = self.reasons.pop(0)
        return output


@pytest.mark.parametrize("reason", [*MEANING, "unheard of"])
def test_a_turn_that_did_not_end_is_not_acted(
    agent_executor,  # noqa: F811
    byte_tokenizer,
    monkeypatch,
    reason,
):
    meaning = MEANING.get(reason, "ungraded")
    # of turns, where three steps are to be climbed
    number = {"stop": 3, "cut": 4, "ungraded": 2}[meaning]
    plain, reasons = scripted_agents.Scripted, ["stop", reason, "stop", "stop"]
    monkeypatch.setattr(
        scripted_agents, "Scripted", lambda *args: EndsTurns(plain(*args), reasons)
    )
    responses, _ = scripted_agents.play(agent_executor(), byte_tokenizer, *["up"] * number)
    trajectory = responses[0]["r3"]["trajectory"]
    if meaning == "ungraded":
        assert trajectory.reason == f"engine: {reason}" and len(trajectory.turns) == 1
        grades = [one["r3"]["grade"] for one in responses]
        assert [(one.verdict, one.reward) for one in grades] == [(Verdict.UNGRADED, None)] * 2
    else:
        assert (trajectory.turns[1].action, responses[1]["truncated"]) == (
            ("up", False) if reason == "stop" else ("", True)
        )


def evaluated(reason, ids):
    """What `r3 eval` makes of a response."""
    output = SimpleNamespace(
        request_id="0/0", outputs=[SimpleNamespace(token_ids=ids, finish_reason=reason)]
    )
    unfinished = [True, False]
    engine = object.__new__(Engine)
    engine._on_cpu, engine._params = True, SamplingParams()
    engine._engine = SimpleNamespace(
        add_request=lambda *_: None,
        has_unfinished_requests=lambda: unfinished.pop(0),
        step=list,
    )
    engine._step = lambda: [output]
    return list(engine.sample([([1], [0])]))


@pytest.mark.parametrize("reason", [*MEANING, "unheard of", None])
def test_an_evaluation_reads_endings_as_training_does(reason):
    meaning = MEANING.get(reason, "ungraded")
    if meaning == "ungraded":
        with pytest.raises(R3Error, match=f"gave up a response \\({reason}\\)"):
            evaluated(reason, [5])
        return
    ((_, [(ids, found)]),) = evaluated(reason, [5])
    assert sampled("x", ids, found).truncated == (meaning == "cut")
    assert Response(
        verdict="wrong", num_tokens=1, finish_reason=found, text="", reason=""
    ).is_cut == (meaning == "cut")


def test_endings_are_counted(ends_executor, byte_tokenizer):
    made = object.__new__(R3SamplesGenerator)
    made.args, made.config, made.step, made.epoch = (
        SimpleNamespace(),
        ends_executor.config,
        0,
        1,
    )
    made._prefixes, made._contexts, made._training, made.partial = {}, {}, True, None
    made.totals, made._counts = {"generated_tokens_total": 0.0}, Counter()
    for reason in ("stop", "abort", "repetition", "error", "length"):
        made._process_response_into_experience(
            respond(ends_executor, byte_tokenizer, "ab", reason)[0], max_len=99
        )
    counts = made.take_counts()
    assert (counts["r3/engine/given_up"], counts["r3/engine/repetition"]) == (2.0, 1.0)
    assert np.isfinite(list(counts.values())).all()


@pytest.mark.parametrize(
    ("reason", "said"), [("engine: abort", "rollout engine"), ("timeout", "grader")]
)
def test_too_many_given_up_stop_the_run_with_advice_about_the_engine(reason, said):
    made = of_responses.maker(
        of_responses.Ours, config=of_responses.config_with(**of_responses.OFF)
    )
    rows = of_responses.group(Verdict.CORRECT, Verdict.UNGRADED, Verdict.WRONG, Verdict.WRONG)
    rows[1].r3_rollout.reason = reason
    with pytest.raises(
        TrainingStopped, match=f"{reason} .1.; that is 25%.*; repair the {said}, then"
    ):
        made.make_experience_batch(rows)


@pytest.mark.parametrize("kind", [of_responses.Ours, of_responses.Recording])
def test_a_response_without_tokens_leaves_its_group(kind):
    """The others have the advantages that they have without it."""
    settings = {**of_responses.OFF, "reward": {"max_ungraded_rate": 0.5}}
    verdicts = Verdict.CORRECT, Verdict.WRONG, Verdict.WRONG
    found = []
    for empty in (False, True):
        made = of_responses.maker(kind, config=of_responses.config_with(**settings))
        rows = of_responses.group(*verdicts, *([Verdict.UNGRADED] if empty else []))
        if empty:
            rows[-1] = of_responses.sample(Verdict.UNGRADED, tokens=())
        made.args.rollout.n_samples_per_prompt = len(rows)
        batches = made.make_experience_batch(rows)
        pairs = [
            (index, batch.advantages[place])
            for batch in batches
            for place, index in enumerate(batch.index)
        ]
        found.append(
            [
                float(row.abs().max())
                for index, row in sorted(pairs, key=lambda pair: pair[0])
                if index < 3
            ]
        )
        assert all(torch.isfinite(batch.advantages).all() for batch in batches)
    assert found[0] == pytest.approx(found[1]) and max(found[0]) > 0
