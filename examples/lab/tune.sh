#!/usr/bin/env bash
# Equal treatment in the wide lab: learning rates and passes for GRPO and R³ on seeds that are not reported (101 to 103), then
# one table. About two minutes a run on one core. Finished runs are kept, so the script can be stopped and started again.
set -euo pipefail
cd "$(dirname "$0")/../.."
export PATH="$PWD/.venv/bin:$PATH"

OUT=${OUT:-runs/lab_wide_tuning}
SEEDS=${SEEDS:-101,102,103}

arms=()
for preset in grpo grpo_select r3 r3_select; do
    for rate in 1.5e-4 3e-4 6e-4; do
        for passes in 1 2; do
            arms+=(--arm "${preset}_lr${rate}_x${passes}=$preset train.learning_rate=$rate train.inner_epochs=$passes train.dual_clip=3")
        done
    done
done

r3 lab study --experiment lab_wide --seeds "$SEEDS" --out "$OUT" "${arms[@]}" "$@" >&2
r3 compare "$OUT" --reference grpo_lr3e-4_x1 --out "$OUT/comparison"
