#!/usr/bin/env bash
# The hard tail (docs/RESULTS.md): every run leaves a small file in docs/evidence, and what has one is not run again. So more
# seeds are added by
#   SEEDS=2006,2007 examples/lab/hard_tail.sh
# about a minute and a half a run on one core. TUNE=1 runs the grid of learning rates and passes first, on a seed that is
# not reported. The last two arms bound what selection and replay could save (docs/lab.md, controls g and e).
set -euo pipefail
cd "$(dirname "$0")/../.."
export PATH="$PWD/.venv/bin:$PATH" OMP_NUM_THREADS=1

SEEDS=${SEEDS:-2001,2002,2003,2004,2005}
OUT=${OUT:-runs/lab_hard_tail}
EVIDENCE=${EVIDENCE:-docs/evidence}
EVERYTHING="replay.recall_failures=false reflection.share_successes=true exploration.prefix=fractions"
OFF="replay.enabled=false reflection.enabled=false ranking.enabled=false"

if [ "${TUNE:-}" ]; then
    arms=()
    for rate in 1.5e-4 3e-4 6e-4; do
        for passes in 1 2; do
            own="train.learning_rate=$rate train.inner_epochs=$passes train.dual_clip=3"
            arms+=(--arm "grpo_lr${rate}_x${passes}=grpo $own")
            arms+=(--arm "r3_best_lr${rate}_x${passes}=r3_select $own $EVERYTHING")
        done
    done
    r3 lab study --experiment lab_hard_tail --seeds 101 --out "${OUT}_tuning" \
        --evidence "$EVIDENCE-tuning/lab_hard_tail" "${arms[@]}" "$@" >&2
fi

r3 lab study --experiment lab_hard_tail --seeds "$SEEDS" --out "$OUT" --evidence "$EVIDENCE/lab_hard_tail" \
    train.learning_rate=1.5e-4 train.inner_epochs=2 train.dual_clip=3 \
    --arm "grpo=grpo" \
    --arm "r3_best=r3_select $EVERYTHING" \
    --arm "r3_no_select=r3 $EVERYTHING" \
    --arm "prefix=r3 $OFF exploration.prefix=fractions reflection.threshold=0.1 reflection.max_per_step=4" \
    --arm "isr=r3 $OFF reflection.enabled=true reflection.share_successes=true" \
    --arm "ccr=r3 $OFF replay.enabled=true replay.recall_failures=false" \
    --arm "select=grpo_select" \
    --arm "oracle_select=r3_free_collapsed $OFF" \
    --arm "oracle_success=r3_known_successes $OFF replay.enabled=true replay.recall_failures=false" "$@" >&2
r3 evidence "$EVIDENCE"
