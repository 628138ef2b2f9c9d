"""Programs that want more than their answer: each prints THROUGH where it gets it, and must not.

`outside` marks those that do get it in a bare process, so that the table can fail.
"""

import os
import platform
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from r3_openrlhf.rewards.code.run import Call, Limits, Outcome, Runner

EXPECTED = "expected-" + str(98_321)  # in this process alone
SECRET = "environment-" + str(77_123)
LIMITS = Limits(seconds_per_test=0.7, memory_mb=256, output_bytes=2**22, threads=32)
PRELUDE = """
import ctypes, os, resource, signal, socket, sys, threading, time
secret, port, parent = input().split()
libc = ctypes.CDLL(None, use_errno=True)
def through(*found): os.write(1, b"THROUGH")
def tries(*actions):
    for action in actions:
        try: found = action()
        except Exception as error: continue
        through()
def calls(*numbers):
    for number in numbers:
        ctypes.set_errno(0)
        if libc.syscall(number, 0, 0, 0, 0, 0) != -1 or ctypes.get_errno() not in (1, 38): print(number, ctypes.get_errno()); through()
"""


@dataclass(frozen=True)
class Attack:
    program: str
    how: str
    statuses: tuple[str, ...] = ("finished",)
    outside: bool = False
    function: bool = False


@dataclass(frozen=True)
class Found:
    outcome: Outcome
    is_held: bool
    stdout_of_the_next: str


def _a(program: str, how: str, *statuses: str, outside: bool = False) -> Attack:
    return Attack(PRELUDE + program, how, statuses or ("finished",), outside)


def _f(program: str, how: str, *statuses: str) -> Attack:
    return Attack(program, how, statuses or ("error",), function=True)


_TRUE = "class A({0}):\n    __eq__ = lambda s, o: True\n    __ne__ = lambda s, o: False\n    __hash__ = lambda s: 0\n"
_EVERYWHERE = """
import gc, linecache
seen = [os.environ, sys.argv, sys.modules, linecache.cache, *gc.get_objects()]
frame = sys._getframe()
while frame: seen += [frame.f_locals, frame.f_globals]; frame = frame.f_back
for number in range(3, 200):
    try: seen += [os.pread(number, 10**6, 0)]
    except OSError: pass
for path in ('/proc/self/environ', '/proc/self/cmdline', '/proc/1/environ', '/proc/1/cmdline', f'/proc/{parent}/environ'):
    try: seen += [open(path, 'rb').read()]
    except OSError: pass
text = ' '.join(repr(x) for x in seen if isinstance(x, (str, bytes, dict, list, tuple, type(os.environ))))
"""
_NUMBERS = (  # what they are in x86-64: see sandbox.py
    "41, 57, 58, 62, 101, 129, 165, 155, 161, 166, 200, 203, 234, 248, 250, 272, 297, 298, 304, 308, 310, 311, 312, 317, 319,"
    " 321, 322, 323, 424, 425, 426, 427, 434, 438, 29, 30, 64, 68, 240, 90, 92, 132, 188, 141, 144, 251, 314, 103, 306, 222, 253, 294, 300"
)

