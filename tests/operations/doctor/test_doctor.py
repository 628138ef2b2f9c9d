"""`r3 doctor` in set-ups that are broken for real: other packages on the path, no g++ in PATH, a full tmpfs, little shared
memory, the wrong build of torch. `bare` is this Python without any package: then nothing slow is imported, and the table
has a line of text for each line."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from click.testing import CliRunner

from r3_openrlhf.cli import main
from r3_openrlhf.machine.gpus import GpuMemory, Holder
from r3_openrlhf.operations.doctor import machine
from r3_openrlhf.operations.doctor.experiment import configuration, expected_bytes, path_lines
from r3_openrlhf.operations.doctor.line import FAIL, NOTE, OK, Line
from r3_openrlhf.operations.doctor.packages import installed, package_lines, pins, wanted

REPOSITORY = Path(__file__).parents[3]
DOCTOR = ["-m", "r3_openrlhf.operations.doctor"]


def environment(*, path: list[Path] = (), **more: str) -> dict[str, str]:
    """This process's, without what says where a cluster is; `path` goes before everything on Python's path."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("RAY_", "CUDA_"))}
    return {**kept, "PYTHONPATH": os.pathsep.join(map(str, [*path, REPOSITORY])), **more}


def bare(*arguments: str, cwd: Path, shell: str | None = None, **settings) -> tuple[int, dict[str, str]]:
    """Exit code, and "what" -> the rest of its line. `shell` runs before it, in the same shell."""
    command = [sys.executable, "-S", *DOCTOR, *arguments]
    if shell is not None:
        command = ["bash", "-euc", f'{shell}; exec "$@"', "bash", *command]
    done = subprocess.run(command, cwd=cwd, env=environment(**settings), capture_output=True, text=True)
    assert done.stderr == ""
    first, *lines, _ = done.stdout.splitlines()
    assert first in ("r3 doctor: the CPU stack", "r3 doctor: the GPU stack")
    return done.returncode, dict(line.split(": ", 1) for line in lines)


# ── packages ──


@pytest.fixture
def only_these_packages(tmp_path, monkeypatch):
    """The metadata of everything that is installed, on a path of its own, to take away from or add to."""
    site = tmp_path / "site"
    site.mkdir()
    for metadata in Path(sysconfig.get_path("purelib")).glob("*-info"):  # egg-info: what pip 23.0 builds without wheel
        (site / metadata.name).symlink_to(metadata)
    monkeypatch.setattr(sys, "path", [str(site)])
    if installed("torch") != wanted("cpu")["torch"]:
        pytest.skip("this environment was not made by make setup: its torch is no CPU build")
    return site


def different(stack: str = "cpu") -> list[Line]:
    return [line for line in package_lines(stack) if line.status != OK]


def test_all_is_well_here(only_these_packages):
    assert different() == []


def test_wrong_setuptools(only_these_packages):
    (only_these_packages / "setuptools-80.9.0.dist-info").unlink()
    old = only_these_packages / "setuptools-77.0.3.dist-info"
    old.mkdir()
    (old / "METADATA").write_text("Metadata-Version: 2.1\nName: setuptools\nVersion: 77.0.3\n")
    (line,) = different()
    assert (line.what, line.found, line.wanted, line.status) == ("setuptools", "77.0.3", "80.9.0", FAIL)
    assert line.remedy == (
        f"{sys.executable} -m pip install --no-deps --no-build-isolation setuptools==80.9.0 "
        "(DeepSpeed is not built with every one: unexpected keyword argument 'use_ninja')"
    )


def test_a_missing_package(only_these_packages):
    (folder,) = only_these_packages.glob("zstandard-*.dist-info")
    folder.unlink()
    (line,) = different()
    assert (line.what, line.found, line.wanted) == ("zstandard", "not installed", wanted("cpu")["zstandard"])
    assert line.remedy.endswith(f" -m pip install --no-deps --no-build-isolation zstandard=={line.wanted}")


def test_nothing_is_installed(tmp_path):
    """Neither click nor rich: the table is plain, and every remedy is to install the stack."""
    (tmp_path / "ray").mkdir()  # Ray's own /tmp/ray, seen from /tmp: a mere directory is no package
    code, lines = bare(cwd=tmp_path, path=[tmp_path])
    assert code == 1
    assert lines["ray"] == f"not installed; wanted: {wanted('cpu')['ray']}; FAIL: make setup"
    assert lines["other packages"].startswith(f"0 of {len(wanted('cpu')) - 7} as pinned; not so: absl-py, ")
    assert lines["other packages"].endswith(" ...; wanted: all; FAIL: make setup")
    assert "torch build" not in lines and "import ray" not in lines
    assert lines["g++"].endswith("; wanted: a C++ compiler, Python.h; ok")
    code, lines = bare("--stack", "gpu", cwd=tmp_path)
    assert lines["flash-attn"] == "not installed; wanted: 2.8.3; FAIL: make setup-gpu"


