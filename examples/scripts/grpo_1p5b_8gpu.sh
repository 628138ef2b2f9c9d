#!/bin/bash
# The GRPO baseline of r3_1p5b_8gpu.sh.
# Usage: examples/scripts/grpo_1p5b_8gpu.sh [key=value ...] [--dry-run], or sbatch --gpus-per-node=8 with the same
set -euo pipefail
cd "$(dirname "$0")/../.."
[[ -d r3_openrlhf ]] || cd "$SLURM_SUBMIT_DIR" # sbatch runs a copy from Slurm's spool; submit from the repository
PATH="$PWD/.venv/bin:$PATH"
exec r3 train experiment=grpo_1p5b_deepscaler_8gpu "$@"
