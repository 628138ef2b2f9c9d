"""Confine a grading process before it sees the first item. Linux; nothing here needs privileges.

Layers, each active where the kernel has it; `confine` reports which are: limits (memory, file size,
descriptors, no core file), Landlock (files: read the libraries, write nothing; no TCP; no signals
to outsiders), seccomp (no new program, process, socket or tracing), and an audit hook that notices
code compiled at run time. Times are enforced from outside, by pool.py.
"""

import ctypes
import os
import platform
import resource
import struct
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS, _PR_SET_DUMPABLE, _PR_GET_SECCOMP, _PR_SET_SECCOMP = (
    1,
    38,
    4,
    21,
    22,
)
_PR_SET_CHILD_SUBREAPER = 36
MAX_FILE_BYTES = 2**20


def die_with_parent(signal_number: int) -> None:
    """Let the kernel send this signal when the thread that started the process ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0)


def adopt_orphans() -> None:
    """Make this process the parent of what processes below it leave behind."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def missing_layers(version: int | None = None) -> list[str]:
    """Return the layers that this kernel lacks, with what stays open without them.

    version: of Landlock's ABI; below 1: none."""
    version = _LANDLOCK_VERSION if version is None else version
    has_seccomp = (
        platform.machine() in _ARCHITECTURES and _libc.prctl(_PR_GET_SECCOMP, 0, 0, 0, 0) >= 0
    )
    layers = {
        "Landlock (a worker can read and write what the user can, the service's environment included)": version
        >= 1,
        f"Landlock scopes (its version is {version}; that a worker reaches no other process hangs on seccomp alone)": not 1
        <= version
        < 6,
        "seccomp (a worker can start programs and open sockets)": has_seccomp,
    }
    return [layer for layer, is_there in layers.items() if not is_there]


def confine(*, memory_bytes: int) -> dict[str, bool]:
    """Confines this process. Which layers are active; False where the kernel lacks one.

    Raises:
        OSError: the kernel has a layer that cannot be set up, as when too many files are open.
    """
    set_limits(memory_bytes=memory_bytes, file_bytes=MAX_FILE_BYTES, open_files=64)
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    return Barriers(readable=[package, *library_paths()]).enter()


def set_limits(*, memory_bytes: int, file_bytes: int, open_files: int) -> None:
    """Set limits that this process cannot raise again, and no core file."""
    for kind, limit in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, file_bytes),
        (resource.RLIMIT_NOFILE, open_files),
    ):
        resource.setrlimit(kind, (limit, limit))