def test_pins_of_every_kind_of_line():
    text = "# a\nA.b_c==1.0\nray[default]==2.55.0  # why\ntorch==2.13.0 \\\n    --hash=sha256:00\nnot-pinned>=1\n"
    assert pins(text) == {"a-b-c": "1.0", "ray": "2.55.0", "torch": "2.13.0"}


# ── torch and other imports ──


def package(folder: Path, name: str, code: str) -> Path:
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").write_text(code)
    return folder


CUDA_TORCH = """
from types import SimpleNamespace as Some
__version__ = "2.13.0+cu130"
version = Some(cuda="13.0")
distributed = Some(is_available=lambda: True, is_gloo_available=lambda: True, is_nccl_available=lambda: True)
cuda = Some(is_available=lambda: False, nccl=Some(version=lambda: (2, 29, 7)))
"""


def test_the_cuda_build_of_torch_on_a_machine_without_gpus(tmp_path):
    """What answers is a module with the attributes of PyPI's torch 2.13.0: the real one weighs 5 GB with its libraries."""
    site = package(tmp_path / "site", "torch", CUDA_TORCH)
    _, lines = bare("--stack", "cpu", cwd=tmp_path, path=[site])
    assert lines["torch build"] == (
        "CUDA 13.0 build (2.13.0+cu130); wanted: CPU build; FAIL: make setup; where GPUs are to be used: r3 doctor --stack gpu"
    )
    _, lines = bare("--stack", "gpu", cwd=tmp_path, path=[site])
    assert lines["torch build"] == "CUDA 13.0 build (2.13.0+cu130); wanted: CUDA 13.0 build; ok"
    assert lines["NCCL"] == f"2.29.7; wanted: {wanted('gpu')['nvidia-nccl-cu13']}; ok"
    assert lines["CUDA devices"].startswith("none; wanted: 1 or more; FAIL: ")


def test_a_torch_that_does_not_load(tmp_path):
    site = package(tmp_path / "site", "torch", "import ctypes\nctypes.CDLL('libcudart.so.99')")
    code, lines = bare("--stack", "cpu", cwd=tmp_path, path=[site])
    assert code == 1
    assert lines["torch build"] == (
        "OSError: libcudart.so.99: cannot open shared object file: No such file or directory; wanted: CPU build; FAIL: make setup"
    )


def test_an_import_that_dies_leaves_the_others_their_lines(tmp_path):
    """A wheel for processors that this is not dies so."""
    site = package(tmp_path / "site", "ray", "")
    package(site, "transformers", "import os, signal\nos.kill(os.getpid(), signal.SIGILL)")
    package(site, "deepspeed", "raise SystemExit(3)")
    package(site, "vllm", "raise ImportError('libnuma.so.1: cannot open shared object file')")
    _, lines = bare("--stack", "cpu", cwd=tmp_path, path=[site])
    assert lines["import ray"] == "loads; wanted: loads; ok"
    assert lines["import transformers"].startswith(
        f"the import ended its process with {signal.SIGILL.name}; wanted: loads; FAIL: make setup"
    )
    assert lines["import deepspeed"].startswith("SystemExit: 3; ")
    assert lines["import vllm"].startswith("ImportError: libnuma.so.1: cannot open shared object file; ")


# ── the machine ──


def test_a_lock_of_a_killed_build(tmp_path):
    """Nobody holds it; a run would wait for it."""
    (tmp_path / "py311_cpu" / "cpu_adam").mkdir(parents=True)
    lock = tmp_path / "py311_cpu" / "cpu_adam" / "lock"
    _, lines = bare("--stack", "cpu", cwd=tmp_path, TORCH_EXTENSIONS_DIR=str(tmp_path))
    assert "none left behind" in lines["builds of DeepSpeed"]
    lock.touch()
    _, lines = bare("--stack", "cpu", cwd=tmp_path, TORCH_EXTENSIONS_DIR=str(tmp_path))
    assert str(lock) in lines["builds of DeepSpeed"] and "`r3 train` removes it" in lines["builds of DeepSpeed"]


