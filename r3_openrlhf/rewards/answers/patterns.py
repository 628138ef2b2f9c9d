"""Patterns that are kept in tables (.toml), in verbose form and with pieces that have names."""

import re
import tomllib
from importlib.resources import files

_PIECE = re.compile(r"<([A-Z_]+)>")


def table(name: str) -> dict:
    """Read a table of this folder."""
    return tomllib.loads(files(__package__).joinpath(name).read_text(encoding="utf-8"))


def compiled(pattern: str, pieces: dict[str, str], flags: int = 0) -> re.Pattern:
    """Compile a verbose pattern: no white space, "\\ " is a space, <NAME> is a piece, maybe of others."""
    while _PIECE.search(pattern):
        pattern = _PIECE.sub(lambda piece: pieces[piece[1]], pattern)
    return re.compile(pattern, re.VERBOSE | flags)


_PHRASES = table("phrases.toml")


def phrases(section: str) -> dict[str, re.Pattern]:
    """Compile the patterns of a section of phrases.toml, by name."""
    return {
        name: compiled(text, _PHRASES["pieces"], re.IGNORECASE)
        for name, text in _PHRASES[section].items()
    }
