"""The GPU stack's lock, the script that installs it, and the container file: what of them a machine without a GPU can check."""

import os
import random
import re
import shutil
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from r3_openrlhf.operations.doctor.checks import normal, pins, wanted

REPOSITORY = Path(__file__).parents[1]
LOCK = (REPOSITORY / "requirements-gpu.lock").read_text()
DOCKERFILE = REPOSITORY / "docker" / "Dockerfile"
# Packages of both stacks with different releases; the reasons stand in scripts/lock_gpu.sh.
DIFFERENT = {"torch": ("2.13.0", "2.13.0+cpu"), "apache-tvm-ffi": None, "protobuf": None}


@pytest.fixture(scope="module")
def locked():
    return pins(LOCK)


def test_the_lock_satisfies_the_requirements(locked):
    lines = [
        line.partition("#")[0].strip()
        for line in (REPOSITORY / "requirements.txt").read_text().splitlines()
    ]
    requirements = [Requirement(line) for line in lines if line]
    assert len(requirements) > 20
    for requirement in requirements:
        assert requirement.specifier.contains(locked[normal(requirement.name)]), requirement


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("requirements-gpu.lock", 200),
        ("requirements-cpu.txt", 200),
        ("requirements-newer-cpu.txt", 4),
        ("requirements-newer-gpu.txt", 4),
    ],
)
def test_every_package_has_a_hash_and_no_address(name, least):
    """torch's CPU build is on an index of its own, which has the hash."""
    text = (REPOSITORY / name).read_text()
    blocks = re.split(
        r"\n(?=[^ #])", re.sub(r"^#.*\n|^torch==.*\+cpu\n", "", text, flags=re.MULTILINE)
    )
    for block in blocks:
        pin = r"[\w.-]+(\[[\w,-]+\])?==\S+ \\\n( +--hash=sha256:[0-9a-f]{64}( \\)?\n?)+$"
        assert re.match(pin, block), block[:200]
    assert len(blocks) == len(pins(text)) - ("\ntorch==" in text and "+cpu" in text) > least


def test_the_lock_has_the_releases_that_the_tests_run_with(locked):
    cpu = pins((REPOSITORY / "requirements-cpu.txt").read_text())
    script = (REPOSITORY / "scripts" / "lock_gpu.sh").read_text()
    different = {name for name in locked.keys() & cpu.keys() if locked[name] != cpu[name]}
    assert different == DIFFERENT.keys()
    assert (locked["torch"], cpu["torch"]) == DIFFERENT["torch"]
    assert all(re.search(rf"#   .*\b{name}\b", script) for name in different)
    assert len(locked.keys() & cpu.keys()) > 150


def test_nothing_that_a_locked_package_asks_for_is_missing(locked):
    """The metadata of the packages that are installed here too, read without the resolver."""
    asked = 0
    for package in distributions():
        if locked.get(normal(package.name)) != package.version:
            continue
        for text in package.requires or []:
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                version = locked.get(normal(requirement.name))
                said = f"{package.name} asks for {requirement}, the lock has {version}"
                assert version and requirement.specifier.contains(
                    Version(version), prereleases=True
                ), said
                asked += 1
    assert asked > 300


# ── the script ──


@pytest.fixture(scope="module")
def calls(tmp_path_factory):
    return calls_of(tmp_path_factory.mktemp("gpu"))


def calls_of(directory, **settings):
    """What scripts/setup_gpu.sh does, in order: (arguments of pip, packages of the requirements file that it was given).

    The real script runs; in the place of Python stands a program that writes down what it is asked for."""
    copy = directory / "repository"
    (copy / "scripts").mkdir(parents=True)
    for name in ("setup_gpu.sh", "locked.sh", "newer.sh"):
        shutil.copy(REPOSITORY / "scripts" / name, copy / "scripts")
    for name in ("requirements-gpu.lock", "requirements-newer-gpu.txt"):
        shutil.copy(REPOSITORY / name, copy)
    programs = copy / "programs"
    programs.mkdir()
    log = copy / "calls.txt"
    (programs / "nvcc").write_text("#!/bin/bash\n")
    # compute capabilities
    (programs / "nvidia-smi").write_text("#!/bin/bash\nprintf '8.9\\n9.0\\n9.0\\n'\n")
    (programs / "python3.11").write_text(
        "#!/bin/bash\n"
        'if [ "$1" = - ]; then exit; fi\n'
        f'if [ "$2" = venv ]; then mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; touch "$3/installed"; exit; fi\n'
        f'echo "CALL FORCE=$FLASH_ATTENTION_FORCE_BUILD JOBS=$MAX_JOBS ARCHS=$FLASH_ATTN_CUDA_ARCHS $*" >>"{log}"\n'
        "case $* in *--verbose*) echo '  [3/73] /usr/bin/nvcc -MD -c /x/flash_fwd_hdim32.cu -o /y/flash_fwd_hdim32.o -O3';; "
        "*only-binary*) echo '  Downloading torch-2.13.0.whl (900 MB)';; esac\n"
        "while [ $# -gt 0 ]; do\n"
        f'    if [ "$1" = --requirement ]; then cat "$2" >>"{log}"; fi\n'
        "    shift\n"
        "done\n"
    )
    for program in programs.iterdir():
        program.chmod(0o755)
    environment = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    for name in ("PYTHON_FOR_VENV", "MAX_JOBS", "FLASH_ATTN_CUDA_ARCHS", "FLASH_ATTN", "NEWER"):
        environment.pop(name, None)
    environment |= settings
    command = [copy / "scripts" / "setup_gpu.sh"]
    done = subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [line[:3] for line in done.stderr.splitlines() if line[:1].isdigit()] == [
        "1/4",
        "2/4",
        "3/4",
        "4/4",
    ]
    assert "    [3/73] flash_fwd_hdim32\n" in done.stderr  # a line for each file of flash-attn
    assert "    torch-2.13.0.whl (900 MB)\n" in done.stderr  # and for each wheel
    parts = log.read_text().split("CALL ")[1:]
    return [(part.partition("\n")[0].split(), pins(part.partition("\n")[2])) for part in parts]


