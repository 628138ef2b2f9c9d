#!/bin/bash
# R³ on Qwen2.5-0.5B and GSM8K, one GPU of 24 GB or more.
# Usage: examples/scripts/r3_0p5b_1gpu.sh [key=value ...] [--dry-run]
set -euo pipefail
cd "$(dirname "$0")/../.."
[[ -d r3_openrlhf ]] || cd "$SLURM_SUBMIT_DIR" # sbatch runs a copy from Slurm's spool; submit from the repository
PATH="$PWD/.venv/bin:$PATH"
exec r3 train experiment=r3_0p5b_1gpu "$@"
