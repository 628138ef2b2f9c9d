#!/bin/bash
# One would guess: OpenRLHF's moving average of the policy (--train.enable_ema, beta .992) lags a few hundred steps behind it, and
#   has arrived after 1,000 steps at a policy that has stopped moving.
# Seen: openrlhf 0.11.2 keeps the average in the policy's type, bfloat16 by default. A step of .008 of the way is less than half of
#   the distance between two numbers there, so it is rounded off: after 1,000 steps towards weights that differ by 5% the average
#   has made 6% of the way, and stays there. In float32 it makes all of it.
# Where: openrlhf/utils/deepspeed/deepspeed.py, moving_average; openrlhf/trainer/ray/ppo_actor.py makes the average with
#   ds.param_dtype and saves it, not the policy, as the result of the run.
# Why it matters: the model that is saved is nearly the one that the run began with, while the metrics are those of the policy.
# flash-attn needs a GPU to be installed. A module with the names that openrlhf imports stands for it; none of them is called.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq torch==2.13.0 deepspeed==0.19.6 transformers==5.15.0 peft==0.21.2 torchdata==0.11.0 accelerate==1.15.0 einops==0.8.2 \
    setuptools==80.9.0 pylatexenc==2.11 sympy==1.14.0 aiohttp==3.14.5 pillow==13.0.0 tqdm==4.70.1
"$folder/venv/bin/pip" install -qq --no-deps openrlhf==0.11.2
mkdir -p "$folder/stand_in/flash_attn/utils"
echo "index_first_axis = pad_input = rearrange = unpad_input = None" > "$folder/stand_in/flash_attn/bert_padding.py"
touch "$folder/stand_in/flash_attn/__init__.py" "$folder/stand_in/flash_attn/utils/__init__.py"
echo "all_gather = None" > "$folder/stand_in/flash_attn/utils/distributed.py"

cat > "$folder/average.py" <<'PY'
from collections import Counter
from types import SimpleNamespace

import torch
from openrlhf.utils.deepspeed import DeepspeedStrategy


def share_of_the_way(dtype, steps=1000):
    torch.manual_seed(0)
    start = 0.02 * torch.randn(256, 256)
    end = start * (1 + 0.05 * torch.randn(256, 256))
    policy, average = (torch.nn.Linear(256, 256, bias=False) for _ in range(2))
    policy.weight.data, average.weight.data = end.to(dtype), start.to(dtype, copy=True)
    # what the method reads of a strategy: one update a step, ZeRO 2
    strategy = SimpleNamespace(
        time_steps=Counter(), accumulated_gradient=1, use_dynamic_batch=False, stage=2
    )
    for _ in range(steps):
        DeepspeedStrategy.moving_average(strategy, policy, average, 0.992, "cpu")
    way = policy.weight.data.float() - start.to(dtype).float()
    made = average.weight.data.float() - start.to(dtype).float()
    return ((made * way).sum() / way.square().sum()).item()


found = {str(dtype): share_of_the_way(dtype) for dtype in (torch.float32, torch.bfloat16)}
print("share of the way after 1,000 steps:", {name: round(way, 3) for name, way in found.items()})
assert found["torch.float32"] > 0.99
assert found["torch.bfloat16"] < 0.1
PY
PYTHONPATH="$folder/stand_in" "$folder/venv/bin/python" "$folder/average.py" 2> "$folder/errors" || { tail -n 5 "$folder/errors" >&2; exit 1; }
