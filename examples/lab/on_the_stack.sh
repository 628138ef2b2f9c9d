#!/usr/bin/env bash
# One seed of each arm of the lab through Ray, DeepSpeed and vLLM instead of the light loop. About 15 minutes on two cores.
# Finished runs are kept, so the script can be stopped and started again.
set -euo pipefail
cd "$(dirname "$0")/../.."
export PATH="$PWD/.venv/bin:$PATH"

for algo in grpo r3 dapo r3_no_ccr r3_no_isr r3_no_serr; do
    [[ -e "runs/lab_stack/$algo-1/finished.yaml" ]] && continue
    r3 train experiment=lab "algo=$algo" train.seed=1 train.max_generated_tokens=40000 "run_dir=runs/lab_stack/$algo-1" "$@"
done
r3 compare runs/lab_stack --out runs/lab_stack/comparison
