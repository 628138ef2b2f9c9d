"""Grader of task "math": the final answer of a response, read as its reference's kind."""

import re
from dataclasses import replace
from itertools import chain

from r3_openrlhf.rewards.answers.amounts.comparison import number
from r3_openrlhf.rewards.answers.amounts.units import asked_unit, unit_of, with_tonnes
from r3_openrlhf.rewards.answers.formulas.algebra import (
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
)
from r3_openrlhf.rewards.answers.formulas.parameters import renamed
from r3_openrlhf.rewards.answers.formulas.spelling import UNEVALUATED, align
from r3_openrlhf.rewards.answers.formulas.values import is_too_large
from r3_openrlhf.rewards.answers.guards.form import (
    estimates_a_count,
    is_copied,
    is_literal,
    is_other_amount,
    is_plain,
    is_single,
    objection,
    with_factors,
)
from r3_openrlhf.rewards.answers.kinds import is_right, kind_of, kinds
from r3_openrlhf.rewards.answers.kinds.choice import letter_of
from r3_openrlhf.rewards.answers.reading.extraction import (
    MAX_ANSWER_CHARS,
    FinalAnswer,
    final_answer,
    number_at_the_end,
    why_no_guess,
)
from r3_openrlhf.rewards.answers.reading.scanner import ALTERNATIVE
from r3_openrlhf.rewards.answers.references import read_reference
from r3_openrlhf.rewards.answers.request import Item, Result
from r3_openrlhf.rewards.answers.text.parts import OR, same_list
from r3_openrlhf.rewards.answers.text.patterns import table

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
    golds = _usable_references(item)
    if not golds:
        return "ungraded", "bad_reference", None, None
    answer = final_answer(item.response, truncated=item.truncated, problem=problem)
    if answer is None:
        return "wrong", "no_answer", 0.0, None
    if len(answer.text) > MAX_ANSWER_CHARS:
        return _grade_long(answer.text, golds)
    if estimates_a_count(answer.text, problem):
        return _wrong("wrong", answer.text)
    if _is_right_by_kind(answer, golds, problem):
        return _correct(answer.text)
    golds = [gold for gold in golds if kind_of(gold, problem) is None]
    if ALTERNATIVE in answer.text:
        answer = replace(answer, text=answer.text.replace(ALTERNATIVE, " or "))
    if not golds:
        return _wrong("wrong", answer.text[-MAX_ANSWER_CHARS:])
    golds = [_in_one_spelling(gold, problem) for gold in golds]
    if answer.exact:
        decided = _decide_cheaply(answer.text, golds, problem)
        if decided is not None:
            return decided
    return _grade_symbolically(answer, golds, problem)


def _usable_references(item: Item) -> list[str]:
    """Return what the references say, without those that cannot be read."""
    readings = [read_reference(reference) for reference in item.references]
    return [reading.text for reading in readings if reading.unusable is None]


def _correct(extracted: str) -> Result:
    """Return the result of a right answer."""
    return "correct", "correct", 1.0, extracted


def _wrong(reason: str, extracted: str) -> Result:
    """Return the result of an answer that counts as wrong."""
    return "wrong", reason, 0.0, extracted


def _grade_long(text: str, golds: list[str]) -> Result:
    """Compare an answer that is too long to be parsed as text, white space aside."""
    extracted = text[:MAX_ANSWER_CHARS]
    without_space = "".join(text.split())
    if any("".join(gold.split()) == without_space for gold in golds):
        return _correct(extracted)
    return _wrong("answer_too_long", extracted)


def _is_right_by_kind(answer: FinalAnswer, golds: list[str], problem: str) -> bool:
    """Tell whether an answer is right as the kind of a reference, or as the option that one is."""
    entries = []
    letters = []
    for gold in golds:
        entry = kind_of(gold, problem)
        if entry is not None:
            entries.append(entry)
            continue
        letter = letter_of(gold, problem)
        if letter:
            letters.append((kinds()["choice"], frozenset(letter)))
    return any(
        is_right(kind, value, answer.text, problem, exact=answer.exact)
        for kind, value in entries + letters
    )


def _in_one_spelling(text: str, problem: str) -> str:
    """Rewrite a text in one spelling; with the problem's text, its products with factors."""
    return with_factors(unified(text), problem) if problem else unified(text)


