"""Responses that solve nothing, of a problem and its reference, by texts.yaml, programs.yaml.

All are wrong by construction if the reference is right. Equal problems give equal ones.
"""

from __future__ import annotations

import itertools
import json
import math
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from importlib.resources import files
from typing import Any

import yaml

from r3_openrlhf.config.answer_tasks import TASKS
from r3_openrlhf.config.code_tests import read_tests, split_names
from r3_openrlhf.problems.sources import Label

Attacks = Iterator[tuple[str, str]]  # (family, response)
Words = dict[str, Sequence[str]]  # capital word of a text -> its values


def _read(name: str) -> dict[str, Any]:
    return yaml.safe_load(files(__package__).joinpath(name).read_text(encoding="utf-8"))


TEXTS, PROGRAMS = _read("texts.yaml"), _read("programs.yaml")


def attacks_on(label: Label) -> Attacks:
    """All attacks on one problem, in the form of its task."""
    task = TASKS[label.task]
    if task.runs_programs:
        yield from ((family, task.answer_form % text) for family, text in program_attacks(label.references[0]))
    elif label.metadata is not None:
        yield from ((family, f"<answer>{text}</answer>") for family, text in scorer_attacks(label.metadata))
    else:
        yield from answer_attacks(label.problem, label.references[0], label.task)


def _filled(texts: Iterable[str], words: Words) -> Iterator[str]:
    """Each text once for every choice of values of its words."""
    pattern = "|".join(sorted(words, key=len, reverse=True))
    for text in texts:
        names = list(dict.fromkeys(re.findall(pattern, text)))
        for values in itertools.product(*(words[name] for name in names)):
            chosen = dict(zip(names, values, strict=True))
            yield re.sub(pattern, lambda word, chosen=chosen: chosen[word[0]], text)  # type: ignore[misc]


# ── answers that are compared ──

_SEGMENTS = re.compile(r"\$\$(.+?)\$\$|\$(.+?)\$|\\\[(.+?)\\\]|\\\((.+?)\\\)", re.DOTALL)
_RELATION = re.compile(r"=|<|>|\\leq?(?![a-z])|\\geq?(?![a-z])|\\neq?(?![a-z])")
_SPELLING = re.compile(r"\\left|\\right|\\[dt]?frac|\\(?:text|mathrm)(?![a-z])|\\[,;:! ]|[\s{}$~]|\.$")
_DIGITS = re.compile(r"(?<![\w.^_{])\d{1,9}(?![\w.])")


def answer_attacks(problem: str, reference: str, task: str) -> Attacks:
    """Attacks on a comparison of answers, for task "math" or "exact"."""
    answer, seen = reference.strip(), {_bare(reference)}
    words = _words_of_answer(problem, answer) | {"ANSWER": [reference]}
    for rule in TEXTS["math"] * (task == "math") + TEXTS["exact"]:
        match = re.fullmatch(rule.get("when", "(?s:.*)"), answer)
        if match is None:
            continue
        groups = {name: [group] for name, group in zip(("FIRST", "SECOND", "THIRD"), match.groups(), strict=False)}
        for text in _filled(rule["texts"], words | groups):
            if _bare(text) not in seen:
                seen.add(_bare(text))
                yield rule["family"], rf"\boxed{{{text}}}"
    for rule in TEXTS["marked"]:
        pairs = itertools.permutations((reference, words["OTHER"][0]))
        texts = [_filled(rule["texts"], words | {"ONE": [first], "TWO": [second]}) for first, second in pairs]
        yield from ((rule["family"], text) for text in dict.fromkeys(itertools.chain(*texts)))


def _words_of_answer(problem: str, answer: str) -> Words:
    changed = [f"{answer[: m.start()]}{int(m[0]) + 1}{answer[m.end() :]}" for m in _DIGITS.finditer(answer)]
    unit = r"(?<=[\d}) ])%s(?![a-zA-Z])"
    words: Words = {
        "COPIED": list(_copied(problem, answer)),
        "PART": list(_parts(answer)),
        "CHANGED": changed[:3],
        "SWAPPED": [answer.replace(old, new) for old, new in TEXTS["swaps"].items()],
        "CONVERTED": [re.sub(unit % re.escape(old), new, answer) for old, new in TEXTS["units"].items()],
        "OTHER": ["1234567", "x+17"],
        **dict.fromkeys(("WHOLE", "NEXT", "DOUBLE", "ABOVE"), ()),
    }
    if choice := re.fullmatch(r"\(?([A-J])\)?", answer):
        words["OTHER"] = [letter for letter in "ABCD" if letter != choice[1]]
    elif re.fullmatch(r"-?\d{1,15}", answer):
        value = int(answer)
        words["OTHER"] = [str(value + 1), str(-value) if value else "7", str(10 * value + 10)]
        near = {"WHOLE": answer, "NEXT": value + 1, "DOUBLE": 2 * value, "ABOVE": abs(value) + 1}
        words |= {name: [str(number)] for name, number in near.items()}
    return words


