"""An engine with scripted texts, and the trajectories that it plays."""

import asyncio
from types import SimpleNamespace

from openrlhf.trainer.ray import vllm_engine
from vllm import SamplingParams
from vllm.logprobs import FlatLogprobs
from vllm.v1.engine import logprobs as engine_logprobs

from r3_openrlhf.config.loading import load_config
from r3_openrlhf.problems.agents import trajectory as trajectories
from r3_openrlhf.problems.training_file import Label
from r3_openrlhf.stack.work import work_of

STAIRS = "tests.stack.stairs:Stairs"
TASK = "stairs/3"
LABEL = Label(
    uid=TASK, problem=TASK, references=[], task="environment", metadata={"seed": 3}
).to_json()
NEW_TOKENS, MAX_LEN = 8, 64


class Scripted:
    """An engine whose policy writes these texts, one a request, a byte a token; the log-prob of a token is -1 / 4 of its place."""

    def __init__(self, tokenizer, *texts):
        self.tokenizer, self.texts, self.asked = tokenizer, list(texts), []

    async def generate(self, prompt_ids, params):
        await asyncio.sleep(0)
        self.asked.append((list(prompt_ids), params))
        ids = self.tokenizer(text=self.texts.pop(0), add_special_tokens=False)["input_ids"]
        reason = "stop" if len(ids) <= params.max_tokens else "length"
        ids = ids[: params.max_tokens]
        flat = FlatLogprobs()
        for place, token in enumerate(ids):
            flat.append_fast([token], [-place / 4], iter([1]), [None])
        return SimpleNamespace(
            outputs=[SimpleNamespace(token_ids=ids, logprobs=flat, finish_reason=reason)]
        )


def executor_maker(monkeypatch, environments, in_a_job):
    """A function that makes the executor of an agentic run with some overrides. The processes of its environments serve all tests, and prompts have no last line."""
    monkeypatch.setattr(trajectories, "INSTRUCTION", "")

    def made(*overrides):
        config = load_config(
            "agent_smoke",
            [
                f"agents.environment={STAIRS}",
                "agents.options={}",
                "agents.memory_turns=1",
                "held_out.max_samples=null",
                "agents.invalid_penalty=0.5",
                "agents.gamma=0.5",
                "agents.max_turns=5",
                "data.chat_template=false",
                *overrides,
            ],
        )
        in_a_job(config)
        # an executor puts its own in their place, for the whole process
        monkeypatch.setattr(
            engine_logprobs, "create_sample_logprobs", engine_logprobs.create_sample_logprobs
        )
        update = engine_logprobs.LogprobsProcessor._update_sample_logprobs
        monkeypatch.setattr(
            engine_logprobs.LogprobsProcessor, "_update_sample_logprobs", update
        )
        # as upstream does, by path
        found = vllm_engine._load_agent_executor(str(work_of(config).executor))
        if config.agents.environment == STAIRS:
            found.environments.close()
            found.environments = environments
        return found

    return made


def play(executor, tokenizer, *texts, label=LABEL, max_len=MAX_LEN, prompt=TASK):
    """(responses, what the engine was asked)."""
    tokenizer.pad_token = tokenizer.bos_token or "<s>"
    engine = Scripted(tokenizer, *texts)
    params = SamplingParams(max_tokens=NEW_TOKENS, logprobs=None)
    found = asyncio.run(executor.execute(prompt, label, params, max_len, tokenizer, engine))
    assert not engine.texts
    return found, [(tokenizer.decode(ids), params.max_tokens) for ids, params in engine.asked]
