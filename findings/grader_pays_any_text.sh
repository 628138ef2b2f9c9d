#!/bin/bash
# One would guess: the grader of a yes-or-no puzzle reads the answer, so "no idea" scores 0.
# Seen: reasoning-gym 0.1.25 gives 1.0 to every text on `game_of_life_halting`, also to the opposite of the truth.
#   Only the empty text scores 0.
# Where: reasoning_gym/algorithmic/game_of_life_halting.py, `score_answer`: it compares bool(answer) with bool(truth), and
#   both are the strings "True" and "False", which are true in Python.
# Why it matters: the mean reward starts at 1.0, every group has equal rewards, and no prompt of this task ever has a
#   gradient. In a mixture of tasks it looks like one that the model has mastered.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq reasoning-gym==0.1.25

"$folder/venv/bin/python" - <<'PY'
from collections import Counter
from importlib.metadata import version

import reasoning_gym

puzzles = list(reasoning_gym.create_dataset("game_of_life_halting", seed=42, size=50))
score = reasoning_gym.get_score_answer_fn("game_of_life_halting")
print("reasoning-gym", version("reasoning-gym"))
print("true answers:", dict(Counter(puzzle["answer"] for puzzle in puzzles)))

means = {}
for response in ("True", "False", "no idea", ""):
    scores = [score(response, puzzle) for puzzle in puzzles]
    means[response] = sum(scores) / len(scores)
    print(f"mean score of {response!r:10}: {means[response]}")

assert {puzzle["answer"] for puzzle in puzzles} == {"True", "False"}
assert means == {"True": 1.0, "False": 1.0, "no idea": 1.0, "": 0.0}
PY
