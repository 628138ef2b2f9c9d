#!/bin/bash
# R³ on DeepSeek-R1-Distill-Qwen-1.5B and DeepScaleR, one node of eight 80 GB GPUs.
# Usage: examples/scripts/r3_1p5b_8gpu.sh [key=value ...] [--dry-run], or sbatch --gpus-per-node=8 with the same
set -euo pipefail
cd "$(dirname "$0")/../.."
[[ -d r3_openrlhf ]] || cd "$SLURM_SUBMIT_DIR" # sbatch runs a copy from Slurm's spool; submit from the repository
PATH="$PWD/.venv/bin:$PATH"
exec r3 train experiment=r3_1p5b_deepscaler_8gpu "$@"
