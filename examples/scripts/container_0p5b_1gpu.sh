#!/bin/bash
# R³ on Qwen2.5-0.5B and GSM8K in the container of docker/Dockerfile, which `docker build` made before.
# Usage: examples/scripts/container_0p5b_1gpu.sh [key=value ...] [--dry-run: check the keys, print the command, start nothing]
set -euo pipefail
cd "$(dirname "$0")/../.."
PATH="$PWD/.venv/bin:$PATH"
command=(docker run --rm --gpus all --shm-size=10g --ulimit nofile=65536 --volume r3_cache:/root/.cache
    --volume "$PWD/runs:/opt/r3_openrlhf/runs" r3_openrlhf r3 train experiment=r3_0p5b_1gpu)
for argument in "$@"; do
    [[ $argument == --dry-run ]] || continue
    if command -v r3 >/dev/null; then
        r3 train experiment=r3_0p5b_1gpu "$@" >/dev/null
    else
        echo "Warning: the settings are not checked, as there is no r3 outside the container" >&2
    fi
    exec echo "${command[@]}" "${@/--dry-run/}"
done
exec "${command[@]}" "$@"
