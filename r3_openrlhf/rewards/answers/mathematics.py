"""Grader of task "math": the final answer of a response, read as its reference's kind."""

import re
from dataclasses import replace

from r3_openrlhf.rewards.answers.algebra import (
    MAX_SYMBOLIC_CHARS,
    agree,
    decide,
    equal,
    is_too_complex,
    parse_any,
    parse_in_text,
    parse_reference,
    rounded_side,
    unified,
    value_is_same,
    with_factors,
)
from r3_openrlhf.rewards.answers.comparison import number
from r3_openrlhf.rewards.answers.extraction import (
    MAX_ANSWER_CHARS,
    FinalAnswer,
    final_answer,
    why_no_guess,
)
from r3_openrlhf.rewards.answers.form import (
    is_copied,
    is_literal,
    is_other_amount,
    is_plain,
    is_single,
    objection,
)
from r3_openrlhf.rewards.answers.kinds import is_right, kind_of, kinds
from r3_openrlhf.rewards.answers.kinds.choice import letter_of
from r3_openrlhf.rewards.answers.marks import ALTERNATIVE
from r3_openrlhf.rewards.answers.parameters import renamed
from r3_openrlhf.rewards.answers.parts import OR, same_list
from r3_openrlhf.rewards.answers.patterns import table
from r3_openrlhf.rewards.answers.references import read_reference
from r3_openrlhf.rewards.answers.request import Item, Result
from r3_openrlhf.rewards.answers.spelling import UNEVALUATED, align
from r3_openrlhf.rewards.answers.units import asked_unit, unit_of
from r3_openrlhf.rewards.answers.values import is_too_large

_NUMBER = re.compile(r"[0-9]+(?:[.,][0-9]+)*")
# signs at the end after which something is missing: 7\cdots, 7'', 7+; not the dots of 0.333...
_UNFINISHED = re.compile(
    r"(?<![.\d'])\d+\s*(?:\\ldots|\.{2,}|'+|\\cdots|[-+/=^_<>?]|\\(?:times|cdot|div|pm|prime)(?![a-zA-Z]))\s*$"
)
_FUNCTION_OF_NUMBER = re.compile(
    r"\\(?:log|ln|exp|sin|cos|tan|cot|sec|csc)(?![a-zA-Z])[^a-zA-Z]*$"
    r"|^\s*(?:\||\[|\\lvert)\s*[-\d./{}]+\s*(?:\||\]|\\rvert)\s*$"
)
_NO_DIGIT = re.compile(r"[^0-9]+")


def grade(item: Item) -> Result:
    """Grade one item. With the problem's text, what is copied from it is no answer (form.py)."""
    problem = item.problem
    golds = [
        read.text for read in map(read_reference, item.references) if read.unusable is None
    ]
    if not golds:
        return "ungraded", "bad_reference", None, None
    found = final_answer(item.response, truncated=item.truncated, problem=problem)
    if found is None:
        return "wrong", "no_answer", 0.0, None
    if len(found.text) > MAX_ANSWER_CHARS:
        # as text, white space aside
        same = "".join(found.text.split()) in {"".join(gold.split()) for gold in golds}
        if same:
            return "correct", "correct", 1.0, found.text[:MAX_ANSWER_CHARS]
        return "wrong", "answer_too_long", 0.0, found.text[:MAX_ANSWER_CHARS]
    typed = {gold: kind_of(gold, problem) for gold in golds}
    letters = [
        letter for gold in golds if typed[gold] is None and (letter := letter_of(gold, problem))
    ]
    for entry in [
        *filter(None, typed.values()),
        *((kinds()["choice"], frozenset(letter)) for letter in letters),
    ]:
        if is_right(*entry, found.text, problem, exact=found.exact):
            return "correct", "correct", 1.0, found.text
    golds = [gold for gold in golds if typed[gold] is None]
    found = replace(found, text=found.text.replace(ALTERNATIVE, " or "))
    if not golds:
        return "wrong", "wrong", 0.0, found.text[-MAX_ANSWER_CHARS:]
    golds = (
        [with_factors(unified(gold), problem) for gold in golds]
        if problem
        else list(map(unified, golds))
    )
    decided = _decide_cheaply(found.text, golds, problem) if found.exact else None
    return decided or _grade_symbolically(found, golds, problem)


def _decide_cheaply(extracted: str, golds: list[str], problem: str) -> Result | None:
    """Grade a text that is the answer, if no formula has to be parsed for it."""
    text = with_factors(unified(extracted), problem) if problem else unified(extracted)
    golds = [_in_asked_unit(gold, text, problem) for gold in golds]
    text = rounded_side(text, golds[0]) if "\\approx" in text else text
    if (end := _UNFINISHED.search(text)) and not any(
        gold.endswith(end[0]) or unit_of(gold) for gold in golds
    ):
        return "wrong", "wrong", 0.0, extracted
    decisions = [decide(text, gold) for gold in golds]
    for gold, decision in zip(golds, decisions, strict=True):
        if decision:
            return _in_its_form(text, gold, problem, extracted)
    reason = None
    if all(decision is False for decision in decisions):
        reason = "wrong"
    elif _leaves_the_computing(unified(extracted), golds):
        reason = "unevaluated"  # it leaves the computing to the grader
    elif len(extracted) > max(MAX_SYMBOLIC_CHARS, 2 * max(map(len, golds))):
        reason = "answer_too_long"
    elif is_too_complex(extracted, golds):
        reason = "too_large"
    elif problem and all(is_copied(unified(extracted), gold, problem) for gold in golds):
        reason = "restated"  # whatever its value
    return ("wrong", reason, 0.0, extracted) if reason else None


