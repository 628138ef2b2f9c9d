"""Where a turn begins and ends, for the families that people bring."""

import os

import pytest

from r3_openrlhf.config import DataConfig, RolloutConfig
from r3_openrlhf.method.errors import ConfigError
from r3_openrlhf.problems.prompts import begin_of_text, count_tokens, end_of_turn, render
from r3_openrlhf.problems.stops import stop_at, stops_of
from tests.families import FAMILIES, load_tokenizer, write_model

ENDS = {
    **dict.fromkeys(("Qwen2.5-Instruct", "Qwen2.5 (base, with its template)"), "<|im_end|>"),
    "Phi-3.5": "<|end|>",
    "DeepSeek-R1-Distill-Llama": "<｜end▁of▁sentence｜>",
    "Llama-3.x-Instruct": "<|eot_id|>",
    "Mistral-Instruct": "</s>",
    "Gemma-it": "<end_of_turn>",
}


@pytest.fixture
def tokenizer_of(tmp_path):
    return lambda name: load_tokenizer(write_model(tmp_path / "model", FAMILIES[name]))


@pytest.mark.parametrize("name", ENDS)
def test_the_end_of_a_turn_is_what_the_template_puts_behind_an_answer(
    tokenizer_of, byte_tokenizer, name
):
    tokenizer = tokenizer_of(name)
    assert tokenizer.convert_ids_to_tokens(end_of_turn(tokenizer, DataConfig())) == ENDS[name]
    assert end_of_turn(tokenizer, DataConfig(chat_template=False)) is None
    assert end_of_turn(byte_tokenizer, DataConfig()) is None  # a template of plain words


@pytest.mark.parametrize("name", ["Gemma (base)", "Llama-3.x (base)", "Mistral (base)"])
def test_a_base_model_gets_its_bos_once(tokenizer_of, name):
    tokenizer, data = tokenizer_of(name), DataConfig(chat_template=False)
    bos = FAMILIES[name].bos
    assert render(tokenizer, data, "2 + 2 =") == f"{bos}2 + 2 ="
    assert render(tokenizer, data, f"{bos}2 + 2 =") == f"{bos}2 + 2 ="
    assert count_tokens(tokenizer, render(tokenizer, data, "2")) == 2
    assert (
        render(tokenizer, DataConfig(chat_template=False, system_prompt="S"), "2")
        == f"{bos}S\n\n2"
    )
    # it names a BOS and does not use it
    assert begin_of_text(tokenizer_of("SmolLM2-Instruct")) == ""


def test_values_for_the_template(tokenizer_of):
    tokenizer = tokenizer_of("Qwen3")
    assert render(tokenizer, DataConfig(), "2").endswith("assistant\n")
    off = DataConfig(chat_template_kwargs={"enable_thinking": False})
    assert render(tokenizer, off, "2").endswith("assistant\n<think>\n\n</think>\n\n")
    own = {"chat_template": "{% for m in messages %}Q: {{ m.content }}\nA:{% endfor %}"}
    assert (
        render(tokenizer_of("Gemma (base)"), DataConfig(chat_template_kwargs=own), "2 + 2")
        == "Q: 2 + 2\nA:"
    )


def test_a_source_with_a_template_ends_there_though_the_others_have_none(tokenizer_of):
    tokenizer = tokenizer_of("Qwen2.5 (base, with its template)")
    data = DataConfig(
        sources=["a.jsonl", {"path": "b.jsonl", "chat_template": True}], chat_template=False
    )
    assert stops_of(tokenizer, data, []) == (
        [tokenizer.convert_tokens_to_ids("<|im_end|>")],
        [],
    )


def test_line_breaks_of_a_command_line_that_would_never_occur():
    with pytest.raises(ConfigError, match="as two characters, a backslash and a letter"):
        RolloutConfig(stop=["\\n\\n"])
    assert RolloutConfig(stop=["\n\n", "\\neq"]).stop


def test_stops_reach_vllm(tokenizer_of):
    vllm = pytest.importorskip("vllm", reason="vLLM is not installed")
    tokenizer = tokenizer_of("Qwen2.5 (base, with its template)")
    end, other = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|im_start|>"])
    ids, texts = stops_of(tokenizer, DataConfig(), ["<|im_start|>", "</answer>"])
    assert (ids, texts) == (sorted([end, other]), ["</answer>"])
    params = vllm.SamplingParams(detokenize=False)
    stop_at(params, ids, [])
    assert params.stop_token_ids == ids and not params.detokenize  # ids alone cost no text
    stop_at(params, ids, texts)
    assert (
        params.stop == ["</answer>"] and params.detokenize and params.include_stop_str_in_output
    )


@pytest.mark.parametrize("name", ["Llama-3.x-Instruct", "SmolLM3"])
def test_a_template_with_a_date_writes_that_of_the_first_start(tokenizer_of, name, tmp_path):
    pytest.importorskip("openrlhf", reason="OpenRLHF is not installed")
    from r3_openrlhf.config.loading import load_config
    from r3_openrlhf.runs.directory import RunDirectory
    from r3_openrlhf.stack.launch import with_template_date

    run = RunDirectory(tmp_path / "run")
    config = load_config("cpu_smoke", [f"run_dir={run.path}"])
    run.data.parent.mkdir(parents=True)
    run.data.touch()
    os.utime(run.data, (1e9, 1e9))  # 9 September 2001
    data = with_template_date(config, run).data
    assert "Today Date: 09 Sep" in render(tokenizer_of(name), data, "2")
    config.data.template_date = "2020-02-03"
    assert "Today Date: 03 Feb" in render(
        tokenizer_of(name), with_template_date(config, run).data, "2"
    )
