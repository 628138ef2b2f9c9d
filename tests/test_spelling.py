"""A text arrives as it was written; a bool is true or false."""

import dataclasses
import re
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from r3_openrlhf.config.loading import (
    config_from_json,
    config_from_yaml,
    config_to_json,
    config_to_yaml,
    fields_of,
    flatten,
    load_config,
    with_overrides,
)
from r3_openrlhf.method.errors import ConfigError

SMOKE = "cpu_smoke"
TEXTS = {
    key: field
    for key, field in fields_of().items()
    if field.type in ("str", "str | None", "Name")
}
WORDS = sorted(key for key, field in TEXTS.items() if "words" in field.metadata)
# what they may be is checked where the section is made
CHECKED = {
    "agents.environment": "agents.environment is 2024_01, but algo is r3",
    "data.task": "data.task is {}, which",
    "data.template_date": "data.template_date is {}; write a day",
    "data.prompt_template": "data.prompt_template is {}; it must contain",
    "reward.code.url": "reward.code.url is {}; an address",
    "reward.function": "reward.function is {}; use package.module:name",
}
FREE = sorted(TEXTS.keys() - WORDS - CHECKED.keys() - {"run_dir", "data.path"})
BOOLS = sorted(key for key, field in fields_of().items() if field.type == "bool")

# by what YAML 1.1, OmegaConf or Hydra takes them for
LIKE = {
    "int": r"[-+]?[1-9][0-9]{0,3}(_[0-9]{2}){0,2}|0[0-7]{1,4}|0x[0-9a-f]{1,4}|0b[01_]{1,6}",
    "base 60": r"[1-9][0-9]?(:[0-5][0-9]){1,2}(\.[0-9]{1,2})?",
    "float": r"[0-9]{1,5}(\.[0-9_]{0,3})?e[-+]?[0-9]{1,2}|[0-9]?\.[0-9]{1,3}|[0-9]\.",
    "no number": r"[-+]?\.inf|\.nan",
    "underscores": r"[1-9](_{1,2}[0-9]){1,3}(e[0-9])?",
    "bool": r"(?i:on|off|yes|no|y|n|true|false)",
    "date": r"20[0-9]{2}-(0[1-9]|1[0-2])-(0[1-9]|2[0-8])",
    "word": r"(?i:none|nil|nan|inf|infinity|void)",
}
SPELLING = st.one_of([st.from_regex(f"(?a:{of})", fullmatch=True) for of in LIKE.values()])
ISSUE = ("2024_01", "1e3", "12345e7", "on", "no", "1:30", "012", "0x1f", "true", "1__0e5")
# a spelling for each key
SPELLINGS = st.lists(SPELLING, min_size=len(FREE), max_size=len(FREE))
EXAMPLE = (ISSUE * len(FREE))[: len(FREE)]


def in_file(directory, values):
    """An experiment with these keys, each written as it is."""
    lines = ["# @package _global_", "defaults: [/experiment/cpu_smoke, _self_]"]
    nested: dict = {}
    for key, written in values.items():
        *sections, name = key.split(".")
        within = nested
        for section in sections:
            within = within.setdefault(section, {})
        within[name] = written

    def write(part, indent):
        for name, value in part.items():
            is_section = isinstance(value, dict)
            lines.append(f"{indent}{name}: {'' if is_section else value}")
            if is_section:
                write(value, f"{indent}  ")

    write(nested, "")
    file = Path(directory) / "mine" / "own.yaml"
    file.parent.mkdir(exist_ok=True)
    file.write_text("\n".join(lines))
    return str(file)


def texts_of(config):
    """The free texts, in the order of FREE."""
    values = flatten(config)
    return [values[key] for key in FREE]


@settings(max_examples=8, deadline=None)
@example(EXAMPLE)
@given(SPELLINGS)
def test_a_text_arrives_as_it_was_typed(spellings):
    given = [f"{key}={spelling}" for key, spelling in zip(FREE, spellings, strict=True)]
    config = load_config(SMOKE, given)
    assert texts_of(config) == list(spellings)
    # as a run, a resume and an evaluation of it read what is stored
    assert config_from_json(config_to_json(config)) == config
    assert config_from_yaml(config_to_yaml(config), source="test") == config
    assert with_overrides(dataclasses.asdict(config), [], source="test") == config


