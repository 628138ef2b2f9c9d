"""The lab's update against that of the real stack, on the same rows."""

import numpy as np
import pytest
import torch

pytest.importorskip("openrlhf", reason="OpenRLHF is not installed")

from r3_openrlhf.method.core.losses import LossSettings  # noqa: E402
from research.update import TrainedRow, accumulate_gradient  # noqa: E402
from tests.stack.mixed_rows import log_ratios, mixed_rows, save_model  # noqa: E402
from tests.stack.updates_on_ranks import LEARNING_RATE, ROWS, run_ranks  # noqa: E402

pytestmark = [pytest.mark.stack]


def logprobs_of(policy, row):
    """[response tokens], under the policy now."""
    ids = torch.tensor([row["tokens"]])
    with torch.no_grad():
        logp = policy(ids).logits[0, row["prompt"] - 1 : -1].log_softmax(-1)
    return logp.gather(1, ids[0, row["prompt"] :, None])[:, 0].numpy()


@pytest.mark.parametrize("dual_clip", [None, 3.0])
def test_one_gradient_in_the_lab_and_on_the_stack(dual_clip, tmp_path):
    """Once on fresh rows, once with recalled ones among them, whose ratios lie beyond each bound."""
    from transformers import AutoModelForCausalLM

    model, off_policy = save_model(tmp_path / "model"), dual_clip is not None
    settings = dict(ranks=1, stage=2, dynamic=False, offload=False, dual_clip=dual_clip)
    stack = run_ranks(tmp_path, model, off_policy=off_policy, **settings)
    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    start = {name: parameter.detach().clone() for name, parameter in policy.named_parameters()}
    for num_rows, status in zip(ROWS, stack["statuses"], strict=True):
        rows = [
            TrainedRow(
                prompt_ids=np.array(row["tokens"][: row["prompt"]]),
                response_ids=np.array(row["tokens"][row["prompt"] :]),
                advantage=row["advantage"],
                old_logprobs=logprobs_of(policy, row) - ratio if off_policy else None,
            )
            for row, ratio in zip(
                mixed_rows(num_rows, seed=num_rows), log_ratios(num_rows), strict=True
            )
        ]
        bounds = dict(settings=LossSettings(dual_clip=dual_clip))
        accumulate_gradient(policy, rows, temperature=1.0, micro_batch_size=4, **bounds)
        gradients = [parameter.grad for parameter in policy.parameters()]
        norm = torch.sqrt(sum((gradient**2).sum() for gradient in gradients)).item()
        assert status["actor_grad_norm"] == pytest.approx(norm, rel=0.02)
        # the optimizer of that test: learning rate times gradient, nearly
        with torch.no_grad():
            for parameter, gradient in zip(policy.parameters(), gradients, strict=True):
                parameter -= LEARNING_RATE * gradient / (gradient.abs() + 1e4)
        policy.zero_grad()
    moved = {
        name: parameter.detach() - start[name] for name, parameter in policy.named_parameters()
    }
    stack_moved = torch.cat(
        [(stack["weights"][name] - start[name]).flatten() for name in start]
    )
    lab_moved = torch.cat([moved[name].flatten() for name in start])
    assert torch.nn.functional.cosine_similarity(stack_moved, lab_moved, dim=0) > 0.995
    assert stack_moved.norm().item() == pytest.approx(lab_moved.norm().item(), rel=0.02)
