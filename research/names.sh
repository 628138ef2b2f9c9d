#!/usr/bin/env bash
# A pretrained model in the lab's loop (research/names.py), half a minute a run on a core. Every run is added to a file of
# evidence, and what is there is not run again, so it can be stopped and started. All arms of a seed come before the next seed.
# TUNE=1 runs every arm at every rate on seeds that are not reported, and nothing else; RATE below is what came out.
# ARMS="grpo all", SEEDS="3021 3022": others.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/.venv/bin:$PATH" OMP_NUM_THREADS=1

OUT=${OUT:-runs/lab_names}
FILE=${EVIDENCE:-research/evidence}/lab_names.jsonl.zst
declare -A ARM=(
    [grpo]="grpo"
    [scale3]="r3 replay.enabled=false reflection.enabled=false ranking.enabled=false advantage.success_scale=3"
    [all]="r3_earned"
    [store_f0.25]="r3_earned data.reasoning_gym.solved=0.25 replay.imported.weight=ratio1"
)
RATE=4e-4 # the best of every arm: of 2e-4 and 4e-4 on seeds 101 and 102, and of 8e-4 on 101
ARMS=${ARMS:-grpo scale3 all store_f0.25}
if [ "${TUNE:-}" ]; then
    SEEDS=${SEEDS:-101 102} RATES=${RATES:-2e-4 4e-4 8e-4} tuning=(--tuning)
else
    SEEDS=${SEEDS:-$(seq 3001 3020)} RATES=$RATE tuning=()
fi
tried=()
for arm in $ARMS; do
    for rate in $RATES; do
        tried+=(--arm "$arm${TUNE:+_lr$rate}=${ARM[$arm]} train.learning_rate=$rate")
    done
done
for seed in $SEEDS; do
    python -m research study --experiment lab_names --seeds "$seed" --jobs 1 --out "$OUT" --evidence "$FILE" "${tuning[@]}" "${tried[@]}" >&2
    rm -rf "$OUT"/*-"$seed"/final_model # half a gigabyte each
done
python -m research evidence "$FILE" "${tuning[@]}" ${TUNE:+--reference grpo_lr4e-4}
