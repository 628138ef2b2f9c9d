"""Checks of a model's files, tokenizer and chat template, before a run reads a single problem.

Engine and policy read the same ids: no metric shows a tokenizer that loses text, or a missing end.
"""

from __future__ import annotations

import copy
import json
import re
import resource
import signal
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from r3_openrlhf.config import DataConfig, ModelConfig, R3Config
from r3_openrlhf.config.between_sections import check_sections
from r3_openrlhf.config.finding import Finding
from r3_openrlhf.method.errors import ConfigError, quoted, shortened
from r3_openrlhf.problems.prompts import begin_of_text, end_of_turn, render
from r3_openrlhf.rewards.thinking import opened_thinking
from r3_openrlhf.runs.models.locate import SNAPSHOT, adapter_alone
from r3_openrlhf.runs.models.model_config import refuse_unknown_type

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase

SECONDS, MORE_BYTES = 10, 2**30  # of memory, on top of what is there
PROBE = "Calculate 5 + 0.\nThe answer is 7, as said\tabove."
_POINTER = b"version https://git-lfs"
# What Transformers and vLLM read `auto_map` from; of a directory every JSON file is looked at
HUB_FILES = (
    "config.json",
    "tokenizer_config.json",
    "processor_config.json",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
)
_MAYBE = re.compile(rb"auto_map|\\u00")  # JSON can spell the word in escapes


