"""What a user sees of a real run in a pipe. One run for all tests here."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")
torch = pytest.importorskip("torch")
if torch.cuda.is_available():
    pytest.skip("these runs are for the CPU platform", allow_module_level=True)

from r3_openrlhf.openrlhf_adapter.phases import Phase  # noqa: E402

pytestmark = [pytest.mark.stack, pytest.mark.slow]
R3 = Path(sys.executable).with_name("r3")
ALWAYS = [
    Phase.CHECKING, Phase.DATA, Phase.RAY, Phase.LIBRARIES, Phase.ENGINE, Phase.LOADING, Phase.SAVING, Phase.STOPPING,
]  # fmt: skip
IN_A_STEP = [Phase.SAMPLING, Phase.REWARDS, Phase.UPDATE, Phase.SYNC]


def command(run_dir, *settings):
    return [str(R3), "train", "experiment=cpu_smoke", "train.max_steps=2", f"run_dir={run_dir}", *settings]


def tail(run_dir):
    log = Path(run_dir) / "train.log"
    return log.read_text(errors="replace")[-4000:] if log.is_file() else "no train.log"


@pytest.fixture(scope="module")
def piped(tmp_path_factory):
    place = tmp_path_factory.mktemp("piped")
    done = subprocess.run(command("run", "--json"), cwd=place, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr + tail(place / "run")
    return place / "run", done


def test_the_events_are_those_of_the_processes(piped):
    events = [json.loads(line) for line in (piped[0] / "events.jsonl").read_text().splitlines()]
    assert [event["time"] for event in events] == sorted(event["time"] for event in events)
    phases = [event["phase"] for event in events if event["step"] is None and event["phase"] in ALWAYS]
    assert list(dict.fromkeys(phases)) == ALWAYS
    for step in (1, 2):
        mine = [event["phase"] for event in events if event["step"] == step and event["phase"] in IN_A_STEP]
        assert mine == IN_A_STEP


def test_a_pipe_gets_plain_lines(piped):
    assert "\x1b" not in piped[1].stderr and "\r" not in piped[1].stderr
    lines = piped[1].stderr.splitlines()
    assert all(re.match(r"\d:\d\d:\d\d ", line) for line in lines), piped[1].stderr
    texts = [line.split(" ", 1)[1] for line in lines]
    assert list(dict.fromkeys(text for text in texts if text in ALWAYS)) == ALWAYS
    others = [text for text in texts if text not in [*Phase] and not re.fullmatch(r".*, \d+ s", text)]
    assert [text.split(":")[0] for text in others] == ["step 1", "step 2"]


def test_json_is_one_object_and_the_same_later(piped):
    run_dir, done = piped
    result = json.loads(done.stdout)
    assert result["run_dir"] == str(run_dir) and result["steps"] == 2 and result["finished"] is True
    assert result["generated_tokens_total"] > 0 and result["files"]["final_model"] == str(run_dir / "final_model")
    for again in (command("run", "--json"), [str(R3), "show", "run", "--json"]):
        later = subprocess.run(again, cwd=run_dir.parent, capture_output=True, text=True)
        assert json.loads(later.stdout) == result
    groups = subprocess.run(
        [R3, "show", "run", "--step", "2", "--json"], cwd=run_dir.parent, capture_output=True, text=True
    )
    assert json.loads(groups.stdout)["step"] == 2 and len(json.loads(groups.stdout)["groups"]) == 8


def test_quiet_says_nothing(piped):
    run_dir, _ = piped
    done = subprocess.run(command("run", "--quiet"), cwd=run_dir.parent, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
