"""The machine: Python, compilers, shared memory, disk, limits, ports, NVIDIA's driver and toolkit."""

from __future__ import annotations

import os
import re
import resource
import shutil
import socket
import subprocess
import sys
import sysconfig
from pathlib import Path

from r3_openrlhf.machine.build_locks import build_root, unheld_locks
from r3_openrlhf.machine.gpus import ALLOCATOR_VARIABLES, GpuMemory, expandable_segments, taken_memory
from r3_openrlhf.machine.ray_temporary import MAX_BYTES, REMEDY, bytes_of, ray_temporary
from r3_openrlhf.operations.doctor.line import FAIL, NOTE, OK, Line, judged
from r3_openrlhf.operations.doctor.packages import Stack

GiB = 2**30
# Ray's object store has 0.5 GiB there on CPUs (stack/ray_cluster.py), vLLM's and torch's queues need some too. For GPUs
# OpenRLHF starts its container with --shm-size=10g.
SHARED_MEMORY: dict[Stack, int] = {"cpu": 1 * GiB, "gpu": 10 * GiB}
# A file that is written counts twice until it has its final name; Ray writes no objects to a disk that is 95% full
# (RAY_local_fs_capacity_threshold).
MIN_DISK = 5 * GiB
MAX_DISK_USE = 0.95
MIN_OPEN_FILES = 8192  # what Ray recommends (ray/_private/worker.py:1753)
RAY_RAISES_TO = 65536  # and to what it raises the soft limit itself (worker.py:1739)
MIN_DRIVER = 580  # the first driver branch for CUDA 13 (release notes of the CUDA toolkit 13.0, table 3)
RAY_PORTS = (6379, 8265, 10001)  # of `ray start --head`: head, dashboard, client server
SHM = Path("/dev/shm")


def python_line() -> Line:
    """Is this Python 3.11? An older one fails; a newer one is a note."""
    version = sys.version_info
    found = f"{version.major}.{version.minor}.{version.micro} ({sys.executable})"
    if version[:2] == (3, 11):
        return Line(what="Python", found=found, wanted="3.11")
    remedy = "the packages are pinned and tested for 3.11: make setup with PYTHON_FOR_VENV=/path/to/python3.11"
    return Line(what="Python", found=found, wanted="3.11", status=FAIL if version < (3, 11) else NOTE, remedy=remedy)


def compiler_line() -> Line:
    """g++ as DeepSpeed uses it: C++ with Python's headers."""
    wanted = "a C++ compiler, Python.h"
    if not (compiler := shutil.which("g++")):
        remedy = "DeepSpeed compiles its operators: apt install g++ (or dnf install gcc-c++)"
        return Line(what="g++", found="none in PATH", wanted=wanted, status=FAIL, remedy=remedy)
    for program, remedy in (
        ("#include <vector>", "install its C++ library: apt install g++ (or dnf install gcc-c++)"),
        (
            "#include <Python.h>",
            "install Python's headers: apt install python3.11-dev (or dnf install python3.11-devel)",
        ),
    ):
        command = [compiler, "-fsyntax-only", "-x", "c++", f"-I{sysconfig.get_path('include')}", "-"]
        done = subprocess.run(command, input=program, capture_output=True, text=True)
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if "error" in line] or ["it does not compile C++"]
            return Line(what="g++", found=lines[0], wanted=wanted, status=FAIL, remedy=remedy)
    version = subprocess.run([compiler, "-dumpfullversion"], capture_output=True, text=True).stdout.strip()
    return Line(what="g++", found=version or compiler, wanted=wanted)


def ninja_line() -> Line:
    """Check that ninja is in the PATH or next to this Python."""
    # `r3 train` looks next to its own Python too (cli.py)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    ninja = shutil.which("ninja", path=path)
    remedy = f"DeepSpeed compiles its operators with it: {sys.executable} -m pip install ninja"
    return judged(ninja is not None, remedy, what="ninja", found=ninja or "none in PATH", wanted="any")


def shared_memory_line(stack: Stack) -> Line:
    """Check that /dev/shm is there, writable, and free enough for this stack (SHARED_MEMORY, in bytes)."""
    wanted = SHARED_MEMORY[stack]
    remedy = (
        f"Ray and NCCL need it: --shm-size={wanted // GiB}g for a container, or mount -t tmpfs -o size={wanted // GiB}g "
        f"tmpfs {SHM}; else delete what fills it"
    )
    line = {"what": str(SHM), "wanted": f"{wanted / GiB:.0f} GiB free"}
    if not os.path.ismount(SHM):
        return judged(False, remedy, found="no shared memory is mounted", **line)
    if not os.access(SHM, os.W_OK):
        return judged(False, remedy, found="not writable", **line)
    usage = shutil.disk_usage(SHM)
    found = f"{usage.free / GiB:.2f} of {usage.total / GiB:.2f} GiB free"
    return judged(usage.free >= wanted, remedy, found=found, **line)


