"""From the engine's log-probs to the tensors and the record of one response, held against OpenRLHF's and vLLM's own."""

import asyncio
import pickle
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator
from vllm import AsyncEngineArgs, SamplingParams
from vllm.sampling_params import RequestOutputKind
from vllm.utils.network_utils import get_file_store_init_method, get_open_zmq_ipc_path
from vllm.v1 import outputs as engine_outputs
from vllm.v1.engine import logprobs as engine_logprobs

from r3_openrlhf.config.loading import load_config
from r3_openrlhf.method.types import Context, Verdict
from r3_openrlhf.problems.training_file import Label
from r3_openrlhf.rewards.exchange import Grade
from r3_openrlhf.stack import rollout_executor
from r3_openrlhf.stack.convert import rollout_from_response
from r3_openrlhf.stack.experience_maker import returns_to_go
from r3_openrlhf.stack.experience_values import logprob_gap
from r3_openrlhf.stack.rollout_engine import R3RolloutActor, engine_limits, keep_files_in
from r3_openrlhf.stack.rollout_executor import AgentExecutor, logprobs_array

pytestmark = pytest.mark.stack
K = 2
LABEL = Label(uid="u1", problem="1+1", references=["2"], task="exact").to_json()
# Three tokens, k = 2: the sampled token first, then the most likely ones.
LOGPROBS_TK = np.log(
    np.array([[0.5, 0.5, 0.25], [0.25, 0.5, 0.25], [0.125, 0.5, 0.25]], dtype=np.float32)
)


def engine_request():
    """A request as vLLM's output processor starts it, without detokenising."""
    params = SamplingParams(logprobs=K, flat_logprobs=True, detokenize=False)
    return engine_logprobs.LogprobsProcessor.from_new_request(
        None, SimpleNamespace(sampling_params=params)
    )


def filled(processor):
    """What the engine core sends: rows of ids, log-probs and ranks, of one token."""
    for t in range(len(LOGPROBS_TK)):
        rows = LOGPROBS_TK[t : t + 1]
        ids = np.arange(rows.size).reshape(rows.shape)
        processor._update_sample_logprobs(engine_outputs.LogprobsLists(ids, rows, ids[:, 0]))
    return processor.logprobs


def test_log_probs_that_are_not_of_these_tokens_are_refused():
    with pytest.raises(ValueError, match="9 log-probs for 4 tokens"):
        logprobs_array(filled(engine_request()), 4)


class Engine:
    llm = SimpleNamespace(model_config=SimpleNamespace(get_vocab_size=lambda: 100))

    async def generate(self, prompt_ids, params):
        self.prompt_ids, self.params = prompt_ids, params
        assert (params.logprobs, params.flat_logprobs, params.detokenize) == (K, True, False)
        assert params.output_kind is RequestOutputKind.FINAL_ONLY  # not one output per token
        processor = engine_request()
        completion = SimpleNamespace(
            token_ids=[70, 71, 72], logprobs=filled(processor), finish_reason="length"
        )
        return SimpleNamespace(outputs=[completion])


class Grader:
    async def grade(self, request):
        assert request.num_tokens == 3 and request.truncated
        return Grade(verdict=Verdict.WRONG, reason="wrong", score=0.0, reward=0.0)


@pytest.fixture
def executor(monkeypatch, in_a_job):
    """The real one; the engine's answer and the grade are given."""
    monkeypatch.setattr(rollout_executor, "TOP_LOGPROBS", K)
    in_a_job(load_config("cpu_smoke", ["run_dir=unused", "reward.urls=[http://localhost:9]"]))
    executor = AgentExecutor()
    executor.grader = Grader()
    return executor


@pytest.fixture
def response(executor, byte_tokenizer):
    """One response."""
    params = SamplingParams(max_tokens=3, logprobs=None)
    return asyncio.run(executor.execute("ab", LABEL, params, 16, byte_tokenizer, Engine()))


