"""What the parser of a grading process reads instead of working it out is what it would have worked out."""

import hashlib
import json
import subprocess
import sys
import zlib

import pytest

from r3_openrlhf.grading.answers import parser_decisions

AGAIN = "the warm-up or a version has changed: write the file anew with tools/parser_decisions.py"
# none of them is a form of the warm-up, so each teaches the parser something
ANSWERS = r"""\frac{3x^2-7}{2\sqrt{x+1}} | \int_0^1 x^2 dx | \lim_{x\to 0}\frac{\sin x}{x} | \sum_{i=1}^{10} i^2 | 7! | |x-3|+2 |
\begin{pmatrix}1&2&3\\4&5&6\end{pmatrix} | x\in[0,1]\cap(0.5,2) | \log_{10}(100x) | a_{n+1}=2a_n+1 | -\frac{7}{9}\pi | 12.5\% |
\sqrt[5]{x^{10}} | e^{-x^2/2} | \frac{d}{dx}(x^3) | (x+y)^3-3xy(x+y) | \sin^{2}x+\cos^{2}x | 1,234,567 | \left(\frac{a}{b}\right)^{-2} |
x<3 | x\neq 5 | \{x:x>2\} | f(3)=g(2)+1 | \overline{z}=1-i | 4\times10^{-3} | 2^{2^{2}} | \max(3,5) | \binom{n}{2}+\binom{n}{3} | 5\pmod 7"""

PROGRAM = """
import hashlib, json, sys, zlib
from pathlib import Path
from latex2sympy2_extended import latex2sympy
from r3_openrlhf.grading.answers import parser_decisions
from r3_openrlhf.grading.processes.worker import warm_up

answers, from_file, output = json.loads(sys.argv[1]), json.loads(sys.argv[2]), Path(sys.argv[3])
warm_up(from_file=from_file)
found = [hashlib.sha256(parser_decisions.learned_here()).hexdigest()]
for answer in answers:
    try:
        found.append(repr(latex2sympy(answer)))
    except Exception as error:
        found.append(type(error).__name__)
output.write_bytes(zlib.compress(parser_decisions.learned_here()))
print(json.dumps(found))
"""


READ = """
import sys
from pathlib import Path
from r3_openrlhf.grading.answers import parser_decisions

parser_decisions.FILE = Path(sys.argv[1])
assert parser_decisions.load()
Path(sys.argv[2]).write_bytes(parser_decisions.learned_here())
"""


def learn(output, *, from_file):
    """[what is learned at first, one result for each answer ...]; what is learned in the end goes to `output`. In a process of
    its own."""
    arguments = [json.dumps([answer.strip() for answer in ANSWERS.split(" | ")]), json.dumps(from_file), str(output)]
    done = subprocess.run([sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_what_is_read_is_what_would_be_worked_out(tmp_path):
    """Also after more has been learned: what was read is gone on from as if it had been worked out, and can be read again."""
    files = [tmp_path / "worked_out", tmp_path / "read", tmp_path / "again"]
    in_file = hashlib.sha256(zlib.decompress(parser_decisions.FILE.read_bytes())).hexdigest()
    worked_out, read = learn(files[0], from_file=False), learn(files[1], from_file=True)
    assert worked_out[0] == in_file, AGAIN
    assert read == worked_out and len({*read}) > 20
    assert files[1].read_bytes() == files[0].read_bytes()
    assert read[0] != hashlib.sha256(zlib.decompress(files[1].read_bytes())).hexdigest(), (
        "nothing was learned from the answers"
    )
    subprocess.run([sys.executable, "-c", READ, files[1], files[2]], check=True)
    assert files[2].read_bytes() == zlib.decompress(files[1].read_bytes())


@pytest.mark.parametrize("reason", ["no file", "another version"])
def test_a_file_of_no_use_is_left_alone(reason, tmp_path, monkeypatch):
    if reason == "no file":
        monkeypatch.setattr(parser_decisions, "FILE", tmp_path / "none.bin")
    else:
        monkeypatch.setattr(parser_decisions, "versions", lambda: ["antlr4-python3-runtime 4.9.4"])
    before = parser_decisions.learned_here()
    assert parser_decisions.load() is False
    assert parser_decisions.learned_here() == before
