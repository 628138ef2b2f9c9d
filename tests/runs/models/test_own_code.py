"""A model's own Python code runs only where a person said so."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from r3_openrlhf.config import BenchmarkConfig, ModelConfig
from r3_openrlhf.config.loading import load_config
from r3_openrlhf.evaluation.plan import Request, plan_evaluation
from r3_openrlhf.evaluation.prepare import prepare_evaluation
from r3_openrlhf.machine import every_process
from r3_openrlhf.method.errors import ConfigError
from r3_openrlhf.operations.doctor.checks import paths
from r3_openrlhf.runs.models.checks import check_own_code
from r3_openrlhf.runs.models.locate import resolve_model
from r3_openrlhf.stack.launch import plan

REFUSED = r"brings code of its own \(auto_map in .*json\).*set model.trust_remote_code=true"


@pytest.fixture
def model_with_code(tmp_path):
    """Its code leaves a file behind when it is executed."""
    directory = tmp_path / "foreign"
    directory.mkdir()
    mark = tmp_path / "executed"
    (directory / "theirs.py").write_text(
        f"import pathlib\npathlib.Path({str(mark)!r}).touch()\n"
        "from transformers import PreTrainedConfig\nclass Theirs(PreTrainedConfig):\n    model_type = 'theirs'\n"
    )
    config = {"model_type": "theirs", "auto_map": {"AutoConfig": "theirs.Theirs"}}
    (directory / "config.json").write_text(json.dumps(config))
    return directory, mark


def settings(directory, *more):
    paths = [f"model.path={directory}", f"run_dir={directory}/run"]
    return load_config("quickstart", [*paths, "data.reasoning_gym.size=64", *more])


def test_plan_doctor_and_evaluation_refuse_it_and_execute_nothing(model_with_code, tmp_path):
    directory, mark = model_with_code
    with pytest.raises(ConfigError, match=REFUSED):
        plan(settings(directory))
    assert "model.trust_remote_code" in paths(settings(directory))[0].remedy
    asked = {
        "benchmarks": ["reasoning_gym:basic_arithmetic"],
        "options": BenchmarkConfig(n_samples=1),
    }
    asked |= {
        "overrides": ["data.reasoning_gym.size=2"],
        "output": str(tmp_path / "evaluation"),
    }
    request = Request(model=str(directory), **asked)
    with pytest.raises(ConfigError, match=REFUSED):
        prepare_evaluation(plan_evaluation(request))
    assert not mark.exists()


def test_it_runs_where_a_person_said_so(model_with_code):
    """The trap works: without the check above the file would be there."""
    directory, mark = model_with_code
    with pytest.raises(Exception):  # noqa: B017, PT011 it has no tokenizer
        plan(settings(directory, "model.trust_remote_code=true"))
    assert mark.exists()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("tokenizer_config.json", '{"auto_map": {"AutoTokenizer": ["a.B", null]}}'),
        ("processor_config.json", '{"\\u0061uto_map": {"AutoProcessor": "a.B"}}'),
        ("config.json", '{"text_config": {"auto_map": {"AutoConfig": "a.B"}}}'),
    ],
)
def test_every_file_that_can_name_code_is_read(tmp_path, name, text):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=REFUSED):
        check_own_code(ModelConfig(path=str(tmp_path)), str(tmp_path))


def test_a_word_in_a_vocabulary_is_no_code(tmp_path):
    (tmp_path / "vocab.json").write_text('{"auto_map": 7}')
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"merges": ["auto_map"]}}))
    check_own_code(ModelConfig(path="m"), str(tmp_path))


LOAD = """
import sys
from r3_openrlhf.machine import every_process
if sys.argv[2] == "unguarded":
    every_process._refuse_model_code = lambda module: None
from r3_openrlhf.machine.cpu import cpu_platform
cpu_platform.install()
from openrlhf.models import Actor
from openrlhf.utils.utils import get_tokenizer
for load in (lambda: get_tokenizer(sys.argv[1], None), lambda: Actor(sys.argv[1], attn_implementation="eager")):
    try:
        load()
    except ValueError as error:
        print(error)
"""


@pytest.mark.stack
@pytest.mark.parametrize(
    ("guard", "trusted", "runs"),
    [("guarded", "0", False), ("guarded", "1", True), ("unguarded", "0", True)],
)
def test_an_adapter_runs_no_code_of_its_base_model(
    model_with_code, tmp_path, guard, trusted, runs
):
    """At the last place, OpenRLHF's own loaders (utils/utils.py:70, models/actor.py:151)."""
    pytest.importorskip("openrlhf")
    (directory, mark), adapter = model_with_code, tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(
        json.dumps({"base_model_name_or_path": str(directory), "peft_type": "LORA"})
    )
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(Path(resolve_model("tiny"), file), adapter)
    environment = {**os.environ, every_process.MODEL_CODE: trusted}
    done = subprocess.run(
        [sys.executable, "-c", LOAD, adapter, guard],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert mark.exists() == runs, done.stderr
    assert runs or "is code of a model" in done.stdout, done.stderr


def test_upstream_trusts_everybody_at_these_lines():
    """What every_process._refuse_model_code answers; OpenRLHF with other lines is to be read again."""
    package = Path(pytest.importorskip("openrlhf").__file__).parent
    lines = {
        f"{file.relative_to(package)}:{number}"
        for file in package.rglob("*.py")
        for number, line in enumerate(file.read_text().splitlines(), start=1)
        if "trust_remote_code" in line and "datasets" not in file.parts
    }
    assert lines == {
        "models/actor.py:151",
        "models/model.py:69",
        "models/model.py:113",
        "utils/utils.py:45",
        "utils/utils.py:59",
        "utils/utils.py:70",
        "trainer/ray/vllm_engine.py:232",
        "trainer/ray/vllm_engine.py:274",
    }
