#!/bin/bash
# One would guess: in bf16, too, AdamW forgets one large gradient: its square loses a thousandth per step (beta2 = .999), so
#   after 4,000 steps a fiftieth is left. And fused=True is the same rule, only faster.
# Seen: torch 2.13.0 keeps the whole square for ever. A gradient of 1 at step 1, then .01: after 4,000 steps v is still
#   .001 (float32: 1.2e-4), so steps are a third as long. Without the spike v stops at 3e-5 instead of 1e-4: steps are 1.8
#   times as long. With gradients of 1 it stops at .5, and with fused=True at .25, instead of .98.
# Where: torch/optim/adamw.py, adam.py: the state has the parameter's type, and bf16's 8 bits round v * .999 back to v.
# Why it matters: transformers 5 loads a checkpoint in the type it was saved in, bf16 mostly. Trained without float32
#   copies, one exploding step (a recalled or stale row) slows those weights for the rest of the run, and a smaller
#   learning rate does not mend it. `fused` is a different step length, not a detail of speed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
pip=("$folder/venv/bin/pip" install -qq)
"${pip[@]}" torch==2.13.0+cpu numpy==2.4.6 2>/dev/null || "${pip[@]}" torch==2.13.0 numpy==2.4.6

"$folder/venv/bin/python" - <<'PY'
import torch

STEPS = 4000
print("torch", torch.__version__, "AdamW, beta2 = .999, v after", STEPS, "steps")


def second_moment(dtype, first, later, fused):
    weight = torch.nn.Parameter(torch.zeros(1, dtype=dtype))
    optimizer = torch.optim.AdamW([weight], lr=1e-6, weight_decay=0.0, fused=fused)
    for step in range(STEPS):
        weight.grad = torch.full((1,), first if step == 0 else later, dtype=dtype)
        optimizer.step()
    return optimizer.state[weight]["exp_avg_sq"].item()


v = {}
for name, first, later in (("spike", 1.0, 0.01), ("even", 0.01, 0.01), ("large", 1.0, 1.0)):
    for dtype in (torch.float32, torch.bfloat16):
        for fused in (False, True):
            v[name, dtype, fused] = second_moment(dtype, first, later, fused)
            print(f"{name:6} {str(dtype):15} fused={fused!s:6} v = {v[name, dtype, fused]:.3g}")

for fused in (False, True):
    assert 1.1e-4 < v["spike", torch.float32, fused] < 1.2e-4
    assert 9.9e-4 < v["spike", torch.bfloat16, fused] < 1.01e-3
    assert v["even", torch.bfloat16, fused] < 0.35 * v["even", torch.float32, fused]
assert v["large", torch.bfloat16, False] == 2 * v["large", torch.bfloat16, True] == 0.5
PY