def test_the_script_installs_the_whole_lock_and_nothing_else(calls, locked):
    together = {}
    for _, packages in calls:
        together |= packages
    assert together == locked
    for arguments, packages in calls:
        assert {"--no-deps", "--no-build-isolation"} <= set(arguments)
        assert (
            "--require-hashes" in arguments
            if packages
            else arguments[-2:] == ["--editable", "."]
        )
    assert [bool(packages) for _, packages in calls] == [True] * (len(calls) - 1) + [False]


def test_the_script_installs_the_newer_pins(tmp_path):
    together = {}
    for _, packages in calls_of(tmp_path, NEWER="1"):
        together |= packages
    assert together == wanted("gpu", newer=True)
    environments = [path.name for path in (tmp_path / "repository").glob(".venv*")]
    assert environments == [".venv-newer"]


def test_the_script_builds_after_torch_and_the_build_tools(calls):
    order = {}
    for position, (_, packages) in enumerate(calls):
        for name in packages:
            order.setdefault(name, position)
    tools = [order[name] for name in ("setuptools", "wheel", "packaging", "ninja", "psutil")]
    assert max(tools) < order["torch"] < order["deepspeed"] < order["flash-attn"]
    assert order["vllm"] == order["torch"]
    wheels_only = [packages for arguments, packages in calls if "--only-binary" in arguments]
    built = [
        name for arguments, packages in calls if "--no-binary" in arguments for name in packages
    ]
    assert len(wheels_only) == 1 and not wheels_only[0].keys() & set(built)
    assert built[:2] == ["deepspeed", "flash-attn"]
    assert all("FORCE=TRUE" in arguments for arguments, _ in calls)


def test_flash_attn_is_compiled_for_the_gpus_that_are_here_by_as_many_compilers_as_fit(calls):
    cores = len(os.sched_getaffinity(0))
    for arguments, _ in calls:
        said = dict(word.split("=") for word in arguments[:3])
        assert said["ARCHS"] == "80;90"
        assert 1 <= int(said["JOBS"]) <= cores
    verbose = [arguments[-4:-2] for arguments, _ in calls if "--verbose" in arguments]
    assert verbose == [["--no-binary", "flash-attn"]]


PROGRAMS = [
    "awk",
    "dirname",
    "env",
    "head",
    "nproc",
    "paste",
    "sed",
    "sort",
    "tr",
    "wc",
    "g++",
    "python3.11",
]
TOOLKIT = "#!/bin/bash\necho 'Cuda compilation tools, release {0}, V{0}.88'\n"
MISSING = {  # a name of PROGRAMS is taken away; the toolkit's version, settings, what is said
    "python3.11": (None, {}, "Python 3.11 is needed, but there is no python3.11"),
    "g++": (None, {}, "g++ is needed"),
    "nvcc": (None, {}, "nvcc is needed to build flash-attn"),
    "another toolkit": ("12.8", {}, "CUDA toolkit: 12.8 ("),
    "a small TMPDIR": ("13.0", {"TMPDIR": "small"}, "disk of TMPDIR: 0.06 GiB free"),
    "another flash-attn": (
        "13.0",
        {"FLASH_ATTN": "somewhere"},
        "FLASH_ATTN is 'somewhere'; use none",
    ),
}


