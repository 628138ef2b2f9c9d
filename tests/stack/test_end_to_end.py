"""The real stack on a tiny model: Ray, vLLM, DeepSpeed, OpenRLHF's own main program, sampling as it comes. Its numbers,
its files, and what a user sees of it: R³ in a pipe, the stock baseline at a terminal.

Nothing here depends on what is sampled; tests/stack/test_resume.py and test_algorithms.py play back
recorded runs and look at what the method did with them.
"""

import contextlib
import fcntl
import json
import math
import os
import pty
import re
import shlex
import signal
import struct
import subprocess
import tempfile
import termios
from collections import Counter
from pathlib import Path

import pytest

import tests.stack.cpu_only  # noqa: F401
from r3_openrlhf import Run
from r3_openrlhf.runs.stop_request import GO_ON
from r3_openrlhf.stack.phases import Phase
from tests.stack.training import R3, lines, r3, rollouts_of

pytestmark = [pytest.mark.stack, pytest.mark.slow]
KEYS = [
    "step",
    "r3/groups/all_correct",
    "r3/groups/none_correct",
    "r3/groups/mixed",
    "r3/groups/collapsed_after",
    "r3/replay/recalled",
    "r3/replay/mean_lag",
    "r3/reflection/hard_prompts",
    "r3/reflection/groups",
    "r3/ranking/groups",
    "r3/sync/abs_logprob_gap",
    "r3/sync/p99_logprob_gap",
    "r3/sync/outside_clip_share",
    "r3/time/added_s",
    "fresh/reward",
    "fresh/response_length",
    "fresh/truncated",
    "loss",
    "grad_norm",
]


ALWAYS = [
    Phase.CHECKING,
    Phase.DATA,
    Phase.LIBRARIES,
    Phase.RAY,
    Phase.ENGINE,
    Phase.LOADING,
    Phase.SAVING,
    Phase.STOPPING,
]
IN_A_STEP = [Phase.SAMPLING, Phase.REWARDS, Phase.UPDATE, Phase.SYNC]


def command(*settings, experiment="cpu_smoke"):
    return [str(R3), "train", f"experiment={experiment}", "run_dir=run", *settings]


def tail(run_dir):
    log = run_dir / "train.log"
    return log.read_text(errors="replace")[-4000:] if log.is_file() else "no train.log"


SMOKE = command(
    *(
        "train.max_steps=5",
        "checkpoint.save_steps=2",
        "checkpoint.max_num=1",
    ),  # step 5: the second epoch
    # what full-size runs have: log-probs in chunks, gradients summed in float32
    *("train.logits_chunk_tokens=50", "openrlhf.ds.grad_accum_dtype=fp32"),
)


@pytest.fixture(scope="module")
def temporary():
    """A directory for temporary files whose name leaves room for a socket's."""
    with tempfile.TemporaryDirectory(prefix="r3t", dir="/tmp") as directory:
        yield Path(directory)


@pytest.fixture(scope="module")
def smoke(tmp_path_factory, temporary):
    """R³ in a pipe: (run directory, what the command printed)."""
    place = tmp_path_factory.mktemp("piped")
    surroundings = {**os.environ, "TMPDIR": str(temporary)}
    done = subprocess.run(
        [*SMOKE, "--json"], cwd=place, capture_output=True, text=True, env=surroundings
    )
    assert done.returncode == 0, done.stderr + tail(place / "run")
    return place / "run", done


@pytest.fixture(scope="module")
def at_terminal(tmp_path_factory):
    """The stock baseline with held-out problems: (run directory, all that a terminal of 200 columns got)."""
    place = tmp_path_factory.mktemp("terminal")
    held_out = (
        "held_out.path=reasoning_gym:basic_arithmetic",
        "+held_out.reasoning_gym={size: 8, seed: 1000, min_terms: 2, max_terms: 2}",
        "held_out.n_samples=1",
        "held_out.every_steps=1",
    )
    # what pytest's workers set would win over the terminal's own size
    environment = {
        name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")
    }
    environment["TERM"] = "xterm-256color"
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 200, 0, 0))
    run = subprocess.Popen(
        command("train.max_steps=3", *held_out, experiment="grpo_cpu_smoke"),
        cwd=place,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment,
    )
    os.close(theirs)
    shown = b""
    # how Linux says that nobody holds the other end any more
    with contextlib.suppress(OSError):
        while part := os.read(ours, 65536):
            shown += part
    os.close(ours)
    assert run.wait() == 0, shown.decode()[-4000:] + tail(place / "run")
    return place / "run", shown.decode()


def test_every_number_is_there_and_finite(smoke):
    for step in lines(smoke[0] / "metrics.jsonl"):
        assert not set(KEYS) - set(step)
        assert all(math.isfinite(value) for value in step.values())


