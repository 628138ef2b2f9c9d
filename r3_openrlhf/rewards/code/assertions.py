"""Tell which exceptions of a test are a verdict: a program that swallows one does not pass.

An exception is a verdict if it leaves an assertion of the test (which failed, or could not be
evaluated), or if it keeps a later assertion from running. A program may swallow the others, such
as the KeyError that a test raises, by a statement of its own, for a context manager to suppress.
Standard library only."""

from __future__ import annotations

import ast
import traceback
from types import FrameType
from typing import Any

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_WITHS = (ast.With, ast.AsyncWith)


class Assertions:
    """The assertions in the sources of a test.

    sources: name of the file that each is compiled as -> its text, which compiles."""

    def __init__(self, sources: dict[str, str]) -> None:
        self._nodes: dict[str, list[Any]] = {
            name: list(ast.walk(ast.parse(source))) for name, source in sources.items()
        }
        self._assertions = {
            name: list(filter(_is_assertion, nodes)) for name, nodes in self._nodes.items()
        }

    def is_verdict(self, error: BaseException, *, handler: FrameType | None = None) -> bool:
        """Tell whether an exception decides the test.

        error: as it is caught, with its traceback.
        handler: the frame that called `__exit__`; None: the exception has left a function."""
        if isinstance(error, AssertionError):
            return True
        places = [
            (frame.f_code.co_filename, line)
            for frame, line in traceback.walk_tb(error.__traceback__)
            if frame.f_code.co_filename in self._nodes
        ]
        if any(_holds(node, line) for name, line in places for node in self._assertions[name]):
            return True
        if not places or self._is_raised(*places[-1]):
            return False
        name, line = places[0]
        last = self._last_line_left(name, line, handler)
        return any(line < node.lineno <= last for node in self._assertions[name])

    def _is_raised(self, name: str, line: int) -> bool:
        """Tell whether a line of the test is in a `raise` statement."""
        return any(
            isinstance(node, ast.Raise) and _holds(node, line) for node in self._nodes[name]
        )

    def _last_line_left(self, name: str, line: int, handler: FrameType | None) -> int:
        """Return the end of the function, or of the `with` block, that is left at `line`."""
        while handler is not None and handler.f_code.co_filename != name:
            handler = handler.f_back
        around = [node for node in self._nodes[name] if _holds(node, line)]
        blocks: list[Any]
        if handler is None:
            blocks = [node for node in around if isinstance(node, _FUNCTIONS)]
        else:
            blocks = [
                node
                for node in around
                if isinstance(node, _WITHS)
                and node.lineno <= handler.f_lineno <= _last_line(node.items[-1].context_expr)
            ]
        return _last_line(blocks[-1]) if blocks else line


def _is_assertion(node: ast.AST) -> bool:
    """`assert x`, `self.assertEqual(x, y)`; not `assert False`, which is there not to be reached."""
    if isinstance(node, ast.Call):
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        return name.startswith("assert")
    return isinstance(node, ast.Assert) and not isinstance(node.test, ast.Constant)


def _last_line(node: Any) -> int:
    return int(node.end_lineno)


def _holds(node: object, line: int) -> bool:
    return hasattr(node, "lineno") and node.lineno <= line <= _last_line(node)
