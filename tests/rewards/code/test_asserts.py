"""Tests that are code: what they see of a program, and what a program does not see of them."""

import pytest

from r3_openrlhf.rewards.code.run import Limits
from tests.rewards.code.test_run import runner  # noqa: F401  a fixture


def verdict(runner, program, test, setup="", **limits):  # noqa: F811
    (outcome,) = runner.run_asserts(program, [test], setup=setup, limits=Limits(**limits))
    return outcome.value if outcome.status == "finished" else outcome.status


STACK = """
class Stack:
    kind = 'lifo'
    def __init__(self, items=()): self.items = list(items)
    def push(self, item): self.items.append(item); return self
    def pop(self):
        if not self.items: raise IndexError('empty')
        return self.items.pop()
    def __len__(self): return len(self.items)
    def __iter__(self): return iter(self.items)
    def __getitem__(self, i): return self.items[i]
    def __eq__(self, other): return self.items == other.items
    def __str__(self): return f'Stack{self.items}'
"""
HUMANEVAL = "def check(candidate):\n    assert candidate([1, 2]) == 3\n    assert abs(candidate([.1, .2]) - .3) < 1e-9"
# whatever text or bytes it can find in its process that compares something with a number
SEARCH = r"""
import gc, sys, re
def f(x):
    found, frame = [*gc.get_objects()], sys._getframe()
    while frame:
        found += [frame.f_locals, frame.f_globals]
        frame = frame.f_back
    for value in found:
        if numbers := re.findall('== ([0-9]{5})', repr(value)): return int(numbers[0])
"""
TREE = """
class Node:
    def __init__(self, value): self.value = value; self.left = self.right = None
def height(node): return 0 if node is None else 1 + max(height(node.left), height(node.right))
"""
VALUES = """
from collections import deque
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
VALUES = [Decimal("0.10"), Fraction(1, 3), deque([1, (2,)]), range(1, 9, 2), date(2020, 2, 29), datetime(2020, 1, 1, 2, 3, 4, 5, timezone.utc),
          time(1, 2), timedelta(1, 2, 3)]
"""
RAISES = """
def raises(kind, function, *arguments):
    try: function(*arguments)
    except kind: return True
"""


@pytest.mark.parametrize(
    ("program", "test", "setup"),
    [
        ("def add(a, b): return a + b", "assert add(1, 2) == 3", ""),
        ("def add(a, b): return a + b", "assert add(a=1, b=2) == 3", ""),
        ("def total(x): return sum(x)", "check(total)", HUMANEVAL),
        ("def f(x): return x, {1: {2}}", "assert f(1) == (1, {1: {2}}) and type(f(1)) is tuple", ""),
        ("def f(x): return x", "test_f()", "from solution import f\ndef test_f():\n    assert f('a') == 'a'"),
        ("def f(x): return x", "assert s.f(2) == 2", "import solution as s"),
        ("def f(x): return x", "assert f(2) == 2", "from solution import *"),
        ("def f(x): x.sort()", "x = [3, 1, 2]; f(x); assert x == [1, 2, 3]", ""),
        ("def f(x): x[0][1] = 5", "x = [{}]; f(x); assert x == [{1: 5}]", ""),
        ("def f(g, x): return g(x)", "assert f(lambda x: x + 1, 2) == 3", ""),
        ("def f(n): return lambda x: x + n", "assert f(1)(2) == 3", ""),
        ("def f(n):\n    for i in range(n): yield i", "assert list(f(3)) == [0, 1, 2]", ""),
        ("def f(n):\n    for i in range(n): yield i", "g = f(3); assert (next(g), next(g)) == (0, 1)", ""),
        (STACK, "s = Stack(); s.push(1).push(2); assert s.pop() == 2 and len(s) == 1", ""),
        (STACK, "assert Stack([1]) == Stack([1]) and Stack([1]) != Stack([2])", ""),
        (STACK, "assert isinstance(Stack(), Stack) and not isinstance(3, Stack) and Stack.kind == 'lifo'", ""),
        (
            STACK,
            "s = Stack([4, 5]); assert list(s) == [4, 5] and s[0] == 4 and str(s) == 'Stack[4, 5]' and 5 in s",
            "",
        ),
        (STACK, "assert raises(IndexError, Stack().pop)", RAISES),
        ("class E(ValueError): pass\ndef f(): raise E('x')", "assert raises(ValueError, f)", RAISES),
        ("import math\ndef f(r): return math.pi * r", "assert math.isclose(f(1), 3.14159, rel_tol=1e-3)", ""),
        ("PI = 3\ndef f(): return PI", "assert f() == PI", ""),
        ("def f(n): return n if n == 0 else f(n - 1)", "assert f(900) == 0", ""),
        ("def f(n): return 10**n", "assert f(10000) == 10**10000", ""),
        (TREE, "assert height(root) == 2", "root = Node(1)\nroot.left = Node(2)"),
        ("def f(x): return len(x)", "assert f(list(range(10**6))) == 10**6", ""),
        ("def f(n): return {i: i for i in range(n)}", "assert len(f(30_000)) == 30_000", ""),
        ("def f(x): return x", "for x in VALUES: assert f(x) == x and type(f(x)) is type(x), x", VALUES),
        ("def f(x): assert x > 0", "assert raises(AssertionError, f, 0)", RAISES),
        ("print('import')\ndef f(n): print(n); return n", "assert f(1) == 1", ""),
    ],
)
def test_it_holds(runner, program, test, setup):  # noqa: F811
    assert verdict(runner, program, test, setup) is True


