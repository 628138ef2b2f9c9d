"""The parser in two stages reads what the parser in full reads."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import sympy

from r3_openrlhf.rewards.answers.formulas import two_stage_parsing
from r3_openrlhf.rewards.answers.formulas.algebra import _parse_bare, parse_latex_cached
from r3_openrlhf.rewards.answers.formulas.spelling import unify


def test_both_read_the_same():
    lines = [line for name in ("correct", "wrong") for line in _lines(f"pairs_{name}.txt")[::3]]
    texts = sorted({unify(text) for line in lines for text in line.split(" === ")})
    two_stages = [_read(text) for text in texts]
    patched = two_stage_parsing._Latex2Sympy.create_parser
    two_stage_parsing._Latex2Sympy.create_parser = two_stage_parsing._create_parser
    try:
        in_full = [_read(text) for text in texts]
    finally:
        two_stage_parsing._Latex2Sympy.create_parser = patched
    assert [
        row for row in zip(texts, two_stages, in_full, strict=True) if row[1] != row[2]
    ] == []
    assert len(texts) > 300 and patched is not two_stage_parsing._create_parser


def test_memory_that_is_used_up_is_no_reason_to_parse_once_more(monkeypatch):
    class Parser:
        _interp = SimpleNamespace()

        def math(self):
            raise MemoryError

    made = []
    monkeypatch.setattr(
        two_stage_parsing, "_create_parser", lambda self, latex: made.append(latex) or Parser()
    )
    with pytest.raises(MemoryError):
        two_stage_parsing._create_two_stage_parser(None, "x").math()
    assert made == ["x"]


def _lines(name):
    return Path(__file__).with_name(name).read_text(encoding="utf-8").splitlines()


def _read(text):
    parse_latex_cached.cache_clear()
    first = _parse_bare(text)[0]
    return first if isinstance(first, str) else sympy.srepr(first)
