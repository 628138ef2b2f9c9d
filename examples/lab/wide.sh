#!/usr/bin/env bash
# The wide lab (docs/RESULTS.md): most groups are mixed, 384 problems, a limit that every one of them can meet. GRPO, R³ with all that the
# controls pointed to, and CCR alone. Every run leaves a small file in docs/evidence, and what has one is not run again:
#   SEEDS=3031,3032 examples/lab/wide.sh
# about a minute a run on one core: half of the experiment's tokens. TUNE=1 runs learning rates first, for each arm on a seed that is not
# reported; 3e-4 was the best of each (docs/evidence-tuning).
set -euo pipefail
cd "$(dirname "$0")/../.."
export PATH="$PWD/.venv/bin:$PATH" OMP_NUM_THREADS=1

SEEDS=${SEEDS:-3001,3002,3003,3004,3005,3006,3007,3008,3009,3010,3011,3012,3013,3014,3015}
OUT=${OUT:-runs/lab_wide}
EVIDENCE=${EVIDENCE:-docs/evidence}
EVERYTHING="replay.recall_failures=false reflection.share_successes=true exploration.prefix=fractions"
CCR="reflection.enabled=false ranking.enabled=false replay.recall_failures=false"
ALIKE="train.max_generated_tokens=150000 train.inner_epochs=2 train.dual_clip=3"

if [ "${TUNE:-}" ]; then
    arms=()
    for rate in 1.5e-4 3e-4; do
        arms+=(--arm "grpo_lr${rate}_x2=grpo train.learning_rate=$rate")
        arms+=(--arm "r3_best_lr${rate}_x2=r3_select train.learning_rate=$rate $EVERYTHING")
        arms+=(--arm "ccr_lr${rate}_x2=r3 train.learning_rate=$rate $CCR")
    done
    # shellcheck disable=SC2086 # several words
    r3 lab study --experiment lab_wide --seeds 101 --out "${OUT}_tuning" --evidence "$EVIDENCE-tuning/lab_wide" $ALIKE \
        "${arms[@]}" "$@" >&2
fi

# shellcheck disable=SC2086 # several words
r3 lab study --experiment lab_wide --seeds "$SEEDS" --out "$OUT" --evidence "$EVIDENCE/lab_wide" $ALIKE train.learning_rate=3e-4 \
    --arm "grpo=grpo" \
    --arm "r3_best=r3_select $EVERYTHING" \
    --arm "ccr=r3 $CCR" "$@" >&2
r3 evidence "$EVIDENCE"
