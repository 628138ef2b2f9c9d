#!/bin/bash
# The GRPO baseline of r3_1p5b_8gpu.sh.
# Usage: examples/scripts/grpo_1p5b_8gpu.sh [key=value ...] [--dry-run]
set -euo pipefail
cd "$(dirname "$0")/../.."
PATH="$PWD/.venv/bin:$PATH"
exec r3 train experiment=grpo_1p5b_deepscaler_8gpu "$@"