def _decide_cheaply(extracted: str, golds: list[str], problem: str) -> Result | None:
    """Grade a text that is the answer, if no formula has to be parsed for it."""
    text = _in_one_spelling(extracted, problem)
    golds = [_in_asked_unit(gold, text, problem) for gold in golds]
    golds = [with_tonnes(gold, text) for gold in golds]
    text = with_tonnes(text, golds[0])
    if "\\approx" in text:
        text = rounded_side(text, golds[0])
    if _is_unfinished(text, golds):
        return _wrong("wrong", extracted)
    decisions = [decide(text, gold) for gold in golds]
    for gold, decision in zip(golds, decisions, strict=True):
        if decision:
            return _in_its_form(text, gold, problem, extracted)
    if all(decision is False for decision in decisions):
        return _wrong("wrong", extracted)
    reason = _why_not_parsed(extracted, golds, problem)
    return None if reason is None else _wrong(reason, extracted)


def _is_unfinished(text: str, golds: list[str]) -> bool:
    """Tell whether a text ends with a sign that ends no reference, such as the dots of "7..."."""
    end = _UNFINISHED.search(text)
    if end is None:
        return False
    return not any(gold.endswith(end[0]) or unit_of(gold) for gold in golds)


def _why_not_parsed(extracted: str, golds: list[str], problem: str) -> str | None:
    """Return why an answer is wrong whatever its value; None: it has to be parsed."""
    answer = unified(extracted)
    if _leaves_the_computing(answer, golds):
        return "unevaluated"
    if len(extracted) > max(MAX_SYMBOLIC_CHARS, 2 * max(map(len, golds))):
        return "answer_too_long"
    if is_too_complex(extracted, golds):
        return "too_large"
    if problem and all(is_copied(answer, gold, problem) for gold in golds):
        return "restated"
    return None


def _in_asked_unit(gold: str, answer: str, problem: str) -> str:
    """Add the unit that the problem asks for to a number, where the answer states another one."""
    if not problem:
        return gold
    stated = unit_of(answer)
    if stated is None or unit_of(gold) or number(gold) is None:
        return gold
    unit = asked_unit(problem, stated)
    return gold if unit is None else rf"{gold}\text{{ {unit}}}"


def _in_its_form(answer: str, gold: str, problem: str, extracted: str) -> Result:
    """Correct, unless the answer equals the reference without being solved."""
    if is_other_amount(answer, gold, problem):
        return _wrong("unsolved", extracted)
    if is_plain(answer, gold):
        return _correct(extracted)
    if _is_one_of_several(answer, gold):
        return _wrong("several", extracted)
    reason = objection(*align(answer, gold), problem, value_is_same)
    return _correct(extracted) if reason is None else _wrong(reason, extracted)


def _is_one_of_several(answer: str, gold: str) -> bool:
    """Tell whether an answer gives alternatives to a single reference, and not all equal it."""
    alternatives = OR.split(answer)
    if len(alternatives) < 2 or not is_single(gold):
        return False
    return not all(agree(alternative.strip(), gold) for alternative in alternatives)


def _leaves_the_computing(answer: str, golds: list[str]) -> bool:
    """Tell whether it has an integral, a sum or the like that no reference has; where these are numbers, a function."""
    known = set(chain.from_iterable(UNEVALUATED.findall(gold) for gold in golds))
    if not known.issuperset(UNEVALUATED.findall(answer)):
        return True
    return _FUNCTION_OF_NUMBER.search(answer) is not None and all(map(is_literal, golds))


def _grade_symbolically(answer: FinalAnswer, golds: list[str], problem: str) -> Result:
    """Grade an answer whose formulas have to be parsed: the whole text, or a guess at its end."""
    if answer.exact:
        return _grade_formula(answer, golds, problem)
    return _grade_guess(answer, golds, problem)


def _grade_formula(answer: FinalAnswer, golds: list[str], problem: str) -> Result:
    """Grade a text that is the answer, in the spelling and with the letters of each reference."""
    extracted = answer.text
    pairs = [align(unified(extracted), gold) for gold in golds]
    for text, gold in list(pairs):
        pairs.extend((other, gold) for other in renamed(text, gold, problem))
    decided = _grade_lists(pairs, extracted, problem)
    if decided is not None:
        return decided
    readings = {text: parse_any(text) for text, _ in pairs}
    every = list(chain.from_iterable(readings.values()))
    if not every:
        return "wrong", "no_answer", 0.0, None
    refused = _refuse_large(every, golds, extracted)
    if refused is not None:
        return refused
    reason = why_no_guess(extracted, answer)
    if reason:
        return _wrong(reason, extracted)
    for text, gold in pairs:
        if _equals_any(readings[text], gold, text):
            return _in_its_form(unified(text), gold, problem, extracted)
    return _wrong("wrong", extracted)


