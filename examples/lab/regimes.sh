#!/usr/bin/env bash
# The small regimes of the map (docs/RESULTS.md): GRPO and each mechanism alone, where most problems are solved, where what fails is too
# long, and where no problem is asked twice. Every run leaves a small file in docs/evidence, and what has one is not run again:
#   SEEDS=3004,3005 examples/lab/regimes.sh
# about half a minute a run on one core. Learning rate and passes are those of the hard tail, not tuned here.
set -euo pipefail
cd "$(dirname "$0")/../.."
export PATH="$PWD/.venv/bin:$PATH" OMP_NUM_THREADS=1

SEEDS=${SEEDS:-3001,3002,3003}
OUT=${OUT:-runs}
EVIDENCE=${EVIDENCE:-docs/evidence}
OFF="replay.enabled=false reflection.enabled=false ranking.enabled=false"
ALIKE="train.learning_rate=1.5e-4 train.inner_epochs=2 train.dual_clip=3"

for regime in lab_truncation_bound lab_mostly_solved; do
    r3 lab study --experiment "$regime" --seeds "$SEEDS" --out "$OUT/$regime" --evidence "$EVIDENCE/$regime" $ALIKE \
        --arm "grpo=grpo" \
        --arm "serr=r3 $OFF ranking.enabled=true" \
        --arm "ccr=r3 $OFF replay.enabled=true replay.recall_failures=false" \
        --arm "isr=r3 $OFF reflection.enabled=true reflection.share_successes=true" \
        --arm "prefix=r3 $OFF exploration.prefix=fractions reflection.threshold=0.1 reflection.max_per_step=4" "$@" >&2
done
# the others do nothing here: tests/study/lab/test_one_epoch.py
r3 lab study --experiment lab_one_epoch --seeds "$SEEDS" --out "$OUT/lab_one_epoch" --evidence "$EVIDENCE/lab_one_epoch" $ALIKE \
    --arm "grpo=grpo" \
    --arm "serr=r3 $OFF ranking.enabled=true" "$@" >&2
r3 evidence "$EVIDENCE"
