"""Token counts for the OpenRLHF route, which sends text only."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from r3_openrlhf.method.errors import ConfigError


def load_counter(path: str) -> Callable[[str], int]:
    """Counts tokens with a tokenizer.json. ConfigError: there is none at `path`."""
    from tokenizers import Tokenizer

    file = Path(path)
    if file.is_dir():
        file = file / "tokenizer.json"
    if not file.is_file():
        raise ConfigError(f"--tokenizer: {file} does not exist; give a tokenizer.json or the directory that holds one")
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises plain Exception for whatever is wrong with the file
        raise ConfigError(
            f"--tokenizer: {file} is no tokenizer ({error}); give a tokenizer.json of Hugging Face"
        ) from error
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)