def test_the_checkpoint_loads_in_transformers(smoke):
    """Of the checkpoints and of their copies in Hugging Face format the newest is kept, as checkpoint.max_num says."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    kept = {path.name for path in smoke[0].glob("checkpoints/**/global_step*")}
    assert kept == {"global_step4", "global_step4_hf"}
    for path in (smoke[0] / "final_model", smoke[0] / "checkpoints" / "global_step4_hf"):
        model, tokenizer = (
            AutoModelForCausalLM.from_pretrained(path),
            AutoTokenizer.from_pretrained(path),
        )
        ids = tokenizer("1+1=", return_tensors="pt", add_special_tokens=False)["input_ids"]
        assert model(ids).logits.isfinite().all()


def test_the_run_directory_is_complete(smoke):
    for name in (
        "config.yaml",
        "code_state.txt",
        "train.log",
        "history.sqlite",
        "checkpoints/_actor/latest",
    ):
        assert (smoke[0] / name).is_file(), name
    assert list((smoke[0] / "tensorboard").rglob("events.out*"))
    found = json.loads((smoke[0] / "first_page.json").read_text())["found"]
    assert [note for note in found if note.startswith(("engine", "Ray"))] == [
        "engine: no prefix cache on CPUs, so each response computes its prompt again"
    ]


def test_nothing_lies_in_the_directory_for_temporary_files(smoke, temporary):
    """vLLM leaves its sockets behind, and Ray its logs; both lie in the run's private directory."""
    assert [path.name for path in temporary.rglob("*") if path.is_socket()] == []
    assert not list(temporary.glob("r3-*"))


def test_the_stock_baseline_runs_with_the_same_records(at_terminal):
    run_dir, _ = at_terminal
    metrics = lines(run_dir / "metrics.jsonl")
    assert [step["step"] for step in metrics] == [1, 2, 3]
    assert not set(KEYS) - set(metrics[0])
    assert sum(step["r3/replay/recalled"] + step["r3/ranking/groups"] for step in metrics) == 0
    sampled = sum(step["generated_tokens"] for step in metrics)
    assert (
        sampled
        == metrics[-1]["generated_tokens_total"]
        == sum(step["response_tokens"] for step in metrics)
        > 0
    )
    groups = Counter((row["step"], row["group"]) for row in rollouts_of(run_dir))
    assert list(groups.values()) == [8] * 24


