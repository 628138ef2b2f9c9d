#!/bin/bash
# Print a RayJob for KubeRay: R³ on DeepScaleR 1.5B. Submit it with: ... | kubectl apply -f -
# Usage: examples/scripts/kubernetes_1p5b_8gpu.sh --image IMAGE --claim NAME --mount /runs [key=value ...]
set -euo pipefail
cd "$(dirname "$0")/../.."
PATH="$PWD/.venv/bin:$PATH"
exec r3 submit ray experiment=r3_1p5b_deepscaler_8gpu run_dir=/runs/r3 --manifest "$@"
