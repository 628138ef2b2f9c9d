"""OpenRLHF's remote reward contract: what its stock client sends, and what it makes of the answer.

openrlhf/utils/agent.py, SingleTurnAgentExecutor: POST {"query": [prompt + response], "prompts":
[prompt], "labels": [label]}, one sample per request, special tokens included. From the answer it
takes `rewards`, `scores` and `extra_logs` as they are into torch.tensor([value]): for one sample
they must be numbers, a list would become a reward of shape (1, 1). A prompt over the length limit
is cut from the left in `query`, but not in `prompts`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from r3_openrlhf.method.errors import ConfigError
from r3_openrlhf.method.types import Verdict
from r3_openrlhf.rewards.exchange import Grade

_SPECIAL_TOKENS_AT_END = re.compile(
    r"(?:\s*(?:<[|｜][^<>|｜]{1,40}[|｜]>|</s>|<eos>|<pad>|<end_of_turn>|<\|im_end\|>))+\s*$"
)
_TAIL_CHARS = 400  # of a prompt whose beginning was cut off


def response_of(query: str, prompt: str) -> str | None:
    """Return the query after the prompt, without special tokens at its end; None: no prompt."""
    end = _end_of_prompt(query, prompt)
    if end is None:
        return None
    response = query[end:]
    return response[: -_TAIL_CHARS or None] + _SPECIAL_TOKENS_AT_END.sub("", response[-_TAIL_CHARS:])


def _end_of_prompt(query: str, prompt: str) -> int | None:
    if query.startswith(prompt):
        return len(prompt)
    position = 0  # decoding may have changed white space
    for character in prompt:
        if character.isspace():
            continue
        while position < len(query) and query[position].isspace():
            position += 1
        if position == len(query) or query[position] != character:
            break
        position += 1
    else:
        return position
    tail = prompt[-_TAIL_CHARS:]
    start = query.find(tail) if len(tail) == _TAIL_CHARS else -1
    return None if start < 0 else start + len(tail)


def references_of(label: object) -> tuple[tuple[str, ...], bytes | None]:
    """Read references and metadata of a label: a text, number, list of answers, or reasoning_gym
    entry, bytes or text of a JSON object. The bytes are the metadata; only its answer is read."""
    if isinstance(label, str) and label.startswith("{") and '"source_dataset"' in label:
        try:
            return references_of(label.encode())
        except msgspec.DecodeError:
            return (str(label),), None
    if isinstance(label, bytes):
        answer = msgspec.json.decode(_read_answer(label).answer)
        return (str(answer),), label
    if isinstance(label, list):
        return tuple(str(answer) for answer in label), None
    return () if label is None else (str(label),), None


class _Entry(msgspec.Struct):
    answer: msgspec.Raw = msgspec.Raw(b'""')


_read_answer = msgspec.json.Decoder(_Entry).decode


def stock_answer(grades: Sequence[Grade]) -> dict:
    """The answer for graded items: a number for one, lists for several; null: ungraded."""
    rewards = [grade.reward for grade in grades]
    scores = [grade.score for grade in grades]
    logs: dict[str, list[float | None]] = {
        "r3_correct": [None if g.verdict is Verdict.UNGRADED else float(g.verdict is Verdict.CORRECT) for g in grades],
        "r3_no_answer": [float(grade.reason == "no_answer") for grade in grades],
        "r3_grading_s": [grade.seconds for grade in grades],
    }
    if len(grades) == 1:
        return {
            "rewards": rewards[0],
            "scores": scores[0],
            "extra_logs": {key: value[0] for key, value in logs.items()},
        }
    return {"rewards": rewards, "scores": scores, "extra_logs": logs}


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
    except Exception as error:  # the library raises plain Exception
        raise ConfigError(
            f"--tokenizer: {file} is no tokenizer ({error}); give a tokenizer.json of Hugging Face"
        ) from error
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)
