"""Right solutions that weak harnesses call wrong: name -> program, call, and what comes back."""

from r3_openrlhf.rewards.code.run import Call

_SUM = "4\n1 2 3 4\n"
_LINES = "".join(f"{i}\n" for i in range(100_000))


def _stdin(program: str, stdin: str = _SUM, stdout: str = "10\n") -> tuple[str, Call, str]:
    return program, Call(stdin=stdin), stdout


def _call(program: str, value: object, *arguments: object, function: str = "f") -> tuple[str, Call, object]:
    return program, Call(function=function, arguments=arguments), value


_DEEP = """
import sys
sys.setrecursionlimit(10**6)
def depth(n): return 0 if n == 0 else 1 + depth(n - 1)
"""
_DEEP_C = """
import sys
from functools import lru_cache
sys.setrecursionlimit(10**6)
@lru_cache(None)
def depth(n): return 0 if n == 0 else 1 + depth(n - 1)
"""
# what PyRival's FastIO, the fast input of many competition programs, reads of the two streams
_FAST_IO = """
import os, sys
from io import BytesIO, IOBase
class FastIO(IOBase):
    def __init__(self, file):
        self._fd = file.fileno()
        self.buffer = BytesIO()
        self.writable = "x" in file.mode or "r" not in file.mode
        self.write = self.buffer.write if self.writable else None
    def flush(self):
        if self.writable:
            os.write(self._fd, self.buffer.getvalue())
class Wrapper(IOBase):
    def __init__(self, file):
        self.buffer = FastIO(file)
        self.flush = self.buffer.flush
        self.write = lambda s: self.buffer.write(s.encode("ascii"))
out = Wrapper(sys.stdout)
sys.stdin.mode, out.write("10\\n"), out.flush()
"""
_THREAD = """
import threading
threading.stack_size(2**28)
thread = threading.Thread(target=main)
thread.start()
"""
_SOLUTION = "class Solution:\n    def f(self, x: {0}) -> {0}:\n        return {1}\n"
_TOTAL = "print(sum(map(int, sys.stdin.read().split()[1:])))"