def disk_line(what: str, path: Path, *, least: int, setting: str) -> Line:
    """Check the free space below `path`, which need not exist yet. `setting` is what moves it elsewhere."""
    existing = next(parent for parent in (path, *path.parents) if parent.exists())
    usage = shutil.disk_usage(existing)
    share = 1 - usage.free / usage.total if usage.total else 1.0
    line = {"what": what, "wanted": f"{least / GiB:.0f} GiB free, below {MAX_DISK_USE:.0%} full"}
    where = f"free space in {path}, or another place with {setting}"
    if not os.access(existing, os.W_OK | os.X_OK) or not existing.is_dir():
        return judged(
            False, f"write access to {existing}, or {setting}", found=f"{existing} cannot be written", **line
        )
    found = f"{usage.free / GiB:.2f} GiB free, {share:.0%} full ({existing})"
    return judged(usage.free >= least and share < MAX_DISK_USE, where, found=found, **line)


def disk_lines(run_dir: Path, *, least: int = MIN_DISK) -> list[Line]:
    """least: bytes that the run itself will write."""
    temporary = ray_temporary()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return [
        disk_line("disk of the run directory", run_dir, least=max(least, MIN_DISK), setting="run_dir=..."),
        disk_line("disk of temporary files", temporary, least=MIN_DISK, setting="RAY_TMPDIR and TMPDIR"),
        temporary_path_line(temporary),
        disk_line("disk of the caches", cache, least=MIN_DISK, setting="XDG_CACHE_HOME"),
    ]


def temporary_path_line(path: Path) -> Line:
    """Check that the names of Ray's sockets in `path` are not too long."""
    length = bytes_of(path)
    line = {"what": "path of temporary files", "wanted": f"{MAX_BYTES} bytes or fewer"}
    return judged(
        length <= MAX_BYTES, f"{REMEDY}: Ray has its sockets there", found=f"{length} bytes ({path})", **line
    )


def build_locks_line() -> Line:
    """A build of DeepSpeed's operators that was killed leaves a lock, for which the next one waits."""
    found = unheld_locks(build_root())
    line = {"what": "builds of DeepSpeed", "wanted": "no lock left behind"}
    if not found:
        return Line(found="none left behind", **line)
    remedy = "`r3 train` removes it, unless another machine that shares the cache may be building now"
    return Line(found=", ".join(map(str, found)), status=NOTE, remedy=remedy, **line)


def open_files_line() -> Line:
    """Check how many files Ray may open. It raises the soft limit itself, to RAY_RAISES_TO or the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limits = [float("inf") if limit == resource.RLIM_INFINITY else limit for limit in (soft, hard)]
    reached = max(limits[0], min(limits[1], RAY_RAISES_TO))
    remedy = f"ulimit -n {RAY_RAISES_TO}, or --ulimit nofile={RAY_RAISES_TO} for a container"
    found = f"{limits[0]:g}, at most {limits[1]:g}"
    return judged(
        reached >= MIN_OPEN_FILES, remedy, what="open files", found=found, wanted=f"{MIN_OPEN_FILES} or more"
    )


def ray_ports_line(*, address: str | None, num_nodes: int, ports: tuple[int, ...] = RAY_PORTS) -> Line:
    """`address`: a cluster that is there already (RAY_ADDRESS).

    A cluster that `r3 train` starts itself, on one node, takes ports that are free; `ray start --head` takes fixed ones.
    """
    if address:
        host, _, port = address.rpartition("://")[2].rpartition(":")
        if not port.isdigit():
            return Line(what="Ray", found=f"address {address}, not asked", wanted="host:port answers", status=NOTE,
                        remedy="RAY_ADDRESS as host:port can be checked")  # fmt: skip
        try:
            socket.create_connection((host, int(port)), timeout=10).close()
        except OSError as error:
            remedy = "start Ray there, or unset RAY_ADDRESS"
            return judged(False, remedy, what="Ray", found=f"{address}: {error}", wanted="host:port answers")
        return Line(what="Ray", found=f"{address} answers", wanted="host:port answers")
    taken = [port for port in ports if not _is_free(port)]
    line = {"what": "Ray's ports", "wanted": f"{', '.join(map(str, ports))} free"}
    if not taken:
        return Line(found="free", **line)
    found = f"taken: {', '.join(map(str, taken))}"
    if num_nodes > 1:
        remedy = "another Ray runs here (ray stop ends it, RAY_ADDRESS uses it), or other ports: ray start --head --port=6380"
        return judged(False, remedy, found=found, **line)
    remedy = "only `ray start --head` on several nodes minds: ray stop, or ray start --head --port=6380"
    return Line(found=found, status=NOTE, remedy=remedy, **line)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def nvidia_driver() -> str | None:
    """The version of NVIDIA's driver, None where there is none. Asks no library."""
    for file, pattern in (
        ("/sys/module/nvidia/version", r"^([\d.]+)"),
        ("/proc/driver/nvidia/version", r"Kernel Module\D*([\d.]+)"),
    ):
        path = Path(file)
        if path.is_file() and (match := re.search(pattern, path.read_text())):
            return match[1]
    return None


