#!/bin/bash
# One would guess: mlflow-skinny, the client that trainers install, logs a run to a directory or a database file like mlflow itself,
#   and only leaves the web pages out.
# Seen: mlflow-skinny 3.17.2 refuses a directory ("maintenance mode"), and its sentence sends the reader to sqlite; sqlite is refused,
#   too, for the package has no database. Without a server no address on the own machine is left. Behind MLFLOW_ALLOW_FILE_STORE=true
#   the refused directory works.
# Where: mlflow/store/tracking/file_store.py (the refusal), mlflow/tracking/registry.py (schemes that are installed).
# Why it matters: a trainer that takes the small package loses a run's numbers, or the run, at its first step, and the advice in the
#   error leads to the next error.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq mlflow-skinny==3.17.2

cat > "$folder/log.py" <<'PY'
import sys

import mlflow

mlflow.set_tracking_uri(sys.argv[1])
mlflow.set_experiment("reward")
with mlflow.start_run():
    mlflow.log_metric("accuracy", 0.5, step=1)
print("logged")
PY
cat > "$folder/compare.py" <<'PY'
import os
import subprocess
import sys

folder = sys.argv[1]


def outcome(address, **more):
    command = [sys.executable, f"{folder}/log.py", address]
    result = subprocess.run(command, capture_output=True, text=True, env=os.environ | more)
    last = (result.stdout + result.stderr).strip().splitlines()[-1]
    print(f"{address.partition(':')[0]:7} {more or ''} {last[:150]}")
    return result.stdout.strip() or last


assert "maintenance mode" in outcome(f"file:{folder}/runs")
assert "unsupported URI" in outcome(f"sqlite:///{folder}/runs.db")
assert outcome(f"file:{folder}/kept", MLFLOW_ALLOW_FILE_STORE="true") == "logged"
PY
"$folder/venv/bin/python" "$folder/compare.py" "$folder"
