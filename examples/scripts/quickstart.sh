#!/bin/bash
# R³ on SmolLM2-135M and one-digit sums, on two CPU cores.
# Usage: examples/scripts/quickstart.sh [key=value ...] [--dry-run]
set -euo pipefail
cd "$(dirname "$0")/../.."
PATH="$PWD/.venv/bin:$PATH"
exec r3 train experiment=quickstart "$@"