ATTACKS: dict[str, Attack] = {
    # to be called right without being right
    "sys.exit(0) before an answer": _a("sys.exit(0)", "an exit code is no verdict; the output is compared"),
    "os._exit(0) before an answer": _a("os._exit(0)", "an exit code is no verdict; the output is compared"),
    "os._exit(0) in a function": _f("import os\ndef f(): os._exit(0)", "no result, no value", "crashed"),
    "sys.exit(0) while it is loaded": _f("import sys; sys.exit(0)", "no result, no value"),
    "__eq__ is true": _f(_TRUE.format("object") + "def f(): return A()", "an object is no data"),
    "__eq__ of an int is true": _f(_TRUE.format("int") + "def f(): return A(1)", "it arrives as an int", "finished"),
    "__eq__ of a list is true": _f(_TRUE.format("list") + "def f(): return A([1])", "it arrives as a list", "finished"),
    "__eq__ deep inside": _f(_TRUE.format("object") + "def f(): return [{1: (A(),)}]", "an object is no data"),
    "an int's __index__ and a float's __float__": _f(
        "class A(int):\n    __index__ = __int__ = __repr__ = lambda s: 'x'\ndef f(): return A(1)",
        "read by the type's own methods", "finished"),
    "a list that yields for ever": _f(
        "class A(list):\n    def __iter__(s):\n        while True: yield 1\ndef f(): return A([1])",
        "read by the type's own methods", "finished"),
    "an infinite generator": _f("import itertools\ndef f(): return itertools.count()", "a generator is no data"),
    "a list in itself": _f("def f():\n    x = []\n    x.append(x)\n    return x", "depth is bounded"),
    "a hundred thousand lists": _f("def f():\n    x = []\n    for _ in range(10**5): x = [x]\n    return x", "depth is bounded"),
    "builtins are patched": _f(
        "import builtins, json, os\nfor name in ('len', 'isinstance', 'str', 'int', 'list', 'type'):\n"
        "    setattr(builtins, name, lambda *a: True)\njson.dumps = lambda *a: 'true'\ndef f(): return 1",
        "it is its own process, whose answer is only read", "error", "crashed", "finished"),
    "unittest is patched": _f("import unittest\nunittest.TestCase.assertEqual = print\ndef f(): return 1",
                              "nothing is compared in its process", "finished"),
    "a result is written over ours": _a(
        "os.pwrite(41, b'{\"status\": \"finished\", \"value\": 1, \"detail\": \"\"}', 0); os._exit(0)",
        "it says what the program could return as well"),
    "a forged 'unavailable'": _a("os.pwrite(41, b'{\"status\": \"unavailable\", \"value\": 1, \"detail\": \"\"}', 0); os._exit(0)",
                                 "the word is refused", "crashed"),
    "a result that is no JSON": _a("os.pwrite(41, b'\\xff' * 10**6, 0); os._exit(0)", "decoded strictly", "crashed"),
    "a result nested too deeply": _a("os.pwrite(41, b'[' * 10**6, 0); os._exit(0)", "decoded strictly", "crashed"),
    "a pickle as a result": _a("os.pwrite(41, b'cos\\nsystem\\n(S\"touch /tmp/r3-pickled\"\\ntR.', 0); os._exit(0)",
                               "nothing is unpickled", "crashed"),
    "an object that unpickles to a call": _f("import os\nclass A:\n    def __reduce__(s): return os.system, ('true',)\ndef f(): return A()",
                                             "nothing is pickled"),
    "a huge integer": _f("def f(): return 1 << 10**9", "values are bounded", "error", "memory"),
    "an integer of 5,000,000 digits": _f("def f(): return 10**5_000_000", "written in hexadecimal, which is linear",
                                         "finished", "error", "timeout"),
    "keys that collide": _f("def f(): return {n * (2**61 - 1) for n in range(30_000)}", "their number is bounded",
                            "crashed", "timeout"),
    "printing while it is loaded": _f("print('x' * 10**6)\ndef f(): return 1", "output is no result", "finished"),
    "an exception with a long name": _f("def f(): raise type('E' * 10**6 + chr(27), (Exception,), {})", "detail is bounded and escaped"),
    # to learn what it is compared with
    "expected output in its memory": _a(
        _EVERYWHERE + "through() if 'expected-' + str(98321) in text else 0", "no process below has it"),
    "variables of the service": _a(
        _EVERYWHERE + "through() if 'environment-' + str(77123) in text or os.getenv('R3_SECRET') else 0",
        "the zygote starts without them"),
    "variables by C": _a("libc.getenv.restype = ctypes.c_char_p\nthrough() if libc.getenv(b'R3_SECRET') else 0",
                         "the zygote starts without them", outside=True),
    "inputs of other tests": _a("seen = os.listdir('.')\nthrough() if seen else 0\nopen('left', 'w').write('x')",
                                "an empty directory, one process a test"),
    "memory of the zygote": _a("tries(lambda: open(f'/proc/{os.getppid()}/mem', 'rb').read(1), lambda: os.listdir('/proc'))",
                               "Landlock", outside=True),
    "standard input twice": _a("sys.stdin.seek(0)\nthrough() if len(sys.stdin.read().split()) != 3 else 0", "its own input alone"),
    # files
    "a file of the user": _a("tries(lambda: open(secret).read())", "Landlock, mount namespace", outside=True),
    "a file by openat2 and O_PATH": _a("tries(lambda: os.read(os.open(secret, os.O_RDONLY), 1), lambda: os.open(f'/proc/self/fd/{os.open(secret, os.O_PATH)}', os.O_RDONLY))",
                                       "Landlock, mount namespace", outside=True),
    "/etc and the root": _a("tries(lambda: open('/etc/passwd').read(), lambda: os.listdir('/'), lambda: os.listdir('..'), lambda: os.listdir('/tmp'))",
                            "Landlock", outside=True),
    "writing to a file of the user": _a("tries(lambda: open(secret, 'a').write('x'), lambda: os.truncate(secret, 0), lambda: os.unlink(secret), lambda: os.rename(secret, 'x'))",
                                        "Landlock, mount namespace"),
    "writing into the interpreter": _a("tries(lambda: open(os.__file__, 'a'), lambda: open(os.path.dirname(os.__file__) + '/x.py', 'w'))", "Landlock"),
    "a symbolic link": _a("tries(lambda: os.symlink(secret, 'link'), lambda: os.symlink('/', 'root'))", "no links are made", outside=True),
    "a hard link, a pipe, a directory, a device": _a(
        "tries(lambda: os.link(secret, 'hard'), lambda: os.mkfifo('p'), lambda: os.mkdir('d'), lambda: os.mknod('n', 0o60600, 1))",
        "only files are made", outside=True),
    "modes, owners, times": _a("open('own', 'w')\ntries(lambda: os.chmod('own', 0), lambda: os.utime('own'), lambda: os.chown('own', 1, 1))", "seccomp", outside=True),
    "/dev/shm and shared memory": _a("from multiprocessing import shared_memory\ntries(lambda: shared_memory.SharedMemory('r3x', True, 4096), lambda: open('/dev/shm/r3', 'w'))",
                                     "Landlock", outside=True),
    # processes, network, signals
    "fork": _a("tries(os.fork, os.forkpty, lambda: libc.fork() < 0 and 1/0, lambda: libc.vfork() < 0 and 1/0)", "seccomp"),
    "clone without a thread": _a("tries(lambda: libc.syscall(56, 17, 0, 0, 0, 0) < 0 and 1/0, lambda: libc.syscall(435, bytes(88), 88) < 0 and 1/0)", "seccomp"),
    "a fork bomb": _a("while True:\n    try: os.fork()\n    except OSError: break", "seccomp"),
    "a program": _a("import subprocess\ntries(lambda: subprocess.run(['/bin/true']), lambda: os.posix_spawn('/bin/true', ['true'], {}), lambda: os.system('true') and 1/0, lambda: libc.system(b'true') and 1/0)",
                    "seccomp", outside=True),
    "exec": _a("tries(lambda: os.execv('/bin/echo', ['echo', 'THROUGH']))", "seccomp, Landlock", outside=True),
    "multiprocessing": _a("import multiprocessing as m\ntries(lambda: m.Pool(2), lambda: m.get_context('spawn').Process(target=print).start())", "seccomp"),
    "TCP": _a("tries(lambda: socket.create_connection(('127.0.0.1', int(port)), 1))", "seccomp, network namespace", outside=True),
    "UDP, netlink, raw, local": _a("tries(lambda: socket.socket(2, 2), lambda: socket.socket(16, 3), lambda: socket.socket(17, 3), lambda: socket.socket(1, 1))", "seccomp", outside=True),
    "kill": _a("tries(lambda: os.kill(int(parent), 0), lambda: os.kill(os.getppid(), 9), lambda: os.kill(-1, 9), lambda: os.killpg(0, 9))", "seccomp, Landlock"),
    "a pidfd": _a("tries(lambda: os.pidfd_open(os.getppid()), lambda: signal.pidfd_send_signal(3, 9))", "seccomp"),
    "a signal by the owner of a pipe": _a("import fcntl\nr, w = os.pipe()\ntries(lambda: fcntl.fcntl(r, fcntl.F_SETOWN, os.getppid()), lambda: fcntl.fcntl(r, 15, bytes(8)), lambda: fcntl.fcntl(os.open(os.__file__, 0), fcntl.F_SETLEASE, fcntl.F_RDLCK), lambda: fcntl.ioctl(r, 0x8901, bytes(4)))", "seccomp", outside=True),
    "limits and priority of others": _a("tries(lambda: resource.prlimit(os.getppid(), resource.RLIMIT_CPU), lambda: os.setpriority(os.PRIO_PROCESS, os.getppid(), 19), lambda: os.sched_setaffinity(0, {0}), lambda: os.nice(1))", "seccomp"),
    "raising its limits": _a("tries(*[lambda k=k: resource.setrlimit(k, (2**50, 2**50)) for k in (resource.RLIMIT_AS, resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE)])", "hard limits, no capability"),
    "root again": _a("tries(lambda: os.setuid(0) if os.getuid() else os.setuid(12345) or os.setgid(12345), lambda: os.chroot('.'), lambda: libc.mount(b'x', b'/', b'tmpfs', 0, 0) and 1/0)", "no capability"),
    "calls by number": _a(f"calls({_NUMBERS})", "seccomp"),
    "calls by their x32 numbers": _a("calls(0x40000000 + 41, 0x40000000 + 57, 0x40000000 + 59)", "seccomp"),
    "32-bit calls by machine code": _a("import mmap\nm = mmap.mmap(-1, 4096, prot=7)\nm.write(b'\\xb8\\x02\\0\\0\\0\\xcd\\x80\\xc3')\nctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))()\nthrough()", "seccomp", "crashed"),
    "outliving its parent": _a("tries(lambda: libc.prctl(1, 0, 0, 0, 0) < 0 and 1/0)", "seccomp", outside=True),
    # floods
    "a memory flood": _a("x = []\nwhile True: x.append(bytearray(10**6))", "address space, resident memory", "memory", "timeout"),
    "a memory flood in one piece": _a("x = bytearray(2**33)", "address space", "memory"),
    "shared and anonymous maps": _a("import mmap\nx = []\nwhile True:\n    x.append(mmap.mmap(-1, 10**7)); x[-1].write(b'x' * 10**7)", "address space, resident memory", "memory", "error"),
    "a memory error that is caught": _a("x = []\nwhile True:\n    try: x.append(bytearray(10**6))\n    except MemoryError: pass", "resident memory", "memory", "timeout"),
    "files in memory": _a("tries(lambda: os.memfd_create('x'))", "seccomp", outside=True),
    "pipes": _a("x = []\ntry:\n    while True: x.append(os.pipe()); os.write(x[-1][1], bytes(65536))\nexcept OSError: pass\nthrough() if len(x) > 40 else 0", "open files", outside=True),
    "threads": _a("threading.stack_size(32768)\nwhile True: threading.Thread(target=time.sleep, args=(100,)).start()", "watched", "blocked"),
    "an output flood": _a("while True: print('x' * 10**6)", "file size", "output"),
    "an output flood past Python": _a("while True: os.write(1, b'x' * 10**6)", "file size", "output"),
    "a hole of an output": _a("os.ftruncate(1, 2**22 - 1)", "file size; a hole is read as far as the limit"),
    "a flood of errors": _a("while True: os.write(2, b'x' * 10**6)", "it goes nowhere", "timeout"),
    "a large file": _a("f = open('x', 'wb')\nwhile True: f.write(b'x' * 10**6)", "file size", "error"),
    "many large files": _a("for i in range(10**6):\n    with open(str(i), 'wb') as f: f.write(b'x' * (2**22 - 1))", "size of the directory", "error", "output", "timeout"),
    "many small files": _a("i = 0\nwhile True: open(str(i), 'w').close(); i += 1", "watched, limit of time", "timeout", "output", "error"),
    "a huge line of errors": _a("raise ValueError('x' * 10**7)", "only its type is kept", "error"),
    # time
    "sleeping to the limit": _a("time.sleep(10**6)", "clock of the owner", "timeout"),
    "no signal is heard": _a("for n in range(1, 65):\n    try: signal.signal(n, signal.SIG_IGN)\n    except (OSError, ValueError): pass\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\nwhile True: pass", "SIGKILL", "timeout"),
    "waiting for a lock for ever": _a("l = threading.Lock()\nl.acquire()\nl.acquire()", "clock of the owner", "timeout"),
    "a function at exit that hangs": _a("import atexit\natexit.register(lambda: time.sleep(10**6))", "clock of the owner", "timeout"),
    "a thread that never ends": _a("threading.Thread(target=time.sleep, args=(10**6,)).start()", "clock of the owner", "timeout"),
    "a daemon that outlives it": _a("threading.Thread(target=time.sleep, args=(10**6,), daemon=True).start()", "the process ends, threads with it"),
    "threads that share the time": _a("import hashlib\ndef f():\n    while True: hashlib.pbkdf2_hmac('sha256', b'', b'', 10**6)\nfor _ in range(16): threading.Thread(target=f).start()", "processor time of all threads", "timeout"),
    "its own time limit is lowered": _a("for k in range(16):\n    if k == resource.RLIMIT_CPU: tries(lambda: resource.setrlimit(k, (1, 1)))", "seccomp", outside=True),
    "a timer kills it, as if memory were short": _a("event = (ctypes.c_int * 16)(0, 0, 9)\ntimer = ctypes.c_int()\nif not libc.syscall(222, 1, event, ctypes.byref(timer)): through(); libc.syscall(223, timer, 0, (ctypes.c_long * 4)(0, 0, 0, 1000), 0); time.sleep(1)", "seccomp", outside=True),
    "stopping itself": _a("tries(lambda: signal.raise_signal(signal.SIGSTOP), lambda: os.kill(os.getpid(), signal.SIGSTOP))", "seccomp"),
    "a segmentation fault": _a("ctypes.string_at(0)", "one process a test", "crashed"),
    "recursion without a limit": _a("sys.setrecursionlimit(2**31 - 1)\nclass A:\n    def __getattr__(s, n): return getattr(s, n + 'x')\nA().a", "one process a test", "crashed", "memory", "timeout", "error"),
    "every descriptor is closed": _a("os.closerange(3, 256)\nos.closerange(0, 2)", "no result but its output", "error", "crashed", "finished"),
    "writing to every descriptor": _a("for n in range(3, 256):\n    try: os.write(n, b'THROUGH'); os.ftruncate(n, 0)\n    except OSError: pass", "its own result alone", "finished", "crashed"),
    "the next test finds something": _a("open('left', 'w').write('x')\nimport builtins\nbuiltins.print = lambda *a: None", "one process a test, an emptied directory"),
}  # fmt: skip


