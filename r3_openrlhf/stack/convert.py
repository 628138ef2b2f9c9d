"""Experience <-> Rollout: the only file that knows the shapes of OpenRLHF's tensors.

B rows, T tokens of prompt + response, A = T - 1 action positions (position 0 has no log-prob).
"""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from openrlhf.trainer.ppo_utils.experience import Experience

from r3_openrlhf.method.types import Context, Rollout, Verdict
from r3_openrlhf.problems.training_file import Label
from r3_openrlhf.rewards.answers.request import GradeRequest
from r3_openrlhf.rewards.exchange import Grade
from r3_openrlhf.stack.expert_routing import experts_tensor


class Run(NamedTuple):
    """Consecutive tokens of a response: sampled, with their log-probs, or given to the policy."""

    ids: Sequence[int]
    logprobs_T: np.ndarray | None  # float32; None: given


def response_of(
    prompt_ids: Sequence[int],
    runs: Sequence[Run],
    grade: Grade | GradeRequest | None,
    *,
    prompt: str,
    label: str,
    truncated: bool,
    **r3: object,
) -> dict[str, Any]:
    """One response as OpenRLHF's generator takes it (samples_generator.py): its keys, and `r3`.

    Arrays, not upstream's lists: they become tensors without a loop over tokens. The action ranges
    are the sampled runs, and the log-probs of all other tokens are 0. grade: or what it is asked with; None: later."""
    ends = list(itertools.accumulate((len(run.ids) for run in runs), initial=len(prompt_ids)))
    logprobs = np.zeros(ends[-1], dtype=np.float32)
    ranges = []
    for run, begin, end in zip(runs, ends, ends[1:], strict=False):
        if run.logprobs_T is not None:
            ranges.append((begin, end))
            logprobs[begin:end] = run.logprobs_T
    return {
        "prompt": prompt,
        "label": label,
        "images": None,
        "mm_train_inputs": None,
        "observation_tokens": np.array(
            [*prompt_ids, *(one for run in runs for one in run.ids)], dtype=np.int32
        ),
        "action_ranges": ranges,
        "rollout_log_probs": logprobs,
        "truncated": truncated,
        "reward": getattr(grade, "reward", None),
        "scores": getattr(grade, "score", None),
        "extra_logs": {},
        "r3": {"grade": grade, "prompt_tokens": len(prompt_ids), **r3},
    }


def rollout_from_response(
    response: dict,
    *,
    context: Context,
    step: int,
    epoch: int,
    prefix_logprobs: np.ndarray | None = None,
) -> Rollout:
    """Return the record of one executor response; what is in no action range was given.
    prefix_logprobs: float32, of the tokens that it was given first."""
    payload = response["r3"]
    begins, length = payload["prompt_tokens"], len(response["observation_tokens"])
    edges = [
        0,
        *(place - begins for run in response["action_ranges"] for place in run),
        length - begins,
    ]
    given = tuple(run for run in zip(edges[::2], edges[1::2], strict=True) if run[0] < run[1])
    logprobs = np.array(response["rollout_log_probs"], dtype=np.float32)[begins:]
    if prefix_logprobs is not None:
        logprobs[: len(prefix_logprobs)] = prefix_logprobs
    grade, pieces = payload["grade"], payload.get("pieces", ())
    # copies: Ray's object store must not fill up with the rollouts of a step
    tokens = np.array(response["observation_tokens"], dtype=np.int32)
    return Rollout(
        uid=Label.from_json(response["label"]).uid,
        context=context,
        prompt_ids=tokens[:begins],
        response_ids=tokens[begins:],
        response_logprobs=logprobs,
        given=given,
        verdict=grade.verdict,
        reward=grade.reward,
        truncated=bool(response["truncated"]),
        finish_reason=payload["finish_reason"],
        policy_step=step,
        epoch=epoch,
        entropy_bounds=payload["entropy_bounds"],
        text=payload["text"],
        reason=grade.reason,
        answer=grade.extracted,
        extras=grade.extras,
        turn=payload.get("turn"),
        pieces=tuple(pieces) if len(pieces) > 1 else (),
        experts=None if payload.get("experts") is None else np.array(payload["experts"]),
    )


def experience_from_recalled(
    rollout: Rollout,
    *,
    prompt_ids: np.ndarray,
    sibling: Experience,
    experts: np.ndarray | None = None,
) -> Experience:
    """Return a recalled rollout as one more row, after the prompt of the group that it joins.

    `sibling` is a fresh row of that group, of a rehearsed one any fresh row: every row of a batch
    needs the same fields and info keys (upstream's Experience.concat_experiences looks at the first
    row only). experts: of this prompt and the response (rollout.routing_replay); None: the policy's own."""
    sequences_T = torch.from_numpy(
        np.concatenate([prompt_ids, rollout.response_ids]).astype(np.int64)
    )
    action_mask_A = torch.zeros(len(sequences_T) - 1, dtype=torch.long)
    action_mask_A[len(prompt_ids) - 1 :] = torch.from_numpy(rollout.sampled).long()
    logprobs_A = torch.zeros(len(sequences_T) - 1, dtype=torch.float32)
    if rollout.has_logprobs:  # else the ratio is 1 (experience_maker.py)
        logprobs_A[len(prompt_ids) - 1 :] = torch.from_numpy(
            rollout.response_logprobs.astype(np.float32)
        )
    reward = rollout.graded_reward
    values = {"reward": reward, "score": float(rollout.verdict is Verdict.CORRECT)}
    info = {
        key: torch.tensor([values.get(key, 0.0)], dtype=tensor.dtype)
        for key, tensor in sibling.info.items()
    }
    return Experience(
        sequences=sequences_T.unsqueeze(0),
        attention_mask=torch.ones_like(sequences_T).unsqueeze(0),
        action_mask=action_mask_A.unsqueeze(0),
        rollout_log_probs=logprobs_A.unsqueeze(0),
        prompts=list(sibling.prompts),
        labels=list(sibling.labels),
        images=[None],
        mm_train_inputs=[experts_tensor(experts)],
        rewards=torch.tensor([reward], dtype=torch.float32),
        scores=torch.tensor([values["score"]], dtype=torch.float32),
        response_length=torch.tensor([rollout.num_sampled_tokens]),
        truncated=torch.tensor([rollout.truncated]),
        total_length=torch.tensor([float(len(sequences_T))]),
        info=info,
    )


def filler_experience(sibling: Experience, pad_token_id: int) -> Experience:
    """Make a row of two tokens without any action: it carries no loss and no gradient, and keeps
    data-parallel ranks in step (every rank runs the same number of forward and backward passes)."""
    sequences = torch.full((1, 2), pad_token_id, dtype=torch.long)
    zero = torch.zeros((1, 1))
    return Experience(
        sequences=sequences,
        attention_mask=torch.ones_like(sequences),
        action_mask=torch.zeros((1, 1), dtype=torch.long),
        rollout_log_probs=zero.clone(),
        prompts=[""],
        labels=[""],
        images=[None],
        mm_train_inputs=[None],
        rewards=torch.zeros(1),
        scores=torch.zeros(1),
        response_length=torch.tensor([0]),
        truncated=torch.tensor([False]),
        total_length=torch.tensor([2.0]),
        info={key: torch.zeros(1, dtype=tensor.dtype) for key, tensor in sibling.info.items()},
    )
