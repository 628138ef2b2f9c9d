#!/usr/bin/env bash
# What depth is worth where no choice of ours helps or hinders it (docs/agents.md): advantages as they are, four minibatches a step, 50
# turns, a policy that fails half of the time; with and without the standard deviation, groups of 8, 16 and 32 at equal tokens. Each
# arm's rate is the one of RATES whose worst of eight seeds is best, on seeds that are not reported (at the best mean some runs break).
# Every run is a file in OUT; what is there is not run again.
#   RECIPE="rescale=false minibatches=4 shared=false" TOKENS=30000 research/hgpo.sh     tasks that share nothing
#   POLICY=network SIZES=16 VARIANTS=history SEEDS=6 RATES="1e-3 3e-3 1e-2" research/hgpo.sh
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/.venv/bin:$PATH" OMP_NUM_THREADS=1

POLICY=${POLICY:-table} VARIANTS=${VARIANTS:-history state} SIZES=${SIZES:-8 16 32} SEEDS=${SEEDS:-16}
ARMS=${ARMS:-grpo gigpo hgpo_k0 hgpo_k2 hgpo_k4 hgpo_k2_episode}
RATES=${RATES:-15 45 135 405}
OUT=${OUT:-runs/lab_hgpo} TOKENS=${TOKENS:-40000}
RECIPE=${RECIPE:-rescale=false minibatches=4 forgets=0.5 max_turns=50 memory_turns=50}
mkdir -p "$OUT" # what goes wrong is in $OUT.log
# shellcheck disable=SC2086
agents() { # agents STD_NORM SIZE VARIANT ARM RATE FIRST_SEED SEEDS
    python -m research agents --policy "$POLICY" --variants "$3" --arms "$4" --learning-rate "$5" --first-seed "$6" --seeds "$7" \
        --out "$OUT" --tokens "$TOKENS" --json std_norm="$1" trajectories="$2" $RECIPE 2>>"$OUT.log"
}
WORST='import json,sys; from research.agents import AgentRun; r=[AgentRun(**json.loads(x)).area for x in sys.stdin]; print(min(r))'

for std_norm in true false; do
    for size in $SIZES; do
        for variant in $VARIANTS; do
            runs=$(mktemp)
            for arm in $ARMS; do
                best=$(for rate in $RATES; do
                    echo "$(agents $std_norm "$size" "$variant" "$arm" "$rate" 101 8 | python -c "$WORST") $rate"
                done | sort -g | tail -1 | cut -d' ' -f2)
                echo "std_norm=$std_norm, groups of $size, $variant, $arm: rate $best" >&2
                agents $std_norm "$size" "$variant" "$arm" "$best" 1 "$SEEDS" >>"$runs"
            done
            printf '\n%s policy, std_norm=%s, groups of %s\n\n' "$POLICY" $std_norm "$size"
            python -c 'import json,sys; from research.agents import AgentRun, table
print(table([AgentRun(**json.loads(line)) for line in open(sys.argv[1])], against=("hgpo_k0", "grpo")))' "$runs"
            rm "$runs"
        done
    done
done