class Barriers:
    """Landlock's rules and seccomp's filter, made once; each process that is forked afterwards can
    enter them.

    Args:
        readable: files and directories that may be read.
        writable: directories in which files and directories may be made, written and removed.
        executable: directories from which programs may be started, where `programs` is set.
        threads: threads and pairs of sockets are allowed, for programs; processes are not.
        programs: this process may become another program (execve).
        processes: no system call is refused, for a compiler, which starts others.

    Raises:
        OSError: the kernel has Landlock, but takes no rules."""

    def __init__(
        self,
        *,
        readable: Iterable[str],
        writable: Iterable[str] = (),
        executable: Iterable[str] = (),
        threads: bool = False,
        programs: bool = False,
        processes: bool = False,
    ) -> None:
        self._filter = None if processes else _make_filter(threads=threads, programs=programs)
        self._ruleset = _make_ruleset(
            [(path, _READ) for path in readable]
            + [(path, _READ | _WRITE) for path in writable]
            + [(path, _READ | _EXECUTE) for path in executable]
        )

    def enter(self) -> dict[str, bool]:
        """Confine this process and its own. Returns active layers. OSError: as `confine`."""
        _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
        layers = {"landlock": False, "seccomp": False}
        if _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
            return layers
        if self._ruleset is not None:
            if _libc.syscall(_RESTRICT_SELF, self._ruleset, 0) != 0:
                raise OSError(
                    ctypes.get_errno(), "Landlock is there, but does not restrict this process"
                )
            os.close(self._ruleset)
            layers["landlock"] = True
        # root's capabilities could raise limits or reach others' processes
        header = struct.pack("=Ii", 0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3, this thread
        _libc.capset(header, bytes(24))
        if self._filter is not None:
            layers["seccomp"] = (
                _libc.prctl(
                    _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(self._filter), 0, 0
                )
                == 0
            )
        return layers


# Landlock: https://docs.kernel.org/userspace-api/landlock.html

# the same numbers on every architecture
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = (
    444,
    445,
    446,
)
# of its ABI; below 1: there is none
_LANDLOCK_VERSION = _libc.syscall(_CREATE_RULESET, None, 0, 1)
_RULE_PATH_BENEATH = 1
_READ_FILE, _READ_DIR = 4, 8
_READ = _READ_FILE | _READ_DIR
_EXECUTE = 1
# write; remove and make directories and files; truncate
_WRITE = 2 | 16 | 32 | 128 | 256 | 16384
_OF_FILES = 1 | 2 | _READ_FILE | 16384  # rights that a rule about a file can give
# by ABI; 5 adds ioctl
_ALL_FILE_RIGHTS = {
    1: 2**13 - 1,
    2: 2**14 - 1,
    3: 2**15 - 1,
    4: 2**15 - 1,
}


_INSTALLED = ("site-packages", "dist-packages")


def installed_paths() -> list[str]:
    """List the directories of installed packages."""
    return [entry for entry in sys.path if entry.endswith(_INSTALLED) and os.path.isdir(entry)]


def library_paths(packages: Iterable[str] | None = None) -> list[str]:
    """List where this interpreter reads its modules and shared libraries, and two devices.

    packages: of the installed ones only these; None: all."""
    standard = os.path.dirname(os.__file__)
    libraries = {
        os.path.join(standard, name) for name in os.listdir(standard) if name not in _INSTALLED
    }
    names = (
        [""]
        if packages is None
        else [f"{name}{end}" for name in packages for end in ("", ".py", ".libs")]
    )
    libraries.update(os.path.join(entry, name) for entry in installed_paths() for name in names)
    return [
        *libraries,
        "/usr/lib",
        "/lib",
        "/lib64",
        "/usr/share/zoneinfo",
        "/dev/null",
        "/dev/urandom",
    ]


def _make_ruleset(rules: Iterable[tuple[str, int]]) -> int | None:
    """Make a descriptor of the rules; None where the kernel has no Landlock."""
    version = _LANDLOCK_VERSION
    if version < 1:
        return None
    handled_files = _ALL_FILE_RIGHTS.get(version, 2**16 - 1)
    handled_network = 3 if version >= 4 else 0  # bind and connect TCP
    scoped = 3 if version >= 6 else 0  # abstract sockets and signals of other processes
    attributes = struct.pack("=QQQ", handled_files, handled_network, scoped)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    ruleset = _libc.syscall(_CREATE_RULESET, attributes, size, 0)
    if ruleset < 0:
        raise OSError(ctypes.get_errno(), "Landlock is there, but makes no set of rules")
    try:
        for path, rights in rules:
            _allow(
                ruleset,
                path,
                handled_files & (rights if os.path.isdir(path) else rights & _OF_FILES),
            )
    except OSError:
        os.close(ruleset)
        raise
    return ruleset


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

_CALLS = tomllib.loads(Path(__file__).with_name("system_calls.toml").read_text("utf-8"))
# audit's number, column of the table
_ARCHITECTURES = {
    "x86_64": (0xC000003E, 0),
    "aarch64": (0xC00000B7, 1),
}
_X32_BIT = 0x40000000  # a second set of numbers for the same calls on x86_64
_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_SECCOMP_MODE_FILTER = 2
_ALLOW, _KILL, _EPERM, _ENOSYS = 0x7FFF0000, 0x80000000, 0x00050001, 0x00050026


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


def _make_filter(*, threads: bool, programs: bool) -> _Program | None:
    """Return the filter of system calls; None where this architecture's numbers are not known here."""
    if platform.machine() not in _ARCHITECTURES:
        return None
    architecture, column = _ARCHITECTURES[platform.machine()]
    allowed = {numbers[column] for numbers in _CALLS["allowed"].values()} - {-1}
    number = {name: numbers[column] for name, numbers in _CALLS["by_argument"].items()}
    code = [
        (_LOAD, 0, 0, 4),
        (_JUMP_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, 0),
    ]
    code += [(_JUMP_AT_LEAST, 0, 1, _X32_BIT), (_RETURN, 0, 0, _EPERM)]

    def decide(
        call: str, argument: int, jump: int, values: Iterable[int], matched: int, otherwise: int
    ) -> None:
        """Decide about a call by the lower half of an argument."""
        block = [(_LOAD, 0, 0, 16 + 8 * argument)]
        for value in values:
            block += [(jump, 0, 1, value), (_RETURN, 0, 0, matched)]
        if number[call] >= 0:
            code.extend(
                [
                    (_JUMP_EQUAL, 0, len(block) + 1, number[call]),
                    *block,
                    (_RETURN, 0, 0, otherwise),
                ]
            )

    if threads:  # a lower limit would look like a kill for want of memory
        decide("setrlimit", 0, _JUMP_EQUAL, [resource.RLIMIT_CPU], _EPERM, _ALLOW)
        cpu_limit = [
            (_LOAD, 0, 0, 24),
            (_JUMP_EQUAL, 2, 0, resource.RLIMIT_CPU),
            (_LOAD, 0, 0, 16),
            (_JUMP_EQUAL, 1, 0, 0),
        ]
        code += [
            (_JUMP_EQUAL, 0, 6, number["prlimit64"]),
            *cpu_limit,
            (_RETURN, 0, 0, _EPERM),
            (_RETURN, 0, 0, _ALLOW),
        ]
    for call, rule in _CALLS["rules"].items():
        jump = _JUMP_ANY_BIT if "any_bit" in rule else _JUMP_EQUAL
        values, verdicts = rule.get("any_bit", rule.get("equal")), (_ALLOW, _EPERM)
        if threads or not rule["threads"]:
            decide(
                call,
                rule["argument"],
                jump,
                values,
                *(verdicts if rule["allows"] else reversed(verdicts)),
            )
    if threads:  # glibc's clone3 hides flags: it falls back to clone
        code += [(_JUMP_EQUAL, 0, 1, number["clone3"]), (_RETURN, 0, 0, _ENOSYS)]
    else:
        allowed.add(number["setrlimit"])
    if programs:
        allowed.add(number["execve"])
    code += [(_JUMP_EQUAL, len(allowed) - i, 0, call) for i, call in enumerate(sorted(allowed))]
    code += [(_RETURN, 0, 0, _EPERM), (_RETURN, 0, 0, _ALLOW)]
    return _Program(
        len(code), b"".join(struct.pack("=HBBI", *instruction) for instruction in code)
    )


# Audit hook

_violations: list[str] = []
_FORBIDDEN_EVENTS = frozenset(
    [
        "os.system",
        "os.exec",
        "os.fork",
        "os.forkpty",
        "os.posix_spawn",
        "subprocess.Popen",
        "socket.__new__",
        "ctypes.dlopen",
    ]
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
    """Make code from a string, or a program's start, fail from now on, and remember it.

    A tripwire after the other layers: no grader runs such code, so the item found a way in.
    """
    sys.addaudithook(_audit)


def take_violations() -> list[str]:
    """Return what was noticed since the last call."""
    violations = _violations[:]
    _violations.clear()
    return violations