def _grade_guess(answer: FinalAnswer, golds: list[str], problem: str) -> Result:
    """Grade the last formula of a text that marks no answer."""
    said = number_at_the_end(answer)
    decided = None if said is None else _decide_number(said, answer, golds, problem)
    if decided is not None:
        return decided
    if is_too_complex(answer.text, golds):
        return _wrong("too_large", answer.text)
    readings = parse_in_text(answer.text)
    if not readings or not _ends_the_text(str(readings[-1]), answer):
        return "wrong", "no_answer", 0.0, None
    extracted = str(readings[-1])[:MAX_ANSWER_CHARS]
    refused = _refuse_large(readings, golds, extracted)
    if refused is not None:
        return refused
    reason = why_no_guess(extracted, answer)
    if reason:
        return _wrong(reason, extracted)
    guess = unified(extracted)
    for gold in golds:
        if decide(guess, gold) or same_list(guess, gold, agree):
            return _in_its_form(guess, gold, problem, extracted)
        if _equals_any(readings, gold, extracted):
            side = unified(_side_of_value(extracted, gold))
            return _in_its_form(side, gold, problem, extracted)
    return _wrong("wrong", extracted)


def _decide_number(
    said: str, answer: FinalAnswer, golds: list[str], problem: str
) -> Result | None:
    """Grade the number at the end of a text; None: a formula has to be parsed for it."""
    decisions = [decide(said, gold) for gold in golds]
    if True not in decisions:
        return None if None in decisions else _wrong("wrong", said)
    reason = why_no_guess(said, answer)
    if reason:
        return _wrong(reason, said)
    return _in_its_form(said, golds[decisions.index(True)], problem, said)


def _refuse_large(readings: list, golds: list[str], extracted: str) -> Result | None:
    """Refuse to compare values that take too long to evaluate; None: there are none."""
    of_references = chain.from_iterable(parse_reference(gold) for gold in golds)
    if any(map(is_too_large, of_references)):
        return "ungraded", "too_large", None, extracted
    if any(map(is_too_large, readings)):
        return _wrong("too_large", extracted)
    return None


def _equals_any(readings: list, gold: str, text: str) -> bool:
    """Tell whether one of the readings of a text equals one of the reference's."""
    for reference in parse_reference(gold):
        for reading in readings:
            if equal(reference, reading, gold, text):
                return True
    return False


def _side_of_value(text: str, gold: str) -> str:
    """Return the last side of a guessed equation if it equals the reference, else all of it.

    What comes out of "1/2 = 10/9" is 10/9."""
    last = text.rpartition("=")[2].partition("\\approx")[0].strip()
    if last != text and agree(unified(last), gold):
        return last
    return text


def _grade_lists(pairs: list[tuple[str, str]], extracted: str, problem: str) -> Result | None:
    """Grade part by part, where all references are lists that can be evaluated."""
    of_references = chain.from_iterable(parse_reference(gold) for _, gold in pairs)
    if any(map(is_too_large, of_references)):
        return None
    decisions = [same_list(answer, gold, agree) for answer, gold in pairs]
    if True in decisions:
        answer, gold = pairs[decisions.index(True)]
        return _in_its_form(answer, gold, problem, extracted)
    return None if None in decisions else _wrong("wrong", extracted)


def _ends_the_text(extracted: str, answer: FinalAnswer) -> bool:
    """Tell whether a guessed answer has the text's last number: what is before it is a step."""
    numbers = _NUMBER.findall(answer.text)
    if answer.stated or not numbers:
        return True
    return _NO_DIGIT.sub("", numbers[-1]) in _NO_DIGIT.sub("", extracted)


def warm_up() -> None:
    """Grade one of each kind (warm_up.toml), so that forked workers find modules loaded and caches filled."""
    examples = table("warm_up.toml")
    boxed = [(rf"\boxed{{{answer}}}", gold) for answer, gold in examples["pairs"]]
    for response, reference in boxed + examples["texts"]:
        grade(Item("math", response, (reference,), False))
