"""System calls that a grading process has no use for, on the real kernel: refused, and its own limits still its own."""

import ctypes
import errno
import json
import os
import platform
import resource

import pytest

from r3_openrlhf.grading.processes.sandbox import confine, missing_layers

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


@pytest.mark.skipif(
    platform.machine() != "x86_64" or bool(missing_layers()), reason="numbers of x86-64, with every layer"
)
def test_these_calls_are_refused_and_own_limits_are_not(tmp_path):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            confine(str(tmp_path), memory_bytes=2**34)
            libc = ctypes.CDLL(None, use_errno=True)
            answers = []
            for call in CALLS.values():
                ctypes.set_errno(0)
                answers.append(libc.syscall(*call) == -1 and ctypes.get_errno() == errno.EPERM)
            soft, hard = resource.getrlimit(resource.RLIMIT_CPU)
            resource.setrlimit(resource.RLIMIT_CPU, (1000, hard))
            os.write(writer, json.dumps(answers).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as stream:
        answers = stream.read()
    os.waitpid(child, 0)
    assert answers, "setrlimit of the process itself was refused"
    assert dict(zip(CALLS, json.loads(answers), strict=True)) == dict.fromkeys(CALLS, True)
