"""A run of the whole stack with a teacher: what its files say of each taught token, computed again without the stack."""

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import tests.stack.cpu_only  # noqa: F401
from r3_openrlhf.config.loading import load_config
from r3_openrlhf.method.history.numbers import sampled_in
from r3_openrlhf.problems.label import Label
from r3_openrlhf.problems.prompts import RunPrompts
from r3_openrlhf.problems.training_file import read_prompts
from r3_openrlhf.runs.directory import RunDirectory
from r3_openrlhf.runs.rollout_files import file_of, read_step, read_tokens
from tests.recordings import MODEL
from tests.stack.training import lines, train

pytestmark = [pytest.mark.stack, pytest.mark.slow]
SETTINGS = ("algo=r3_teacher", f"model.path={MODEL}", "logging.token_values=all")
CLOSE = 0.005  # nats, mean over a response: the file has float16; another success is some tenths away


@pytest.fixture(scope="module", params=[1, 2], ids=["one rank", "two ranks"])
def run_dir(tmp_path_factory, request):
    made = tmp_path_factory.mktemp("taught") / "run"
    ranks = f"cluster.gpus_per_node={request.param}"
    train(made, *SETTINGS, ranks, "train.max_steps=2", "checkpoint.save_steps=-1")
    return made


class FirstPolicy:
    """The model before its first update, read with transformers alone."""

    def __init__(self):
        self.tokenizer = AutoTokenizer.from_pretrained(MODEL)
        self.model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.bfloat16).eval()

    @torch.no_grad()
    def distribution(self, prompt_ids, ids):
        """Log-probs of all tokens where each of `ids` comes after this prompt, float32 [T, V]."""
        sequence = torch.tensor([[*prompt_ids, *ids]])
        logits_TV = self.model(sequence).logits[0, len(prompt_ids) - 1 : -1].float()
        return logits_TV.log_softmax(-1)

    def logprobs(self, prompt_ids, ids):
        """Of the tokens `ids` after this prompt, float32 [T]."""
        picked = self.distribution(prompt_ids, ids).gather(-1, torch.tensor(ids)[:, None])
        return picked[:, 0].numpy()

    def ids(self, text):
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]


def test_what_a_teacher_says_is_what_the_model_says_after_a_right_response(run_dir):
    """Of step 1, whose policy is the first one. A success that is shown is one of the row's group."""
    config = load_config("cpu_smoke", [*SETTINGS, f"run_dir={run_dir}"])
    policy, run = FirstPolicy(), RunDirectory(run_dir)
    prompts = RunPrompts(config, policy.tokenizer)
    _, labels = read_prompts(run.data)
    labels = {label.uid: label for label in map(Label.from_json, labels)}
    file = file_of(run_dir / "rollouts", 1)
    rows = list(zip(read_step(file), read_tokens(file), strict=True))
    taught = [one for one in rows if one[0]["distill"] == "taught"]
    assert taught
    for row, values in taught:
        stored = sampled_in(run.history, row["uid"], step=1)
        ids = ids_of(stored, row, policy.tokenizer)
        successes = {
            one["text"]
            for one, _ in rows
            if one["group"] == row["group"] and one["verdict"] == "correct"
        }
        said = values["token_teacher_logprob"].astype(np.float32)
        found = []
        for success in successes:
            read = policy.ids(prompts.teacher_of_text(labels[row["uid"]], success))
            found.append(np.abs(policy.logprobs(read, ids) - said).mean())
        assert min(found) < CLOSE, (row["text"], found)
        own = policy.logprobs(policy.ids(row["prompt"]), ids)
        assert np.abs(own - values["token_policy_logprob"].astype(np.float32)).mean() < CLOSE


def ids_of(stored, row, tokenizer):
    """The token ids of a row, which its file has as text alone."""
    for one in stored:
        found = one.rollout.response_ids.tolist()
        is_it = tokenizer.decode(found, skip_special_tokens=True) == row["text"]
        if is_it and len(found) == row["num_tokens"]:
            return found
    raise AssertionError(f"the history lacks {row['text']!r}")


