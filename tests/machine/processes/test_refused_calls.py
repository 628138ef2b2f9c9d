"""System calls that a grading process has no use for, on the real kernel: refused, and its own limits still its own."""

import json
import platform
import subprocess
import sys

import pytest

from r3_openrlhf.machine.processes.sandbox import missing_layers

# In a process of its own: one that runs tests may have more memory and open files than `confine` allows.
PROGRAM = """
import ctypes, errno, json, os, resource, sys
from r3_openrlhf.machine.processes.sandbox import confine

CALLS = {  # x86-64 numbers with arguments that the kernel itself would take
    "tgkill": (234, os.getpid(), os.getpid(), 0),
    "rt_sigqueueinfo": (129, os.getpid(), 0, None),
    "rt_tgsigqueueinfo": (297, os.getpid(), os.getpid(), 0, None),
    "pidfd_open": (434, os.getppid(), 0),
    "prlimit of another process": (302, os.getppid(), resource.RLIMIT_CORE, None, None),
    "unshare": (272, 0),
    "shmget": (29, 0, 4096, 0o600 | 0o1000),
    "semget": (64, 0, 1, 0o600 | 0o1000),
    "msgget": (68, 0, 0o600 | 0o1000),
    "chmod": (90, b"/tmp", 0o777),
    "fchmodat": (268, -100, b"/tmp", 0o777, 0),
    "chown": (92, b"/tmp", 0, 0),
    "lchown": (94, b"/tmp", 0, 0),
    "fchownat": (260, -100, b"/tmp", 0, 0, 0),
    "utime": (132, b"/tmp", None),
    "utimes": (235, b"/tmp", None),
    "futimesat": (261, -100, b"/tmp", None),
    "utimensat": (280, -100, b"/tmp", None, 0),
    "socket by its x32 number": (0x40000000 + 41, 1, 1, 0),
    "setpriority": (141, 0, os.getppid(), 0),
}
confine(memory_bytes=2**30)
libc = ctypes.CDLL(None, use_errno=True)
answers = {}
for name, call in CALLS.items():
    ctypes.set_errno(0)
    answers[name] = libc.syscall(*call) == -1 and ctypes.get_errno() == errno.EPERM
resource.setrlimit(resource.RLIMIT_CPU, (1000, resource.getrlimit(resource.RLIMIT_CPU)[1]))
answers["its own limit is set"] = resource.getrlimit(resource.RLIMIT_CPU)[0] == 1000
print(json.dumps(answers))
"""


@pytest.mark.skipif(
    platform.machine() != "x86_64" or bool(missing_layers()), reason="numbers of x86-64, with every layer"
)
def test_these_calls_are_refused_and_own_limits_are_not(tmp_path):
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    answers = json.loads(done.stdout)
    assert len(answers) == 21
    assert answers == dict.fromkeys(answers, True)
