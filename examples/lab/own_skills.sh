#!/usr/bin/env bash
# Where replay should pay if it pays anywhere: rare problems whose skills no other training problem needs (docs/lab.md). Every run
# leaves a small file in docs/evidence, and what has one is not run again, so it can be stopped and started, and seeds are added by
#   SEEDS=1009,1010 examples/lab/own_skills.sh
# TUNE=1 tunes GRPO's learning rate, the success weight and every arm's rate on seeds that are not reported.
# WORLD=shared_skills, MODEL=lab_table and so on: another world of r3_openrlhf/study/lab/worlds.py.
set -euo pipefail
cd "$(dirname "$0")/../.."
export PATH="$PWD/.venv/bin:$PATH" OMP_NUM_THREADS=1

WORLD=${WORLD:-own_skills} MODEL=${MODEL:-lab_table}
SEEDS=${SEEDS:-$(seq -s, 1001 1032)}
RATES=${RATES:-1e-4 3e-4 6e-4 1e-3}
OUT=${OUT:-runs/lab_worlds}
EVIDENCE=${EVIDENCE:-docs/evidence}
OFF="replay.enabled=false reflection.enabled=false ranking.enabled=false"
CCR="reflection.enabled=false ranking.enabled=false replay.recall_failures=false"
ARMS=(
    "grpo=grpo"
    "scale3=r3 $OFF advantage.success_scale=3"
    "ccr=r3 $CCR"
    "ccr_ratio1=r3 $CCR replay.old_logprobs=recompute"
    "ccr_ratio1_scale3=r3 $CCR replay.old_logprobs=recompute advantage.success_scale=3"
    "rehearsal=r3 $OFF replay.rehearse.rows=32"
)
study() { # study SEEDS DIRECTORY ARM...
    local seeds=$1 kept=$2 arms=()
    shift 2
    for arm in "$@"; do arms+=(--arm "$arm"); done
    r3 lab study --experiment lab_own_skills --seeds "$seeds" --jobs "${JOBS:-1}" --out "$OUT/$WORLD" --evidence "$kept/lab_$WORLD" \
        "data.reasoning_gym.world=$WORLD" "model.path=$MODEL" "${arms[@]}" >&2
}

if [ "${TUNE:-}" ]; then
    tried=()
    for rate in $RATES; do
        for arm in "${ARMS[@]}"; do tried+=("${arm%%=*}_lr$rate=${arm#*=} train.learning_rate=$rate"); done
    done
    study 101,102,103,104 "$EVIDENCE-tuning" "${tried[@]}"
fi
study "$SEEDS" "$EVIDENCE" "${ARMS[@]}"
r3 evidence "$EVIDENCE"
