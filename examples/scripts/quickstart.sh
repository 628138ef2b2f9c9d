#!/bin/bash
# R³ on SmolLM2-135M and one-digit sums, on two CPU cores.
# Usage: examples/scripts/quickstart.sh [key=value ...] [--dry-run]
set -euo pipefail
cd "$(dirname "$0")/../.."
[[ -d r3_openrlhf ]] || cd "$SLURM_SUBMIT_DIR" # sbatch runs a copy from Slurm's spool; submit from the repository
PATH="$PWD/.venv/bin:$PATH"
exec r3 train experiment=quickstart "$@"
