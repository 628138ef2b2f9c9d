"""What the stock OpenRLHF client sends and receives."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from r3_openrlhf.method.types import Verdict
from r3_openrlhf.rewards.exchange import Grade
from r3_openrlhf.rewards.server.stock_contract import references_of, response_of, stock_answer

from .service import endless_item, post

CORRECT = Grade(verdict=Verdict.CORRECT, reason="correct", score=1.0, reward=1.75, extracted="5", seconds=0.5)
UNGRADED = Grade(verdict=Verdict.UNGRADED, reason="timeout", score=None, reward=None)


def test_the_response_is_what_follows_the_prompt():
    assert response_of("<|user|>What?<|assistant|>It is 5.<|im_end|>", "<|user|>What?<|assistant|>") == "It is 5."
    assert response_of("<s>Q  A</s><pad><pad>", "<s>Q") == "  A"
    assert response_of("Q\n\nA<｜end▁of▁sentence｜>", "Q\n\n") == "A"


def test_white_space_may_have_changed_in_decoding():
    assert response_of("What is this ?Five", "What is  this?") == "Five"


def test_a_prompt_that_was_cut_from_the_left_is_found_by_its_end():
    prompt = "".join(f"line {i}\n" for i in range(200))
    assert response_of(prompt[500:] + "answer", prompt) == "answer"


def test_a_query_without_its_prompt_is_nobodys_response():
    assert response_of(r"the answer is \boxed{5}", "another prompt") is None


@given(st.text(max_size=30), st.text(max_size=30))
def test_prompt_and_response_are_always_told_apart(prompt, response):
    text = response_of(prompt + response, prompt)
    assert text is not None and response.startswith(text)


def test_labels():
    entry = b'{"answer": "4", "metadata": {"source_dataset": "chain_sum"}}'
    assert references_of("5") == (("5",), None)
    assert references_of(5) == (("5",), None)
    assert references_of(["5", "6"]) == (("5", "6"), None)
    assert references_of(None) == ((), None)
    assert references_of(entry) == (("4",), entry)
    assert references_of(entry.decode()) == (("4",), entry)
    assert references_of('{"source_dataset" is no JSON') == (('{"source_dataset" is no JSON',), None)
    assert references_of(r"{1,2} \source_dataset") == ((r"{1,2} \source_dataset",), None)


def test_one_item_is_answered_with_numbers_and_several_with_lists():
    assert stock_answer([CORRECT])["rewards"] == 1.75
    assert stock_answer([CORRECT])["extra_logs"] == {"r3_correct": 1.0, "r3_no_answer": 0.0, "r3_grading_s": 0.5}
    both = stock_answer([CORRECT, UNGRADED])
    assert (both["rewards"], both["scores"]) == ([1.75, None], [1.0, None])


@pytest.mark.stack
def test_the_stock_client_gets_a_reward_of_the_right_shape(service):
    """The real client of OpenRLHF, and what its samples generator makes of the answer."""
    torch = pytest.importorskip("torch")
    agent = pytest.importorskip("openrlhf.utils.agent")
    executor = agent.SingleTurnAgentExecutor(service.url + "/get_reward")
    query, prompt = "What is 2+3?\n" + r"It is \boxed{5}.<|im_end|>", "What is 2+3?\n"
    (info,) = asyncio.run(executor._fetch_rewards_via_http([query], [prompt], ["5"]))
    assert torch.tensor([info["rewards"]]).shape == torch.tensor([info["scores"]]).shape == (1,)
    assert (info["rewards"], info["scores"]) == (1.0, 1.0)
    assert all(torch.tensor([value]).shape == (1,) for value in info["extra_logs"].values())


def test_an_ungraded_response_is_an_error_and_never_a_zero(service):
    item = endless_item(1)
    body = {"query": ["Q" + item["response"]], "prompts": ["Q"], "labels": item["references"]}
    answer = post(service.url, "/get_reward", body)
    assert answer.status_code == 422
    assert answer.json()["detail"] == "the response could not be graded: timeout; that is not a reward of 0"
    body = {key: value * 2 for key, value in body.items()}
    body["query"][0], body["labels"][0] = r"Q\boxed{5}", "5"
    assert post(service.url, "/get_reward", body).json()["rewards"] == [1.0, None]


def test_a_prompt_that_is_not_in_the_query_is_an_error(service):
    answer = post(service.url, "/get_reward", {"query": ["abc"], "prompts": ["x"], "labels": ["5"]})
    assert answer.status_code == 422 and "query 0 does not begin with its prompt" in answer.json()["detail"]


def test_the_prompt_is_the_problem_whose_formulas_are_no_answers(service):
    """In the chat template of Qwen2.5-Math, whose instruction names a box."""
    prompt = (
        "<|im_start|>system\nPlease reason step by step, and put your final answer within \\boxed{}.<|im_end|>\n"
        "<|im_start|>user\nCompute $99^2+99+1$ in your head. It is more than $9000$.<|im_end|>\n<|im_start|>assistant\n"
    )
    answers = [r"\boxed{99^2+99+1}", r"\boxed{9901}", r"\boxed{9,901}"]
    body = {"query": [prompt + answer for answer in answers], "prompts": [prompt] * 3, "labels": ["9901"] * 3}
    assert post(service.url, "/get_reward", body).json()["scores"] == [0.0, 1.0, 1.0]
