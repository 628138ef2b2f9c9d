"""The errors a user can meet: one sentence with the key or file, its value, and what to do."""

import re

_LOGIN = re.compile(r"(?<=://)[^/\s\"']*@")  # user:password@ of a URL
# name: value, name=value, "name": "value" of a setting; not answer_key, pad_token, max_tokens
_SECRET = re.compile(
    r"""(\w*(?:passw|secret|credential|api_?key|access_?key|(?:auth|api|access|hf|bearer)_?token)\w*["']?\s*[:=]\s*)"""
    r"""("(?:[^"\\]|\\.)*"|'[^']*'|[^\s,"'{}\[\]]+)""",
    re.IGNORECASE,
)
MAX_QUOTED = 80  # characters


def without_secrets(text: str) -> str:
    """Remove users and passwords of URLs, and the values of settings of secret names, from a text."""
    return _SECRET.sub(r'\1"***"', _LOGIN.sub("", text))


def on_one_line(text: str) -> str:
    """Escape the control characters of a text: no file must steer a terminal."""
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


def shortened(text: object, *, most: int = 600) -> str:
    """Put a text on one line; a longer one than `most` characters ends behind a word with " ..."."""
    line = " ".join(str(text).split())
    if len(line) <= most:
        return line
    whole_words = line[:most].rpartition(" ")[0]
    return f"{whole_words or line[:most]} ..."


def quoted(value: object, *, marks: bool = True, most: int = MAX_QUOTED) -> str:
    """Quote a stranger's value in a sentence: one line, cut to `most`, no passwords, texts quoted."""
    text = without_secrets(value if isinstance(value, str) else repr(value))
    return repr(text[:most]) if marks and isinstance(value, str) else on_one_line(text[:most])


class R3Error(Exception):
    """Base of this project's own errors; the command line prints them without a traceback."""

    def __str__(self) -> str:
        """Safe to print and to keep: no control characters but line ends, no passwords of URLs."""
        return "\n".join(map(on_one_line, without_secrets(super().__str__()).split("\n")))


class ConfigError(R3Error):
    """A configuration key is unknown, has a bad value, or excludes another one."""


class InvalidValue(R3Error, ValueError):
    """A value that a loop handed over is none that its field can hold."""


class DataError(R3Error):
    """A data set is missing, lacks a column, or holds a row that cannot be used."""


class HistoryError(R3Error):
    """The history store cannot be opened, read or written as asked."""


class TrainingStopped(R3Error):
    """A running job met a condition under which its numbers would no longer mean anything."""
