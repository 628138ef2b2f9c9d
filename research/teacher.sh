#!/usr/bin/env bash
# A teacher from the store (method/core/distill.py) against what it is made of and what it competes with (docs/lab.md), with models
# that were taught to read a shown solution. Every run is added to a file of evidence, and what is there is not run again, so it can be
# stopped and started.
#   TUNE=1 research/teacher.sh       the coefficients of each arm at GRPO's rate, then the rates at the best of them, on seeds
#                                    that are not reported
#   research/teacher.sh              every arm at what that chose (`python -m research tuned FILE`), seed by seed
# WORLD=shared_skills TUNED=own_skills: another world, with that one's choice. WORLD=no_room MODEL=no_room_reads: at the rates of
# RATES="3e-4 7e-4 1.4e-3" FIRST_RATE=7e-4 SDPO_RATES=1e-4. WORLD=names: SmolLM2's facts (research/names.py), which it reads without
# being taught to (`python -m research.names --shown`). ARMS, SEEDS, RATES, COEFS, JOBS: others.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/.venv/bin:$PATH" OMP_NUM_THREADS=1

WORLD=${WORLD:-own_skills}
OF_FILE=lab_teacher_
BASELINE=r3_earned
EXPERIMENT=lab_own_skills
SETTINGS=("data.reasoning_gym.world=$WORLD" "model.path=research.facts:${MODEL:-reads}")
FIRST_RATE=${FIRST_RATE:-1.4e-3} # GRPO's in own_skills.sh
if [ "$WORLD" = names ]; then
    EXPERIMENT=lab_names SETTINGS=() FIRST_RATE=4e-4 # GRPO's in names.sh
    # names.sh has run GRPO and r3_earned, which it calls all, on the same seeds
    OF_FILE=lab_ BASELINE=all ARMS=${ARMS:-sdpo srpo r3_teacher shuffled supervised}
    RATES=${RATES:-2e-4 4e-4 8e-4} SDPO_RATES=${SDPO_RATES:-1e-4} SEEDS=${SEEDS:-$(seq -s, 3001 3020)}
    # the sentence, then its beginning once more
    TEMPLATE=" 'distill.template=\"{problem}{solution}.
{problem}\"'"
fi
OUT=${OUT:-runs/lab_teacher}
EVIDENCE=${EVIDENCE:-research/evidence}
FILE=$EVIDENCE/$OF_FILE$WORLD.jsonl.zst
CHOICE=$EVIDENCE/$OF_FILE${TUNED:-$WORLD}.jsonl.zst
SEEDS=${SEEDS:-$(seq -s, 4001 4016)}
RATES=${RATES:-7e-4 1.4e-3 2e-3}
SDPO_RATES=${SDPO_RATES:-5e-5 1e-4 2e-4 4e-4} # it breaks at the others
COEFS=${COEFS:-0.03 0.1 0.3 1}
OFF="replay.enabled=false reflection.enabled=false ranking.enabled=false"
EARNED="advantage.success_scale=3 replay.old_logprobs=recompute replay.recall_failures=false replay.rehearse.share=0.125"
EARNED="$EARNED reflection.enabled=false ranking.enabled=false"
LESSONS="distill.rows=failed distill.source=any distill.group_advantage=all${TEMPLATE:-}"
declare -A ARM=(
    [grpo]="grpo"
    [r3_earned]="r3_earned"
    [sdpo]="r3 $OFF distill.coef=1 distill.rows=all distill.source=group distill.group_advantage=none${TEMPLATE:-}"
    [srpo]="r3 $OFF distill.rows=failed distill.source=group distill.group_advantage=untaught distill.weight=confident${TEMPLATE:-}"
    [r3_teacher]="r3 $EARNED $LESSONS"
    # controls: a teacher that is shown other problems' successes; cross-entropy on the successes that it is shown
    [shuffled]="r3_shuffled_teacher $EARNED $LESSONS"
    [supervised]="r3_supervised_lessons $EARNED $LESSONS"
)
# SDPO has the gap alone, whose scale Adam takes away; the shuffled teacher has the numbers of the real one
WITH_COEF=" srpo r3_teacher supervised "
ARMS=${ARMS:-grpo r3_earned sdpo srpo r3_teacher shuffled supervised}

study() { # study SEEDS [--tuning] --arm ARM ...
    local seeds=${1//,/ } seed
    shift
    for seed in $seeds; do
        # shellcheck disable=SC2086
        python -m research study --experiment "$EXPERIMENT" --seeds "$seed" --jobs "${JOBS:-1}" --out "$OUT/$WORLD" \
            --evidence "$FILE" "${SETTINGS[@]}" ${MORE:-} "$@" >&2
        rm -rf "$OUT/$WORLD"/*-"$seed"/final_model # of a pretrained model half a gigabyte each
    done
}
chosen() { # chosen ARM: its settings
    python -m research tuned "$CHOICE" --arm "$1"
}

tried=()
if [ "${TUNE:-}" ]; then
    for arm in $ARMS; do
        [[ $WITH_COEF == *" $arm "* ]] || continue
        for coef in $COEFS; do
            tried+=(--arm "${arm}_c${coef}_lr$FIRST_RATE=${ARM[$arm]} distill.coef=$coef train.learning_rate=$FIRST_RATE")
        done
    done
    [ ${#tried[@]} = 0 ] || study "${TUNING_SEEDS:-101,102}" --tuning "${tried[@]}"
    tried=()
    for arm in $ARMS; do
        [ "$arm" != shuffled ] || continue
        name=$arm settings=${ARM[$arm]}
        if [[ $WITH_COEF == *" $arm "* ]]; then
            coef=$(CHOICE=$FILE chosen "$arm" | grep -o 'distill.coef=[^ ]*' | cut -d= -f2)
            name=${arm}_c$coef settings="$settings distill.coef=$coef"
        fi
        rates=$RATES
        [ "$arm" != sdpo ] || rates="$SDPO_RATES $RATES"
        for rate in $rates; do tried+=(--arm "${name}_lr$rate=$settings train.learning_rate=$rate"); done
    done
    study "${TUNING_SEEDS:-101,102}" --tuning "${tried[@]}"
    exit
fi
for arm in $ARMS; do
    like=$arm
    [ "$arm" != shuffled ] || like=r3_teacher
    settings=$(chosen "$like") name=$arm
    if [[ $WITH_COEF == *" $like "* ]]; then # the name says which coefficient it was
        name=${arm}_c$(grep -o 'distill.coef=[^ ]*' <<<"$settings" | cut -d= -f2)
    fi
    [ "$arm" != sdpo ] || name=sdpo_slow # the arm sdpo is the best of RATES alone
    tried+=(--arm "$name=${ARM[$arm]} $settings")
done
study "$SEEDS" "${tried[@]}"
for equal in generated trained computed; do
    python -m research evidence "$FILE" --equal $equal
    python -m research evidence "$FILE" --equal $equal --reference $BASELINE
done
