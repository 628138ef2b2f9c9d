#!/usr/bin/env bash
# A pretrained model through the whole stack: GRPO with the success weight against r3_earned on research/experiments/smollm2_capitals.yaml,
# a quarter of an hour a run. Every run is added to the file of evidence, and its directory is kept, so that
# the script can be stopped and started. SEEDS="5 6", ARMS="grpo": others. A run may stop because actor and engine disagree about one
# prompt (docs/performance.md#log); start the script again.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/.venv/bin:$PATH"

OFF="replay.enabled=false reflection.enabled=false ranking.enabled=false"
declare -A ARM=(
    [grpo]="algo=grpo"
    [scale3]="algo=r3 $OFF advantage.success_scale=3"
    [all]="algo=r3_earned"
    [r3]="algo=r3"
)
FILE=${EVIDENCE:-research/evidence}/smollm2_capitals.jsonl.zst
for seed in ${SEEDS:-1 2 3 4}; do
    for arm in ${ARMS:-scale3 all}; do
        run=${OUT:-runs/smollm2_capitals}/$arm-$seed
        # shellcheck disable=SC2086
        r3 train experiment=research/experiments/smollm2_capitals.yaml ${ARM[$arm]} arm="$arm" train.seed="$seed" run_dir="$run"
        python -m research evidence "$FILE" --reference "$arm" --add "$run" > /dev/null
    done
done
python -m research evidence "$FILE" --reference "${REFERENCE:-scale3}"