def _bare(text: str) -> str:
    """Texts that are equal here are the same answer."""
    return re.sub(r"\\(l|g)eq", r"\\\1e", _SPELLING.sub("", text)).casefold()


def _copied(problem: str, reference: str) -> Iterator[str]:
    """Formulas of the problem, those left out that have the reference's form."""
    answer = _bare(reference)
    for match in _SEGMENTS.finditer(problem):
        formula = match[match.lastindex or 0].strip().rstrip(".,;")
        sides = [side.strip() for side in _RELATION.split(formula)]
        for text in (formula, *(sides if len(sides) > 1 else ())):
            bare = _bare(text)
            solved = answer in bare.split("=") or bare in answer or answer in bare
            if len(bare) > 2 and not re.fullmatch(r"[-\d.,/%\\a-z]+", bare) and not solved:
                yield text
                if not _RELATION.search(text):
                    yield from (f"({text})", f"{text}+0", rf"1 \cdot ({text})")


def _parts(reference: str) -> Iterator[str]:
    """Yield the formulas of the reference alone, where there are words next to it or other formulas."""
    outside = re.sub(r"[\W_]|and|or", "", _SEGMENTS.sub("", reference))
    for match in _SEGMENTS.finditer(reference) if outside else ():
        if not re.search(rf"(?:is|are|=|:)\s*{re.escape(match[0])}\W*$", reference):
            yield match[match.lastindex or 0].strip()


# ── programs ──


def program_attacks(reference: str) -> Attacks:
    """Attacks on the tests of a problem.

    A program that answers every test alike or repeats its input solves nothing either; where one is
    accepted the tests are too few.
    """
    tests = read_tests(reference)
    name, outputs = tests.fn_name or "", [repr(output) for output in tests.outputs[:1]]
    if tests.asserts:
        name, outputs = (split_names(tests)[0] or ["solution"])[0], []
    kind = "program" if tests.kind == "standard input" else "function"
    function = "" if kind == "program" else f"\ndef {name}(*a, **k): pass\n"
    for family, texts in PROGRAMS.items():
        yield from ((family, text + function) for text in texts.get("both", []))
        made = _filled(texts.get(kind, []), {"NAME": [name], "OUTPUT": outputs})
        yield from ((family, text) for text in made)


# ── reasoning_gym's scorers ──

_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?![\w])")
_ANY_NUMBER = re.compile(r"-?(?:\d{1,300}(?:\.\d*)?|\.\d{1,300})(?:[eE][-+]?\d{1,2}(?!\d))?")
_CHANGES = (
    lambda x: x + 1, lambda x: x - 1, lambda x: -x if x else x + 1, lambda x: 10 * x + (not x),
    lambda x: x + 100, lambda x: round(x * 1.009, 3) + 0.06,
)  # fmt: skip
_SOLVES = re.compile(r"answer|solution|sorted|result|target|output|difficulty|source|states|simplified")
_JOINERS = (", ", " ", "\n", " or ", "", " ∧ ", " and ", " & ")


def scorer_attacks(entry: dict[str, Any]) -> Attacks:
    """Attacks on the scorer of any data set.

    Data sets with many solutions, whose scorers play a solution through, get no distorted
    solutions: one more move may be as right.
    """
    name, answer = entry["metadata"]["source_dataset"], str(entry.get("answer") or "")
    words = _words_of_entry(entry, answer)
    for rule in TEXTS["scorers"]:
        for text in dict.fromkeys(_filled(rule["texts"], words)):
            if not _as_good(name, text, answer):
                yield rule["family"], text


def _as_good(name: str, attack: str, answer: str) -> bool:
    """Tell whether an answer that was made to be wrong is right after all."""
    if name == "number_format":  # the commas of thousands
        attack = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", attack)
    if name == "polynomial_multiplication":
        attack = re.sub(r"(?<=\w)/1$", "", attack)
    (numbers, *texts), (right_numbers, *right_texts) = _canonical(attack), _canonical(answer)
    if name in TEXTS["any_order"]:
        numbers, right_numbers = sorted(numbers), sorted(right_numbers)
    if name in TEXTS["close_enough"] and len(numbers) == len(right_numbers) == 1:
        return math.isclose(numbers[0], right_numbers[0], **TEXTS["close_enough"][name])
    if name == "gsm_symbolic":  # the same number again
        return set(numbers) == set(right_numbers)
    return (numbers, texts) == (right_numbers, right_texts)


