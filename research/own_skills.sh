#!/usr/bin/env bash
# Where replay should pay if it pays anywhere: rare problems whose skills no other training problem needs (docs/lab.md). Every run
# is added to a file of evidence, and what is there is not run again, so it can be stopped and started, and seeds are added by
#   SEEDS=1009,1010 research/own_skills.sh
# TUNE=1 runs every arm at every rate on seeds that are not reported, and nothing else; RATE below is what came out.
# WORLD=shared_skills, MODEL=table and so on: another world of research/worlds.py. RATE_OF_ALL=1e-3: one rate for every arm;
# SUFFIX=_lr1e-3: after the names of the arms; MORE="rollout.batch_size=16 ...": settings of all arms; NAME=own_skills_g16: name of
# the results.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/.venv/bin:$PATH" OMP_NUM_THREADS=1

WORLD=${WORLD:-own_skills}
SETTINGS=("data.reasoning_gym.world=$WORLD" "model.path=research.facts:${MODEL:-table}")
SEEDS=${SEEDS:-$(seq -s, 1001 1016)}
RATES=${RATES:-5e-4 1e-3 1.4e-3 2e-3}
OUT=${OUT:-runs/lab_worlds}
FILE=${EVIDENCE:-research/evidence}/lab_${NAME:-$WORLD}.jsonl.zst
OFF="replay.enabled=false reflection.enabled=false ranking.enabled=false"
BOTH="reflection.enabled=false ranking.enabled=false"
CCR="$BOTH replay.recall_failures=false"
EVERY_HARD="reflection.max_share=1" EIGHTH="reflection.max_share=0.125"
ISR="replay.enabled=false ranking.enabled=false $EVERY_HARD"
declare -A ARM=(
    [grpo]="grpo"
    [scale3]="r3 $OFF advantage.success_scale=3"
    [ccr]="r3 $CCR"
    [ccr_ratio1]="r3 $CCR replay.old_logprobs=recompute"
    [ccr_ratio1_scale3]="r3 $CCR replay.old_logprobs=recompute advantage.success_scale=3"
    [rehearsal]="r3 $OFF replay.rehearse.share=0.125"
    [rehearsal_scale3]="r3 $OFF replay.rehearse.share=0.125 advantage.success_scale=3"
    [ccr_failures]="r3 $BOTH replay.recall_failures=true"
    [ccr_ratio1_failures]="r3 $BOTH replay.old_logprobs=recompute replay.recall_failures=true"
    [all]="r3_earned"
    [isr]="r3 $ISR"
    [all_isr]="r3_earned reflection.enabled=true $EVERY_HARD"
    [everything]="r3_earned reflection.enabled=true ranking.enabled=true $EVERY_HARD"
    [serr]="r3 replay.enabled=false reflection.enabled=false"
    [serr_unguarded]="r3 replay.enabled=false reflection.enabled=false ranking.guard=none"
    [r3]="r3" [r3_paper]="r3_paper train.loss_aggregation=token-mean" # eq. 2 has a mean per response, which the lab lacks
    [r3_eighth]="r3 $EIGHTH" [r3_every_hard]="r3 $EVERY_HARD"
    [r3_successes]="r3 $EIGHTH replay.recall_failures=false"
    [r3_rehearsal]="r3 $EIGHTH replay.recall_failures=false replay.rehearse.share=0.125"
    [dapo]="dapo train.max_generated_tokens=115000" # those of the others, in fewer steps
    [scale2]="r3 $OFF advantage.success_scale=2" [scale5]="r3 $OFF advantage.success_scale=5"
    # oracles: a success of every problem is known beforehand; collapsed groups cost nothing
    [known_successes]="r3_known_successes $CCR replay.old_logprobs=recompute"
    [free_collapsed]="r3_free_collapsed $OFF train.num_epochs=40 train.max_generated_tokens=115000"
)
for alpha in 1 2 4 8; do # of eq. 3, in groups that recalled something
    ARM[clip_a$alpha]="r3 $BOTH replay.recall_failures=true advantage.alpha=$alpha"
    ARM[ratio1_a$alpha]="${ARM[clip_a$alpha]} replay.old_logprobs=recompute"
done
# SOLVED, a share of the problems, have a solution: stored, and trained on at a rate before step 1 (research/successes.py)
SOLVED="data.reasoning_gym.solved=${SOLVED:-0.25}"
STORE="r3_earned $SOLVED"
ARM[store]="$STORE replay.imported.weight=ratio1" ARM[store_clip]="$STORE"
for rate in 3e-4 1e-3 3e-3; do
    ARM[sft${rate}_grpo]="grpo $SOLVED data.reasoning_gym.warm_up=$rate"
    ARM[sft${rate}_store]="${ARM[store]} data.reasoning_gym.warm_up=$rate"
done
# of each arm the best by the mean of final accuracy and mean accuracy over seeds 101 and 102 of own_skills
declare -A RATE=(
    [grpo]=1.4e-3 [scale3]=1.4e-3 [ccr]=1.4e-3 [ccr_ratio1]=2e-3 [ccr_ratio1_scale3]=1e-3 [rehearsal]=1.4e-3 [all]=1.4e-3
    [ratio1_a4]=2e-3 [rehearsal_scale3]=1.4e-3 [ccr_failures]=1.4e-3 [ccr_ratio1_failures]=2e-3  # those of all, ccr, ccr_ratio1: not tuned
)
NOT_TUNED=1.4e-3 # GRPO's
ARMS=${ARMS:-grpo scale3 rehearsal ccr_ratio1_scale3 all ccr_ratio1 ccr}
study() { # study SEEDS [--tuning] --arm ARM ...
    local seeds=$1
    shift
    # shellcheck disable=SC2086
    python -m research study --experiment lab_own_skills --seeds "$seeds" --jobs "${JOBS:-1}" --out "$OUT/${NAME:-$WORLD}" \
        --evidence "$FILE" "${SETTINGS[@]}" ${MORE:-} "$@" >&2
}

tried=()
if [ "${TUNE:-}" ]; then
    for rate in $RATES; do
        for arm in $ARMS; do tried+=(--arm "${arm}_lr$rate=${ARM[$arm]} train.learning_rate=$rate"); done
    done
    study "${TUNING_SEEDS:-101,102}" --tuning "${tried[@]}"
    exit
fi
for arm in $ARMS; do tried+=(--arm "$arm${SUFFIX:-}=${ARM[$arm]} train.learning_rate=${RATE_OF_ALL:-${RATE[$arm]:-$NOT_TUNED}}"); done
study "$SEEDS" "${tried[@]}"
python -m research evidence "$FILE"