def test_no_compiler(tmp_path):
    programs = tmp_path / "programs"
    programs.mkdir()
    code, lines = bare(cwd=tmp_path, PATH=str(programs))
    assert code == 1 and lines["g++"] == (
        "none in PATH; wanted: a C++ compiler, Python.h; FAIL: DeepSpeed compiles its operators: apt install g++ "
        "(or dnf install gcc-c++)"
    )


def test_a_compiler_that_does_not_find_the_headers(tmp_path):
    (tmp_path / "g++").write_text(f'#!/bin/bash\nexec {shutil.which("g++")} -nostdinc++ "$@"\n')
    (tmp_path / "g++").chmod(0o755)
    _, lines = bare(cwd=tmp_path, PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert "vector: No such file or directory; wanted: " in lines["g++"]
    assert lines["g++"].endswith("FAIL: install its C++ library: apt install g++ (or dnf install gcc-c++)")


@pytest.fixture(scope="session")
def namespace():
    """A command that runs a shell in which mounts are private and go with it."""
    command = ["unshare", "--map-root-user", "--mount"]
    if not shutil.which("unshare") or subprocess.run([*command, "true"], capture_output=True).returncode:
        pytest.skip("this machine lets nobody mount a file system of their own")
    return command


def in_namespace(namespace, shell: str, *arguments: str, cwd: Path) -> str:
    """What Python prints behind these commands of a shell."""
    command = [*namespace, "bash", "-euc", f'{shell}; exec "$@"', "bash", sys.executable, "-S", *arguments]
    done = subprocess.run(command, cwd=cwd, env=environment(TMPDIR=str(cwd)), capture_output=True, text=True)
    assert done.stderr == ""
    return done.stdout


def test_too_little_shared_memory(namespace, tmp_path):
    """64 MiB: what Docker gives a container that asks for nothing."""
    mount = "mount -t tmpfs -o size=64m tmpfs /dev/shm"
    assert (
        "\n/dev/shm: 0.06 of 0.06 GiB free; wanted: 1 GiB free; FAIL: Ray and NCCL need it: --shm-size=1g for a container, or "
        "mount -t tmpfs -o size=1g tmpfs /dev/shm; else delete what fills it\n"
    ) in in_namespace(namespace, mount, *DOCTOR, cwd=tmp_path)
    said = in_namespace(namespace, mount, *DOCTOR, "--stack", "gpu", cwd=tmp_path)
    assert "wanted: 10 GiB free; FAIL: " in said and "--shm-size=10g" in said


def test_no_shared_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "SHM", tmp_path / "shm")
    line = machine.shared_memory_line("cpu")
    assert (line.status, line.found) == (FAIL, "no shared memory is mounted")


def test_a_full_disk(namespace, tmp_path):
    """A file system of 4 MiB of which more or less is taken. Ray counts the share, not the bytes."""
    runs = tmp_path / "runs"
    runs.mkdir()
    mount = f"mount -t tmpfs -o size=4m tmpfs {runs}; head --bytes=%dK /dev/zero >{runs}/other_run 2>{tmp_path}/said || true"
    assert (
        f"\ndisk of the run directory: 0.00 GiB free, 100% full ({runs}); wanted: 5 GiB free, below 95% full; "
        f"FAIL: free space in {runs}, or another place with run_dir=...\n"
    ) in in_namespace(namespace, mount % 4096, *DOCTOR, cwd=tmp_path)
    code = (
        "from pathlib import Path; from r3_openrlhf.operations.doctor.machine import disk_line; "
        "print(disk_line('disk', Path('runs/new'), least=1000, setting='run_dir').status)"
    )
    for taken, status in ((3072, OK), (100, OK), (3990, FAIL)):
        assert in_namespace(namespace, mount % taken, "-c", code, cwd=tmp_path) == f"{status}\n"


def test_a_disk_with_room(tmp_path):
    line = machine.disk_line("disk", tmp_path / "not" / "there" / "yet", least=1, setting="run_dir")
    usage = shutil.disk_usage(tmp_path)
    assert (line.status == OK) == (usage.free / usage.total > 0.05)
    assert f"({tmp_path})" in line.found
    assert machine.disk_line("disk", tmp_path, least=2**60, setting="run_dir").status == FAIL
    (tmp_path / "file").write_text("")
    assert (
        "cannot be written" in machine.disk_line("disk", tmp_path / "file" / "run", least=1, setting="run_dir").found
    )


