#!/bin/bash
# R³ on DeepScaleR 1.5B as a job of an existing Ray cluster.
# Usage: examples/scripts/ray_job_1p5b_8gpu.sh run_dir=/shared/runs/r3 --address http://HOST:8265 [--dry-run]
set -euo pipefail
cd "$(dirname "$0")/../.."
PATH="$PWD/.venv/bin:$PATH"
exec r3 submit ray experiment=r3_1p5b_deepscaler_8gpu "$@"
