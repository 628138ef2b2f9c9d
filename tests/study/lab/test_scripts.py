"""The scripts of examples/lab name arms, presets and keys that exist."""

import itertools
import os
import re
import subprocess
from pathlib import Path

import pytest

from r3_openrlhf.config.loading import load_config, presets
from r3_openrlhf.study.lab.cli import study
from r3_openrlhf.study.lab.loop import check
from r3_openrlhf.study.lab.study import Arm, settings_of

SCRIPTS = Path(__file__).parents[3] / "examples" / "lab"


def arms_of_the_sweep():
    text = (SCRIPTS / "sweep.sh").read_text()
    return [line.split()[1:] for line in text.splitlines() if re.match(r"arm \w", line)]


@pytest.mark.parametrize("arm", arms_of_the_sweep(), ids=lambda arm: arm[0])
def test_every_arm_of_the_sweep_is_a_setting_that_exists(arm):
    name, *settings = arm
    assert load_config("lab", ["algo=r3", *settings, f"arm={name}"]).arm == name


def test_every_arm_of_the_sweep_differs_from_the_others():
    plain = [{**load_config("lab", ["algo=r3", *arm[1:]]).__dict__, "arm": None} for arm in arms_of_the_sweep()]
    assert len(plain) > 15
    assert all(one != other for i, one in enumerate(plain) for other in plain[:i])


def test_the_arms_on_the_stack_are_presets():
    (arms,) = re.findall(r"for algo in ([\w ]+);", (SCRIPTS / "on_the_stack.sh").read_text())
    assert set(arms.split()) <= set(presets())


def test_the_arms_of_the_tuning_exist_and_differ(tmp_path):
    """As the shell expands them."""
    text = (SCRIPTS / "tune.sh").read_text()
    lists = {name: re.search(rf"for {name} in ([^;]+);", text)[1].split() for name in ("preset", "rate", "passes")}
    (pattern,) = re.findall(r'--arm "([^"]+)"', text)
    arms = []
    for preset, rate, passes in itertools.product(*lists.values()):
        arm = pattern
        for variable, value in (("preset", preset), ("rate", rate), ("passes", passes)):
            arm = arm.replace(f"${{{variable}}}", value).replace(f"${variable}", value)
        arms.append(Arm.parse(arm))
    assert len({arm.name for arm in arms}) == len(arms) == 24
    (reference,) = re.findall(r"--reference (\S+)", text)
    assert reference in {arm.name for arm in arms}
    for arm in arms:
        settings = settings_of("lab_wide", arm, 101, tmp_path, [])
        config = load_config(settings[0], settings[1:])
        check(config)
        assert config.dual_clip == 3.0 and config.train.inner_epochs in (1, 2)


@pytest.mark.parametrize(("script", "studies"), [("hard_tail.sh", 2), ("regimes.sh", 3), ("wide.sh", 2)])
def test_the_studies_of_a_script_can_be_read(tmp_path, script, studies):
    """Bash runs it, with a function in the place of `r3` that writes its arguments down."""
    calls = tmp_path / "calls"
    says = (
        f"r3() {{ printf '%s\\0' \"$@\" >> {calls}; printf '\\n' >> {calls}; }}; export -f r3; bash {SCRIPTS / script}"
    )
    environment = {"PATH": os.environ["PATH"], "TUNE": "1", "SEEDS": "7,8", "EVIDENCE": "kept"}
    subprocess.run(["bash", "-c", says], check=True, env=environment)
    *read, last = [line.split("\0")[:-1] for line in calls.read_text().splitlines()]
    assert last == ["evidence", "kept"] and len(read) == studies
    names = set()
    for words in read:
        assert words[:2] == ["lab", "study"]
        context = study.make_context("study", list(words[2:]))
        given, experiment = context.params, context.params["experiment"]
        assert given["seeds"] in ("7,8", "101") and str(given["evidence"]).endswith(experiment)
        for text in given["own_arms"]:
            arm = Arm.parse(text)
            settings = settings_of(experiment, arm, 7, tmp_path, given["settings"])
            check(load_config(settings[0], settings[1:]))
            names.add((str(given["evidence"]), arm.name))
    assert len(names) == {"hard_tail.sh": 12 + 9, "regimes.sh": 2 * 5 + 2, "wide.sh": 6 + 3}[script]
