"""An engine whose responses end as told, and a grader that likes everything."""

from types import SimpleNamespace

from vllm.logprobs import FlatLogprobs

from r3_openrlhf.config.loading import load_config
from r3_openrlhf.method.types import Verdict
from r3_openrlhf.problems.training_file import Label
from r3_openrlhf.rewards.exchange import Grade
from r3_openrlhf.stack.rollout_executor import AgentExecutor

LABEL = Label(uid="u1", problem="6*7", references=["42"], task="math").to_json()


class Ends:
    """An engine that writes this text, a byte a token, and ends it so."""

    llm = SimpleNamespace(model_config=SimpleNamespace(get_vocab_size=lambda: 300))

    def __init__(self, tokenizer, text, reason):
        self.ids, self.reason, self.asked = (
            tokenizer(text=text, add_special_tokens=False)["input_ids"],
            reason,
            0,
        )

    async def generate(self, _prompt_ids, params):
        self.asked += 1
        flat = FlatLogprobs()
        k = params.logprobs
        for token in self.ids:
            flat.append_fast(
                [token] * (1 + k),
                [-0.5, -0.5, *[-9.0] * k][: 1 + k],
                iter([1] * (1 + k)),
                [None] * (1 + k),
            )
        output = SimpleNamespace(
            token_ids=list(self.ids), logprobs=flat, finish_reason=self.reason
        )
        return SimpleNamespace(outputs=[output])


class Graders:
    """Everything is right; what is asked for is kept."""

    def __init__(self):
        self.requests = []

    async def grade(self, request):
        self.requests.append(request)
        return Grade(verdict=Verdict.CORRECT, reason="correct", score=1.0, reward=1.0)


def ends_executor(in_a_job, *, reads_groups):
    """The executor of a run whose grader likes everything."""
    in_a_job(load_config("cpu_smoke", ["run_dir=unused", "reward.urls=[http://localhost:9]"]))
    made = AgentExecutor()
    made.grader, made.reads_groups = Graders(), reads_groups
    return made
