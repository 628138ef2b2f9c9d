#!/bin/bash
# The stack on CUDA GPUs, into .venv: `make setup-gpu`, and docker/Dockerfile. Everything comes from requirements-gpu.lock, with
# its hash. Nothing here touches a GPU: flash-attn and DeepSpeed's operators are compiled by the CUDA toolkit.
#
#   PYTHON_FOR_VENV   the Python 3.11 to use (python3.11)
#   MAX_JOBS          compilers at a time while flash-attn is built; each takes several GB of memory (2)
set -Eeuo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON_FOR_VENV:-python3.11}
venv=.venv
lock=requirements-gpu.lock
export MAX_JOBS=${MAX_JOBS:-2} PIP_DISABLE_PIP_VERSION_CHECK=1
export FLASH_ATTENTION_FORCE_BUILD=TRUE # else its setup.py looks for a ready wheel elsewhere, which no hash of ours covers

# Packages without a wheel for this platform, in the order in which they are built. They see what is installed already
# (no build isolation): flash-attn is compiled against the very torch that it will run with.
build_tools=(setuptools wheel packaging ninja psutil)
sources=(deepspeed flash-attn antlr4-python3-runtime cellpylib pycosat transformers-stream-generator zss)

fail() {
    echo "$1" >&2
    exit 1
}
trap 'echo "The GPU installation did not finish. What is missing: PYTHONPATH=. $python -m r3_openrlhf.operations.doctor --stack gpu" >&2' ERR

command -v "$python" >/dev/null || fail "Python 3.11 is needed, but there is no $python; install it, or set PYTHON_FOR_VENV=/path/to/python3.11"
command -v g++ >/dev/null || fail "g++ is needed to build flash-attn and DeepSpeed's operators; install it, for example with: apt install g++"
if [ -z "${CUDA_HOME:-}" ] && [ -x /usr/local/cuda/bin/nvcc ]; then
    export CUDA_HOME=/usr/local/cuda # torch would take the folder above the nvcc in PATH, which may be a mere link
fi
if [ "${FLASH_ATTENTION_SKIP_CUDA_BUILD:-FALSE}" != TRUE ]; then
    command -v "${CUDA_HOME:+$CUDA_HOME/bin/}nvcc" >/dev/null ||
        fail "nvcc is needed to build flash-attn; install the CUDA 13.0 toolkit and set CUDA_HOME, or use docker/Dockerfile"
fi

# locked with|without NAME...: those packages of the lock, or all others
locked() {
    awk -v mode="$1" -v names="${*:2}" '
        BEGIN { split(names, list, " "); for (i in list) wanted[list[i]] = 1 }
        /^#/ { next }
        /^[^ ]/ { name = $1; sub(/[=[].*/, "", name); keep = (name in wanted) == (mode == "with") }
        keep' "$lock"
}
install() { "$venv/bin/python" -m pip install --quiet --no-deps --no-build-isolation "$@"; }

rm -f "$venv/installed" # the stamp of `make setup`: this environment will be another one
"$python" -m venv "$venv"
echo "1/4 build tools: ${build_tools[*]}" >&2
install --require-hashes --requirement <(locked with "${build_tools[@]}")
echo "2/4 torch, vLLM and everything else that is ready-made: about 8 GB" >&2
install --require-hashes --only-binary :all: --requirement <(locked without "${sources[@]}")
echo "3/4 packages built from source: ${sources[*]} (flash-attn is compiled, up to hours with MAX_JOBS=$MAX_JOBS)" >&2
for package in "${sources[@]}"; do
    echo "    $package" >&2
    install --require-hashes --no-binary "$package" --requirement <(locked with "$package")
done
echo "4/4 r3" >&2
install --editable .
echo "Installed. What this machine still lacks: $venv/bin/r3 doctor" >&2
