"""What is shown while a run works: each line of a file once, whatever happens to the file."""

import contextlib
import io
import json
import os
import queue
import re
import signal
import subprocess
import sys

import pytest

from r3_openrlhf.config.loading import load_config
from r3_openrlhf.runs.directory import RunDirectory
from r3_openrlhf.runs.display import HEARTBEAT_S, Display
from r3_openrlhf.stack.console import evaluation_line, new_lines, step_line
from r3_openrlhf.stack.environment import VARIABLE
from r3_openrlhf.stack.phases import Phase, announce_builds


@pytest.fixture
def run(tmp_path):
    return RunDirectory(tmp_path)


def test_a_step_counts_taught_rows_where_there_is_a_teacher():
    assert "taught" not in step_line({"step": 3, "r3/ranking/groups": 1.0})
    line = step_line({"step": 3, "r3/ranking/groups": 1.0, "r3/distill/taught": 11.0})
    assert "ranked groups 1, taught rows 11, log-prob gap -" in line


def test_lines_are_shown_once_and_only_whole_ones(run):
    lines = new_lines(run.metrics)
    assert next(lines) == []  # no file yet
    run.append_metrics({"step": 1})
    run.append_metrics({"step": 2})
    assert [line["step"] for line in next(lines)] == [1, 2]
    with run.metrics.open("a") as file:
        file.write('{"step"')
    assert next(lines) == []
    with run.metrics.open("a") as file:
        file.write(": 3}\n")
    assert [line["step"] for line in next(lines)] == [3]


def test_a_run_that_goes_back_shows_the_repeated_steps(run):
    lines = new_lines(run.metrics)
    next(lines)
    for step in (1, 2, 3):
        run.append_metrics({"step": step})
    next(lines)
    run.roll_back(1)
    assert next(lines) == []
    run.append_metrics({"step": 2})
    assert [line["step"] for line in next(lines)] == [2]


def test_an_evaluation_in_words():
    line = {
        "step": 8,
        "pass_at_1": 0.25,
        "pass_at_n": 0.5,
        "n_samples": 4,
        "response_tokens_mean": 12.0,
    }
    assert evaluation_line(line) == (
        "held-out problems after step 8: 25.0% of the responses right, 50.0% of the problems at least once in 4, "
        "12.0 tokens"
    )
    assert "could be graded" in evaluation_line(line | {"pass_at_1": None})


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Stamped(io.StringIO):
    """A stream that knows when what was written."""

    def __init__(self, clock, *, is_terminal=False):
        super().__init__()
        self.clock, self.written, self.is_terminal = clock, [], is_terminal

    def isatty(self):
        return self.is_terminal

    def write(self, text):
        self.written.append((self.clock(), text))
        return len(text)


RUN = [  # seconds, phase, step
    (0.0, Phase.CHECKING, None),
    (3.0, Phase.RAY, None),
    (7.5, Phase.ENGINE, None),
    (97.5, Phase.LOADING, None),
    (100.0, Phase.OPERATORS, None),
    (145.0, Phase.LOADING, None),
    (150.0, Phase.SAMPLING, 1),
    (151.0, Phase.REWARDS, 1),
    (152.0, Phase.UPDATE, 1),
    (192.0, Phase.SYNC, 1),
    (193.0, Phase.STOPPING, None),
]


def play(*, is_terminal):
    """What is written during RUN by a display that looks five times a second."""
    clock = Clock()
    stream = Stamped(clock, is_terminal=is_terminal)
    display = Display(stream, clock=clock)
    display.expect(2)
    events = list(RUN)
    with display._bar or contextlib.nullcontext():
        for tick in range(195 * 5 + 1):
            clock.now = tick / 5
            while events and events[0][0] <= clock.now:
                display.phase(*events.pop(0)[1:])
            display.tick()
        display.end_phase()
    return stream.written


