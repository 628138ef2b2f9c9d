#!/bin/bash
# One would guess: to "solve the inequality", whose reference is -3 < x < 5, the response "x = -3 or x = 5" is wrong: it
#   solves the equation, and the interval does not even contain these two numbers.
# Seen: math-verify 0.9.0 calls it right. With <= in the place of < (where both numbers do belong to the solution) the same
#   response is wrong, and with reference and response exchanged as well.
# Where: math_verify/grader.py, `sympy_compare_sets`: an open interval of the reference may be an ordered pair, since (1,2)
#   is either. The chain -3 < x < 5 is made an interval first, so it is taken for the pair (-3, 5).
# Why it matters: stopping at the boundary points is the common wrong path of these problems, and it is rewarded like the
#   right one; such a group looks solved. Reading verify(gold, response) the other way round changes verdicts, too.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq math-verify==0.9.0 latex2sympy2_extended==1.11.0 sympy==1.14.0 antlr4-python3-runtime==4.13.2

"$folder/venv/bin/python" - <<'PY'
from importlib.metadata import version

from math_verify import parse, verify

print("math-verify", version("math-verify"))


def agree(reference, response):
    verdict = verify(parse(rf"\boxed{{{reference}}}"), parse(rf"\boxed{{{response}}}"))
    print(f"reference {reference:34} response {response:34} {'right' if verdict else 'wrong'}")
    return verdict


boundary = r"x=-3 \text{ or } x=5"
assert agree("-3<x<5", boundary)
assert agree("-3<x<5", r"\{-3,5\}")
assert not agree(boundary, "-3<x<5")
assert not agree(r"-3\le x\le 5", boundary)
assert not agree("-3<x<5", r"-3\le x\le 5")
PY