HONEST: dict[str, tuple[str, Call, object]] = {
    # standard input, however it is read
    "PyRival": _stdin(_FAST_IO),
    "input": _stdin("n = int(input())\nprint(sum(map(int, input().split())))"),
    "sys.stdin.read": _stdin(f"import sys\n{_TOTAL}"),
    "sys.stdin.readline": _stdin(
        "import sys\ninput = sys.stdin.readline\ninput()\nprint(sum(map(int, input().split())))"
    ),
    "sys.stdin.readlines": _stdin("import sys\nprint(sum(map(int, sys.stdin.readlines()[1].split())))"),
    "for line in sys.stdin": _stdin("import sys\nfor line in sys.stdin: x = line\nprint(sum(map(int, x.split())))"),
    "iter(input, '')": _stdin("print(sum(map(int, iter(input, ''))))", "1\n9\n\n"),
    "until EOFError": _stdin(
        "t = 0\nwhile True:\n    try: t += int(input())\n    except EOFError: break\nprint(t)", "1\n9"
    ),
    "sys.stdin.buffer.read": _stdin("import sys\nprint(sum(map(int, sys.stdin.buffer.read().split()[1:])))"),
    "sys.stdin.buffer.readline": _stdin(
        "import sys\nr = sys.stdin.buffer.readline\nr()\nprint(sum(map(int, r().split())))"
    ),
    "open(0)": _stdin("print(sum(map(int, open(0).read().split()[1:])))"),
    "open(0) lines": _stdin("n, x = open(0)\nprint(sum(map(int, x.split())))"),
    "open(0, 'rb')": _stdin("print(sum(map(int, open(0, 'rb').read().split()[1:])))"),
    "os.read and fstat": _stdin(
        "import os, io\nb = io.BytesIO(os.read(0, max(os.fstat(0).st_size, 8192)))\nb.readline()\n"
        "print(sum(map(int, b.readline().split())))"
    ),
    "mmap": _stdin(
        "import mmap\nwith mmap.mmap(0, 0, access=mmap.ACCESS_READ) as m: print(sum(map(int, m[:].split()[1:])))"
    ),
    "fileinput": _stdin("import fileinput\nprint(sum(int(x) for x in list(fileinput.input())[1].split()))"),
    "StringIO over read": _stdin(f"import sys, io\nsys.stdin = io.StringIO(sys.stdin.read())\n{_TOTAL}"),
    "stdin is replaced": _stdin("import sys, io\nsys.stdin = io.TextIOWrapper(sys.stdin.buffer)\n" + _TOTAL),
    "carriage returns": _stdin(f"import sys\n{_TOTAL}", "4\r\n1 2 3 4\r\n"),
    "no last newline": _stdin("input()\nprint(sum(map(int, input().split())))", "4\n1 2 3 4"),
    "empty input": _stdin("import sys\nprint(len(sys.stdin.read()))", "", "0\n"),
    "not ASCII": _stdin("print(input()[::-1])", "añ日本😀\n", "😀本日ña\n"),
    "much input": _stdin("import sys\nprint(sum(map(int, sys.stdin)))", _LINES, f"{sum(range(100_000))}\n"),
    "readlines with hints": _stdin("import sys\nprint(sum(map(int, sys.stdin.readlines(-1)[1].split())))"),
    "numpy reads it": _stdin("import numpy as np, sys\nprint(np.loadtxt(sys.stdin, skiprows=1, dtype=int).sum())"),
    # standard output, however it is written
    "print with end and sep": _stdin("print(1, 0, sep='', end='')\nprint()"),
    "sys.stdout.write": _stdin("import sys\nsys.stdout.write('10\\n')"),
    "sys.stdout.buffer": _stdin("import sys\nsys.stdout.buffer.write(b'10\\n')"),
    "os.write": _stdin("import os\nos.write(1, b'10\\n')"),
    "open(1, 'w')": _stdin("with open(1, 'w') as f: f.write('10\\n')"),
    "stdout is replaced": _stdin(
        "import sys, io\nout, sys.stdout = sys.stdout, io.StringIO()\nprint(10)\nout.write(sys.stdout.getvalue())"
    ),
    "stdout without newline": _stdin("print(10, end='')", stdout="10"),
    "written at exit": _stdin(
        "import atexit, io, sys\nb = io.StringIO()\natexit.register(lambda: sys.__stdout__.write(b.getvalue()))\nb.write('10\\n')"
    ),
    "large output": _stdin("print('x' * 5_000_000)", stdout="x" * 5_000_000 + "\n"),
    "many lines": _stdin("for i in range(100_000): print(i)", stdout=_LINES),
    "trailing spaces": _stdin("print('1 2 ')\nprint()", stdout="1 2 \n\n"),
    "stderr aside": _stdin("import sys\nprint('debug', file=sys.stderr)\nprint(10)"),
    "flush": _stdin("import functools\nprint = functools.partial(print, flush=True)\nprint(10)"),
    "not ASCII out": _stdin("print('日本 ✓')", stdout="日本 ✓\n"),
    "contextlib.redirect_stdout": _stdin(
        "import contextlib, io\nwith contextlib.redirect_stdout(io.StringIO()): print(1)\nprint(10)"
    ),
    # how it ends and starts
    "main guard": _stdin("def main(): print(10)\nif __name__ == '__main__':\n    main()"),
    "exit()": _stdin("print(10)\nexit()\nprint(11)"),
    "quit": _stdin("print(10)\nquit()"),
    "sys.exit in a function": _stdin("import sys\ndef main():\n    print(10)\n    sys.exit(0)\nmain()"),
    "os._exit after flush": _stdin("import os, sys\nprint(10)\nsys.stdout.flush()\nos._exit(0)"),
    "raise SystemExit": _stdin("print(10)\nraise SystemExit"),
    "future import": _stdin("from __future__ import annotations\nprint(10)"),
    "dataclass and pickle of __main__": _stdin(
        "import pickle\nfrom dataclasses import dataclass\n@dataclass\nclass P: x: int\n"
        "print(pickle.loads(pickle.dumps(P(10))).x)"
    ),
    "global and nonlocal": _stdin("t = 0\ndef f():\n    global t\n    t = 10\nf()\nprint(t)"),
    "inspect.getsource": _stdin("import inspect\ndef f(): pass\nprint(len(inspect.getsource(f)) - 4)"),
    "eval and exec": _stdin("x = eval('5 + 5')\nexec('print(x)')"),
    "sys.argv": _stdin("import sys\nprint(len(sys.argv) * 10)"),
    # depth, threads, libraries
    "recursion": _stdin(_DEEP + "print(depth(100_000))", stdout="100000\n"),
    "recursion through C": _stdin(_DEEP_C + "print(depth(50_000))", stdout="50000\n"),
    "recursion in a thread": _stdin(
        _DEEP_C + "def main(): print(depth(100_000))" + _THREAD + "thread.join()", stdout="100000\n"
    ),
    "a thread that nobody joins": _stdin("def main(): print(10)" + _THREAD),
    "recursion limit of 10**9": _stdin("import sys\nsys.setrecursionlimit(10**9)\nprint(10)"),
    "thread pool": _stdin(
        "from concurrent.futures import ThreadPoolExecutor as T\nwith T(8) as t: print(sum(t.map(int, '1234')))"
    ),
    "sixty threads at one time": _stdin(
        "import threading\nall_of_them = threading.Barrier(61)\nfor _ in range(60): threading.Thread(target=all_of_them.wait).start()\nall_of_them.wait()\nprint(10)"
    ),
    "queue and workers": _stdin(
        "import threading, queue\nq = queue.Queue()\nfor _ in range(4): threading.Thread(target=lambda: q.put(2.5), daemon=True).start()\nprint(int(sum(q.get() for _ in range(4))))"
    ),
    "asyncio.run": _stdin(
        "import asyncio\nasync def main():\n    await asyncio.gather(*[asyncio.sleep(0) for _ in range(9)])\n    print(10)\nasyncio.run(main())"
    ),
    "asyncio.to_thread": _stdin(
        "import asyncio\nasync def main(): print(await asyncio.to_thread(lambda: 10))\nasyncio.run(main())"
    ),
    "signal.alarm": _stdin(
        "import signal\nsignal.signal(signal.SIGALRM, lambda *a: 1 / 0)\nsignal.alarm(100)\nprint(10)"
    ),
    "numpy": _stdin("import numpy as np\nprint(int((np.ones((200, 200)) @ np.ones((200, 200)))[0, 0]) // 20)"),
    "numpy.linalg": _stdin("import numpy as np\nprint(round(np.linalg.det(np.diag([2., 5.]))))"),
    "random and secrets": _stdin(
        "import random, secrets\nrandom.seed(1)\nsecrets.token_hex()\nprint(random.randint(10, 10))"
    ),
    "time and datetime": _stdin(
        "import time, datetime, zoneinfo\ntime.sleep(.01)\nprint(datetime.datetime(1, 1, 10, tzinfo=zoneinfo.ZoneInfo('Europe/Berlin')).day)"
    ),
    "large integers": _stdin("import sys\nsys.set_int_max_str_digits(0)\nprint(len(str(10**9999)) // 1000)"),
    "decimal": _stdin(
        "from decimal import Decimal, getcontext\ngetcontext().prec = 50\nprint(int(Decimal(100).sqrt()))"
    ),
    "much memory": _stdin("x = [0] * (50 * 10**6)\nprint(10)"),
    "own files": _stdin("with open('a.txt', 'w') as f: f.write('10')\nprint(open('a.txt').read())"),
    "os.devnull": _stdin("import os, sys\nsys.stderr = open(os.devnull, 'w')\nprint(10)"),
    "resource and gc": _stdin(
        "import resource, gc\nresource.setrlimit(resource.RLIMIT_STACK, resource.getrlimit(resource.RLIMIT_STACK))\ngc.disable()\nprint(10)"
    ),
    "print over": _stdin("import builtins\n_p = builtins.print\ndef print(*a): _p(*a)\nprint(10)"),
    "two classes of one name": _stdin("class Solution: pass\nprint(10)"),
    "a name of ours": _stdin("import sys\nsys.modules.pop('json', None)\njson = re = run = child = 10\nprint(json)"),
    "bisect, heapq": _stdin("import heapq, bisect\nh = [3, 10]\nheapq.heapify(h)\nprint(heapq.nlargest(1, h)[0])"),
    # functions
    "a function": _call("def f(a, b): return a + b", 3, 1, 2),
    "class Solution": _call(_SOLUTION.format("int", "x + 1"), 3, 2),
    "List without import": _call(_SOLUTION.format("List[int]", "sorted(x)"), [1, 2], [2, 1]),
    "Optional and deque without import": _call(
        "def f(x: Optional[int]): return list(deque([x, inf == math.inf]))", [1, True], 1
    ),
    "other classes beside it": _call("class Node:\n    pass\n" + _SOLUTION.format("int", "len([Node()])"), 1, 2),
    "a method that calls another": _call(
        "class Solution:\n    def g(self): return 5\n    def f(self): return self.g()", 5
    ),
    "a static method": _call("class Solution:\n    @staticmethod\n    def f(x): return x", 5, 5),
    "a function and a class": _call("class Solution: pass\ndef f(x): return x", 5, 5),
    "state in __init__": _call(
        "class Solution:\n    def __init__(self): self.x = 4\n    def f(self): return self.x", 4
    ),
    "a tuple": _call("def f(): return 1, [2, (3,)]", (1, [2, (3,)])),
    "None, bool, text": _call("def f(): return [None, True, 'é']", [None, True, "é"]),
    "a dict of numbers": _call("def f(): return {1: [2], (3, 4): 5}", {1: [2], (3, 4): 5}),
    "subclasses": _call(
        "from collections import *\ndef f(): return [defaultdict(int, a=1), Counter('a'), OrderedDict(a=1)]",
        [{"a": 1}] * 3,
    ),
    "a named tuple": _call("from collections import namedtuple\ndef f(): return namedtuple('P', 'x y')(1, 2)", (1, 2)),
    "a deque, a range, keys": _call("def f(): return [deque([1]), range(2), {3: 4}.keys()]", [[1], [0, 1], [3]]),
    "numpy's numbers": _call(
        "import numpy as np\ndef f(): return [np.int64(3), np.float64(.5), np.arange(3), np.bool_(True)]",
        [3, 0.5, [0, 1, 2], True],
    ),
    "Fraction and Decimal": _call("from fractions import Fraction\ndef f(): return Fraction(1, 2)", 0.5),
    "a float": _call("def f(): return .1 + .2", 0.30000000000000004),
    "infinity": _call("def f(): return [inf, -inf]", [float("inf"), float("-inf")]),
    "a large integer": _call("def f(): return 7 ** 20000", 7**20000),
    "prints beside the result": _call("print('x')\ndef f():\n    print('y')\n    return 1", 1),
    "a guard that is not run": _call("def f(): return 1\nif __name__ == '__main__':\n    print(f(int(input())))", 1),
    "the argument is changed": _call("def f(x):\n    x.append(1)\n    return x", [0, 1], [0]),
    "a lambda": _call("f = lambda x: x * 2", 4, 2),
    "a decorated function": _call(
        "@lru_cache(maxsize=None)\ndef f(n): return n if n < 2 else f(n - 1) + f(n - 2)", 55, 10
    ),
    "a recursion": _call(
        "def f(n): return 0 if n == 0 else f(n - 1)\nimport sys\nsys.setrecursionlimit(10**6)", 0, 50_000
    ),
    "a partial": _call("from functools import partial\nf = partial(pow, 2)", 8, 3),
    "a name of typing is its own": _call("def Counter(x): return 7\ndef f(x): return Counter(x)", 7, 1),
    "dict keys that are text": _call("def f(d): return d['1']", 2, {"1": 2}),
}
