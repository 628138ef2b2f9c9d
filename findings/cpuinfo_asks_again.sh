#!/bin/bash
# One would guess: py-cpuinfo asks the machine once; what its processor can do does not change while a process lives.
# Seen: py-cpuinfo 9.0.0 starts a Python of its own for every call of get_cpu_info, and gives a new dict with the same contents.
# Where: cpuinfo/cpuinfo.py, get_cpu_info_json. deepspeed 0.19.6 calls it three times before a process on CPUs has its optimizer:
#   ops/op_builder/builder.py, cpu_arch and simd_width, and ops/adam/cpu_adam.py.
# Why it matters: each rank of a training on CPUs, or with an optimizer on the host, starts three interpreters that answer alike,
#   about a second of processor time each.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq py-cpuinfo==9.0.0

cat > "$folder/ask.py" <<'PY'
import subprocess

import cpuinfo

started = []


class Counted(subprocess.Popen):
    def __init__(self, command, *args, **kwargs):
        started.append(command)
        super().__init__(command, *args, **kwargs)


subprocess.Popen = Counted
if __name__ == "__main__":
    counts, answers = [], []
    for _ in range(3):
        before = len(started)
        answers.append(cpuinfo.get_cpu_info())
        counts.append(len(started) - before)
    for answer in answers:
        # the frequency of the moment, the only thing that may differ
        for key in [key for key in answer if key.startswith("hz_actual")]:
            del answer[key]
    print("processes started by each call:", counts)
    print("equal answers:", answers[0] == answers[1] == answers[2])
    assert min(counts) >= 1 and answers[0] == answers[1] == answers[2]
PY
"$folder/venv/bin/python" "$folder/ask.py"
