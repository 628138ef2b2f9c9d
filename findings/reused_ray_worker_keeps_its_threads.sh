#!/bin/bash
# One would guess: a Ray task that asks for two CPUs computes with two torch threads; Ray sets OMP_NUM_THREADS for it.
# Seen: ray 2.55.0 with torch 2.13.0: in a new worker process it has two threads, in a process in which a one-CPU task
#   used torch before it has one, although OMP_NUM_THREADS reads 2 there. The same function, two speeds, by chance.
# Where: ray/_private/utils.py, `set_omp_num_threads_if_unset`, sets the variable for each task; but worker processes are
#   reused, and torch reads it once, when it is first imported.
# Why it matters: reward models, graders and small CPU rollouts as Ray tasks run at a fraction of the speed that their
#   num_cpus pays for, on some workers only; and float sums over another number of threads may round differently.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
pip=("$folder/venv/bin/pip" install -qq)
"${pip[@]}" torch==2.13.0+cpu numpy==2.4.6 2>/dev/null || "${pip[@]}" torch==2.13.0 numpy==2.4.6
"${pip[@]}" ray==2.55.0

unset OMP_NUM_THREADS
RAY_USAGE_STATS_ENABLED=0 "$folder/venv/bin/python" -W ignore - 2>"$folder/log" <<'PY' || { cat "$folder/log" >&2; exit 1; }
import os
from importlib.metadata import version

import ray

print("ray", version("ray"), "torch", version("torch"))


@ray.remote
def threads():
    import torch

    return os.getpid(), os.environ.get("OMP_NUM_THREADS"), torch.get_num_threads()


def in_new_cluster(*cpus_of_tasks):
    """(CPUs asked for, process, OMP_NUM_THREADS, torch threads) of tasks that run one after the other."""
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    seen = [(cpus, *ray.get(threads.options(num_cpus=cpus).remote())) for cpus in cpus_of_tasks]
    ray.shutdown()
    for cpus, process, variable, number in seen:
        print(f"  num_cpus={cpus}: process {process}, OMP_NUM_THREADS={variable}, torch threads {number}")
    return seen


print("two CPUs at once:")
assert in_new_cluster(2)[0][2:] == ("2", 2)
print("tasks of one CPU, then of two:")
seen = in_new_cluster(*[1] * 8, *[2] * 4)
used = {process for cpus, process, _, _ in seen if cpus == 1}
reused = [(variable, number) for cpus, process, variable, number in seen if cpus == 2 and process in used]
assert reused and set(reused) == {("2", 1)}
PY