def test_a_continuation_may_end_at_once(executor, byte_tokenizer):
    """Where the policy would end with probability 1, a first token that must be another has a log-prob that is not the policy's: a gap
    of 12 nats was seen. What was given counts towards the limit, and is no length that a reward pays for."""
    engine = Engine()
    label = replace(Label.from_json(LABEL), prefix=[50, 51]).to_json()
    params = SamplingParams(max_tokens=5, min_tokens=1, logprobs=None)
    made = asyncio.run(executor.execute("ab", label, params, 16, byte_tokenizer, engine))
    assert (engine.params.min_tokens, engine.params.max_tokens) == (
        0,
        3,
    ) and params.min_tokens == 1
    assert made["action_ranges"] == [(4, 7)] and made["observation_tokens"].tolist()[2:] == [
        50,
        51,
        70,
        71,
        72,
    ]


@pytest.mark.parametrize("num_samples", [1, 4])
def test_a_function_of_a_group_gets_the_responses_to_one_prompt(
    num_samples, in_a_job, byte_tokenizer, tmp_path, monkeypatch
):
    monkeypatch.setattr(rollout_executor, "TOP_LOGPROBS", K)
    (tmp_path / "own.py").write_text(
        "def places(responses):\n    return list(range(len(responses)))\n"
    )
    in_a_job(
        load_config(
            "cpu_smoke", ["run_dir=unused", f"reward.function={tmp_path}/own.py:places"]
        )
    )
    executor = AgentExecutor()
    actor = SimpleNamespace(executor=executor, generate=Engine().generate, llm=Engine.llm)
    ask = R3RolloutActor.generate_responses(
        actor, "ab", LABEL, SamplingParams(max_tokens=3), 16, byte_tokenizer, num_samples
    )
    responses = asyncio.run(ask)
    executor.grader.close()
    assert [response["reward"] for response in responses] == list(range(num_samples))
    assert all(
        response["r3"]["grade"].reward == response["scores"] == response["reward"]
        for response in responses
    )


def test_the_record_of_a_response(response):
    rollout = rollout_from_response(response, context=Context.PLAIN, step=4, epoch=2)
    assert (rollout.uid, rollout.policy_step, rollout.epoch, rollout.truncated) == (
        "u1",
        4,
        2,
        True,
    )
    assert (len(rollout.prompt_ids), rollout.response_ids.tolist()) == (2, [70, 71, 72])
    assert (
        rollout.response_ids.dtype == np.int32 and rollout.response_logprobs.dtype == np.float32
    )
    assert rollout.response_logprobs.tolist() == LOGPROBS_TK[:, 0].tolist()
    # p = .5, .25 and a tail of .25: .75 ln 2 + .25 ln 4 without the tail's own part, .25 ln 4 and .25 ln(98 / .25) with it
    head = 0.5 * np.log(2) + 0.25 * np.log(4)
    assert rollout.entropy_bounds.global_lower == pytest.approx(
        head + 0.25 * np.log(4), rel=1e-5
    )
    assert rollout.entropy_bounds.global_upper == pytest.approx(
        head + 0.25 * np.log(98 / 0.25), rel=1e-5
    )


def crossed(response):
    """As it arrives from Ray: arrays are views of memory that cannot be written to."""
    buffers = []
    data = pickle.dumps(response, protocol=5, buffer_callback=buffers.append)
    return pickle.loads(data, buffers=[bytes(buffer.raw()) for buffer in buffers])


def test_a_record_owns_its_arrays(response):
    arrived = crossed(response)
    assert not arrived["observation_tokens"].flags.writeable
    rollout = rollout_from_response(arrived, context=Context.PLAIN, step=0, epoch=1)
    for array, source in (
        (rollout.response_ids, "observation_tokens"),
        (rollout.prompt_ids, "observation_tokens"),
        (rollout.response_logprobs, "rollout_log_probs"),
    ):
        assert not np.shares_memory(array, arrived[source]) and array.flags.writeable