def test_no_wait_is_silent_for_ten_seconds_in_a_pipe():
    written = play(is_terminal=False)
    times = [seconds for seconds, _ in written]
    assert max(later - earlier for earlier, later in zip(times, times[1:], strict=False)) < 10
    waits = [(seconds, text) for seconds, text in written if " s\n" in text]
    assert all(
        later - earlier >= HEARTBEAT_S
        for (earlier, _), (later, _) in zip(waits, waits[1:], strict=False)
    )
    text = "".join(text for _, text in written)
    assert "\x1b" not in text and "\r" not in text
    assert text.startswith(
        "0:00:00 checking the settings\n0:00:03 starting Ray\n0:00:07 starting the rollout engine\n"
    )
    assert (
        "0:00:15 starting the rollout engine, 8 s\n0:00:23 starting the rollout engine, 16 s\n"
        in text
    )
    # 45 s: at once, and after 8, 16, 24, 32, 40
    assert text.count("building DeepSpeed's operators") == 1 + 5
    assert (
        "0:02:25 loading the models\n0:02:33 step 1 of 2: policy update, 1 s\n0:02:41 " in text
    )
    assert "sampling" not in text  # a short phase of a step is no line of its own


def test_a_terminal_says_every_phase_and_how_long_those_before_the_steps_took(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    text = "".join(text for _, text in play(is_terminal=True))
    for _, phase, step in RUN:
        assert (phase if step is None else f"step 1 of 2: {phase}") in text
    assert re.search(r"starting the rollout engine +90\.0 s *\n", text.replace("\r", ""))


def test_the_live_line_moves_on_after_the_last_step(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    stream = Stamped(Clock(), is_terminal=True)
    display = Display(stream)
    display.expect(1)
    with display:
        display.phase(Phase.SAMPLING, 1)
        display.progress(1)
        assert not display._bar.finished
        stream.written.clear()
        display.phase(Phase.SAVING)
    text = "".join(text for _, text in stream.written)
    assert any(frame in text for frame in "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏") and "1/1" in text


CHATTY = """
import os, subprocess, sys
from r3_openrlhf.config.loading import load_config
from r3_openrlhf.stack.console import Console
from r3_openrlhf.stack.phases import Phase
from r3_openrlhf.runs.directory import RunDirectory

config = load_config("cpu_smoke", ["run_dir=run"])
run = RunDirectory(config.run_dir)
flags = {name: name in sys.argv for name in ("verbose", "quiet")}
with Console(**flags) as console:
    console.announce(Phase.CHECKING)
    print("library one")
    run.create(config)
    console.attach(run, first_phase=Phase.DATA)
    subprocess.run("echo library two; echo library three >&2", shell=True)
print("ours", file=sys.stderr)
"""


def chatty(tmp_path, *flags):
    return subprocess.run(
        [sys.executable, "-c", CHATTY, *flags], cwd=tmp_path, capture_output=True, text=True
    )


def test_what_others_print_goes_to_the_log_from_the_first_phase_on(tmp_path):
    done = chatty(tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    said = [line.split(" ", 1)[-1] for line in done.stderr.splitlines()]
    assert [line for line in said if not re.fullmatch(r".*, \d+ s", line)] == [
        "checking the settings",
        "preparing the data",
        "ours",
    ]
    assert (
        tmp_path / "run" / "train.log"
    ).read_text() == "library one\nlibrary two\nlibrary three\n"
    events = [
        json.loads(line)
        for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()
    ]
    assert [(event["phase"], event["step"]) for event in events] == [
        (Phase.CHECKING, None),
        (Phase.DATA, None),
    ]
    assert events[0]["time"] <= events[1]["time"]


def test_verbose_shows_the_log_too(tmp_path):
    done = chatty(tmp_path, "verbose")
    assert "library one" in done.stderr and "library three" in done.stderr
    assert "library three" in (tmp_path / "run" / "train.log").read_text()


def test_a_defect_before_there_is_a_log_shows_what_was_said():
    code = "from r3_openrlhf.stack.console import Console\nwith Console():\n    print('why'); 1 / 0"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (
        done.returncode == 1 and "why\n" in done.stderr and "ZeroDivisionError" in done.stderr
    )


def test_a_build_is_announced_where_it_happens(tmp_path, monkeypatch, in_a_job):
    """DeepSpeed's own `jit_load`, of an operator that it refuses to compile: nothing has to be compiled to see that the
    hook sits around it. One whose file is in torch's cache is not announced."""
    pytest.importorskip("deepspeed", reason="DeepSpeed is not installed")
    from deepspeed.ops.op_builder import builder

    class Refused(builder.OpBuilder):
        NAME = "r3_refused"

        def __init__(self):
            super().__init__(name=self.NAME)

        def is_compatible(self, verbose=False):
            return False

        absolute_name = sources = None

    run = RunDirectory(tmp_path / "run")
    run.path.mkdir()
    config = load_config("cpu_smoke", [f"run_dir={run.path}"])
    in_a_job(config, "cpu")
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "extensions"))
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setattr(builder.OpBuilder, "jit_load", builder.OpBuilder.jit_load)
    announce_builds(builder)
    announce_builds(builder)  # twice is once
    events = new_lines(run.events)
    assert next(events) == []
    with pytest.raises(RuntimeError, match="Unable to JIT load the r3_refused op"):
        Refused().jit_load(verbose=False)
    assert [event["phase"] for event in next(events)] == [Phase.OPERATORS, Phase.LOADING]
    (tmp_path / "extensions" / "r3_refused" / "r3_refused.so").write_text("")
    with pytest.raises(RuntimeError):
        Refused().jit_load(verbose=False)
    assert next(events) == []


def test_deepspeed_is_told_of_architectures_in_numbers(tmp_path, monkeypatch):
    """Without the hook it fails at 9.0a, as it did on the first H100."""
    pytest.importorskip("deepspeed", reason="DeepSpeed is not installed")
    from deepspeed.ops.op_builder import builder
    from deepspeed.ops.op_builder.fused_adam import FusedAdamBuilder

    adam = FusedAdamBuilder()
    adam.jit_mode = True
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "8.0 9.0a;10.0f")
    with pytest.raises(ValueError, match="'0a'"):
        adam.compute_capability_args()
    monkeypatch.setattr(
        builder.OpBuilder, "jit_load", lambda self, verbose: self.compute_capability_args()
    )
    announce_builds(builder)
    adam.jit_load()
    assert os.environ["TORCH_CUDA_ARCH_LIST"] == "8.0;9.0;10.0+PTX"