@settings(max_examples=8, deadline=None)
@example(EXAMPLE)
@given(SPELLINGS)
def test_a_text_arrives_as_it_stands_in_a_file(tmp_path_factory, spellings):
    values = dict(zip(FREE, spellings, strict=True))
    config = load_config(in_file(tmp_path_factory.mktemp("file"), values), [])
    assert texts_of(config) == list(spellings)


@settings(max_examples=8, deadline=None)
@example(EXAMPLE)
@given(SPELLINGS)
def test_a_text_arrives_as_the_environment_has_it(spellings):
    """Or as the default is spelt that stands for it."""
    with pytest.MonkeyPatch.context() as patch:
        for number, spelling in enumerate(spellings):
            patch.setenv(f"TEXT{number}", spelling)
        given = [f"{key}=${{oc.env:TEXT{number}}}" for number, key in enumerate(FREE)]
        assert texts_of(load_config(SMOKE, given)) == list(spellings)
    given = [
        f"{key}=${{oc.env:NO_SUCH, {text}}}" for key, text in zip(FREE, spellings, strict=True)
    ]
    assert texts_of(load_config(SMOKE, given)) == list(spellings)


@settings(max_examples=8, deadline=None)
@example(["~", "it's", "'a' or \"b\"", "  a\tb ", "a, b", "[a]", "{problem}", "NULL"])
@example(["None", "a\nb\\", "\\,", "", "=", "#", "a: b", "?"])
@given(
    st.lists(st.text(st.characters(exclude_categories=["Cs", "Cc"])), min_size=8, max_size=8)
)
def test_what_is_typed_for_a_text_needs_no_quotes(texts):
    optional = [key for key in FREE if TEXTS[key].type == "str | None"][:8]
    plain = re.compile(r"""(?!null$|\?\?\?$|\s*(['"]).*\1\s*$)(?!.*\$\{)""", re.DOTALL)
    texts = [text if plain.match(text) or " or " in text else "plain" for text in texts]
    given = [f"{key}={text}" for key, text in zip(optional, texts, strict=True)]
    values = flatten(load_config(SMOKE, given))
    assert [values[key] for key in optional] == texts


@pytest.mark.parametrize("quote", "'\"")
def test_quotes_and_null_are_hydras(quote):
    optional = [key for key in FREE if TEXTS[key].type == "str | None"]
    given = [f"{key}={quote}1e3{quote}" for key in optional]
    assert {flatten(load_config(SMOKE, given))[key] for key in optional} == {"1e3"}
    given += [f"{key}=null" for key in optional]
    assert {flatten(load_config(SMOKE, given))[key] for key in optional} == {None}


@pytest.mark.parametrize("null", ["null", "Null", "NULL", "~", ""])
def test_null_in_a_file_is_yamls(tmp_path, null):
    optional = [key for key in FREE if TEXTS[key].type == "str | None"]
    config = load_config(in_file(tmp_path, dict.fromkeys(optional, null)), [])
    assert {flatten(config)[key] for key in optional} == {None}
    quoted = load_config(in_file(tmp_path, dict.fromkeys(optional, f"'{null}'")), [])
    assert {flatten(quoted)[key] for key in optional} == {null}


@pytest.mark.parametrize("key", [*WORDS, *CHECKED])
def test_a_sentence_repeats_the_word_as_it_was_written(tmp_path, key):
    sentence = CHECKED.get(key, f"{key} is {{}}, which does not exist").format("'2024_01'")
    for experiment, overrides in [
        (SMOKE, [f"{key}=2024_01"]),
        (in_file(tmp_path, {key: "2024_01"}), []),
    ]:
        with pytest.raises(ConfigError) as refusal:
            load_config(experiment, overrides)
        assert str(refusal.value).startswith(sentence)