@pytest.mark.parametrize("name", MISSING)
def test_the_script_says_what_is_missing_before_it_installs(tmp_path, name):
    """With the real Python, whose pip would download 8 GB otherwise."""
    version, given, sentence = MISSING[name]
    small, cuda = tmp_path / "small", tmp_path / "cuda" / "bin"
    small.mkdir()
    cuda.mkdir(parents=True)
    for program in PROGRAMS[: PROGRAMS.index("g++") if name == "python3.11" else None]:
        if program != name:
            (tmp_path / program).symlink_to(
                sys.executable if program == "python3.11" else shutil.which(program)
            )
    if version:
        (cuda / "nvcc").write_text(TOOLKIT.format(version))
        (cuda / "nvcc").chmod(0o755)
    environment = {"PATH": str(tmp_path), "CUDA_HOME": str(cuda.parent)} | given
    command = [shutil.which("bash"), str(REPOSITORY / "scripts" / "setup_gpu.sh")]
    if "TMPDIR" in given:
        environment["TMPDIR"] = str(small)
        mount = f'{shutil.which("mount")} -t tmpfs -o size=64m tmpfs {small}; exec "$@"'
        command = [
            shutil.which("unshare"),
            "--map-root-user",
            "--mount",
            command[0],
            "-euc",
            mount,
            "bash",
            *command,
        ]
        if subprocess.run([*command[:3], shutil.which("true")], capture_output=True).returncode:
            pytest.skip("this machine lets nobody mount a file system of their own")
    done = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 1 and sentence in done.stderr and "1/4" not in done.stderr, (
        done.stderr
    )


# ── the container file ──


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"^\s*#.*\n", "", DOCKERFILE.read_text(), flags=re.MULTILINE).replace(
        "\\\n", " "
    )
    return [tuple(line.split(maxsplit=1)) for line in text.splitlines() if line.strip()]


def test_the_container_file_passes_its_linter(tmp_path):
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([hadolint, DOCKERFILE], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    bad = tmp_path / "Dockerfile"
    bad.write_text(DOCKERFILE.read_text().replace("# hadolint ignore=DL3041\n", ""))
    done = subprocess.run([hadolint, bad], capture_output=True, text=True)
    assert done.returncode == 1 and "DL3041" in done.stdout


def test_the_container_is_installed_by_the_script(locked):
    runs = [text for name, text in instructions() if name == "RUN"]
    assert (
        len(runs) == 2
        and runs[0].startswith("dnf install -y ")
        and runs[1].endswith(" scripts/setup_gpu.sh")
    )
    assert not any(
        re.search(r"\b(pip3?|uv|curl|wget)\s", run.replace("python3.11-pip", ""))
        for run in runs
    )
    assert ("CMD", '["r3", "doctor", "--stack", "gpu"]') in instructions()
    cuda = re.search(r"nvidia/cuda:(\d+\.\d+)\.\d+-devel", dict(instructions())["FROM"])[1]
    assert locked["cuda-toolkit"].startswith(f"{cuda}.")


def test_the_container_gets_every_file_that_the_installation_reads(tmp_path):
    """What COPY copies is there, passes .dockerignore, and is enough: a wheel of it has the lists of the doctor."""
    allowed = {
        line[1:]
        for line in (REPOSITORY / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    copied = [
        word for name, text in instructions() if name == "COPY" for word in text.split()[:-1]
    ]
    assert set(copied) == allowed
    for name in copied:
        source = REPOSITORY / name
        if source.is_dir():
            shutil.copytree(source, tmp_path / name, symlinks=True)
        else:
            (tmp_path / name).parent.mkdir(exist_ok=True)
            shutil.copy(source, tmp_path / name)
    broken = [
        str(path) for path in tmp_path.rglob("*") if path.is_symlink() and not path.exists()
    ]
    assert broken == []
    script = (tmp_path / "scripts" / "setup_gpu.sh").read_text()
    lock = re.search(r"^lock=(.*)$", script, re.MULTILINE)[1]
    assert all((tmp_path / name).is_file() for name in (lock, "pyproject.toml", "README.md"))


def test_a_wheel_is_cut_and_joined_and_a_changed_part_is_refused(tmp_path):
    script, wheel = REPOSITORY / "scripts" / "wheel_parts.sh", tmp_path / "vllm-1.whl"
    content = random.Random(0).randbytes(2_500_000)
    wheel.write_bytes(content)
    subprocess.run([script, "cut", wheel, tmp_path / "parts", "1"], check=True)
    parts = sorted((tmp_path / "parts").glob("*.part*"))
    assert [part.stat().st_size for part in parts] == [1_000_000, 1_000_000, 500_000]
    subprocess.run([script, "join", tmp_path / "parts"], check=True)
    joined = tmp_path / "parts" / wheel.name
    assert joined.read_bytes() == content
    joined.unlink()
    parts[1].write_bytes(content[:1_000_000])
    refused = subprocess.run(
        [script, "join", tmp_path / "parts"], capture_output=True, text=True
    )
    assert (
        refused.returncode == 1
        and f"{parts[1].name}: FAILED" in refused.stdout
        and not joined.exists()
    )
