"""The folders of this process's cgroups, in both hierarchies."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

V1, V2 = "cgroup", "cgroup2"  # types of their file systems


def folders(root: Path, controller: str) -> Iterator[tuple[str, Path]]:
    """Yield (V1 or V2, folder) of this process's cgroup, each followed by its parents up to the mount.

    Args:
        root: the folder that has proc and the cgroups.
        controller: of v1, such as "memory" or "cpu"; v2 has one folder for all."""
    paths = {}
    for line in text(root / "proc/self/cgroup").splitlines():
        _, controllers, own = line.split(":", 2)
        if not controllers:
            paths[V2] = Path(own)
        elif controller in controllers.split(","):
            paths[V1] = Path(own)
    for line in text(root / "proc/self/mountinfo").splitlines():
        # man 5 proc: mounted root, mount point, ... - type, source, options of the file system
        fields, _, after = line.partition(" - ")
        mounted, point = fields.split()[3:5]
        kind, _, options = after.split()[:3]
        is_of_v1 = kind == V1 and controller in options.split(",")
        if kind != V2 and not is_of_v1:
            continue
        if kind not in paths:
            continue
        path, top = paths[kind], root / point.lstrip("/")
        below = Path()
        # of another namespace (/../job) or of a mount that shows a part only
        if path.is_relative_to(mounted) and ".." not in path.parts:
            below = path.relative_to(mounted)
        for folder in (below, *below.parents):
            yield kind, top / folder


def text(path: Path) -> str:
    """Return what a file of a cgroup or of /proc holds; "" where it cannot be read."""
    with contextlib.suppress(OSError):  # no such hierarchy here, or a file of another user
        return path.read_text().strip()
    return ""
