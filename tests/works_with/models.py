"""Public model families as stand-ins (tests/families.py): what a run does with their tokenizer and chat template."""

import json
import tempfile
from pathlib import Path

from r3_openrlhf.config import DataConfig, ModelConfig
from r3_openrlhf.method.errors import ConfigError
from r3_openrlhf.problems.prompts import begin_of_text, render
from r3_openrlhf.runs.models.checks import (
    check_own_code,
    directory_findings,
    template_findings,
    tokenizer_findings,
)
from tests.families import FAMILIES, load_tokenizer, write_model
from tests.works_with import rows_of

# what people meet beside the families as they are: name -> (family, what is wrong)
WRONG = {
    "DeepSeek-R1-Distill-Llama, deepseek-math, deepseek-coder, labelled `LlamaTokenizerFast`": "tokenizer_class",
    "a model that brings its own code (`auto_map`)": "code",
    "an adapter without its base model": "adapter",
}


def outcome(name: str, directory: Path) -> str:
    """A cell of the table."""
    wrong = WRONG.get(name)
    family = FAMILIES["DeepSeek-R1-Distill-Llama" if wrong else name]
    more = {"tokenizer_class": "LlamaTokenizerFast"} if wrong == "tokenizer_class" else {}
    write_model(directory, family, **more)
    if wrong == "code":
        (directory / "config.json").write_text(json.dumps({"auto_map": {"AutoConfig": "a.B"}}))
    if wrong == "adapter":
        (directory / "model.safetensors").unlink()
        (directory / "adapter_config.json").write_text(
            json.dumps({"base_model_name_or_path": "org/base"})
        )
    try:
        check_own_code(ModelConfig(path=str(directory)), str(directory))
    except ConfigError as error:
        return _cell("refused: ", str(error), directory)
    tokenizer = load_tokenizer(directory)
    data = DataConfig(chat_template=tokenizer.chat_template is not None)
    prompt = render(tokenizer, data, "1 + 1")
    ids = tokenizer(text=prompt, add_special_tokens=False)["input_ids"]
    found = [
        *directory_findings(str(directory)),
        *tokenizer_findings(tokenizer, str(directory), used=ids),
        *template_findings(tokenizer, str(directory), data, ids),
    ]
    if refused := [one.sentence for one in found if one.refuses]:
        return _cell("refused: ", refused[0], directory)
    notes = [one.sentence for one in found]
    if not data.chat_template and (bos := begin_of_text(tokenizer)):
        notes.append(f"prompts begin with `{bos}`")
    if "strftime_now" in (family.template or ""):
        notes.append("its date stays that of the first start")
    if "enable_thinking" in (family.template or ""):
        notes.append(
            "`data.chat_template_kwargs={enable_thinking: false}` switches thinking off"
        )
    how = "works as it is" if data.chat_template else "works with `data.chat_template=false`"
    return _cell("; ".join([how, *notes]), "", directory)


def _cell(start: str, text: str, directory: Path) -> str:
    return (start + text).replace(str(directory), "...").replace("<think>", "`<think>`")


def section() -> str:
    """The table of models."""
    with tempfile.TemporaryDirectory() as folder:
        names = enumerate((*FAMILIES, *WRONG))
        rows = rows_of(
            {name: outcome(name, Path(folder) / str(number)) for number, name in names}
        )
    text = """## Models

Tokenizers of bytes with the special tokens and the chat template of each family. A warning follows the
semicolon; [the first page](tutorial.md#the-first-page-of-a-run) of a run shows it.

"""
    return text + rows
