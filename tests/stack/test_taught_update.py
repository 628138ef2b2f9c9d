"""A teacher's loss on logits in the update: on real ranks, against torch written out and TRL's loss on the same numbers."""

import numpy as np
import pytest
import torch
from openrlhf.models import Actor
from transformers import AutoModelForCausalLM

from r3_openrlhf.config.loading import load_config
from r3_openrlhf.method.core.distill import Target
from r3_openrlhf.method.settings import DistillSettings
from r3_openrlhf.stack import chunked_actor
from r3_openrlhf.stack.chunked_actor import ChunkedActor
from r3_openrlhf.stack.idle_rows import IDLE_ROWS, TRAINED_ROWS, is_idle, sums_of_rows
from r3_openrlhf.stack.policy_update import DIVERGENCE
from r3_openrlhf.stack.taught_actor import TaughtActor
from r3_openrlhf.stack.taught_update import NO_TARGET, TARGET, TaughtLoss, targets_of_batch
from tests.stack.mixed_rows import VOCAB, experience_of, log_ratios, mixed_rows, target_of
from tests.stack.updates_on_ranks import (
    LEARNING_RATE,
    ROWS,
    assert_moved_alike,
    movement,
    run_ranks,
    start_of,
)

pytestmark = pytest.mark.stack
COEF = 3.0
TAUGHT = (0, 1, 3, 8, 10)  # of 7 rows and of 12
FP32 = {"ds.grad_accum_dtype": "fp32"}


def divergence_of(name, student_SK, teacher_SK):
    """Over K tokens and the rest as one class, written out."""

    def whole(logprobs_SK):
        probs = logprobs_SK.exp()
        return torch.cat([probs, 1 - probs.sum(1, keepdim=True)], 1)

    def kl(p, q):
        return (p * (p / q).log()).sum(1)

    p, q = whole(student_SK), whole(teacher_SK)
    if name == "reverse_kl":
        return kl(p, q)
    if name == "forward_kl":
        return kl(q, p)
    return (kl(p, (p + q) / 2) + kl(q, (p + q) / 2)) / 2


def one_process(model, *, name, idle=(), by_token=True, max_ratio=None, off_policy=False):
    """The policy-gradient step with the teacher's loss beside it, on all rows at once, in float32. Returns the weights
    and each step's mean divergence."""
    policy = AutoModelForCausalLM.from_pretrained(
        model, dtype=torch.float32, attn_implementation="eager"
    )
    means = []
    for num_rows in ROWS:
        rows = mixed_rows(num_rows, seed=num_rows)
        sizes = [len(row["tokens"]) - row["prompt"] for row in rows]
        policy.zero_grad()
        found = []
        for i, row in enumerate(rows):
            ids = torch.tensor([row["tokens"]])
            logp_SV = policy(ids).logits[0, :-1].log_softmax(-1)[row["prompt"] - 1 :]
            response = logp_SV.gather(1, ids[0, row["prompt"] :, None])[:, 0]
            gap = log_ratios(num_rows)[i] if off_policy else 0.0
            ratio = (response - response.detach() + gap).exp()
            worth = 0.0 if i in idle else row["advantage"]
            loss_S = -torch.minimum(ratio * worth, ratio.clamp(0.8, 1.2) * worth)
            if i in TAUGHT:
                target = target_of(row, coef=COEF)
                student = logp_SV.gather(1, torch.from_numpy(target.ids).long())
                distances = divergence_of(name, student, torch.from_numpy(target.logprobs))
                found += distances.tolist()
                bounded = 1.0 if max_ratio is None else min(np.exp(gap), max_ratio)
                loss_S = loss_S + bounded * torch.from_numpy(target.weights) * distances
            size = sum(sizes) if by_token else sizes[i] * num_rows
            (loss_S.sum() / size).backward()
        means.append(sum(found) / len(found))
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter -= LEARNING_RATE * parameter.grad / (parameter.grad.abs() + 1e4)
    return dict(policy.named_parameters()), means