def test_a_path_of_temporary_files_that_leaves_no_room_for_sockets(monkeypatch):
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    monkeypatch.setenv("TMPDIR", "/" + "é" * 20)
    (line,) = (line for line in machine.disk_lines(Path("/")) if line.what == "path of temporary files")
    assert (line.status, line.found) == (FAIL, f"41 bytes (/{'é' * 20})")
    assert line.remedy == "set RAY_TMPDIR to a shorter one, such as /tmp: Ray has its sockets there"
    monkeypatch.setenv("RAY_TMPDIR", "/tmp")
    assert OK in (line.status for line in machine.disk_lines(Path("/")) if line.what == "path of temporary files")


def test_the_limit_of_open_files(tmp_path):
    code, lines = bare(cwd=tmp_path, shell="ulimit -n 1024")
    assert code == 1 and lines["open files"] == (
        "1024, at most 1024; wanted: 8192 or more; FAIL: ulimit -n 65536, or --ulimit nofile=65536 for a container"
    )
    _, lines = bare(cwd=tmp_path, shell="ulimit -S -n 1024")  # Ray raises a soft limit itself
    _, hard = machine.resource.getrlimit(machine.resource.RLIMIT_NOFILE)
    assert lines["open files"].endswith("ok") == (hard == machine.resource.RLIM_INFINITY or hard >= 8192)


def test_a_port_that_is_taken():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = machine.ray_ports_line(address=None, num_nodes=1, ports=(port,))
        assert line.status == NOTE and line.found == f"taken: {port}" and "only `ray start --head`" in line.remedy
        line = machine.ray_ports_line(address=None, num_nodes=2, ports=(port,))
        assert line.status == FAIL and line.found == f"taken: {port}"
        for address in (f"127.0.0.1:{port}", f"ray://127.0.0.1:{port}"):
            assert machine.ray_ports_line(address=address, num_nodes=2).found == f"{address} answers"
    line = machine.ray_ports_line(address=f"127.0.0.1:{port}", num_nodes=1)
    assert line.status == FAIL and "Connection refused" in line.found
    assert machine.ray_ports_line(address="auto", num_nodes=1).status == NOTE


@pytest.mark.parametrize(
    ("release", "status"), [("13.0", OK), ("13.2", NOTE), ("12.8", FAIL)]
)  # torch.utils.cpp_extension refuses another major version, and warns of a minor one
def test_the_cuda_toolkit(tmp_path, monkeypatch, release, status):
    nvcc = tmp_path / "bin" / "nvcc"
    nvcc.parent.mkdir()
    nvcc.write_text(f'#!/bin/bash\necho "Cuda compilation tools, release {release}, V{release}.88"\n')
    nvcc.chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    line = machine.toolkit_line("13.0")
    assert (line.status, line.found) == (status, f"{release} ({nvcc})")
    # DeepSpeed's CUDAMismatchException knows no version that is near enough
    offloaded = machine.toolkit_line("13.0", adam_on_host=True)
    assert offloaded.status == (OK if release == "13.0" else FAIL)
    if status == NOTE:
        assert "train.adam_offload is true" in offloaded.remedy and "DS_SKIP_CUDA_CHECK=1" in offloaded.remedy
        monkeypatch.setenv("DS_SKIP_CUDA_CHECK", "1")
        assert machine.toolkit_line("13.0", adam_on_host=True).status == NOTE


def test_expandable_segments_of_the_allocator(monkeypatch):
    monkeypatch.delenv("PYTORCH_ALLOC_CONF", raising=False)
    monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF", raising=False)
    assert machine.allocator_line().status == OK
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    assert machine.allocator_line().status == FAIL


def test_memory_of_gpus_that_others_have():
    assert machine.gpu_memory_lines([], share=0.6)[0].found == "not known without nvidia-smi"
    gpu = GpuMemory(
        0, "GPU-a", 80 * machine.GiB, 60 * machine.GiB, (Holder(77, "VLLM::EngineCore", 60 * machine.GiB),)
    )
    (line,) = machine.gpu_memory_lines([gpu], share=0.6)
    assert line.status == FAIL and "VLLM::EngineCore (pid 77, 60.0 GiB)" in line.remedy
    assert machine.gpu_memory_lines([gpu], share=None)[0].status == NOTE


def test_the_driver():
    assert machine.driver_line("580.65.06").status == OK
    assert machine.driver_line("570.133.20").found == "570.133.20"
    assert machine.driver_line("570.133.20").status == FAIL == machine.driver_line(None).status