LISTS = {
    "rollout.stop": ("[on, 1e3,012, '5', a b]", ["on", "1e3", "012", "5", "a b"]),
    "reward.weights": ("[1e3, 2]", [1000.0, 2.0]),
    "data.few_shot": (
        "[{problem: 1_0, response: no}]",
        [{"problem": "1_0", "response": "no"}],
    ),
    "data.chat_template_kwargs": (
        "{enable_thinking: false, n: 1e3}",
        {"enable_thinking": False, "n": 1000.0},
    ),
    "data.sources": (
        "[{path: a.jsonl, name: 1e3, weight: 2, subset: 2024_01, chat_template: false}]",
        [
            {
                "name": "1e3",
                "weight": 2,
                "path": "a.jsonl",
                "subset": "2024_01",
                "chat_template": False,
            }
        ],
    ),
}


@pytest.mark.parametrize("key", LISTS)
def test_texts_in_lists_and_dictionaries_too(tmp_path, key):
    """A text in them is one, a number a number, and what has no type is what it looks like."""
    written, expected = LISTS[key]
    path = {"data.path": "sources"} if key == "data.sources" else {}
    functions = ["reward.functions=[data.task,data.task]"] if key == "reward.weights" else []
    for config in (
        load_config(SMOKE, [f"{key}={written}", *functions]),
        load_config(in_file(tmp_path, {key: written} | path), functions),
    ):
        assert flatten(config)[key] == expected
        assert config_from_yaml(config_to_yaml(config), source="test") == config


NO_BOOLS = ("2", "1", "0", "on", "off", "yes", "no", "y", "N", "1.0", "null", "t", "''")


@settings(max_examples=20, deadline=None)
@example("replay.enabled", "2")
@given(st.sampled_from(BOOLS), st.sampled_from(NO_BOOLS))
def test_a_bool_takes_true_and_false_only(tmp_path_factory, key, spelling):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLAG", spelling)
        for experiment, overrides in [
            (SMOKE, [f"{key}={spelling}"]),
            (SMOKE, [f"{key}=${{oc.env:FLAG}}"]),
            (in_file(tmp_path_factory.mktemp("bool"), {key: spelling}), []),
        ]:
            with pytest.raises(ConfigError) as refusal:
                load_config(experiment, overrides)
            assert str(refusal.value).startswith(f"{key} is ")
            assert str(refusal.value).endswith("; use true or false")


@pytest.mark.parametrize(
    "spelling", ["true", "True", "TRUE", "false", "'true'", "${train.packing}"]
)
def test_true_and_false_are_taken(tmp_path, spelling):
    for config in (
        load_config(SMOKE, [f"data.chat_template={spelling}"]),
        load_config(in_file(tmp_path, {"data.chat_template": spelling}), []),
    ):
        assert config.data.chat_template is ("true" in spelling.lower())


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (["rollout.stop=[a]", "+rollout.stop=[]"], "rollout.stop is ['a'] already"),
        (["+model.path=x"], "model.path is 'tiny' already"),
        (["+data.reasoning_gym.size=1"], "data.reasoning_gym.size is 32 already"),
        (["+train.num_epochs=1"], "train.num_epochs is 2 already"),
        (["+data.reasoning_gym=[]"], "data.reasoning_gym is {"),
    ],
)
def test_a_plus_never_replaces_a_value(given, sentence):
    with pytest.raises(ConfigError) as refusal:
        load_config(SMOKE, given)
    assert sentence in str(refusal.value)
    assert str(refusal.value).endswith("; leave out the + to replace it")


def test_a_plus_adds_a_key_and_two_replace_it():
    config = load_config(
        SMOKE,
        ["+data.subset=1e3", "++train.num_epochs=1", "+data.reasoning_gym={size: 8}"],
    )
    assert (config.data.subset, config.train.num_epochs) == ("1e3", 1)
    assert config.data.reasoning_gym["size"] == 8
    assert config.data.reasoning_gym["min_terms"] == 2
