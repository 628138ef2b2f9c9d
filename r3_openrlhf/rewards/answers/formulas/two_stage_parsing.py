"""latex2sympy2_extended's parser in two stages, as ANTLR's authors advise: quick first, in full
only where that fails.

Prediction mode SLL gives the tree of the default LL or a syntax error (antlr4.atn.PredictionMode);
it looks at less context, and remembers its decisions; in full context each is made again."""

from functools import partial

import sympy
from antlr4.atn.PredictionMode import PredictionMode
from latex2sympy2_extended import latex2sympy2
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


class _Unevaluated:
    """sympy for the parser, whose gamma (line 1185) and binomial (1092) compute whole numbers of any
    size while they are read."""

    def __getattr__(self, name: str) -> object:
        function = getattr(sympy, name)
        return partial(function, evaluate=False) if name in ("gamma", "binomial") else function


def _handle_gcd_lcm(_: _Latex2Sympy, name: str, args: list) -> sympy.Expr:
    """Replace line 1387, which computes the arguments, of any size, while they are read."""
    if all(argument.is_Integer for argument in args):
        return sympy.Integer((sympy.igcd if name == "gcd" else sympy.ilcm)(*args))
    return sympy.Function(name)(*args)


def install() -> None:
    """For this process, for good."""
    latex2sympy2.sympy = _Unevaluated()
    _Latex2Sympy.handle_gcd_lcm = _handle_gcd_lcm
    _Latex2Sympy.create_parser = _create_two_stage_parser
