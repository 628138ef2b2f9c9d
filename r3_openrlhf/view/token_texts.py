"""Token ids -> the piece of text that each stands for. Reads a tokenizer.json with `tokenizers` alone; no model is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from r3_openrlhf.method.errors import ConfigError
from r3_openrlhf.runs.models.locate import locate_model
from r3_openrlhf.view.run_reader import RunReader

if TYPE_CHECKING:
    from tokenizers import Tokenizer

FILE = "tokenizer.json"
REPLACEMENT = "\ufffd"  # of bytes that are no character by themselves
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
        self._before = self.tokenizer.encode(
            "a", add_special_tokens=False
        ).ids  # some decoders drop a text's first space
        self._known: dict[int, str] = {}  # the text of each token that was met

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """One text per token; together they are the whole text. A character of several tokens belongs to the last of them,
        and the others have ""."""
        from tokenizers.decoders import DecodeStream

        for token in set(ids) - self._known.keys():
            self._known[token] = self.whole_text([*self._before, token])[len(self.whole_text(self._before)) :]
        if not any(REPLACEMENT in self._known[token] for token in set(ids)):
            return [self._known[token] for token in ids]
        stream = DecodeStream(skip_special_tokens=False)  # some are parts of a character
        found = [stream.step(self.tokenizer, token) or "" for token in ids]
        found[-1] += self.whole_text(ids)[sum(map(len, found)) :]
        return found

    def text(self, ids: Sequence[int]) -> str:
        """As the run decoded its responses: without special tokens."""
        return self.tokenizer.decode(list(ids), skip_special_tokens=True)

    def whole_text(self, ids: Sequence[int]) -> str:
        """With special tokens: the prompt as the model saw it."""
        return self.tokenizer.decode(list(ids), skip_special_tokens=False)
