"""`r3 compare` as a user calls it: what goes to stdout, to stderr and into files; and what it loads."""

import json

import pytest

from tests.commands import command
from tests.comparison.synthetic import write_run
from tests.imports import FRAMEWORKS, loaded_by

call = command("compare")


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    lab = tmp_path_factory.mktemp("lab")
    for seed in (1, 2):
        write_run(lab / f"grpo_{seed}", seed=seed, accuracies=(0.1, 0.2, 0.3 + seed / 10))
        write_run(
            lab / f"r3_{seed}", arm="r3", seed=seed, accuracies=(0.1, 0.5, 0.6 + seed / 10)
        )
    return lab


def test_the_table_is_all_that_goes_to_stdout(lab):
    result = call(lab)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines()[7].startswith(
        "Held-out accuracy is pass@1 on 50 problems, 4 responses each at "
    )
    assert "| held-out accuracy at 400 generated tokens | 0.450 (" in result.stdout
    assert (
        len({line.count("|") for line in result.stdout.splitlines() if line.startswith("|")})
        == 1
    )


def test_every_number_as_json(lab, tmp_path):
    result = call(lab, "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    content = json.loads(result.stdout)
    assert (content["reference"], content["equal_tokens"], content["target_accuracy"]) == (
        "grpo",
        400,
        0.45,
    )
    r3 = content["arms"][1]
    assert (r3["name"], r3["estimates"]["final_accuracy"]["mean"]) == (
        "r3",
        pytest.approx(0.75),
    )
    assert content["settings"]["replay.enabled"] == {"grpo": False, "r3": True}
    assert call(lab, tmp_path).stderr == f"Left out: there is no run in {tmp_path}\n"


def test_reference_target_and_help_with_examples(lab):
    assert "|  | r3 (reference) | grpo |" in call(lab, "--reference", "r3").stdout
    assert "The target accuracy is 0.500, as asked." in call(lab, "--target", "0.5").stdout
    assert "r3 compare runs/lab/* > comparison.md" in call("--help").stdout


def test_unfinished_runs(lab, tmp_path):
    run = write_run(tmp_path / "grpo_3", seed=3, finished=False)
    assert f"{run} has not finished" in call(lab, run).stderr
    assert (
        f"* Unfinished, taken as far as they are: {run}."
        in call(lab, run, "--unfinished").stdout
    )


def test_a_mistake_is_one_sentence_on_stderr(lab, tmp_path):
    other = write_run(tmp_path / "grpo_3", "model.path=smollm2", seed=3)
    mistakes = {
        (lab / "nowhere",): "nowhere does not exist",
        (lab, other): "model.path is tiny in the first and smollm2 in the second",
        (lab, "--reference", "rpgo"): "did you mean grpo?",
        (
            lab,
            "--out",
            tmp_path / "file",
        ): "--out no longer exists; use `> comparison.md` for the table",
    }
    for arguments, sentence in mistakes.items():
        result = call(*arguments)
        assert result.exit_code == 1 and result.stdout == ""
        assert result.stderr.startswith("Error: ") and result.stderr.count("\n") == 1
        assert sentence in result.stderr


HEAVY = FRAMEWORKS - {"hydra", "omegaconf"} | {"torch", "matplotlib"}


def test_no_framework_is_loaded():
    assert loaded_by("import r3_openrlhf.comparison.cli", HEAVY) == set()
