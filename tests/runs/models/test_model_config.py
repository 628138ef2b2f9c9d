"""A model that is newer than the installed Transformers is refused in one sentence with a way out."""

import json
import re
from importlib.metadata import version

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import CONFIG_MAPPING

from r3_openrlhf.method.errors import ConfigError, shortened
from r3_openrlhf.operations.doctor.checks import wanted
from r3_openrlhf.runs.models.checks import load_tokenizer
from r3_openrlhf.runs.models.model_config import NEWER, read_config
from tests.commands import r3

FIELDS = {"vocab_size": 1000, "hidden_size": 64, "num_hidden_layers": 2}


@pytest.fixture
def write_config(tmp_path):
    def write(**fields):
        directory = tmp_path / "model"
        directory.mkdir(exist_ok=True)
        (directory / "config.json").write_text(json.dumps(FIELDS | fields), encoding="utf-8")
        return directory

    return write


@pytest.mark.parametrize("model_type", ["qwen9_exp", "llama99", "a type", "x" * 300])
@pytest.mark.parametrize("reader", [read_config, load_tokenizer])
def test_an_unknown_type_is_named_with_the_installed_release(write_config, model_type, reader):
    model = write_config(model_type=model_type, architectures=["NewForCausalLM"])
    with pytest.raises(ConfigError) as refused:
        reader(str(model))
    said = str(refused.value)
    assert model_type[:40] in said and version("transformers") in said
    assert said.endswith("(docs/install.md, Newer models)") and "\n" not in said


def test_a_type_that_the_newer_pins_know_is_answered_with_their_command(write_config):
    if version("transformers") == NEWER["release"]:
        pytest.skip("the newer pins are installed")
    with pytest.raises(ConfigError) as refused:
        read_config(str(write_config(model_type="glm5_next")))
    assert (
        "install Transformers 5.17.0, which does, with vLLM for it: make setup NEWER=1"
        in str(refused.value)
    )
    with pytest.raises(ConfigError, match="whose 5.17.0 does not know it either"):
        read_config(str(write_config(model_type="qwen9_exp")))


def test_the_table_of_newer_types_is_of_the_newer_pins():
    """Every type is known where they are installed, and none where they are not."""
    assert NEWER["release"] == wanted("cpu", newer=True)["transformers"]
    assert NEWER["release"] == wanted("gpu", newer=True)["transformers"]
    installed, types = version("transformers"), set(NEWER["model_types"])
    known = types & set(CONFIG_MAPPING.keys())
    assert known == (types if installed == NEWER["release"] else set()), installed


def test_a_known_type_is_read_and_another_fault_keeps_its_own_words(write_config):
    assert read_config(str(write_config(model_type="qwen2"))).hidden_size == 64
    with pytest.raises(ValueError, match="(?i)model_type"):
        read_config(str(write_config(architectures=["Qwen2ForCausalLM"])))


@pytest.mark.parametrize(
    "command",
    [("train", "experiment=cpu_smoke", "--dry-run"), ("plan", "experiment=cpu_smoke")],
)
def test_the_commands_say_it(write_config, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = write_config(model_type="qwen9_exp", architectures=["Qwen9ForCausalLM"])
    name, *rest = command
    result = r3(name, *rest, f"model.path={model}")
    said = result.stdout + result.stderr
    assert re.search(
        r"of model_type 'qwen9_exp', which Transformers \S+ does not know; install", said
    )
    assert "please report" not in said and "config.json, or one of" not in said


@given(st.text(max_size=900), st.integers(10, 700))
def test_a_text_is_cut_behind_a_word_or_not_at_all(text, most):
    line = " ".join(text.split())
    cut = shortened(text, most=most)
    if len(line) <= most:
        assert cut == line
        return
    assert cut.endswith(" ...") and len(cut) <= most + 4
    kept = cut.removesuffix(" ...")
    assert line.startswith(kept)
    assert line[len(kept)] == " " or " " not in line[:most]
