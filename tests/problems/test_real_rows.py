"""Rows of public data sets as they are published (real_rows.jsonl names source and licence), and the chat templates that TRL brings."""

import importlib.util
import json
from pathlib import Path

import pytest

from r3_openrlhf.config import DataConfig
from r3_openrlhf.method.errors import DataError
from r3_openrlhf.problems.prompts import prompt_of, render
from tests.problems.files import load, refused

SETS = {
    row["name"]: row
    for row in map(
        json.loads, Path(__file__).with_name("real_rows.jsonl").open(encoding="utf-8")
    )
}


@pytest.mark.parametrize("name", SETS)
def test_rows_of_a_public_data_set(name, tmp_path, byte_tokenizer):
    rows, keys, answers = (SETS[name][key] for key in ("rows", "keys", "answers"))
    if answers is None:
        with refused(DataError, SETS[name]["refused"]):
            load(tmp_path, rows, **keys)
        return
    labels = load(tmp_path, rows, **keys).labels
    assert [label.references for label in labels] == answers
    for label, row in zip(labels, rows, strict=True):
        prompt = prompt_of(byte_tokenizer, DataConfig(path="x", **keys), label)
        texts = keys.get("prompt_template", "{problem}")
        assert label.problem in prompt and all(
            row[key] in prompt for key in ("Body",) if key in texts
        )


TRL = importlib.util.find_spec("trl")
FOLDER = Path(TRL.origin).with_name("chat_templates") if TRL and TRL.origin else Path("none")
TEMPLATES = sorted(
    file.stem for file in FOLDER.glob("*.jinja") if not file.stem.endswith("_training")
)
TURNS = ["Be brief.", "1 + 1", r"\boxed{2}", "What is $2 + 2$,\nand why?"]


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_published_template_holds_each_turn_once_and_in_order(
    name, byte_tokenizer, monkeypatch
):
    monkeypatch.setattr(
        byte_tokenizer, "chat_template", (FOLDER / f"{name}.jinja").read_text(encoding="utf-8")
    )
    shot, values = {"problem": TURNS[1], "response": TURNS[2]}, {"bos_token": "<s>"}
    data = DataConfig(system_prompt=TURNS[0], few_shot=[shot], chat_template_kwargs=values)
    if name == "gemma":
        with refused(DataError, "System role not supported"):
            render(byte_tokenizer, data, TURNS[3])
        data.system_prompt = None
    turns = TURNS if data.system_prompt else TURNS[1:]
    prompt = render(byte_tokenizer, data, TURNS[3])
    assert [prompt.count(text) for text in turns] == [1] * len(turns)
    assert sorted(turns, key=prompt.index) == turns