def attack(runner: Runner, name: str) -> Found:
    """Run it beside a secret file and a listening port, in an environment with R3_SECRET; then a test after it."""
    known = ATTACKS[name]
    with tempfile.TemporaryDirectory() as directory, socket.create_server(("127.0.0.1", 0)) as server:
        secret = Path(directory, "secret")
        secret.write_text(EXPECTED)
        stdin = f"{secret} {server.getsockname()[1]} {os.getpid()}"
        call = Call(function="f") if known.function else Call(stdin=stdin)
        (outcome,) = runner.run_program(known.program, [call], limits=LIMITS)
        is_untouched = secret.read_text() == EXPECTED and os.listdir(directory) == ["secret"]
        server.settimeout(0)
        try:
            server.accept()
            is_untouched = False
        except BlockingIOError:
            pass
    after = "import os\nprint(os.listdir('.'), os.getpid() > 0)"
    (following,) = runner.run_program(after, [Call(stdin="")], limits=LIMITS)
    is_held = outcome.status in known.statuses and "THROUGH" not in outcome.stdout and is_untouched
    is_held = is_held and EXPECTED not in f"{outcome}" and len(outcome.detail) <= 300 and outcome.detail.isprintable()
    if known.function and outcome.status == "finished":
        is_held = is_held and type(outcome.value) in (int, list, bool) and outcome.value != "right"
    return Found(outcome, is_held and following.stdout == "[] True\n", following.stdout)


def outside(name: str, directory: Path) -> str:
    """What it prints as a bare process."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        (directory / "secret").write_text(EXPECTED)
        stdin = f"{directory / 'secret'} {server.getsockname()[1]} {os.getpid()}"
        command = [sys.executable, "-c", ATTACKS[name].program]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, cwd=directory, timeout=60)
    return done.stdout


if platform.machine() != "x86_64":
    for _name in (
        "calls by number",
        "calls by their x32 numbers",
        "32-bit calls by machine code",
        "clone without a thread",
    ):
        del ATTACKS[_name]
