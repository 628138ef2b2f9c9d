"""latex2sympy2_extended's parser in two stages, as ANTLR's authors advise: quick first, in full
only where that fails.

Prediction mode SLL gives the tree of the default LL or a syntax error (antlr4.atn.PredictionMode);
it looks at less context, and remembers its decisions; in full context each is made anew."""

from __future__ import annotations

from antlr4.atn.PredictionMode import PredictionMode
from latex2sympy2_extended.latex2sympy2 import _Latex2Sympy

_create_parser = _Latex2Sympy.create_parser


def _create_two_stage_parser(self: _Latex2Sympy, latex: str):
    parser = _create_parser(self, latex)
    parser._interp.predictionMode = PredictionMode.SLL
    quick = parser.math

    def math():
        try:
            return quick()
        except MemoryError:
            raise
        except Exception:  # of the error listener; a faulty text raises it again
            return _create_parser(self, latex).math()

    parser.math = math
    return parser


def install() -> None:
    """For this process, for good."""
    _Latex2Sympy.create_parser = _create_two_stage_parser
