"""Grader of task "reasoning_gym": the data set's own scorer, chosen by the entry's
`metadata.source_dataset`.

Several scorers pass the answer to eval or to sympy.parse_expr, which runs it. Before any scorer is
used, those names are replaced inside their modules by parsers that only read."""

import importlib
import re
import types
from collections.abc import Callable
from functools import cache

import msgspec
import reasoning_gym
import sympy
from reasoning_gym.factory import DATASETS

from r3_openrlhf.config.answer_tasks import REFUSED_DATA_SETS
from r3_openrlhf.rewards.answers.exact import short_answer
from r3_openrlhf.rewards.answers.formulas.safe_expressions import (
    integer_value,
    literal,
    parse_expression,
    replace_in_sympy,
)
from r3_openrlhf.rewards.answers.guards.scorer_guards import is_too_long_to_score, passes
from r3_openrlhf.rewards.answers.request import Item, Result

MAX_ANSWER_CHARS = 20_000
_FRAME = re.compile(
    r"\\(?:text|textbf|mathrm|mathbf)\s*\{([^{}]*)\}|\*\*(.+)\*\*|```\w*\n(.*?)\n?```|`([^`]+)`"
    r"|(?:\*\*)?(?:[Tt]he )?(?:[Ff]inal )?[Aa]nswer(?: is)?:?(?:\*\*)?:?\s+(.+)",
    re.DOTALL,
)

replace_in_sympy()
_WITH_SYMPY = types.SimpleNamespace(**{**vars(sympy), "parse_expr": parse_expression})
_REPLACEMENTS = (  # name, what takes its place, modules of reasoning_gym
    ("sympy", _WITH_SYMPY, "algebra.intermediate_integration algebra.simple_integration"),
    ("sp", _WITH_SYMPY, "algebra.polynomial_multiplication"),
    ("parse_expr", parse_expression, "games.countdown games.puzzle24"),
    ("eval", literal, "games.n_queens algorithmic.binary_matrix algorithmic.number_sorting"),
    ("eval", literal, "algorithmic.spiral_matrix algorithmic.string_insertion"),
    ("eval", integer_value, "arithmetic.bitwise_arithmetic"),
)
for _name, _replacement, _modules in _REPLACEMENTS:
    for _module in _modules.split():
        setattr(importlib.import_module(f"reasoning_gym.{_module}"), _name, _replacement)


@cache
def _scorer(name: str) -> Callable[..., float]:
    return reasoning_gym.get_score_answer_fn(name)


def named_data_set(entry: dict | None) -> str | None:
    """Return the data set that an entry names; None: it names none, or one that is not graded."""
    metadata = (entry or {}).get("metadata")
    name = metadata.get("source_dataset") if isinstance(metadata, dict) else None
    return (
        name
        if isinstance(name, str) and name in DATASETS and name not in REFUSED_DATA_SETS
        else None
    )


_read_entry = msgspec.json.Decoder(dict).decode


def grade(item: Item) -> Result:
    """Grade one item; its metadata are the entry of the data set, or that as JSON."""
    entry = item.metadata
    if isinstance(entry, bytes):
        try:
            entry = _read_entry(entry)
        except (msgspec.DecodeError, RecursionError):
            return "ungraded", "bad_metadata", None, None
    answer = short_answer(item.response)
    if answer is None:
        return "wrong", "no_answer", 0.0, None
    result = grade_reasoning_gym(answer, entry)
    if result[0] == "wrong" and (bare := _without_frames(answer)) != answer:
        return max(result, grade_reasoning_gym(bare, entry), key=lambda found: found[2] or 0.0)
    return result


def _without_frames(answer: str) -> str:
    r"""Remove \text{}, bold, code and "Answer:" around an answer, as chat models write them."""
    for _ in range(4):
        frame = _FRAME.fullmatch(answer.strip())
        if frame is None:
            break
        answer = next(group for group in frame.groups() if group is not None)
    return answer


def grade_reasoning_gym(answer: str, entry: dict | None) -> Result:
    """Score below 1: wrong, the score is kept. A full score that the guard of the data set refuses:
    wrong, "loophole".

    An entry whose own answer does not score 1: ungraded."""
    name = named_data_set(entry)
    if entry is None or name is None:
        return "ungraded", "bad_reference", None, None
    if name in ("arc_agi", "rearc"):  # JSON and MessagePack make lists of tuples
        board = tuple(map(tuple, entry["metadata"]["output"]))
        entry = {**entry, "metadata": {**entry["metadata"], "output": board}}
    extracted = answer[:1000]
    too_long = len(answer) > MAX_ANSWER_CHARS or is_too_long_to_score(name, answer)
    score = 0.0 if too_long else _score(name, answer, entry)
    if score == 1.0 and passes(name, answer, entry):
        return "correct", "correct", 1.0, extracted
    own_answer = entry.get("answer")
    if own_answer is not None and _score(name, own_answer, entry) != 1.0:
        return "ungraded", "bad_reference", None, extracted
    if score is None:  # scorers raise anything for answers of the wrong form
        return "wrong", "unreadable", 0.0, extracted
    if not 0.0 <= score < 1.0:  # the entry is sound, so this is the answer's doing
        return "wrong", "loophole", 0.0, extracted
    return "wrong", "wrong", score, extracted


def _score(name: str, answer: str, entry: dict) -> float | None:
    """None: the scorer has raised: "unreadable", or a bad reference."""
    try:
        return float(_scorer(name)(answer=answer, entry=entry))
    except MemoryError:
        raise
    except Exception:
        return None
