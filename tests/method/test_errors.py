"""A stranger's value in a sentence."""

import json
import pickle

from r3_openrlhf.method.errors import ConfigError, quoted, without_secrets


def test_a_value_is_quoted_on_one_line_cut_and_without_passwords():
    assert quoted("a\nb\x1b[2J\u202e") == "'a\\nb\\x1b[2J\\u202e'"
    assert quoted("x" * 80) == repr("x" * 80) and quoted("x" * 81) == repr("x" * 80)
    assert quoted([1, "x" * 200]) == "[1, '" + "x" * 75
    assert quoted(["http://me:word@host/a"]) == "['http://host/a']"
    assert quoted("a\nb", marks=False) == "a\\nb" and quoted(3) == "3"


def test_a_url_loses_its_user_and_password_and_nothing_else():
    assert (
        without_secrets("[http://a:b@h1:1/x,https://c:d@e@h2] x@y")
        == "[http://h1:1/x,https://h2] x@y"
    )
    assert without_secrets('{"a": "http://h", "b": "x@y"}') == '{"a": "http://h", "b": "x@y"}'


def test_a_setting_whose_name_says_so_loses_its_value_and_no_other_one():
    assert without_secrets("agents.options={Api_Key: hunter2, x: 1} db_password='a b'") == (
        'agents.options={Api_Key: "***", x: 1} db_password="***"'
    )
    text = json.dumps({"password": 'a"b', "secret": {"x": 1}, "access_token": None})
    assert json.loads(without_secrets(text)) == {
        "password": "***",
        "secret": {"x": 1},
        "access_token": "***",
    }
    for plain in (
        "data.answer_key=q",
        "pad_token: x",
        '{"max_tokens": 3}',
        "set R3_REWARD_TOKEN to the one",
    ):
        assert without_secrets(plain) == plain


def test_the_sentence_of_an_error_is_safe_wherever_it_is_printed():
    error = pickle.loads(
        pickle.dumps(ConfigError("a\x1b[2J\nhttp://me:word@host is not there"))
    )
    assert str(error) == "a\\x1b[2J\nhttp://host is not there"
