#!/bin/bash
# The stack on CUDA GPUs, into .venv: `make setup-gpu`, and docker/Dockerfile. Everything comes from requirements-gpu.lock, with
# its hash. Nothing here touches a GPU: flash-attn and DeepSpeed's operators are compiled by the CUDA toolkit.
#
#   PYTHON_FOR_VENV        the Python 3.11 to use (python3.11)
#   FLASH_ATTN_CUDA_ARCHS  what flash-attn is compiled for (what the driver says of the GPUs here; without one 80;90;100;120)
#   MAX_JOBS               compilers at a time while flash-attn is built (as cores and memory allow)
#   NEWER                  1: into .venv-newer, with the packages of requirements-newer-gpu.txt (docs/install.md, Newer models)
#   FLASH_ATTN             "none": go on without it; WHEEL#sha256=DIGEST: a wheel that was built elsewhere (built here from the lock)
set -Eeuo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON_FOR_VENV:-python3.11}
venv=.venv${NEWER:+-newer}
lock=requirements-gpu.lock
[ -z "${NEWER:-}" ] || lock=$venv/requirements.txt
build_log=$venv/flash-attn.log
export PIP_DISABLE_PIP_VERSION_CHECK=1
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
case ${FLASH_ATTN:-} in
'' | none) ;;
*'#sha256='*) [ -f "${FLASH_ATTN%%#*}" ] || fail "FLASH_ATTN names ${FLASH_ATTN%%#*}, and there is no such file" ;;
*) fail "FLASH_ATTN is '$FLASH_ATTN'; use none, or WHEEL#sha256=DIGEST" ;;
esac
# Lines of the doctor that would end the installation after a download of 8 GB. An image is built without a driver. What pip
# downloads is in TMPDIR until it is installed.
"$python" - "$venv" <<'END' || exit 1
import os, sys, tempfile
from pathlib import Path

sys.path.insert(0, os.getcwd())
from r3_openrlhf.operations.doctor import checks

driver, room = checks.nvidia_driver(), 12 * checks.GiB
lines = [checks.driver_line(driver)] if driver else []
if os.environ.get("FLASH_ATTENTION_SKIP_CUDA_BUILD") != "TRUE":
    lines.append(checks.toolkit(checks.cuda_version()))
lines.append(checks.disk(f"disk of {sys.argv[1]}", Path(sys.argv[1]).absolute(), setting="a checkout elsewhere", least=room))
lines.append(checks.disk("disk of TMPDIR", Path(tempfile.gettempdir()), setting="TMPDIR", least=room))
for line in lines:
    if line.status != checks.OK:
        print(f"{line.what}: {line.found}, wanted: {line.wanted}. {line.verdict}", file=sys.stderr)
sys.exit(any(line.status == checks.FAIL for line in lines))
END

# Of a GPU's compute capability flash-attn 2.8.3 has code for the major version alone: 8.0 runs on 8.6 and 8.9, too.
archs_of_driver() {
    nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | sed -n 's/^ *\([0-9][0-9]*\)\..*/\10/p' | sort -nu | paste -sd ';'
}
# One architecture takes a compiler of about 5 GB, four take 9 to 11 (flash-attn's setup.py counts 9).
num_jobs() {
    local gigabytes cores num_archs
    gigabytes=$({ awk '/^MemAvailable/ { print int($2 / 1048576) }' /proc/meminfo
        awk '/^[0-9]/ { print int($1 / 1073741824) }' /sys/fs/cgroup/memory.max 2>/dev/null || true; } | sort -n | head -n 1)
    cores=$(env -u OMP_NUM_THREADS nproc)
    num_archs=$(tr ';' '\n' <<<"$FLASH_ATTN_CUDA_ARCHS" | wc -l)
    echo $((gigabytes / (3 + 2 * num_archs))) "$cores" | awk '{ jobs = $1 < $2 ? $1 : $2; print jobs < 1 ? 1 : jobs }'
}
FLASH_ATTN_CUDA_ARCHS=${FLASH_ATTN_CUDA_ARCHS:-$(archs_of_driver || true)}
export FLASH_ATTN_CUDA_ARCHS=${FLASH_ATTN_CUDA_ARCHS:-80;90;100;120}
MAX_JOBS=${MAX_JOBS:-$(num_jobs)}
export MAX_JOBS

locked() { scripts/locked.sh "$lock" "$@"; }
install() { "$venv/bin/python" -m pip install ${verbosity---quiet} --no-deps --no-build-isolation "$@"; }

rm -f "$venv/installed" # the stamp of `make setup`: this environment will be another one
"$python" -m venv "$venv"
[ -z "${NEWER:-}" ] || scripts/newer.sh requirements-gpu.lock requirements-newer-gpu.txt >"$lock"
echo "1/4 build tools: ${build_tools[*]}" >&2
install --require-hashes --requirement <(locked with "${build_tools[@]}")
echo "2/4 torch, vLLM and everything else that is ready-made: about 8 GB" >&2
verbosity='' install --require-hashes --only-binary :all: --requirement <(locked without "${sources[@]}") |
    sed -un 's/^ *\(Downloading\|Using cached\) \(.*\)/    \2/p' >&2 # a line for each wheel
echo "3/4 packages built from source: ${sources[*]}" >&2
for package in "${sources[@]}"; do
    if [ "$package" != flash-attn ]; then
        echo "    $package" >&2
        install --require-hashes --no-binary "$package" --requirement <(locked with "$package")
        continue
    fi
    case ${FLASH_ATTN:-} in
    none)
        echo "    no flash-attn: runs take PyTorch's attention, without packing" >&2
        continue
        ;;
    *'#sha256='*)
        echo "    flash-attn: ${FLASH_ATTN%%#*}" >&2
        install --require-hashes --requirement <(echo "flash-attn @ file://$(realpath "${FLASH_ATTN%%#*}") --hash=sha256:${FLASH_ATTN##*=}")
        continue
        ;;
    esac
    echo "    flash-attn: 73 files for the architectures $FLASH_ATTN_CUDA_ARCHS, $MAX_JOBS at a time; all of it in $build_log" >&2
    # pip shows a build's own lines with -v alone; ninja writes one for each file that is done
    verbosity=--verbose install --require-hashes --no-binary "$package" --requirement <(locked with "$package") 2>&1 | tee "$build_log" |
        sed -un 's/^ *\(\[[0-9]*\/[0-9]*\]\).*\/\([^/ ]*\)\.o .*/    \1 \2/p' >&2
done
echo "4/4 r3" >&2
install --editable .
echo "Installed. What this machine still lacks: $venv/bin/r3 doctor" >&2
