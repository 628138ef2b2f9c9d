"""A reward model of OpenRLHF, served as openrlhf.cli.serve_rm does: its numbers, whatever they are, are the rewards."""

from types import SimpleNamespace

import pytest
import torch
from openrlhf.cli.serve_rm import RewardModelProxy
from openrlhf.models import get_llm_for_sequence_regression
from transformers import AutoModel, AutoTokenizer

from r3_openrlhf.config import RewardConfig
from r3_openrlhf.method.types import Verdict
from tests.recordings import MODEL
from tests.rewards.graders import graded, request
from tests.rewards.server.own_servers import own_server

pytestmark = pytest.mark.stack
RESPONSES = ["The answer is 7.", "\\boxed{7}", "I do not know", "7 7 7 7"]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """(a server's answer function as serve_rm.py:127 has it, the reward of a text written out)."""
    path = tmp_path_factory.mktemp("rm")
    torch.manual_seed(0)
    made = get_llm_for_sequence_regression(
        MODEL, "reward", attn_implementation="sdpa", init_value_head=True
    )
    made.score.weight.data.mul_(50)  # far from 0, on either side
    made.save_pretrained(path)
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    tokenizer.save_pretrained(path)
    ds = dict(
        attn_implementation="sdpa",
        experts_implementation=None,
        param_dtype="bf16",
        load_in_4bit=False,
        value_head_prefix="score",
        packing_samples=False,
    )
    proxy = RewardModelProxy(
        SimpleNamespace(
            reward=SimpleNamespace(model_name_or_path=str(path), normalize_enable=False),
            ds=SimpleNamespace(**ds),
            data=SimpleNamespace(disable_fast_tokenizer=False, max_len=256),
            batch_size=None,
        )
    )

    def answer(body):
        rewards = proxy.get_reward(body["query"])
        return 200, {
            "rewards": rewards,
            "scores": rewards,
            "extra_logs": {"dummy_scores": rewards},
        }

    backbone = AutoModel.from_pretrained(path, dtype=torch.float32)
    head = made.score.weight.float()[0]

    def written_out(text):
        with torch.no_grad():
            return (
                backbone(**tokenizer(text, return_tensors="pt", add_special_tokens=False))[0][
                    0, -1
                ]
                @ head
            ).item()

    return answer, written_out


def test_a_served_reward_model_gives_the_rewards(served):
    answer, written_out = served

    expected = [written_out(f"3+4={text}") for text in RESPONSES]
    middle = sum(sorted(expected)[1:3]) / 2
    with own_server(answer) as server:
        config = RewardConfig(
            urls=[f"{server.url}/get_reward"],
            correct_from=middle,
            length_reward_max_tokens=None,
        )
        grades = graded(config, [request(text, "7", prompt="3+4=") for text in RESPONSES])
    rewards = [grade.reward for grade in grades]
    assert rewards == pytest.approx(expected, rel=0.05, abs=0.05)
    assert min(rewards) < 0 or max(rewards) > 1
    assert [grade.verdict is Verdict.CORRECT for grade in grades] == [
        value > middle for value in expected
    ]