def _in_asked_unit(gold: str, answer: str, problem: str) -> str:
    """Add the unit that the problem asks for to a number, where the answer states another one."""
    stated = unit_of(answer) if problem else None
    if (
        stated is None
        or unit_of(gold)
        or number(gold) is None
        or (unit := asked_unit(problem, stated)) is None
    ):
        return gold
    return rf"{gold}\text{{ {unit}}}"


def _in_its_form(answer: str, gold: str, problem: str, extracted: str) -> Result:
    """Correct, unless the answer equals the reference without being solved."""
    reason = "unsolved" if is_other_amount(answer, gold, problem) else None
    if reason is None and not is_plain(answer, gold):
        reason = objection(*align(answer, gold), problem, value_is_same)
        ways = OR.split(answer)
        if (
            len(ways) > 1
            and is_single(gold)
            and not all(agree(way.strip(), gold) for way in ways)
        ):
            reason = "several"  # one of them is right
    if reason is not None:
        return "wrong", reason, 0.0, extracted
    return "correct", "correct", 1.0, extracted


def _leaves_the_computing(answer: str, golds: list[str]) -> bool:
    """Tell whether it has an integral, a sum or the like that no reference has; where these are numbers, a function."""
    known = {operator for gold in golds for operator in UNEVALUATED.findall(gold)}
    return not set(UNEVALUATED.findall(answer)) <= known or (
        _FUNCTION_OF_NUMBER.search(answer) is not None and all(map(is_literal, golds))
    )


def _grade_symbolically(found: FinalAnswer, golds: list[str], problem: str) -> Result:
    pairs = [
        align(unified(found.text), gold) if found.exact else (found.text, gold)
        for gold in golds
    ]
    if found.exact:
        pairs += [
            (other, gold) for answer, gold in pairs for other in renamed(answer, gold, problem)
        ]
    if found.exact and (result := _grade_lists(pairs, found.text, problem)):
        return result
    if not found.exact and is_too_complex(found.text, golds):
        return "wrong", "too_large", 0.0, found.text
    parse_answer = parse_any if found.exact else parse_in_text
    readings = {answer: parse_answer(answer) for answer, _ in pairs}
    every = [reading for found_readings in readings.values() for reading in found_readings]
    if not every or not found.exact and not _ends_the_text(str(every[-1]), found):
        return "wrong", "no_answer", 0.0, None
    extracted = found.text if found.exact else str(every[-1])[:MAX_ANSWER_CHARS]
    if any(map(is_too_large, (reading for gold in golds for reading in parse_reference(gold)))):
        return "ungraded", "too_large", None, extracted
    if any(map(is_too_large, every)):
        return "wrong", "too_large", 0.0, extracted  # none of the references is
    if reason := why_no_guess(extracted, found):
        return "wrong", reason, 0.0, extracted
    for answer, gold in pairs:
        guess = unified(extracted)
        if not found.exact and (decide(guess, gold) or same_list(guess, gold, agree)):
            return _in_its_form(unified(extracted), gold, problem, extracted)
        text = answer if found.exact else extracted
        if any(
            equal(a, b, gold, text) for a in parse_reference(gold) for b in readings[answer]
        ):
            # a guess at the end of a text: what comes out of "1/2 = 10/9" is the last side
            last = text.rpartition("=")[2].partition("\\approx")[0].strip()
            if not found.exact and last != text and agree(unified(last), gold):
                text = last
            return _in_its_form(unified(text), gold, problem, extracted)
    return "wrong", "wrong", 0.0, extracted


def _grade_lists(pairs: list[tuple[str, str]], extracted: str, problem: str) -> Result | None:
    """Grade part by part, where all references are lists that can be evaluated."""
    if any(is_too_large(reading) for _, gold in pairs for reading in parse_reference(gold)):
        return None
    same = [same_list(*pair, agree) for pair in pairs]
    if True in same:
        return _in_its_form(*pairs[same.index(True)], problem, extracted)
    return None if None in same else ("wrong", "wrong", 0.0, extracted)


def _ends_the_text(extracted: str, found: FinalAnswer) -> bool:
    """Tell whether a guessed answer has the text's last number: what is before it is a step."""
    numbers = _NUMBER.findall(found.text)
    return (
        found.stated
        or not numbers
        or _NO_DIGIT.sub("", numbers[-1]) in _NO_DIGIT.sub("", extracted)
    )


def warm_up() -> None:
    """Grade one of each kind (warm_up.toml), so that forked workers find modules loaded and caches filled."""
    examples = table("warm_up.toml")
    boxed = [(rf"\boxed{{{answer}}}", gold) for answer, gold in examples["pairs"]]
    for response, reference in boxed + examples["texts"]:
        grade(Item("math", response, (reference,), False))