@pytest.mark.filterwarnings("error")
def test_upstream_makes_the_same_tensors_of_arrays_as_of_lists(response):
    generator = SamplesGenerator(SimpleNamespace(args=None), None, None, None, [])
    as_lists = dict(response)
    for key in ("observation_tokens", "rollout_log_probs"):
        assert (
            response[key].dtype
            == {"observation_tokens": np.int32, "rollout_log_probs": np.float32}[key]
        )
        as_lists[key] = response[key].tolist()
    arrays = generator._process_response_into_experience(crossed(response), max_len=16)
    lists = generator._process_response_into_experience(as_lists, max_len=16)
    for name in (
        "sequences",
        "attention_mask",
        "action_mask",
        "rollout_log_probs",
        "response_length",
        "truncated",
    ):
        one, other = getattr(arrays, name), getattr(lists, name)
        assert one.dtype == other.dtype and one.tolist() == other.tolist(), name


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 4), st.integers(1, 9), st.integers(0, 2**31))
def test_returns_are_upstream_s(rows, positions, seed):
    random = torch.Generator().manual_seed(seed)
    reward_BA = torch.randn(rows, positions, generator=random)
    mask_BA = torch.randint(0, 2, (rows, positions), generator=random)
    stock = RemoteExperienceMaker.get_cumulative_returns(None, reward_BA, mask_BA, 1.0)
    torch.testing.assert_close(returns_to_go(reward_BA, mask_BA), stock, rtol=1e-6, atol=1e-6)


def test_the_gap_is_over_the_responses_of_fresh_rows_alone():
    experience = Experience(
        action_mask=torch.tensor([[0, 1, 1, 0], [0, 1, 1, 1], [1, 1, 1, 1]]),
        action_log_probs=torch.tensor(
            [[9.0, -1.0, -2.0, 9.0], [0.0, -1.0, -1.0, -1.0], [0.0, 0.0, 0.0, 0.0]]
        ),
        rollout_log_probs=torch.tensor(
            [[float("nan"), -1.5, -1.0, 0.0], [0.0, -1.0, -1.0, -1.0], [8.0] * 4]
        ),
        index=[0, 1, 2],
    )
    # |-1 + 1.5| + |-2 + 1| over the two tokens of row 0, no difference in row 1; row 2 was recalled
    gap = logprob_gap([experience], {0, 1}, clip=(0.2, 0.2))
    assert gap.mean == pytest.approx(1.5 / 5)
    # the largest of five is their 99th percentile; exp(0.5) = 1.65 and exp(-1) = 0.37 are outside [0.8, 1.2]
    assert (gap.p99, gap.outside_clip) == (1.0, 2 / 5)
    assert logprob_gap([experience], {0, 1}, clip=(0.7, 0.7)).outside_clip == 0.0
    assert logprob_gap([experience], {1}, clip=(0.2, 0.2)) == (0.0, 0.0, 0.0)


def test_the_engine_is_told_its_limits():
    """vLLM's AsyncEngineArgs take both names; a CPU keeps its own number of tokens."""
    config = load_config("r3_1p5b_deepscaler_8gpu", [])
    limits = engine_limits(config, cpu=False)
    assert limits == {"max_num_seqs": 320, "max_num_batched_tokens": 8192}
    assert AsyncEngineArgs(model="m", **limits).max_num_seqs == 320
    assert engine_limits(config, cpu=True) == {"max_num_seqs": 320}
    few = load_config("cpu_smoke", ["cluster.vllm_max_num_seqs=16"])
    assert engine_limits(few, cpu=False) == {"max_num_seqs": 16, "max_num_batched_tokens": 8192}


@pytest.mark.parametrize(
    ("length", "given", "folder"),
    [(70, None, "/r/" + 67 * "s"), (71, None, "/r"), (20, "/elsewhere", "/elsewhere")],
)
def test_sockets_lie_in_rays_session_where_their_names_fit(monkeypatch, length, given, folder):
    """107 characters at most, of which a slash and vLLM's name take 37; what a user has set stays."""
    monkeypatch.setenv("VLLM_RPC_BASE_PATH", given or "")
    monkeypatch.setenv("TMPDIR", "/")
    monkeypatch.setattr("tempfile.tempdir", None)
    if given is None:
        monkeypatch.delenv("VLLM_RPC_BASE_PATH")
    keep_files_in("/r/" + (length - 3) * "s")
    path = get_open_zmq_ipc_path().removeprefix("ipc://")
    assert path.startswith(f"{folder}/") and len(path) <= 107


def test_the_file_by_which_vllms_processes_meet_is_removed_with_ray(monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", "/")
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setenv("VLLM_RPC_BASE_PATH", "/")
    keep_files_in(str(tmp_path / "session"))
    assert get_file_store_init_method().startswith(f"file://{tmp_path}/vllm_dist_")
