#!/usr/bin/env bash
# Every choice that the paper leaves open, alone, in the lab: three seeds each, then one table (docs/RESULTS.md).
# About half an hour on two cores. Finished runs are kept, so the script can be stopped and started again.
set -euo pipefail
cd "$(dirname "$0")/../.."
export PATH="$PWD/.venv/bin:$PATH"

OUT=${OUT:-runs/lab_sweep}
TOKENS=${TOKENS:-80000}
SEEDS=${SEEDS:-1,2,3}

arm() { # arm NAME KEY=VALUE...: R³ with this setting
    local name=$1
    shift
    r3 lab study --arms r3 --seeds "$SEEDS" --out "$OUT/$name" "train.max_generated_tokens=$TOKENS" "$@" "arm=$name" >&2
}

r3 lab study --arms grpo --seeds "$SEEDS" --out "$OUT/grpo" "train.max_generated_tokens=$TOKENS" >&2
arm default
arm guard_none ranking.guard=none
arm guard_no_std ranking.guard=no_std
arm max_reward_0.2 ranking.max_reward=0.2
arm max_reward_0.9 ranking.max_reward=0.9
arm peak_fraction_0.1 ranking.peak_fraction=0.1
arm scope_failed ranking.scope=failed
arm k_1 replay.k=1
arm k_4 replay.k=4
arm replace replay.mode=replace
arm newest replay.order=newest
arm lag_10 replay.max_policy_lag=10
arm recompute replay.old_logprobs=recompute
arm plain_recall_only replay.include_reflection=false
arm alpha_2 advantage.alpha=2
arm alpha_2_off_policy advantage.alpha=2 advantage.scope=off_policy_only
arm zero_collapsed advantage.zero_collapsed=true
arm threshold_0.05 reflection.threshold=0.05
arm threshold_0.5 reflection.threshold=0.5
arm reflections_unlimited reflection.max_per_step=null

r3 compare "$OUT" --reference default --out "$OUT/comparison"
