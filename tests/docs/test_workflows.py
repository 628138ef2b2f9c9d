"""The workflows run commands that exist, deploy the documentation of a tag, and audit the pins."""

import re
import subprocess

import pytest
import yaml

from tests.docs.pages import REPOSITORY

WORKFLOWS = sorted((REPOSITORY / ".github" / "workflows").glob("*.yml"))


def steps_of(workflow):
    jobs = yaml.safe_load(workflow.read_text())["jobs"].values()
    return [step for job in jobs for step in job["steps"]]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_runs_what_is_there(workflow):
    """Its actions are commits, its make targets and scripts exist."""
    rules = re.findall(r"(?m)^([.\w-]+):", (REPOSITORY / "Makefile").read_text())
    for step in steps_of(workflow):
        if "uses" in step:
            assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", step["uses"]), step
        words = step.get("run", "").split()
        if words[:1] == ["make"]:
            assert words[1] in rules, step
        if words[:1] and words[0].startswith(("scripts/", ".ci/")):
            assert (REPOSITORY / words[0]).is_file(), step


def test_a_tag_deploys_the_documentation_and_the_pins_are_audited():
    docs = yaml.safe_load((REPOSITORY / ".github" / "workflows" / "docs.yml").read_text())
    assert docs[True]["push"]["tags"] == ["v*"]  # YAML 1.1 reads the key `on` as true
    steps = docs["jobs"]["build"]["steps"]
    uploaded = [step["with"]["path"] for step in steps if "path" in step.get("with", {})]
    (rule,) = re.findall(r"(?m)^docs:.*$", (REPOSITORY / "Makefile").read_text())
    assert rule.split()[-1] == uploaded[-1]
    audit = yaml.safe_load((REPOSITORY / ".github" / "workflows" / "audit.yml").read_text())
    for file in audit["jobs"]["pins"]["strategy"]["matrix"]["file"]:
        assert (REPOSITORY / file).is_file()


def test_every_pin_reaches_the_audit(tmp_path):
    """The audit's own sed keeps one line of each package."""
    (command,) = [
        step["run"]
        for step in steps_of(REPOSITORY / ".github" / "workflows" / "audit.yml")
        if step.get("run", "").startswith("sed")
    ]
    for file in ("requirements-cpu.txt", "requirements-gpu.lock"):
        line = command.replace("${{ matrix.file }}", str(REPOSITORY / file))
        subprocess.run(["bash", "-c", line], cwd=tmp_path, check=True)
        pins = (tmp_path / "pins.txt").read_text().splitlines()
        packages = re.findall(r"(?m)^[A-Za-z0-9]", (REPOSITORY / file).read_text())
        assert len(pins) == len(packages) > 200
        assert all(re.fullmatch(r"[\w.-]+==[\w.]+", pin) for pin in pins)