# ── an experiment ──


def test_the_paths_of_an_experiment(tmp_path):
    settings = ("experiment=cpu_smoke", f"model.path={tmp_path}", "data.path=/nowhere/data.jsonl")
    config, (line,) = configuration(settings)
    assert line.status == OK
    model, data = path_lines(config)
    assert model.what == "model.path" and "without config.json" in model.remedy
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


def test_a_hub_name_is_not_asked_for(monkeypatch):
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    settings = (
        "experiment=r3_1p5b_deepscaler_8gpu",
        "model.path=nobody/has_this_7b",
        "data.path=nobody/has_this_either",
    )
    config, _ = configuration(settings)
    assert [line.status for line in path_lines(config)] == [NOTE, NOTE]
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert [line.status for line in path_lines(config)] == [FAIL, FAIL]


def test_what_a_run_writes_by_hand():
    """1,777,088,000 parameters: three checkpoints and the one that is being written, 14 bytes each, three models and the last one, 2
    each, and the rollouts that the plan counts."""
    config, _ = configuration(("experiment=r3_1p5b_deepscaler_8gpu",))
    rest = expected_bytes(config) - config.history.max_bytes - 1_777_088_000 * (4 * 14 + 4 * 2)
    assert 0 < rest < config.history.max_bytes
    config, _ = configuration(("experiment=r3_1p5b_deepscaler_8gpu", "model.path=some/model"))
    assert expected_bytes(config) == config.history.max_bytes


# ── the command ──


@pytest.mark.parametrize(
    "line", [{"status": "fail"}, {"status": "ok", "remedy": "do it"}, {"status": "bad", "remedy": "do it"}]
)
def test_a_line_has_a_remedy_where_it_is_not_ok(line):
    with pytest.raises(ValueError):
        Line(what="a", found="b", wanted="c", **line)


@pytest.mark.slow
@pytest.mark.stack
def test_this_machine_is_fine(tmp_path):
    """The whole command on the CPU stack, every import included."""
    command = [
        sys.executable,
        *DOCTOR,
        "experiment=cpu_smoke",
        f"run_dir={tmp_path / 'run'}",
        "--stack",
        "cpu",
        "--json",
    ]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True)
    answer = json.loads(done.stdout)
    assert [line for line in answer["lines"] if line["status"] == FAIL] == []
    assert (done.returncode, answer["failed"], answer["stack"]) == (0, 0, "cpu")
    found = {line["what"]: line["found"] for line in answer["lines"]}
    assert found["torch build"] == "CPU build (2.13.0+cpu)" and found["model.path"].startswith("tiny")
    assert {found[f"import {name}"] for name in ("ray", "transformers", "deepspeed", "vllm")} == {"loads"}
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.stack
def test_the_cpu_build_of_torch_where_gpus_are_wanted(tmp_path):
    """The real torch of this environment, and an experiment that asks for eight GPUs. The table is rich's."""
    import torch

    if torch.version.cuda:
        pytest.skip("this torch is a CUDA build")
    result = CliRunner().invoke(main, ["doctor", "experiment=r3_1p5b_deepscaler_8gpu", f"run_dir={tmp_path}"])
    assert result.exit_code == 1 and "r3 doctor: the GPU stack" in result.stdout
    rows = [[cell.strip() for cell in row.split("│")[1:-1]] for row in result.stdout.splitlines() if "│" in row]
    text = {}  # of each line, folded back
    what = ""
    for name, *cells in rows:
        what = name or what
        text[what] = [f"{old} {new}".strip() for old, new in zip(text.get(what, [""] * 3), cells, strict=True)]
    assert text["torch build"] == [
        "CPU build (2.13.0+cpu)",
        "CUDA 13.0 build",
        "FAIL: make setup-gpu (where pip knows an index of CPU builds, a plain pip install takes one); on CPUs: "
        "experiment=quickstart",
    ]
    assert text["CUDA devices"][1] == "8 or more" and text["CUDA devices"][2].startswith("FAIL: ")
    assert text["NCCL"][0] == "this torch has none"
    assert max(map(len, result.stdout.splitlines())) <= 120


def test_the_doctor_imports_nothing_but_python():
    code = (
        "import sys; before = set(sys.modules); import r3_openrlhf.operations.doctor.program; "
        "print({name.partition('.')[0] for name in set(sys.modules) - before} - sys.stdlib_module_names)"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], env=environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout == "{'r3_openrlhf'}\n"