def shown_lines(shown):
    """What stood on the terminal at any time: every piece between two movements of the cursor, without colours."""
    pieces = re.split(r"\r|\n|\x1b\[\d*[A-K]", shown)
    plain = (re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", piece).strip() for piece in pieces)
    return [line for line in plain if line]


STEP_LINE = r"step \d: reward .* s(, .* to go)?"
OURS = re.compile(
    "|".join(
        (
            rf"({'|'.join(map(re.escape, Phase))}) +\d+\.\d s",  # a phase that is over
            r"[⠀-⣿] (starting|.*) [━╸╺ ]+ \d/(\d|\?) \d:\d\d:\d\d",  # the live line
            STEP_LINE,
            r"held-out problems after step \d: .*",
            r"run: 3 steps, finished",
            r"[┌│├└].*[┐│┤┘]",
            r"In /.*/run",
            r"Next:|r3 (view|show|eval|train|compare) .*",
            # the first page
            r"held out: [\d,]+ problems of .*|Problems +\d+ rows read, .*|Rows +characters .*|Algorithm +grpo: estimator .*|without R³; algo=r3 adds it|(on|off): .*|rows with advantage 0: .*|problem: question, answer: answer|Steps +\d|Example \d|(prompt|reference|grader) +\S.*",
            r"Calculate .*|<\|im_start\|>assistant|(The answer is |\\boxed\{)\d.*: (correct|wrong)",
        )
    )
)


def test_nobody_but_us_writes_on_the_terminal(at_terminal):
    run_dir, shown = at_terminal
    found = json.loads((run_dir / "first_page.json").read_text())["found"]
    foreign = [line for line in shown_lines(shown) if not OURS.fullmatch(line)]
    # what was found on this machine, a line of the page each, or a part of one
    of_page = {
        line
        for line in foreign
        if any(line.removeprefix("Found").strip() in note for note in found)
    }
    assert sorted(set(foreign) - of_page) == []


def test_the_terminal_shows_every_phase(at_terminal):
    lines = shown_lines(at_terminal[1])
    for phase in ALWAYS:
        assert any(re.fullmatch(rf"{re.escape(phase)} +\d+\.\d s", line) for line in lines), (
            phase
        )
    for phase in [*IN_A_STEP, Phase.EVALUATION]:
        assert any(f"step 2 of 3: {phase}" in line for line in lines), phase
    assert len({line for line in lines if re.fullmatch(STEP_LINE, line)}) == 3
    assert len([line for line in lines if line.startswith("held-out problems after step")]) == 4


def test_the_run_ends_with_a_table_of_80_columns_and_commands(at_terminal):
    lines = shown_lines(at_terminal[1])
    table = [line for line in lines if line[0] in "┌│├└"]
    assert len(table) > 15 and max(map(len, table)) <= 80
    assert [line.split()[1] for line in lines[-4:]] == ["view", "show", "train", "compare"]
    # each is a command: what can be checked without sampling is checked
    shown = r3(*shlex.split(lines[-3])[1:], cwd=at_terminal[0].parent)
    assert shown.returncode == 0 and shown.stdout.startswith("uid\t")
    plan = r3(*shlex.split(lines[-2])[1:], "--dry-run", cwd=at_terminal[0].parent)
    assert plan.returncode == 0, plan.stderr


def test_the_responses_to_held_out_problems_can_be_read(at_terminal):
    run = Run(at_terminal[0])
    responses = run.rollouts(step=3, held_out=True)
    (line,) = run.evaluations.loc[[3]].to_dict("records")
    assert len(responses) == line["num_problems"] * line["n_samples"]
    assert (responses.verdict == "correct").mean() == pytest.approx(line["pass_at_1"])
    assert responses.problem.notna().all() and not set(responses.uid) & set(run.problems.index)


def test_the_events_are_those_of_the_processes(at_terminal, smoke):
    for run_dir in (at_terminal[0], smoke[0]):
        events = [
            json.loads(line) for line in (run_dir / "events.jsonl").read_text().splitlines()
        ]
        assert [event["time"] for event in events] == sorted(event["time"] for event in events)
        phases = [
            event["phase"]
            for event in events
            if event["step"] is None and event["phase"] in ALWAYS
        ]
        assert list(dict.fromkeys(phases)) == ALWAYS
        for step in (1, 2, 3):
            mine = [
                event["phase"]
                for event in events
                if event["step"] == step and event["phase"] in IN_A_STEP
            ]
            assert mine == IN_A_STEP


def test_a_pipe_gets_plain_lines(smoke):
    assert "\x1b" not in smoke[1].stderr and "\r" not in smoke[1].stderr
    lines = smoke[1].stderr.splitlines()
    assert all(re.match(r"\d:\d\d:\d\d ", line) for line in lines), smoke[1].stderr
    texts = [line.split(" ", 1)[1] for line in lines]
    assert list(dict.fromkeys(text for text in texts if text in ALWAYS)) == ALWAYS
    others = [
        text for text in texts if text not in [*Phase] and not re.fullmatch(r".*, \d+ s", text)
    ]
    assert others[0].startswith("Problems ")  # the first page
    steps = others[[text.startswith("step ") for text in others].index(True) :]
    assert [text.split(":")[0] for text in steps] == [f"step {step}" for step in range(1, 6)]


def test_json_is_one_object_and_the_same_later(smoke):
    run_dir, done = smoke
    result = json.loads(done.stdout)
    assert (
        result["run_dir"] == str(run_dir)
        and result["steps"] == 5
        and result["finished"] is True
    )
    assert result["generated_tokens_total"] > 0
    for again in ([*SMOKE[1:], "--json"], ["show", "run", "--json"]):
        later = r3(*again, cwd=run_dir.parent)
        assert json.loads(later.stdout) == result
    groups = r3("show", "run", "--step", "2", "--json", cwd=run_dir.parent)
    assert (
        json.loads(groups.stdout)["step"] == 2 and len(json.loads(groups.stdout)["groups"]) == 8
    )


def test_quiet_says_nothing(smoke):
    run_dir, _ = smoke
    done = r3(*SMOKE[1:], "--quiet", cwd=run_dir.parent)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_control_c_stops_with_a_sentence(tmp_path):
    """While Ray starts the actors. Its processes end with the run: they hold the pipe, so reading it to its end waits for them."""
    run = subprocess.Popen(
        command(),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(
            signal.SIGINT, signal.SIG_DFL
        ),  # a shell's background job ignores it
    )
    for line in run.stderr:
        if line.endswith(f" {Phase.ENGINE}\n"):
            break
    os.killpg(run.pid, signal.SIGINT)
    rest = run.stderr.read()
    assert run.wait() == GO_ON, rest + tail(tmp_path / "run")
    assert rest.endswith(
        "(signal SIGINT) before a step began; nothing was lost; the same command continues from there\n"
    )
    assert "Traceback" not in rest and run.stdout.read() == ""
    run.stdout.close()
    run.stderr.close()
