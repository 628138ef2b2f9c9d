"""Give a value the type of its field, from the word that was written.

YAML 1.1 and Hydra's grammar guess a type for every word without quotes, before anybody asks for
one: 2024_01 is 202401, 1:30 is 90, `no` is False. Here such a word is kept as it is written until
`with_types` knows its field: a text takes the word, a bool takes true and false, and every other
field takes the guess."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from typing import Any

import yaml
from antlr4 import CommonTokenStream, InputStream
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.overrides_visitor import (
    HydraErrorListener,
    HydraOverrideVisitor,
)
from hydra.core.override_parser.types import Override, QuotedString
from hydra.grammar.gen.OverrideLexer import OverrideLexer
from hydra.grammar.gen.OverrideParser import OverrideParser
from omegaconf._utils import get_yaml_loader

from r3_openrlhf.config.model_and_data import DataConfig


@dataclasses.dataclass(frozen=True, slots=True)
class Spelled:
    """A word without quotes that the grammar takes for a number, a bool or null."""

    word: str
    guess: object


@dataclasses.dataclass
class _Source(DataConfig):
    """An entry of data.sources, for its types alone."""

    name: str | None = None
    weight: float | None = None


@functools.cache
def hints_of(schema: object) -> dict[str, Any]:
    """Return the type of each field of a section, of data.sources that of its entries, too."""
    hints = typing.get_type_hints(schema)
    if schema is DataConfig:
        hints["sources"] = list[str | _Source]
    return hints


def hint_of(key: str, schema: object) -> object:
    """Return the type of a key like "data.subset", `object` where the schema does not say."""
    for name in key.split("."):
        schema = hints_of(schema).get(name, object) if _is_section(schema) else object
    return schema


def _is_section(hint: object) -> bool:
    return dataclasses.is_dataclass(hint)


def members_of(hint: object) -> tuple[Any, ...]:
    """Return the types of which a value may be one: str and NoneType for `str | None`."""
    return typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)


def with_types(value: object, hint: object) -> Any:
    """Replace every `Spelled` in a value by what its type makes of it."""
    if isinstance(value, Spelled):
        return _typed_word(value, members_of(hint))
    if isinstance(value, list):
        return [with_types(part, _hint_of_items(hint)) for part in value]
    if isinstance(value, dict):
        hints = _hints_of_values(hint, value)
        return {name: with_types(part, hints[name]) for name, part in value.items()}
    return value


def _typed_word(spelled: Spelled, members: tuple[Any, ...]) -> object:
    if spelled.guess is None:
        return None
    if str in members:
        return spelled.word
    if bool in members and spelled.word.lower() not in ("true", "false"):
        # refused where the configuration is checked
        return spelled.word
    return spelled.guess


def _hint_of_items(hint: object) -> object:
    lists = [member for member in members_of(hint) if typing.get_origin(member) is list]
    return typing.get_args(lists[0])[0] if lists else object


def _hints_of_values(hint: object, value: dict[Any, Any]) -> dict[Any, Any]:
    for member in members_of(hint):
        if _is_section(member):
            hints = hints_of(member)
            return {name: hints.get(name, object) for name in value}
        if typing.get_origin(member) is dict:
            return dict.fromkeys(value, typing.get_args(member)[1])
    return dict.fromkeys(value, object)


class _Loader(get_yaml_loader()):  # type: ignore[misc]
    """OmegaConf's, which keeps words that are no texts. Keys are what they were."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> object:
        value = super().construct_object(node, deep)
        is_word = isinstance(node, yaml.ScalarNode) and node.style is None
        return Spelled(node.value, value) if is_word and not isinstance(value, str) else value

    def construct_mapping(self, node: yaml.Node, deep: bool = False) -> object:
        return {
            key.guess if isinstance(key, Spelled) else key: value
            for key, value in super().construct_mapping(node, deep).items()
        }


def read_yaml(text: str) -> Any:
    """Read YAML as OmegaConf does, with `Spelled` words. Raises what PyYAML raises."""
    return yaml.load(text, _Loader)


class _Visitor(HydraOverrideVisitor):
    """Hydra's, which keeps words that are no texts, except in the arguments of functions."""

    def visitPrimitive(self, ctx: OverrideParser.PrimitiveContext) -> Any:
        value = super().visitPrimitive(ctx)
        if isinstance(value, str | QuotedString):
            return value
        return Spelled(ctx.getText().strip(), value)

    def visitFunction(self, ctx: OverrideParser.FunctionContext) -> object:
        return HydraOverrideVisitor(self.functions).visitFunction(ctx)


class _Parser(OverridesParser):
    """Hydra's, with that visitor."""

    def parse_rule(self, s: str, rule_name: str) -> object:
        listener = HydraErrorListener()
        lexer = OverrideLexer(InputStream(s))
        parser = OverrideParser(CommonTokenStream(lexer))
        for recognizer in (lexer, parser):
            recognizer.removeErrorListeners()
            recognizer.addErrorListener(listener)
        return _Visitor(self.functions).visit(getattr(parser, rule_name)())


def parse_override(text: str) -> Override:
    """Parse "key=value" in Hydra's grammar, with `Spelled` words. Raises HydraException."""
    return _Parser.create().parse_override(text)