def _canonical(text: str) -> tuple[list[float], str, str]:
    """Return one key for answers equal but for spacing, case, brackets, full stops, notation."""
    numbers = [float(number) for number in _ANY_NUMBER.findall(text)]
    letters = re.sub(r"[^a-z]+|(?<=day)s\b", "", re.sub(r"\\d?frac", "", text.casefold()))
    return numbers, letters, "" if numbers or letters else text.strip()


def _words_of_entry(entry: dict[str, Any], answer: str) -> Words:
    question, metadata, rng = entry["question"].strip(), entry["metadata"], random.Random(entry["question"])
    is_played = metadata["source_dataset"] in TEXTS["played_through"]
    correct = answer if isinstance(entry.get("answer"), str) and not is_played else ""
    nans, count = TEXTS["not_finite"], max(1, len(_NUMBER.findall(answer)))
    lines = [line.strip() for line in question.splitlines() if line.strip()]
    parts = [part.strip(" .?:=") for line in lines[-6:] for part in re.split(r"[:=?]", line)]
    formulas = re.findall(r"[-+*/^()0-9a-zA-Z_ .|&<>~]{5,}", question)[-10:]
    options = re.findall(r"[\"'(\[]([^\"'()\[\]\n]{1,30})[\"')\]]", question)
    all_options = dict.fromkeys([*options, *re.findall(r"\b[A-Za-z]+\b", question)[-40:]])
    others = ["1", correct[::-1], *options[:2], *([] if _NUMBER.fullmatch(correct) else ["zebra"])]
    target, numbers = metadata.get("target"), metadata.get("numbers")
    words: Words = {
        "NAN": nans,
        "LISTED": [", ".join([word] * count) for word in nans],
        "QUOTED": [json.dumps([word] * count) for word in nans],
        "FILLED": [_NUMBER.sub(word, answer) for word in nans],
        "QUESTION": [question, *lines, *filter(None, parts), *(formula.strip() for formula in formulas)],
        "FACT": [fact for key, value in metadata.items() if not _SOLVES.search(key) for fact in _facts(value)],
        "OPTIONS": [*(joiner.join(all_options) for joiner in _JOINERS), ", ".join(map(str, range(200)))],
        "OPTION": [other for other in others if other not in correct],
        "OWN": [correct] if correct else [],
        "CHANGED": list(_with_other_numbers(correct)) if len(correct) < 2000 else [],
        "MIXED": list(_mixed(correct, rng)) if correct else [],
        "GAMES": ["".join(rng.choices("UDLR", k=500)), *(moves * 50 for moves in TEXTS["moves"])],
        "INTEGRAND": [metadata["integrand"]] if "integrand" in metadata else [],
        "VARIABLE": [metadata["variable"]] if "integrand" in metadata else [],
        "TARGET": [],
        "SUM": [],
    }
    if isinstance(numbers, list) and isinstance(target, int | float):
        whole = int(target)
        words["SUM"] = ["+".join(map(str, numbers))]
        words["TARGET"] = [f"{whole}e0", hex(whole), "_".join(str(whole)), bin(whole), oct(whole), f"0{whole}"]
    return words


def _facts(value: object) -> Iterator[str]:
    """Yield the texts of a value that the entry was made from."""
    yield str(value)
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        yield from value
        for joiner in _JOINERS:
            yield from (joiner.join(value), joiner.join(f"({item})" for item in value))


def _with_other_numbers(correct: str) -> Iterator[str]:
    for change in _CHANGES if _NUMBER.search(correct) else ():

        def changed(match: re.Match[str], change=change) -> str:
            return f"{change(float(match[0])):.{len(match[0].partition('.')[2])}f}"

        yield from (_NUMBER.sub(changed, correct), _NUMBER.sub(changed, correct, count=1))


def _mixed(correct: str, rng: random.Random) -> Iterator[str]:
    yield from (
        correct[:-1],
        correct[::-1],
        correct if correct.isdigit() else correct[1:] + correct[0],
        "".join(rng.sample(correct, len(correct))),
    )
    yield from (correct[:i] + correct[i + 1] + correct[i] + correct[i + 2 :] for i in range(min(4, len(correct) - 1)))
    lines, words = correct.splitlines(), correct.split(", ")
    if len(set(lines)) > 1:
        yield from ("\n".join(lines[::-1]), "\n".join(lines[:-1]))
    if len(set(words)) > 2:
        yield from (", ".join(words[:-1]), ", ".join([*words, words[0]]))