def test_the_metrics_are_those_of_the_files(run_dir):
    assert_metrics_are_those_of_the_files(run_dir)


def assert_metrics_are_those_of_the_files(run_dir):
    for step, line in enumerate(lines(run_dir / "metrics.jsonl"), start=1):
        file = file_of(run_dir / "rollouts", step)
        rows = list(zip(read_step(file), read_tokens(file), strict=True))
        gaps = [
            values["token_teacher_logprob"].astype(np.float64)
            - values["token_policy_logprob"].astype(np.float64)
            for row, values in rows
            if row["distill"] == "taught"
        ]
        gap = np.concatenate(gaps)
        assert line["r3/distill/taught"] == len(gaps) > 0
        assert line["r3/distill/gap"] == pytest.approx(gap.mean(), abs=0.01)
        assert line["r3/distill/abs_gap"] == pytest.approx(np.abs(gap).mean(), abs=0.01)
        assert line["r3/distill/doubted_share"] == pytest.approx(
            (gap <= -np.log(2)).mean(), abs=0.02
        )
        assert line["r3/time/teacher_s"] > 0 and np.isfinite(line["loss"])


# ── a loss on logits ──

LOGITS = ("distill.loss=jensen_shannon", "distill.support=student", "distill.top_k=8")


@pytest.fixture(scope="module")
def run_on_logits(tmp_path_factory):
    made = tmp_path_factory.mktemp("taught") / "run"
    train(made, *SETTINGS, *LOGITS, "train.max_steps=2", "checkpoint.save_steps=-1")
    return made


def test_the_divergence_of_a_run_is_that_of_its_model(run_on_logits):
    """Of step 1, over all taught tokens: on the first policy's 8 likeliest tokens and the rest. The teacher's prompt is the
    one whose log-probs of the sampled tokens are in the file."""
    run_dir = run_on_logits
    config = load_config("cpu_smoke", [*SETTINGS, *LOGITS, f"run_dir={run_dir}"])
    policy, run = FirstPolicy(), RunDirectory(run_dir)
    prompts = RunPrompts(config, policy.tokenizer)
    _, labels = read_prompts(run.data)
    labels = {label.uid: label for label in map(Label.from_json, labels)}
    file = file_of(run_dir / "rollouts", 1)
    rows = list(zip(read_step(file), read_tokens(file), strict=True))
    found = []
    for row, values in rows:
        if row["distill"] != "taught":
            continue
        stored = sampled_in(run.history, row["uid"], step=1)
        ids = ids_of(stored, row, policy.tokenizer)
        said = values["token_teacher_logprob"].astype(np.float32)
        successes = {
            one["text"]
            for one, _ in rows
            if one["group"] == row["group"] and one["verdict"] == "correct"
        }
        reads = [
            policy.ids(prompts.teacher_of_text(labels[row["uid"]], text)) for text in successes
        ]
        read = min(reads, key=lambda one: np.abs(policy.logprobs(one, ids) - said).mean())
        student = policy.distribution(policy.ids(row["prompt"]), ids)
        teacher = policy.distribution(read, ids)
        kept = student.topk(8, -1).indices
        p, q = (with_rest(one.gather(-1, kept)).exp() for one in (student, teacher))
        mixed = (p + q) / 2
        distance = (p * (p / mixed).log() + q * (q / mixed).log()).sum(-1) / 2
        found += distance.tolist()
    first, second = lines(run_dir / "metrics.jsonl")
    assert first["r3/update/divergence"] == pytest.approx(np.mean(found), rel=0.05)
    assert first["r3/update/divergence"] > 0 and second["r3/update/divergence"] > 0
    assert np.isfinite(first["loss"]) and first["grad_norm"] > 0


def with_rest(logprobs):
    """The other tokens as one more class, written out."""
    rest = 1 - logprobs.exp().sum(-1, keepdim=True)
    return torch.cat([logprobs, rest.clamp(min=1e-9).log()], -1)
