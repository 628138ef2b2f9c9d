"""Every command in the documents: executed here, executed by another test, or marked and checked word by word.

A block of shell or Python is executed in a visitor's directory: the repository's files and three small runs. Where the
line above a block says `<!-- not executed: why -->`, its commands are started with stand-ins in the place of the
programs, which write down what they were called with; commands, options, keys, files and targets must exist.
"""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path

import click
import pytest

from r3_openrlhf.cli import main
from r3_openrlhf.config.loading import load_config, presets
from r3_openrlhf.method.errors import R3Error
from r3_openrlhf.method.history.store import HistoryStore
from r3_openrlhf.method.types import Context, Verdict
from r3_openrlhf.runs.directory import RunDirectory
from research import load
from research.__main__ import main as research
from research.study import ABLATIONS, CONTROLS, settings_of
from tests.comparison.synthetic import metrics_of, write_run
from tests.docs.pages import (
    DATA,
    PAGES,
    PYTHON,
    REPOSITORY,
    SHELL,
    Block,
    blocks_of,
    environment,
)
from tests.method.history.samples import make_rollout

BLOCKS = [block for page in PAGES for block in blocks_of(page)]
UID = "1f6d0c3f5a0be2b4"  # the problem that the documents look at
PROGRAMS = (
    "r3",
    "make",
    "python",
    "python3.11",
    "pip",
    "pytest",
    "git",
    "sbatch",
    "ruff",
    "curl",
    "cp",
    "rm",
)
SETTING = re.compile(r"[a-z_]+(?:\.[a-z_]+)*=.*", re.DOTALL)
STAND_IN = """#!/bin/bash
printf '%s\\0' "${0#"$VISITOR"/}" "$@" $'\\1' >>"$CALLS"
"""


# ── every block is one of the three ──


def unclear(block: Block) -> str | None:
    """What is wrong with a block's language or mark; None: nothing."""
    if block.language in DATA:
        return None
    if block.language not in (SHELL, PYTHON):
        kinds = ", ".join((SHELL, PYTHON, *DATA))
        return f"{block}: a block is fenced and says what it is ({kinds}); this one is {block.language or 'nothing'}"
    if block.mark.startswith("executed by "):
        test = REPOSITORY / block.mark.removeprefix("executed by ")
        if not test.is_file() or Path(block.page).name not in test.read_text():
            return f"{block}: {test.name} does not execute the blocks of {block.page}"
    if block.mark.startswith("part of "):
        file = REPOSITORY / block.mark.removeprefix("part of ")
        if not file.is_file() or unindented(block.text) not in unindented(file.read_text()):
            return f"{block}: {file.name} does not hold this text"
    return None


def unindented(text: str) -> str:
    """Without blank lines, too: a formatter sets them by how deep the code lies."""
    return "".join(f"{line.strip()}\n" for line in text.splitlines() if line.strip())


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_a_block_says_what_it_is_and_who_executes_it(block):
    assert unclear(block) is None


@pytest.mark.parametrize(
    "text",
    [
        "    r3 --help\n",
        "```\nr3 --help\n```\n",
        "```console\n$ r3 --help\n```\n",
        "<!-- executed by tests/docs/gone.py -->\n```bash\nr3 --help\n```\n",
        "<!-- executed by tests/test_cli.py -->\n```bash\nr3 --help\n```\n",
        "<!-- part of examples/own_reward.py -->\n```python\nis_right(1)\n```\n",
    ],
)
def test_a_block_that_says_less_is_found(tmp_path, text):
    page = tmp_path / "page.md"
    page.write_text(text)
    (block,) = blocks_of(page, root=tmp_path)
    assert unclear(block) is not None


# ── executed ──


def executed(language: str) -> list[Block]:
    return [block for block in BLOCKS if block.language == language and not block.mark]


