#!/usr/bin/env bash
# SmolLM2-135M through the whole stack in a hard tail: GRPO against replay of successes (CCR), the part of R³ that the lab's
# hard tail found best (docs/RESULTS.md). 108 steps, about half an hour a run on two cores. Every run leaves a small file in
# docs/evidence, and what has one is not run again; a run that was stopped goes on from its last checkpoint. One more seed:
#   SEEDS=4004 examples/lab/smollm2_hard_tail.sh
set -euo pipefail
cd "$(dirname "$0")/../.."
export PATH="$PWD/.venv/bin:$PATH"

SEEDS=${SEEDS:-4001 4002 4003}
OUT=${OUT:-runs/smollm2_hard_tail}
EVIDENCE=${EVIDENCE:-docs/evidence}/smollm2_hard_tail

declare -A ARMS=(
    [grpo]="algo=grpo"
    [ccr]="algo=r3 reflection.enabled=false ranking.enabled=false replay.recall_failures=false"
)

for seed in $SEEDS; do
    for arm in grpo ccr; do
        [[ -e "$EVIDENCE/$arm-$seed.json" ]] && continue
        # shellcheck disable=SC2086 # the settings of an arm are several words
        r3 train experiment=smollm2_hard_tail ${ARMS[$arm]} arm="$arm" train.seed="$seed" run_dir="$OUT/$arm-$seed" "$@"
        r3 evidence "$EVIDENCE" --add "$OUT/$arm-$seed" >/dev/null
    done
done
r3 evidence "$EVIDENCE"
