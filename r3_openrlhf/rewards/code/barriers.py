"""The barriers around a program: namespaces, Landlock, seccomp; and which set is too weak."""

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from r3_openrlhf.machine.processes.sandbox import library_paths
from r3_openrlhf.rewards.code.zygote import BOX_BYTES

SYSTEM_PROGRAMS = ("/usr", "/bin", "/lib", "/lib64")
_BOX = "/box"


def floor_gap(barriers: Mapping[str, object]) -> str | None:
    """Say why programs are not run here; None where they may.

    The floor: files behind Landlock or in a mount namespace, the network and other processes behind
    seccomp or in namespaces.

    barriers: "namespaces" (their kind), "landlock", "seccomp" -> whether it holds."""
    open_to = []
    if not barriers["landlock"] and barriers["namespaces"] != "bubblewrap":
        open_to.append("the user's files (no Landlock, no bubblewrap)")
    if not barriers["seccomp"] and not barriers["namespaces"]:
        open_to.append("the network and other processes (no seccomp, no namespaces)")
    more = "use Linux 5.13 or later on x86-64 or aarch64, or install bubblewrap where users may make namespaces"
    return (
        f"a program of a model could reach {' and '.join(open_to)}; {more}" if open_to else None
    )


def _bubblewrap(more: Sequence[str]) -> list[str]:
    package = str(Path(__file__).absolute().parents[2])
    visible = [*library_paths(), *SYSTEM_PROGRAMS, *more, sys.prefix, sys.base_prefix, package]
    visible += [sys.executable, os.path.realpath(sys.executable)]
    binds: list[str] = []
    for path in sorted(
        {path for path in visible if os.path.exists(path) and not path.startswith("/dev/")},
        key=len,
    ):
        if not any(path.startswith(f"{bound}/") for bound in binds):
            binds += ["--ro-bind", path, path]
    return [
        "bwrap",
        "--unshare-all",
        "--die-with-parent",
        "--new-session",
        "--cap-drop",
        "ALL",
        "--proc",
        "/proc",
        "--dev",
        "/dev",
        *binds,
        "--size",
        str(BOX_BYTES),
        "--tmpfs",
        _BOX,
        "--chdir",
        _BOX,
        "--",
    ]


def _unshare(_: Sequence[str]) -> list[str]:
    names = "user map-root-user mount pid net ipc uts fork kill-child mount-proc"
    return ["unshare", *(f"--{name}" for name in names.split()), "--"]


# name -> the command that starts programs (what they see), and the directory it makes
NAMESPACES: dict[str, tuple[Callable[[Sequence[str]], list[str]], str | None]] = {
    "bubblewrap": (_bubblewrap, _BOX),
    "unshare": (_unshare, None),
    "none": (lambda _: [], None),
}


def namespace_command(
    wanted: str | None = None, *, visible: Sequence[str] = ()
) -> tuple[str, list[str], str | None]:
    """Return the first kind of namespaces that works here, or the one that is wanted: its name,
    command and directory.

    visible: paths beyond the interpreter's own.

    Raises OSError: the one that is wanted does not work here."""
    name = next((name for name in ([wanted] if wanted else NAMESPACES) if _works(name)), None)
    if name is None:
        raise OSError(f"{wanted} makes no namespaces on this machine")
    return name, NAMESPACES[name][0](visible), NAMESPACES[name][1]


@functools.cache
def _works(name: str) -> bool:
    """Try the namespaces once, with a program that does nothing."""
    command = NAMESPACES[name][0](())
    if not command or shutil.which(command[0]) is None:
        return not command
    done = subprocess.run(
        [*command, sys.executable, "-I", "-S", "-c", ""], capture_output=True, timeout=60
    )
    return done.returncode == 0