def load_tokenizer(
    model: str, *, trusted: bool = False, data: DataConfig | None = None
) -> PreTrainedTokenizerBase:
    """ConfigError: not loadable, or breaks over a sentence, or the chat template of `data` has no
    end. trusted: model.trust_remote_code."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=trusted)
        _ids(tokenizer, PROBE)
    except Exception as error:  # the tokenizers library raises Exception itself
        refuse_unknown_type(model, cause=error)
        raise ConfigError(
            f"the tokenizer of {model} cannot be loaded: {shortened(error)}"
        ) from error
    if data is not None and data.chat_template:
        own = data.chat_template_kwargs.get("chat_template") or tokenizer.chat_template
        for template in own.values() if isinstance(own, dict) else [own]:
            _check_template(str(template or ""), model)
    return tokenizer


def _check_template(template: str, model: str) -> None:
    """ConfigError: the template, a program of whoever made the model, has no end. In the main thread."""
    from transformers.utils.chat_template_utils import render_jinja_template

    turns = [
        {"role": role, "content": "Calculate 5 + 0. " * 100}
        for role in ("user", "assistant", "user")
    ]
    reserved = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    before = signal.signal(signal.SIGALRM, _raise_timeout)
    signal.alarm(SECONDS)
    # without a limit it is -1
    resource.setrlimit(
        resource.RLIMIT_AS, (min(reserved + MORE_BYTES, limits[0] % 2**63), limits[1])
    )
    try:
        render_jinja_template(
            [turns],
            chat_template=template,
            add_generation_prompt=True,
            bos_token="",
            eos_token="",
        )
    except (TimeoutError, MemoryError) as error:
        raise ConfigError(
            f"the chat template of {model} needs more than {SECONDS} s or {MORE_BYTES // 2**30} GB for one conversation; take "
            "another model or template, or data.chat_template=false"
        ) from error
    except Exception:  # the run's own prompts tell of errors
        pass
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, limits)


def _raise_timeout(*_: object) -> None:
    raise TimeoutError


def directory_findings(model: str) -> list[Finding]:
    """List the files that a model directory lacks; nothing of one that is on the hub."""
    why = _lacking(Path(model)) if Path(model).is_dir() and not SNAPSHOT.search(model) else None
    return [] if why is None else [Finding(f"model.path {model} {why}", refuses=True)]


def _lacking(directory: Path) -> str | None:
    patterns = ("*.safetensors", "pytorch_model*.bin")
    weights = [file for pattern in patterns for file in sorted(directory.glob(pattern))]
    weights = [file for file in weights if not file.name.startswith("adapter_model")]
    if not weights and (adapter := adapter_alone(directory)):
        return adapter
    if not weights:
        return "has no weights (no .safetensors, no pytorch_model.bin); copy them there, or give the directory that has them"
    listed = _json(directory / "model.safetensors.index.json").get("weight_map") or {}
    lacking = sorted(set(map(str, listed.values())) - {file.name for file in weights})
    if lacking:
        return f"lacks {lacking[0][:80]}, {len(lacking)} of its weight files; copy all"
    for file in weights:
        with file.open("rb") as content:
            if content.read(len(_POINTER)) == _POINTER:
                return f"holds {file.name}, a pointer of Git LFS, not the weights; run `git lfs pull` there"
    return None


def tokenizer_findings(
    tokenizer: PreTrainedTokenizerBase,
    model: str,
    texts: Sequence[str] = (),
    *,
    used: Sequence[int] = (),
) -> list[Finding]:
    """Check that the tokenizer keeps its input and agrees with its own tokenizer.json.

    texts: problems of the run, to be tried with a sentence of ours. used: ids of final prompts.
    """
    tried = (PROBE, *texts)
    found = [*_own_ids(tokenizer, model, tried), *_round_trip(tokenizer, tried)]
    config = _json(Path(model) / "config.json")
    rows = (config.get("text_config") or config).get("vocab_size")
    tokens = max(tokenizer.get_vocab().values()) + 1
    if isinstance(rows, int) and tokens > rows:
        beyond = max(used, default=0) >= rows
        found.append(
            Finding(
                f"the tokenizer of {model} has {tokens} tokens and the model {rows} embeddings"
                + (", and the prompts use tokens beyond them" if beyond else "")
                + "; resize the embeddings (resize_token_embeddings), or take the tokenizer that belongs to the model",
                refuses=beyond,
            )
        )
    return found


def template_findings(
    tokenizer: PreTrainedTokenizerBase, model: str, data: DataConfig, prompt_ids: Sequence[int]
) -> list[Finding]:
    """Check the begin and end of a turn. prompt_ids: one final prompt of the run."""
    found = []
    known = end_ids(tokenizer, model)
    for end in {end_of_turn(tokenizer, part) for part in data.parts.values()} - known - {None}:
        ends = (
            ", ".join(repr(tokenizer.convert_ids_to_tokens(one)) for one in sorted(known))
            or "none"
        )
        found.append(
            Finding(
                f"the chat template ends a turn with {quoted(tokenizer.convert_ids_to_tokens(end))}, which is none of the model's end "
                f"tokens ({ends}); the run stops there too, and for others add {end} to eos_token_id in generation_config.json"
            )
        )
    bos = tokenizer.bos_token_id
    if bos is not None and list(prompt_ids[:2]) == [bos, bos]:
        found.append(
            Finding(
                f"prompts begin with {quoted(tokenizer.bos_token)} twice; take it out of data.prompt_template, data.system_prompt or the "
                "problems",
                refuses=True,
            )
        )
    begin = begin_of_text(tokenizer)
    if data.chat_template and begin and prompt_ids and prompt_ids[0] != bos:
        found.append(
            Finding(
                f"the tokenizer begins a text with {quoted(begin)}, and the chat template does not; if the model was trained with it, "
                "write {{ bos_token }} at the beginning of the template in a copy"
            )
        )
    mark = opened_thinking(render(tokenizer, data, "1 + 1"))
    if mark:
        found.append(
            Finding(
                f"the prompt opens {mark}: a response that never closes it counts as one without an answer"
            )
        )
    return found


def end_notes(tokenizer: PreTrainedTokenizerBase, model: str, data: DataConfig) -> list[str]:
    """Name the tokens at which a response ends, where they are more than the tokenizer's eos."""
    ends = end_ids(tokenizer, model) | {
        end for part in data.parts.values() if (end := end_of_turn(tokenizer, part)) is not None
    }
    further = sorted(ends - {tokenizer.eos_token_id})
    if not further:
        return []
    named = ", ".join(quoted(str(tokenizer.convert_ids_to_tokens(end))) for end in further)
    return [
        f"a response also ends at {named}, in addition to the tokenizer's {quoted(str(tokenizer.eos_token))}"
    ]


def packing_fault(model_config: PreTrainedConfig) -> str | None:
    """Say why packed rows of a model, as transformers loads its configuration, would see each other;
    None: they are told apart by their positions (stack/chunked_actor.py, models/actor.py:246)."""
    text = model_config.get_text_config()
    for kind in getattr(text, "layer_types", None) or getattr(text, "block_types", None) or ():
        if kind == "linear_attention" or not kind.endswith("attention"):
            return f"has layers ({kind}) that carry a state from one token to the next"
    if not hasattr(text, "num_attention_heads"):
        return "has no attention, but a state that goes from one token to the next"
    return (
        "reads images, whose positions have three dimensions"
        if hasattr(model_config, "vision_config")
        else None
    )


def without_packing(config: R3Config, fault: str | None) -> tuple[R3Config, list[str]]:
    """Return the configuration with which the model can be trained, and what changed. fault:
    `packing_fault`. ConfigError: rows one by one do not divide evenly among the ranks."""
    if fault is None or not (config.train.packing or config.train.dynamic_batch):
        return config, []
    changed = copy.deepcopy(config)
    changed.train.packing = changed.train.dynamic_batch = False
    changed.train.micro_batch_size = changed.rollout.micro_batch_size = 1
    check_sections(changed)
    return changed, [
        f"model.path {config.model.path} {fault}, so a packed row would see the one before it: train.packing and train.dynamic_batch "
        "are off, and rows pass one by one, which may take up to twice the time"
    ]


