#!/bin/bash
# One would guess: 12\,345 (LaTeX's thin space between thousands, the usual form outside English) is 12345, as 12,345 is.
#   At worst it is not understood.
# Seen: math-verify 0.9.0 reads 12\,345 as the mixed number 12 + 345 = 357, and 10\,000 as 10 * 000 = 0. The right answer
#   12,345 to such a problem is wrong, 357 is right; 10\,000 equals 20\,000, and both equal 0.
# Where: the grammar of latex2sympy2_extended 1.11.0, called by math_verify/parser.py; spaces are dropped, and two
#   neighbouring numbers are a mixed number or a product.
# Why it matters: when the reference has thin spaces, right responses earn 0 and nothing reports a parsing error; when the
#   model writes them, the same. A filter "drop problems nobody solves" removes exactly these.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq math-verify==0.9.0 latex2sympy2_extended==1.11.0 sympy==1.14.0 antlr4-python3-runtime==4.13.2

"$folder/venv/bin/python" - <<'PY'
from importlib.metadata import version

from math_verify import parse, verify

print("math-verify", version("math-verify"), "latex2sympy2_extended", version("latex2sympy2_extended"))


def agree(reference, response):
    verdict = verify(parse(rf"\boxed{{{reference}}}"), parse(rf"\boxed{{{response}}}"))
    print(f"reference {reference:8} response {response:8} {'right' if verdict else 'wrong'}")
    return verdict


assert agree("12,345", "12345")
assert not agree(r"12\,345", "12,345")
assert agree(r"12\,345", "357")
assert not agree("12,345", r"12\,345")
assert not agree(r"10\,000", "10,000")
assert agree(r"10\,000", r"20\,000")
assert agree(r"10\,000", "0")
PY