@pytest.mark.parametrize(
    ("program", "test", "expected"),
    [
        ("def f(x): return 1", "assert f(1) == 2", False),
        ("def f(x): raise ValueError(x)", "assert f(1) == 2", "error"),
        ("def f(x): return open('/etc/passwd')", "assert f(1) == 2", "error"),
        ("def g(x): return 1", "assert f(1) == 2", "error"),
        ("def f(", "assert f(1) == 2", "syntax_error"),
        ("1 / 0", "assert f(1) == 2", "error"),
        ("def f(x):\n    while True: pass", "assert f(1) == 2", "timeout"),
        ("while True: pass", "assert f(1) == 2", "timeout"),
        ("def f(x): return [0] * 10**10", "assert f(1) == 2", "error"),
        ("def f(x): return 2", "assert f(1) == 2 and", "unavailable"),
        ("def f(x): return 2", "import no_such_module; assert f(1) == 2", "unavailable"),
        ("def f(x): return 2", "assert f(object()) == 2", "unavailable"),
        ("def f(x): assert x == 2", "assert f(1) == 2", "error"),
        ("from fractions import Fraction\ndef f(x): return Fraction(10)", "assert f(1) == 2", False),
        # attacks
        ("import sys; sys.exit(0)", "assert f(1) == 2", "error"),
        ("import os; os._exit(0)", "assert f(1) == 2", "error"),
        ("import os\ndef f(x): os._exit(0)", "assert f(1) == 2", "error"),
        ("def f(x): raise SystemExit(0)", "assert f(1) == 2", "error"),
        ("class A:\n    def __eq__(self, o): return True\n    __ne__ = lambda s, o: False\ndef f(x): return A()",
         "assert f(1) == 2", False),
        ("class A(int):\n    def __eq__(self, o): return True\ndef f(x): return A(1)", "assert f(1) == 2", False),
        ("class A:\n    def __eq__(self, o): return True\ndef f(x): return [A()]", "assert f(1) == [2]", False),
        ("class A:\n    def __lt__(self, o): return True\n    def __sub__(self, o): return 0\ndef f(x): return A()",
         "assert f(1) < 2", "error"),
        ("class A:\n    def __sub__(self, o): return 0\ndef f(x): return A()", "assert abs(f(1) - 2) < 1", "error"),
        ("class A:\n    def __contains__(self, o): return True\n    def __iter__(self): return iter([7])\n"
         "def f(x): return A()", "assert 2 in f(1)", False),
        ("import builtins; builtins.abs = lambda x: 0\ndef f(x): return 1.", "assert abs(f(1) - 2) < .1", False),
        ("abs = lambda x: 0\ndef f(x): return 1.", "assert abs(f(1) - 2) < .1", False),
        ("class M: isclose = lambda *a, **k: True\nmath = M\ndef f(x): return 1.", "assert math.isclose(f(1), 2)", False),
        ("def check(f): pass\ndef f(x): return 1", "assert f(1) == 2", False),
        ("import unittest; unittest.TestCase.assertEqual = lambda *a: None\ndef f(x): return 1",
         "import unittest; unittest.TestCase().assertEqual(f(1), 2)", False),
        ("def f(x):\n    import socket\n    s = socket.socket(fileno=42); s.send(b'\\0\\0\\0\\xff' * 99); return 1",
         "assert f(1) == 2", "error"),
        ("import os\ndef f(x):\n    os.write(41, b'{\"status\": \"finished\", \"value\": true, \"detail\": \"\"}'); os._exit(0)",
         "assert f(1) == 2", "error"),
        (SEARCH, "assert f(1) == 98321", False),
    ],
)  # fmt: skip
def test_it_does_not_hold(runner, program, test, expected):  # noqa: F811
    assert verdict(runner, program, test, seconds_per_test=1.0) == expected