def end_ids(tokenizer: PreTrainedTokenizerBase, model: str) -> set[int]:
    """Return the tokens at which vLLM ends a response: the tokenizer's eos, those of generation_config.json
    or else of config.json (vllm/transformers_utils/config.py: try_get_generation_config)."""
    ids = {tokenizer.eos_token_id} - {None}
    directory = Path(model)
    generation = directory / "generation_config.json"
    named = _json(generation if generation.is_file() else directory / "config.json").get(
        "eos_token_id"
    )
    return ids | {
        one for one in (named if isinstance(named, list) else [named]) if isinstance(one, int)
    }


def _own_ids(
    tokenizer: PreTrainedTokenizerBase, model: str, texts: Sequence[str]
) -> Iterator[Finding]:
    file = Path(model) / "tokenizer.json"
    if not file.is_file():
        return
    from tokenizers import Tokenizer

    own = Tokenizer.from_file(str(file))
    # some classes make one letter of a decomposed one, which is the same text
    composed = (unicodedata.normalize("NFC", one) for one in texts)
    differs = (
        one
        for one in composed
        if _ids(tokenizer, one) != own.encode(one, add_special_tokens=False).ids
    )
    if (text := next(differs, None)) is not None:
        named = str(_json(Path(model) / "tokenizer_config.json").get("tokenizer_class"))[:80]
        sentence = (
            f"Transformers makes other tokens of a text ({_short(text)}) than {file} says, as tokenizer_config.json names the class "
            f"{named}; set tokenizer_class to PreTrainedTokenizerFast in a copy"
        )
        yield Finding(sentence, refuses=True)


def _round_trip(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> Iterator[Finding]:
    for text in texts:
        # tokenizers that compose letters (NFC, all of Qwen) give back the same text
        back, text = (
            unicodedata.normalize("NFC", one)
            for one in (tokenizer.decode(_ids(tokenizer, text)), text)
        )
        if back.split() == text.split() and back.strip().count("\n") == text.strip().count(
            "\n"
        ):
            continue
        lost = "".join(back.split()) == "".join(text.split())
        what = ": it loses spaces or line breaks" if lost else ""
        sentence = f"the tokenizer of {tokenizer.name_or_path} gives back {_short(back)} for {_short(text)}{what}"
        yield Finding(
            f"{sentence}; take the tokenizer that belongs to the model",
            refuses=lost or text == PROBE,
        )
        return


def _ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    return tokenizer(text=text, add_special_tokens=False)["input_ids"]


def _short(text: str) -> str:
    return repr(text[:80])


def _json(file: Path) -> dict[str, Any]:
    """Return a JSON object; {} where it cannot be read: the loader reports that error."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def check_own_code(config: ModelConfig, model: str, *, setting: str | None = None) -> None:
    """ConfigError: `model` (a directory, or a name on the hub) brings code, and no one said that it
    may run. setting: the key and the value that name it; None: model.path.

    OpenRLHF runs such code wherever it finds it (models/actor.py:151, utils/utils.py:70,
    trainer/ray/vllm_engine.py:274), so that a model with code is refused also where Transformers
    has a class of its own for it."""
    if config.trust_remote_code:
        return
    for name, content in _files(model):
        if _MAYBE.search(content) and _maps_code(content):
            raise ConfigError(
                f"{setting or f'model.path {config.path}'} brings code of its own (auto_map in {name}), which a run would execute; read that "
                "code and set model.trust_remote_code=true, or take auto_map out where Transformers knows the model"
            )


def _files(model: str) -> Iterator[tuple[str, bytes]]:
    if Path(model).is_dir():
        for file in sorted(Path(model).glob("*.json")):
            if file.is_file():
                yield file.name, file.read_bytes()
        return
    from transformers.utils import cached_file

    for name in HUB_FILES:
        try:
            found = cached_file(model, name, _raise_exceptions_for_missing_entries=False)
        except OSError as error:
            raise ConfigError(
                f"model.path {model} cannot be loaded: {shortened(error)}"
            ) from error
        if found is not None:
            yield name, Path(found).read_bytes()


def _maps_code(content: bytes) -> bool:
    try:
        pending = [json.loads(content)]
    except (ValueError, RecursionError):
        return True  # it cannot be read, and so not be cleared
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            named = value.get("auto_map")
            if named and not isinstance(named, int | float):  # a number is a vocabulary index
                return True
            pending += value.values()
        elif isinstance(value, list):
            pending += value
    return False
