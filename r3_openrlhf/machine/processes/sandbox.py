"""What a grading process takes away from itself before it sees the first item. Linux; nothing here needs privileges.

Layers, each active where the kernel has it; `confine` reports which are:
limits (memory, file size, descriptors, no core file), Landlock (files: read the libraries, write nothing; no TCP; no signals
to outsiders), seccomp (no new program, process, socket or tracing), and an audit hook that notices
code compiled at run time. Times are enforced from outside, by pool.py.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import struct
import sys
import sysconfig

_libc = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS, _PR_SET_DUMPABLE, _PR_GET_SECCOMP, _PR_SET_SECCOMP = 1, 38, 4, 21, 22
_PR_SET_CHILD_SUBREAPER = 36
MAX_FILE_BYTES = 2**20


def die_with_parent(signal_number: int) -> None:
    """The kernel sends this signal when the thread that started the process ends, however it ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0)


def adopt_orphans() -> None:
    """This process becomes the parent of what processes below it leave behind."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def missing_layers() -> list[str]:
    """Layers that this kernel does not have, with what is open without them."""
    gap = landlock_gap(_libc.syscall(_CREATE_RULESET, None, 0, 1))
    missing = [gap] if gap else []
    if platform.machine() not in _ARCHITECTURES or _libc.prctl(_PR_GET_SECCOMP, 0, 0, 0, 0) < 0:
        missing.append("seccomp (a worker can start programs and open sockets)")
    return missing


def landlock_gap(version: int) -> str | None:
    """What Landlock of this version (of its ABI; below 1: none) leaves open."""
    if version < 1:
        return "Landlock (a worker can read and write what the user can, the service's environment included)"
    if version < 6:
        return (
            f"Landlock scopes (its version is {version}, 6 has them; that a worker reaches no other process hangs on"
            " seccomp alone)"
        )
    return None


def confine(*, memory_bytes: int) -> dict[str, bool]:
    """Confines this process. Which layers are active; False where the kernel lacks one.

    OSError: the kernel has a layer that cannot be set up, as when too many files are open."""
    for kind, limit in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, MAX_FILE_BYTES),
        (resource.RLIMIT_NOFILE, 64),
    ):
        resource.setrlimit(kind, (limit, limit))
    _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    if _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        return {"landlock": False, "seccomp": False}
    return {"landlock": _restrict_files(), "seccomp": _restrict_system_calls()}


# Landlock: https://docs.kernel.org/userspace-api/landlock.html

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same numbers on every architecture
_RULE_PATH_BENEATH = 1
_READ_FILE, _READ_DIR = 4, 8
_ALL_FILE_RIGHTS = {1: 2**13 - 1, 2: 2**14 - 1, 3: 2**15 - 1, 4: 2**15 - 1}  # by ABI version; 5 and later add ioctl


def _readable_paths() -> list[str]:
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    libraries = {path for name, path in sysconfig.get_paths().items() if name in ("stdlib", "platstdlib")}
    libraries.update(entry for entry in sys.path if entry.endswith(("site-packages", "dist-packages")))
    return [package, *libraries, "/usr/lib", "/lib", "/lib64", "/usr/share/zoneinfo", "/dev/null", "/dev/urandom"]


def _restrict_files() -> bool:
    version = _libc.syscall(_CREATE_RULESET, None, 0, 1)
    if version < 1:
        return False
    handled_files = _ALL_FILE_RIGHTS.get(version, 2**16 - 1)
    handled_network = 3 if version >= 4 else 0  # bind and connect TCP
    scoped = 3 if version >= 6 else 0  # abstract sockets and signals of other processes
    attributes = struct.pack("=QQQ", handled_files, handled_network, scoped)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    ruleset = _libc.syscall(_CREATE_RULESET, attributes, size, 0)
    if ruleset < 0:
        raise OSError(ctypes.get_errno(), "Landlock is there, but makes no set of rules")
    try:
        for path in _readable_paths():
            _allow(ruleset, path, _READ_FILE if not os.path.isdir(path) else _READ_FILE | _READ_DIR)
        if _libc.syscall(_RESTRICT_SELF, ruleset, 0) != 0:
            raise OSError(ctypes.get_errno(), "Landlock is there, but does not restrict this process")
        return True
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        rule = struct.pack("=Qi", rights, descriptor)
        if _libc.syscall(_ADD_RULE, ruleset, _RULE_PATH_BENEATH, rule, 0) != 0:
            raise OSError(ctypes.get_errno(), f"Landlock does not take a rule for {path}")
    finally:
        os.close(descriptor)


# seccomp: https://docs.kernel.org/userspace-api/seccomp_filter.html

_ARCHITECTURES = {
    "x86_64": (
        0xC000003E,
        # socket, clone, fork, vfork, execve, kill, ptrace, tkill, process_vm_readv/writev, seccomp, bpf, execveat,
        # io_uring_setup, pidfd_send_signal, clone3
        (41, 56, 57, 58, 59, 62, 101, 200, 310, 311, 317, 321, 322, 425, 424, 435)
        # tgkill, rt_sigqueueinfo, rt_tgsigqueueinfo, unshare, setns, pidfd_open, pidfd_getfd, kcmp, socketpair
        + (234, 129, 297, 272, 308, 434, 438, 312, 53)
        # shm: get, at, ctl; sem: get, op, ctl; msg: get, snd, rcv, ctl; mq_open
        + (29, 30, 31, 64, 65, 66, 68, 69, 70, 71, 240)
        # chmod, fchmod, chown, fchown, lchown, utime, utimes, futimesat, fchownat, fchmodat, utimensat, fchmodat2
        + (90, 91, 92, 93, 94, 132, 235, 261, 260, 268, 280, 452)
        # setxattr, lsetxattr, fsetxattr, removexattr, lremovexattr, fremovexattr; mount, umount2, pivot_root, chroot
        + (188, 189, 190, 197, 198, 199, 165, 166, 155, 161)
        # setpriority, sched: setparam, setscheduler, setaffinity; ioprio_set, migrate_pages, move_pages, process_madvise
        + (141, 142, 144, 203, 251, 256, 279, 440)
        # add_key, request_key, keyctl, perf_event_open, userfaultfd, open_by_handle_at, io_uring_enter, io_uring_register
        + (248, 249, 250, 298, 323, 304, 426, 427),
        302,  # prlimit64, which is also how a process sets its own limits: allowed for pid 0
    ),
    "aarch64": (
        0xC00000B7,
        (198, 220, 221, 129, 117, 130, 270, 271, 277, 280, 281, 425, 424, 435)
        + (131, 138, 240, 97, 268, 434, 438, 272, 199)
        + (194, 196, 195, 190, 193, 191, 186, 189, 188, 187, 180)
        + (52, 53, 54, 55, 88, 452)
        + (5, 6, 7, 14, 15, 16, 40, 39, 41, 51)
        + (140, 118, 119, 122, 30, 238, 239, 440)
        + (217, 218, 219, 241, 282, 265, 426, 427),
        261,
    ),
}
_X32_BIT = 0x40000000  # a second set of numbers for the same calls on x86_64
_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_SECCOMP_MODE_FILTER = 2
_ALLOW, _KILL, _EPERM = 0x7FFF0000, 0x80000000, 0x00050001


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


def _restrict_system_calls() -> bool:
    if platform.machine() not in _ARCHITECTURES:
        return False
    architecture, refused, set_limit = _ARCHITECTURES[platform.machine()]
    code = [(_LOAD, 0, 0, 4), (_JUMP_EQUAL, 1, 0, architecture), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, 0)]
    code += [(_JUMP_AT_LEAST, len(refused) + 5, 0, _X32_BIT)]
    code += [(_JUMP_EQUAL, len(refused) + 4 - i, 0, number) for i, number in enumerate(refused)]
    code += [
        (_JUMP_EQUAL, 0, 2, set_limit),
        (_LOAD, 0, 0, 16),
        (_JUMP_EQUAL, 0, 1, 0),
    ]  # lower half of the first argument
    code += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _EPERM), (_RETURN, 0, 0, _EPERM)]
    instructions = b"".join(struct.pack("=HBBI", *instruction) for instruction in code)
    program = _Program(len(code), instructions)
    return _libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0) == 0


# Audit hook

_violations: list[str] = []
_FORBIDDEN_EVENTS = frozenset(
    {
        "os.system",
        "os.exec",
        "os.fork",
        "os.forkpty",
        "os.posix_spawn",
        "subprocess.Popen",
        "socket.__new__",
        "ctypes.dlopen",
    }
)
# they run code of their own making, in which at most a count comes from the item
_GENERATORS = ("/sympy/polys/monomials.py", "/dataclasses.py", "/collections/__init__.py")


def _audit(event: str, arguments: tuple) -> None:
    if event == "exec":
        name = getattr(arguments[0], "co_filename", "")
        if not name.startswith("<") or name.startswith("<frozen"):
            return  # a module that is imported late
        if sys._getframe(1).f_code.co_filename.endswith(_GENERATORS):
            return
    elif event not in _FORBIDDEN_EVENTS:
        return
    _violations.append(event)
    raise PermissionError(f"{event} is not allowed in a grading process")


def watch_for_code() -> None:
    """From now on, running code that comes from a string, or starting a program, fails and is remembered.

    A tripwire behind the other layers: no grader runs code from strings, so an item that gets there found a way in.
    """
    sys.addaudithook(_audit)


def take_violations() -> list[str]:
    """What was noticed since the last call."""
    found = _violations[:]
    _violations.clear()
    return found
