"""The critic's update on any number of rows: that of one process, as the policy's (test_any_number_of_rows.py)."""

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel

from tests.stack import rank_worker
from tests.stack.mixed_rows import mixed_rows
from tests.stack.updates_on_ranks import LEARNING_RATE, ROWS, assert_moved_alike, run_ranks

pytestmark = [pytest.mark.stack]


def one_process(critic, rows_per_step=ROWS):
    """Half the mean over tokens of (value - return)^2 on all rows at once, in float32: (weights, losses, norms, mean values)."""
    stored = {
        name: weight.float()
        for name, weight in load_file(f"{critic}/model.safetensors").items()
    }
    backbone = AutoModel.from_pretrained(
        critic, dtype=torch.float32, attn_implementation="eager"
    )
    head = stored["score.weight"][0].clone().requires_grad_()
    found = []
    for num_rows in rows_per_step:
        rows = mixed_rows(num_rows, seed=num_rows)
        errors, values = [], []
        for row in rows:  # a token's value is that of the tokens before it
            hidden = backbone(torch.tensor([row["tokens"]])).last_hidden_state[
                0, row["prompt"] - 1 : -1
            ]
            values.append(hidden @ head)
            errors.append(values[-1] - row["advantage"])
        loss = 0.5 * torch.cat(errors).square().mean()
        backbone.zero_grad()
        head.grad = None
        loss.backward()
        parameters = [*backbone.parameters(), head]
        norm = torch.sqrt(sum((p.grad**2).sum() for p in parameters)).item()
        found.append((loss.item(), norm, torch.cat(values).mean().item()))
        with torch.no_grad():
            for p in parameters:
                p -= LEARNING_RATE * p.grad / (p.grad.abs() + 1e4)
    weights = {f"model.{name}": p.detach() for name, p in backbone.named_parameters()} | {
        "score.weight": head.detach()[None]
    }
    return stored, weights, found


@pytest.mark.parametrize(
    ("ranks", "stage", "dynamic", "offload"),
    [
        (1, 2, False, False),
        (2, 2, False, True),
        (2, 3, False, False),
        (2, 2, True, False),
        (2, 3, True, False),
    ],
)
def test_the_update_is_that_of_one_process(tmp_path, critic, ranks, stage, dynamic, offload):
    settings = dict(ranks=ranks, stage=stage, dynamic=dynamic, offload=offload, critic=True)
    result = run_ranks(tmp_path, critic, target=rank_worker.update_critic, **settings)
    start, expected, steps = one_process(critic)
    assert result["updates"] == len(ROWS)  # one for each step, the short one too
    for status, (loss, norm, value) in zip(result["statuses"], steps, strict=True):
        assert status["critic_grad_norm"] == pytest.approx(norm, rel=0.02)
        assert status["critic_loss"] == pytest.approx(loss, rel=0.02)
        assert status["values"] == pytest.approx(value, rel=0.05, abs=0.01)
    assert_moved_alike(start, result["weights"], expected)


def test_where_rows_divide_evenly_it_is_the_stock_update(tmp_path, critic):
    """Same rows, same seeds: OpenRLHF's own CriticPPOTrainer and ours end at the same numbers and the same weights. Of two short
    batches it makes one update, which is why ours is there: when that fails, upstream has repaired it."""
    run = lambda name, **options: run_ranks(  # noqa: E731
        tmp_path / name,
        critic,
        target=rank_worker.update_critic,
        ranks=1,
        stage=2,
        critic=True,
        **options,
    )
    stock, ours = (
        run(str(is_stock), stock=is_stock, rows_per_step=[8, 8], micro_batch_size=8)
        for is_stock in (True, False)
    )
    for one, other in zip(stock["statuses"], ours["statuses"], strict=True):
        assert one == pytest.approx(other, rel=1e-3)
    for name, weight in stock["weights"].items():
        torch.testing.assert_close(weight, ours["weights"][name], rtol=1e-4, atol=1e-6)
    assert run("short", stock=True, rows_per_step=[7, 7])["updates"] == 1


@pytest.mark.parametrize("stage", [2, 3])
def test_an_adapter_leaves_the_head_to_be_trained(tmp_path, critic, stage):
    """Adapter and head move, everything else stays."""
    result = run_ranks(
        tmp_path,
        critic,
        target=rank_worker.update_critic,
        ranks=1,
        stage=stage,
        critic=True,
        lora=4,
    )
    start = {
        name: weight.float()
        for name, weight in load_file(f"{critic}/model.safetensors").items()
    }
    for name, weight in result["weights"].items():
        plain = name.removeprefix("base_model.model.").replace(".base_layer", "")
        if "lora_B" in name:  # begins with zeros
            assert weight.abs().max() > 0, name
        elif "lora_" not in name:
            assert torch.equal(weight, start[plain]) != (plain == "score.weight"), name