@pytest.fixture(scope="module")
def visitor(tmp_path_factory) -> Path:
    """A directory as a reader has it: the repository's files, and runs/ with a quickstart and a small study."""
    place = tmp_path_factory.mktemp("visitor")
    for name in (
        "benchmarks",
        "configs",
        "docs",
        "examples",
        "research",
        "tests",
        "tools",
        "Makefile",
        "README.md",
    ):
        (place / name).symlink_to(REPOSITORY / name)
    run = RunDirectory(place / "runs" / "quickstart")
    run.create(load_config("quickstart", [f"run_dir={run.path}"]))
    with HistoryStore.open(run.history) as history:
        for step in (1, 8):
            wrong = make_rollout(UID, ids=(step, 2, 3), policy_step=step - 1, truncated=True)
            right = make_rollout(
                UID,
                ids=(step, 4),
                policy_step=step - 1,
                verdict=Verdict.CORRECT,
                reason="correct",
            )
            history.commit_step(step, 1 + step // 8, [wrong, right])
    for step in (1, 8):
        run.append_metrics(metrics_of(step))
        rows = (
            {
                "step": step,
                "uid": UID,
                "context": Context.PLAIN.value,
                "verdict": verdict,
                "reason": verdict,
                "reward": 1.5 * (verdict == "correct"),
                "ranked": False,
                "advantage": 0.7,
                "recalled_from": None,
                "truncated": False,
                "num_tokens": 3,
                "text": "3 + 4 = 7",
            }
            for verdict in ("correct", "wrong")
        )
        run.write_rollouts(step, rows)
    for arm in ("grpo", "dapo", "r3"):
        for seed in (1, 2, 3):
            lab, accuracies = place / "runs" / "lab", (0.1, 0.2, 0.2 + seed / 10)
            write_run(lab / f"{arm}-{seed}", arm=arm, seed=seed, accuracies=accuracies)
    return place


@pytest.mark.parametrize("block", executed(SHELL), ids=str)
def test_a_shell_block_does_what_it_says(block, visitor):
    command = ["bash", "-euo", "pipefail", "-c", block.text]
    done = subprocess.run(
        command, cwd=visitor, env=environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("page", sorted({block.page for block in executed(PYTHON)}))
def test_the_python_blocks_of_a_page_run_one_after_the_other(page, visitor):
    code = "\n".join(block.text for block in executed(PYTHON) if block.page == page)
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=visitor,
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{page}\n{done.stdout}\n{done.stderr}"


# ── not executed, but checked ──


def calls_of(block: Block, place: Path) -> list[list[str]]:
    """What the programs are called with when the block runs with stand-ins for all of them."""
    programs = place / "programs"
    folders = (REPOSITORY / "examples", REPOSITORY / "research")
    scripts = [
        path.relative_to(REPOSITORY) for folder in folders for path in folder.rglob("*.sh")
    ]
    for name in [
        *(f"programs/{program}" for program in PROGRAMS),
        ".venv/bin/python",
        *scripts,
    ]:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(STAND_IN)
        (place / name).chmod(0o755)
    (place / ".venv" / "bin" / "activate").touch()
    (place / "r3_openrlhf").symlink_to(place)  # `git clone` makes it
    calls = place / "calls"
    calls.touch()
    command = [shutil.which("bash"), "-euo", "pipefail", "-c", block.text]
    names = {"PATH": str(programs), "CALLS": str(calls), "VISITOR": str(place)}
    done = subprocess.run(command, cwd=place, env=names, capture_output=True, text=True)
    assert done.returncode == 0, f"{block}: {done.stderr}"
    words = calls.read_bytes().decode().split("\0")[:-1]
    found, call = [], []
    for word in words:
        if word == "\1":
            found.append([call[0].removeprefix("programs/").removeprefix("./"), *call[1:]])
            call = []
        else:
            call.append(word)
    return found


def wrong_with(call: list[str]) -> Iterator[str]:
    """What does not exist in one call."""
    program, *words = call
    program = program.removeprefix(".venv/bin/")
    if program.startswith("python"):
        yield from wrong_with_python(words)
    elif program == "r3":
        yield from wrong_with_command(main, words)
    elif program == "make":
        yield from wrong_with_make(words)
    elif program.endswith(".sh"):
        settings = [word for word in words if SETTING.fullmatch(word)]
        yield from wrong_settings(settings, experiment="quickstart")
    elif program == "pytest":
        yield from wrong_with_pytest(words)
    elif program == "pip":
        yield from missing(after for word, after in pairwise(words) if word == "-r")
    elif program == "sbatch":
        yield from missing([next(word for word in words if not word.startswith("-"))])


def wrong_with_python(words: list[str]) -> Iterator[str]:
    """A module of ours, or a file and its options."""
    if words[:2] == ["-m", "research"]:
        yield from wrong_with_command(research, words[2:])
    elif words[:2] == ["-m", "pytest"]:
        yield from wrong_with_pytest(words[2:])
    elif words[0].endswith(".py"):
        file = REPOSITORY / words[0]
        source = file.read_text() if file.is_file() else ""
        if not source:
            yield f"there is no file {words[0]}"
        for word in words:
            if word.startswith("--") and word not in source:
                yield f"{words[0]} has no option {word}"


def wrong_with_make(words: list[str]) -> Iterator[str]:
    makefile = (REPOSITORY / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    for word in words:
        if "=" not in word and word not in targets:
            yield f"make has no target {word}"


def missing(files: Iterable[str]) -> Iterator[str]:
    for file in files:
        if not (REPOSITORY / file).is_file():
            yield f"there is no file {file}"


def wrong_with_command(command: click.Command, words: list[str]) -> Iterator[str]:
    """`command`: r3, or the one of research/, which also knows the experiments of that directory by name."""
    find = load if command is research else load_config
    command, words = innermost(command, words)
    if command is None:
        yield f"there is no command {words[0]}"
        return
    try:
        options = command.make_context(command.name, list(words)).params
    except click.exceptions.Exit:  # --help, --version
        return
    except click.ClickException as error:
        yield error.format_message()
        return
    yield from unknown_arms(options.get("arms") or "")
    own_arms = options.get("own_arms") or ()
    settings = [word for word in words if SETTING.fullmatch(word) and word not in own_arms]
    experiment = experiment_of(settings) or options.get("experiment") or "cpu_smoke"
    if experiment != "NAME":
        others = [word for word in settings if not word.startswith("experiment=")]
        yield from wrong_settings(others, experiment=experiment, find=find)
    yield from wrong_own_arms(own_arms, experiment)


def innermost(
    command: click.Command, words: list[str]
) -> tuple[click.Command | None, list[str]]:
    """The command that the first words name, and the words after them; None, and its name first: there is none."""
    context = click.Context(command)
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        name, *following = words
        subcommand = command.get_command(context, name)
        if subcommand is None:
            return None, words
        command, words = subcommand, following
        context = click.Context(subcommand, info_name=name, parent=context)
    return command, words


def wrong_own_arms(texts: Iterable[str], experiment: str) -> Iterator[str]:
    for text in texts:
        try:
            composed = settings_of(experiment, text, 1, Path("runs"), [])
            load(composed[0], composed[1:])
        except R3Error as error:
            yield str(error)


def unknown_arms(arms: str) -> Iterator[str]:
    known = {*presets(), *ABLATIONS, *CONTROLS}
    for arm in arms.split(","):
        if arm and arm not in known:
            yield f"there is no arm {arm}"


def experiment_of(settings: list[str]) -> str | None:
    """The value of the first experiment=NAME."""
    for word in settings:
        if word.startswith("experiment="):
            return word.removeprefix("experiment=")
    return None


def wrong_settings(settings: list[str], *, experiment: str, find=load_config) -> Iterator[str]:
    try:
        find(experiment, [word for word in settings if word != "algo=NAME"])
    except R3Error as error:
        yield str(error)


def wrong_with_pytest(words: list[str]) -> Iterator[str]:
    for word in words:
        path, _, name = word.partition("::")
        if "/" in word and not (REPOSITORY / path).exists():
            yield f"there is no file {path}"
        elif name and f"def {name}(" not in (REPOSITORY / path).read_text():
            yield f"{path} has no test {name}"


NOT_EXECUTED = [
    block
    for block in BLOCKS
    if block.mark.startswith("not executed") and block.language == SHELL
]


@pytest.mark.parametrize("block", NOT_EXECUTED, ids=str)
def test_what_is_not_executed_names_only_what_exists(block, tmp_path):
    calls = calls_of(block, tmp_path)
    assert calls, f"{block} calls nothing"
    assert [sentence for call in calls for sentence in wrong_with(call)] == []


READ = [
    block
    for block in BLOCKS
    if block.mark.startswith("not executed") and block.language == PYTHON
]


@pytest.mark.parametrize("block", READ, ids=str)
def test_python_that_is_not_executed_can_be_read(block):
    compile(block.text, str(block), "exec")


GONE = json.loads(Path(__file__).with_name("commands_that_do_not_exist.json").read_text())


@pytest.mark.parametrize("command", GONE)
def test_a_command_that_does_not_exist_is_found(command, tmp_path):
    block = Block(
        page="page.md", line=1, language=SHELL, text=command, mark="not executed: a test"
    )
    assert [sentence for call in calls_of(block, tmp_path) for sentence in wrong_with(call)]


@pytest.mark.parametrize(
    "command", ["r4 train", "if true; then r3 --help", "examples/scripts/gone.sh"]
)
def test_a_program_that_does_not_exist_is_found(command, tmp_path):
    block = Block(
        page="page.md", line=1, language=SHELL, text=command, mark="not executed: a test"
    )
    with pytest.raises(AssertionError, match="page.md:1"):
        calls_of(block, tmp_path)
