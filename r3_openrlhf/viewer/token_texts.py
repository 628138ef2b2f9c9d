"""Token ids -> the piece of text that each stands for. Reads a tokenizer.json with `tokenizers` alone; no model is loaded."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from r3_openrlhf.errors import ConfigError
from r3_openrlhf.models.locate import locate_model
from r3_openrlhf.viewer.run_reader import RunReader

if TYPE_CHECKING:
    from tokenizers import Tokenizer

FILE = "tokenizer.json"
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
MISSING = (
    "There is no tokenizer for this run on this machine, so its tokens cannot be shown as text: copy the tokenizer.json of "
    "its model into the run's final_model/."
)


def find_tokenizer(run: RunReader) -> Path | None:
    """The tokenizer.json of the run: in final_model, in its newest copy, else that of model.path, if it is on this machine."""
    directory = run.directory
    copies = sorted(directory.checkpoints.glob(f"global_step*_hf/{FILE}"), key=lambda path: path.stat().st_mtime)
    candidates = [directory.final_model / FILE, *reversed(copies)]
    if run.config is not None:
        try:
            located = locate_model(run.config.model.path)
        except ConfigError:
            located = ""  # a directory of the machine that it was trained on
        candidates.append(Path(located) / FILE)
        if located and not Path(located).is_absolute():  # the name of a model on the hub
            candidates += _in_hub_cache(located)
    return next((path for path in candidates if path.is_file()), None)


def _in_hub_cache(name: str) -> list[Path]:
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(name, FILE)
    return [Path(found)] if isinstance(found, str) else []


class TokenTexts:
    """The pieces of one tokenizer. Raises ConfigError for a file that is no tokenizer."""

    def __init__(self, path: Path) -> None:
        from tokenizers import Tokenizer

        try:
            self.tokenizer: Tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises nothing narrower
            raise ConfigError(f"{path} is no tokenizer: {' '.join(str(error).split())[:200]}") from error
        self._is_bytes = '"ByteLevel"' in json.dumps(json.loads(path.read_text(encoding="utf-8")).get("decoder"))
        self._added = set(self.tokenizer.get_added_tokens_decoder())
        self._bytes: dict[int, bytes] = {}
        self._whole: dict[
            int, str | None
        ] = {}  # of each token that was met; None: its bytes are no text by themselves

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """One text per token; together they are the whole text. A character of several tokens belongs to the last of them,
        and the others have ""."""
        for token in set(ids) - self._whole.keys():
            self._whole[token] = _text_or_none(self._bytes_of(token))
        whole = [self._whole[token] for token in ids]
        if None not in whole:
            return whole  # type: ignore[return-value]
        decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        known = self._bytes
        found = []
        for token in ids:
            if token not in known:
                known[token] = self._bytes_of(token)
            found.append(decode(known[token]))
        if found:
            found[-1] += decode(b"", True)
        return found

    def text(self, ids: Sequence[int]) -> str:
        """As the run decoded its responses: without special tokens."""
        return self.tokenizer.decode(list(ids), skip_special_tokens=True)

    def whole_text(self, ids: Sequence[int]) -> str:
        """With special tokens: the prompt as the model saw it."""
        return "".join(self.pieces(ids))

    def _bytes_of(self, token: int) -> bytes:
        name = self.tokenizer.id_to_token(token)
        if name is None:
            return f"<{token}>".encode()
        if token in self._added:
            return name.encode()
        if self._is_bytes:
            table = _byte_of_letter()
            return b"".join(table.get(letter) or letter.encode() for letter in name)
        if match := _BYTE.fullmatch(name):
            return bytes([int(match[1], 16)])
        return name.replace("\u2581", " ").encode()


def _text_or_none(data: bytes) -> str | None:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return None


@cache
def _byte_of_letter() -> dict[str, bytes]:
    """The letters that GPT-2's vocabulary writes bytes with: printable ones as themselves, the others from 256 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {chr(byte): bytes([byte]) for byte in printable}
    return letters | {chr(256 + place): bytes([byte]) for place, byte in enumerate(others)}
