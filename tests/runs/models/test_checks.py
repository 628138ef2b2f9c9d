"""Each check fails on a model that is wrong in that way, says a remedy, and is silent on one that is right."""

import contextlib
import json
from dataclasses import replace

import pytest
from transformers import AutoConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from r3_openrlhf.config import DataConfig
from r3_openrlhf.problems.prompts import render
from r3_openrlhf.runs.models.checks import (
    PROBE,
    directory_findings,
    packing_fault,
    template_findings,
    tokenizer_findings,
)
from tests.families import FAMILIES, load_tokenizer, write_model


@pytest.fixture
def model(tmp_path):
    return write_model(tmp_path / "model", FAMILIES["Qwen2.5-Instruct"])


def only(findings):
    assert len(findings) == 1, findings
    return findings[0]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_right_tokenizer_has_no_findings(tmp_path, name):
    directory = str(write_model(tmp_path / "m", FAMILIES[name]))
    assert directory_findings(directory) == []
    assert (
        tokenizer_findings(load_tokenizer(directory), directory, ["What is \\frac{1}{2} of 5?"])
        == []
    )


def test_bytes_that_are_labelled_as_llamas_lose_their_spaces(tmp_path):
    """DeepSeek-R1-Distill-Llama, deepseek-math and deepseek-coder under transformers 5."""
    family = FAMILIES["DeepSeek-R1-Distill-Llama"]
    directory = str(write_model(tmp_path / "m", family, tokenizer_class="LlamaTokenizerFast"))
    tokenizer = load_tokenizer(directory)
    assert "5 + 0" not in tokenizer.decode(
        tokenizer(text=PROBE, add_special_tokens=False)["input_ids"]
    )
    ids, text = tokenizer_findings(tokenizer, directory)
    assert (
        ids.refuses
        and "LlamaTokenizerFast; set tokenizer_class to PreTrainedTokenizerFast" in ids.sentence
    )
    assert text.refuses and "it loses spaces" in text.sentence


def test_more_tokens_than_embeddings(tmp_path):
    directory = str(write_model(tmp_path / "m", FAMILIES["Qwen2.5-Instruct"], rows=258))
    tokenizer = load_tokenizer(directory)
    warning = only(tokenizer_findings(tokenizer, directory))
    assert (
        not warning.refuses
        and "has 260 tokens and the model 258 embeddings; resize" in warning.sentence
    )
    assert only(tokenizer_findings(tokenizer, directory, used=[259])).refuses


def without_weights(model):
    (model / "model.safetensors").unlink()


def an_adapter_alone(model):
    (model / "model.safetensors").rename(model / "adapter_model.safetensors")
    (model / "adapter_config.json").write_text(
        json.dumps({"base_model_name_or_path": "org/base"})
    )


def a_shard_that_is_not_there(model):
    index = {"weight_map": {"a": "model.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))


def a_pointer_in_place_of_weights(model):
    (model / "model.safetensors").write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:0\n"
    )


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (without_weights, "has no weights"),
        (an_adapter_alone, "an adapter alone; merge it into its base model 'org/base'"),
        (a_shard_that_is_not_there, "lacks model-00002-of-00002.safetensors"),
        (a_pointer_in_place_of_weights, "git lfs pull"),
    ],
)
def test_a_directory_that_is_no_model_is_refused(model, damage, sentence):
    damage(model)
    found = only(directory_findings(str(model)))
    assert found.refuses and sentence in found.sentence


def template_of(family, tmp_path, data=None):
    data = data or DataConfig()
    directory = str(write_model(tmp_path / "m", family))
    tokenizer = load_tokenizer(directory)
    ids = tokenizer(text=render(tokenizer, data, "1"), add_special_tokens=False)["input_ids"]
    return template_findings(tokenizer, directory, data, ids)


def test_an_end_of_turn_that_is_no_end_of_the_model_and_open_thinking_are_said(tmp_path):
    found = only(template_of(FAMILIES["Qwen2.5 (base, with its template)"], tmp_path))
    assert (
        "ends a turn with '<|im_end|>', which is none of the model's end tokens ('<|endoftext|>')"
        in found.sentence
    )
    assert "eos_token_id in generation_config.json" in found.sentence and not found.refuses
    assert (
        "the prompt opens <think>"
        in only(template_of(FAMILIES["DeepSeek-R1-Distill-Qwen"], tmp_path)).sentence
    )


def test_a_template_without_the_begin_that_the_tokenizer_writes(tmp_path):
    """Llama's tokenizer under a template of ChatML: zephyr, TinyLlama."""
    family = replace(FAMILIES["Llama-3.x (base)"], template=FAMILIES["Phi-3.5"].template)
    found = only(template_of(family, tmp_path))
    assert (
        "begins a text with '<|begin_of_text|>', and the chat template does not"
        in found.sentence
    )


def test_a_tokenizer_that_makes_spaces_of_line_breaks(tmp_path):
    from tokenizers import Regex, normalizers

    tokenizer = load_tokenizer(write_model(tmp_path / "m", FAMILIES["Qwen2.5-Instruct"]))
    tokenizer.backend_tokenizer.normalizer = normalizers.Replace(Regex(r"\s"), " ")
    found = only(
        tokenizer_findings(tokenizer, str(tmp_path / "no tokenizer.json to compare with"))
    )
    assert found.refuses and "loses spaces or line breaks" in found.sentence


def test_two_begins(tmp_path):
    data = DataConfig(chat_template=False, system_prompt="<bos><bos>S")
    found = only(template_of(FAMILIES["Gemma-it"], tmp_path, data))
    assert found.refuses and "'<bos>' twice" in found.sentence


@pytest.mark.parametrize(
    "name",
    [
        "Qwen2.5-Instruct",
        "Llama-3.x-Instruct",
        "Mistral-Instruct",
        "Gemma-it",
        "Phi-3.5",
        "SmolLM3",
    ],
)
def test_a_right_template_has_no_findings(tmp_path, name):
    assert template_of(FAMILIES[name], tmp_path) == []


# Every causal language model of the installed transformers with a recurrence or a convolution over tokens, by its own source
STATEFUL = """bamba falcon_h1 falcon_mamba granitemoehybrid inkling_text jamba mamba mamba2 minimax nemotron_h olmo_hybrid qwen3_5
qwen3_5_moe qwen3_5_moe_text qwen3_5_text qwen3_next recurrent_gemma rwkv xlstm zamba zamba2 zaya"""


def test_packed_rows_of_every_architecture_that_carries_a_state_are_a_fault():
    found = set()
    for kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        with contextlib.suppress(Exception):  # a few have no default configuration
            if " state " in (packing_fault(AutoConfig.for_model(kind)) or ""):
                found.add(kind)
    # those have no text model
    assert found - {"blt", "gemma4_assistant", "gemma4_unified_assistant"} == set(
        STATEFUL.split()
    )
