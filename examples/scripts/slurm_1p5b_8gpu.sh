#!/bin/bash
# R³ on DeepScaleR 1.5B as a Slurm job array: seeds 1, 2 and 3, one node each.
# Usage: examples/scripts/slurm_1p5b_8gpu.sh run_dir=/shared/runs/r3 [key=value ...] [--partition NAME] [--dry-run]
set -euo pipefail
cd "$(dirname "$0")/../.."
PATH="$PWD/.venv/bin:$PATH"
exec r3 submit slurm experiment=r3_1p5b_deepscaler_8gpu --seeds 1,2,3 --time 24:00:00 "$@"