def driver_line(driver: str | None) -> Line:
    """Check that NVIDIA's driver is new enough. driver: its version, like "580.65.06"; None: there is none."""
    good = driver is not None and int(driver.split(".")[0]) >= MIN_DRIVER
    remedy = f"install NVIDIA's driver {MIN_DRIVER} or newer on the host"
    return judged(good, remedy, what="NVIDIA driver", found=driver or "none", wanted=f"{MIN_DRIVER} or newer")


def allocator_line() -> Line:
    """torch's allocator of GPU memory, as the environment sets it."""
    why = expandable_segments()
    names = " and ".join(ALLOCATOR_VARIABLES)
    return judged(
        why is None, why or "", what="GPU allocator", found="expandable segments" if why else "as it is",
        wanted=f"no expandable segments in {names}",
    )  # fmt: skip


def gpu_memory_lines(gpus: list[GpuMemory], *, share: float | None) -> list[Line]:
    """A line where other programs have memory of a GPU. share: what an engine of the experiment takes, None where none is given."""
    line = {"what": "GPU memory", "wanted": "free"}
    taken = taken_memory(gpus, share=share or 0.0)
    if not taken:
        return [Line(found=f"free on {len(gpus)} GPUs" if gpus else "not known without nvidia-smi", **line)]
    return [
        Line(found="taken", status=FAIL if refuses else NOTE, remedy=sentence, **line) for sentence, refuses in taken
    ]


def toolkit_line(cuda: str, *, adam_on_host: bool = False) -> Line:
    """nvcc; cuda is "major.minor" of torch's build. torch refuses another major version and only warns of a minor one; for its
    Adam on the host (train.adam_offload) DeepSpeed 0.19.6 refuses any other (ops/op_builder/builder.py:111)."""
    homes = [os.environ.get("CUDA_HOME"), "/usr/local/cuda"]
    places = os.pathsep.join([*(f"{home}/bin" for home in homes if home), os.environ.get("PATH", "")])
    nvcc = shutil.which("nvcc", path=places)
    remedy = (
        f"flash-attn and DeepSpeed's operators are compiled with it: install the CUDA toolkit {cuda}, set CUDA_HOME"
    )
    line = {"what": "CUDA toolkit", "wanted": f"nvcc {cuda}"}
    if nvcc is None:
        return judged(False, remedy, found="no nvcc", **line)
    output = subprocess.run([nvcc, "--version"], capture_output=True, text=True).stdout
    match = re.search(r"release (\d+\.\d+)", output)
    version = match[1] if match else "unknown"
    if version == cuda:
        status = OK
    else:
        status = NOTE if version.split(".")[0] == cuda.split(".")[0] else FAIL
    if version != cuda and adam_on_host and os.environ.get("DS_SKIP_CUDA_CHECK") != "1":
        status = FAIL
        remedy += (
            "; train.adam_offload is true, and DeepSpeed compiles that Adam with this version alone, after the engines have started. "
            "DS_SKIP_CUDA_CHECK=1 takes the other one"
        )
    return Line(found=f"{version} ({nvcc})", status=status, remedy="" if status == OK else remedy, **line)


def program_lines() -> list[Line]:
    """The barriers between a program of a model and this machine (task code); no line where rewards cannot be imported."""
    try:
        from r3_openrlhf.rewards.code.barriers import floor_gap
        from r3_openrlhf.rewards.code.run import barriers_here
    except ImportError:
        return []
    line: dict[str, str] = {"what": "running programs", "wanted": "Landlock and seccomp, or namespaces"}
    try:
        barriers = barriers_here()
    except OSError as error:
        remedy = "task code needs it; other tasks do not"
        return [Line(found=f"cannot be tried: {error}", status=NOTE, remedy=remedy, **line)]
    found = ", ".join(
        f"{one.name} ({one.detail})" if one.name == "namespaces" else one.name for one in barriers if one.holds
    )
    if gap := floor_gap(barriers):
        return [Line(found=found or "nothing", status=NOTE, remedy=f"task code is refused: {gap}", **line)]
    missing = [one.name for one in barriers if not one.holds]
    remedy = f"no {' and '.join(missing)}: a program meets fewer barriers (docs/code.md)" if missing else ""
    return [Line(found=found, status=NOTE if missing else OK, remedy=remedy, **line)]