@pytest.mark.parametrize(
    ("name", "settings", "written"),
    [
        ("reverse_kl", {"ranks": 1, "stage": 2}, {}),
        ("jensen_shannon", {"ranks": 2, "stage": 2}, {}),
        ("forward_kl", {"ranks": 2, "stage": 3, "dynamic": True}, {}),
        ("jensen_shannon", {"ranks": 2, "stage": 3, "chunk_tokens": 7}, {}),
        (
            "reverse_kl",
            {
                "ranks": 1,
                "stage": 2,
                "dynamic": True,
                "more": {"actor.loss_agg_mode": "seq-mean-token-mean"},
            },
            {"by_token": False},
        ),
        (
            "jensen_shannon",
            {"ranks": 1, "stage": 2, "off_policy": True, "max_ratio": 2.0},
            {"max_ratio": 2.0, "off_policy": True},
        ),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else value,
)
def test_the_update_is_that_of_one_process(tmp_path, model, name, settings, written):
    settings = dict(settings)
    distill = {"coef": COEF, "loss": name, "max_ratio": settings.pop("max_ratio", None)}
    settings["more"] = FP32 | settings.get("more", {})
    result = run_ranks(tmp_path, model, taught=TAUGHT, distill=distill, **settings)
    expected, means = one_process(model, name=name, **written)
    for status, mean in zip(result["statuses"], means, strict=True):
        assert status[DIVERGENCE] == pytest.approx(mean, rel=0.02)
    assert_moved_alike(start_of(model), result["weights"], expected)


@pytest.mark.parametrize("ranks", [1, 2])
def test_idle_rows_leave_and_taught_ones_stay(tmp_path, model, ranks):
    """Rows with advantage 0, of which some are taught: the update is that on all rows."""
    idle = tuple(range(12))
    distill = {"coef": COEF, "loss": "reverse_kl"}
    result = run_ranks(
        tmp_path,
        model,
        ranks=ranks,
        stage=2,
        idle=idle,
        skips_idle=True,
        taught=TAUGHT,
        distill=distill,
        micro_batch_size=1,
        more=FP32,
    )
    expected, _ = one_process(model, name="reverse_kl", idle=idle)
    assert_moved_alike(start_of(model), result["weights"], expected)
    for status, num_rows in zip(result["statuses"], ROWS, strict=True):
        taught = sum(row < num_rows for row in TAUGHT)
        assert status[TRAINED_ROWS] + status[IDLE_ROWS] == num_rows
        assert taught <= status[TRAINED_ROWS] < num_rows


def test_where_teacher_and_policy_agree_nothing_moves(tmp_path, model):
    """Beside an update that does move: the teacher says what the policy says, from the pass that a run makes."""
    settings = dict(
        ranks=1,
        stage=2,
        idle=tuple(range(12)),
        taught=TAUGHT,
        rows_per_step=[7],
        more=FP32,
        distill={"coef": COEF, "loss": "jensen_shannon"},
    )
    taught = run_ranks(tmp_path / "taught", model, **settings)
    agrees = run_ranks(tmp_path / "agrees", model, agrees=True, **settings)
    start = start_of(model)
    moved = movement(start, taught["weights"]).norm()
    assert moved > 0
    assert movement(start, agrees["weights"]).norm() < 1e-3 * moved
    assert agrees["statuses"][0][DIVERGENCE] == pytest.approx(0.0, abs=1e-5)


# ── one micro-batch ──


@pytest.fixture(
    params=["padded", "packed", "chunked", "packed and chunked", "packed with entropy"]
)
def actor(model, request, monkeypatch):
    """float32, so that only the order of sums differs."""
    config = load_config("cpu_smoke", ["train.logits_chunk_tokens=7"])
    monkeypatch.setattr(chunked_actor, "config_from_environment", lambda: config)
    kind = ChunkedActor if "chunked" in request.param else TaughtActor
    packed = "packed" in request.param
    made = kind(
        model,
        attn_implementation="flash_attention_2" if packed else "sdpa",
        packing_samples=packed,
        temperature=0.7,
    )
    made.model.float()
    made.with_entropy = "entropy" in request.param
    return made


def full_logits(model, rows):
    """Each row alone: scaled logits [S, V] of its response, with gradient, and the model."""
    alone = Actor(model, attn_implementation="sdpa")
    alone.model.float()
    found = []
    for row, mask_A in enumerate(rows.action_mask):
        tokens = rows.sequences[row : row + 1, rows.attention_mask[row].bool()]
        logits_TV = alone.model(tokens, use_cache=False).logits[0, :-1] / 0.7
        found.append(logits_TV[-int(mask_A.sum()) :])
    return alone, found


def loss_of(rows, targets, actor, settings, policy_loss=None):
    """The loss of a micro-batch, as training_step computes it."""

    def none(log_probs, *_, **__):
        return (log_probs.sum() * 0.0, None)

    taught = TaughtLoss(policy_loss or none, settings, actor, token_level_loss=False)
    taught.targets = targets_of_batch(targets, rows.action_mask)
    with actor.labelled(taught.targets.ids_BAK):
        logprobs_BA, _ = actor(
            rows.sequences,
            rows.action_mask,
            rows.attention_mask,
            return_output=True,
            return_entropy=actor.with_entropy,
        )
        loss, _ = taught(logprobs_BA, logprobs_BA.detach(), None, rows.action_mask)
    assert actor.more_labels is actor.more_logprobs is None
    return loss


@pytest.mark.parametrize(("name", "alpha"), [("reverse_kl", 1.0), ("jensen_shannon", 0.5)])
def test_loss_and_gradient_are_those_of_trl(model, rows, actor, name, alpha):
    """compute_topk_self_distillation_loss on the student's likeliest tokens with a tail, averaged over a response and then over
    all responses, as its trainer does. The teacher is another draw of logits."""
    sdpo = pytest.importorskip("trl.experimental.sdpo.loss_utils")
    alone, logits = full_logits(model, rows)
    generator = torch.Generator().manual_seed(0)
    taught, theirs, targets = (1, 3, 4), [], []
    for row, student_SV in enumerate(logits):
        if row not in taught:
            targets.append(NO_TARGET)
            continue
        teacher_SV = torch.randn(student_SV.shape, generator=generator) * 2
        per_token = sdpo.compute_topk_self_distillation_loss(
            student_SV,
            teacher_SV,
            distillation_topk=6,
            distillation_alpha=alpha,
            distillation_add_tail=True,
        )
        theirs.append(per_token.mean())
        ids = student_SV.detach().topk(6).indices
        kept = teacher_SV.log_softmax(-1).gather(1, ids)
        ones = np.ones(len(ids), np.float32)
        targets.append(Target(ids.int().numpy(), kept.numpy(), ones))
    wanted = sum(theirs) / len(logits)
    wanted.backward()
    found = loss_of(rows, targets, actor, DistillSettings(coef=1.0, loss=name))
    found.backward()
    assert found.item() == pytest.approx(wanted.item(), rel=1e-4)
    expected = dict(alone.model.named_parameters())
    for key, parameter in actor.model.named_parameters():
        error = (parameter.grad - expected[key].grad).norm() / expected[key].grad.norm()
        assert error < 1e-3, key


def test_less_is_kept_of_a_pass_than_upstream_keeps(model, rows):
    """Bytes of the tensors as wide as the vocabulary that autograd keeps: of the logits no float32 copy."""
    made = TaughtActor(model, attn_implementation="sdpa", temperature=0.7)
    targets = [NO_TARGET, *(target_of(row, coef=1.0) for row in mixed_rows(5, seed=1)[1:])]
    ids_BAK = targets_of_batch(targets, rows.action_mask).ids_BAK

    def kept(labels):
        stored = {}

        def pack(tensor):
            if tensor.dim() >= 2 and tensor.shape[-1] == VOCAB and tensor.numel() > VOCAB**2:
                storage = tensor.untyped_storage()
                stored[storage.data_ptr()] = storage.nbytes()
            return tensor

        with (
            torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
            made.labelled(labels),
        ):
            found = made(rows.sequences, rows.action_mask, rows.attention_mask)
        return found, sum(stored.values())

    (ours, few), (theirs, many) = kept(ids_BAK), kept(None)
    torch.testing.assert_close(ours, theirs)
    # 4 bytes of float32 less 2; the layers' activations, some as wide, are alike
    assert many - few >= 2 * rows.sequences.numel() * VOCAB


def test_a_target_of_another_length_is_refused(rows):
    whole = target_of(mixed_rows(5, seed=1)[0], coef=1.0)
    short = Target(whole.ids[1:], whole.logprobs[1:], whole.weights[1:])
    with pytest.raises(ValueError, match="sampled tokens has a target of"):
        targets_of_batch([short, *[NO_TARGET] * 4], rows.action_mask)


def test_a_row_with_a_target_is_not_idle_and_the_target_is_in_no_mean():
    row = experience_of({"tokens": [1, 2, 3], "prompt": 2, "advantage": 0.0})
    row.advantages = torch.zeros(1, 2)
    assert is_idle(row)
    row.info[TARGET] = NO_TARGET
    assert is_idle(row)
    row.info[TARGET] = target_of({"tokens": [1, 2, 3], "prompt": 2}, coef=1.0)
    assert not is_idle(row)
    assert TARGET not in sums_of_rows([row])