KILLED = """
import os, signal, sys
from r3_openrlhf.runs.directory import RunDirectory
from r3_openrlhf.stack.console import Console
from r3_openrlhf.stack.phases import Phase
run = RunDirectory(sys.argv[1])
with Console(quiet=True) as console:
    os.write(1, b"said before there was a run\\n")
    if sys.argv[2] == "attached":
        console.attach(run, first_phase=Phase.DATA)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("when", ["early", "attached"])
def test_a_killed_run_leaves_no_temporary_file(run, tmp_path, when):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    surroundings = {**os.environ, "TMPDIR": str(temporary)}
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(run.path), when],
        env=surroundings,
        capture_output=True,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert list(temporary.iterdir()) == []
    assert when == "early" or run.log.read_text() == "said before there was a run\n"


def test_a_long_call_is_not_silent(monkeypatch):
    """A call that says nothing for longer than a heartbeat: the thread of the display speaks."""
    monkeypatch.setattr("r3_openrlhf.runs.display.HEARTBEAT_S", 0.01)
    lines = queue.SimpleQueue()
    stream = io.StringIO()
    stream.write = lines.put
    with Display(stream) as display:
        display.phase("a long call")
        assert lines.get(timeout=300) == "0:00:00 a long call\n"
        assert re.fullmatch(r"\d:\d\d:\d\d a long call, \d+ s\n", lines.get(timeout=300))


STEPS = """
from r3_openrlhf.config.loading import load_config
from r3_openrlhf.runs.directory import RunDirectory
from r3_openrlhf.stack.console import Console
from r3_openrlhf.stack.phases import Phase

run = RunDirectory("run")
with Console() as console:
    run.create(load_config("cpu_smoke", ["run_dir=run"]))
    console.attach(run, first_phase=Phase.DATA)
    console.expect(9, max_tokens=None)
    for step in (1, 2):
        run.append_metrics({"step": step, "timing/step_total": 10.0, "reward_mean": 0.5})
"""


def test_a_step_shows_its_time_to_go(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", STEPS], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    lines = [line.split(" ", 1)[1] for line in done.stderr.splitlines()]
    first, *_ = (index for index, line in enumerate(lines) if line.startswith("step 1: "))
    assert lines[first].endswith(", 10.0 s, 80 s to go")
