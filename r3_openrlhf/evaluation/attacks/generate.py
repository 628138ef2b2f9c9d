"""Responses that solve nothing, of a problem and its reference, by texts.yaml, programs.yaml.

All are wrong by construction if the reference is right. Equal problems give equal ones.
"""

import itertools
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
    """Return all attacks on one problem, in the form of its task."""
    task = TASKS[label.task]
    if task.runs_programs:
        yield from (
            (family, task.answer_form % text)
            for family, text in program_attacks(label.references[0])
        )
    else:
        yield from answer_attacks(label.problem, label.references[0], label.task)


def filled(texts: Iterable[str], words: Words) -> Iterator[str]:
    """Yield each text once for every choice of values of its words."""
    pattern = "|".join(sorted(words, key=len, reverse=True))
    for text in texts:
        names = list(dict.fromkeys(re.findall(pattern, text)))
        for values in itertools.product(*(words[name] for name in names)):
            chosen = dict(zip(names, values, strict=True))
            yield re.sub(pattern, lambda word, chosen=chosen: chosen[word[0]], text)  # type: ignore[misc]


# ── answers that are compared ──

_SEGMENTS = re.compile(r"\$\$(.+?)\$\$|\$(.+?)\$|\\\[(.+?)\\\]|\\\((.+?)\\\)", re.DOTALL)
_RELATION = re.compile(r"=|<|>|\\leq?(?![a-z])|\\geq?(?![a-z])|\\neq?(?![a-z])")
_SPELLING = re.compile(
    r"\\left|\\right|\\[dt]?frac|\\(?:text|mathrm)(?![a-z])|\\[,;:! ]|[\s{}$~]|\.$"
)
_DIGITS = re.compile(r"(?<![\w.^_{])\d{1,9}(?![\w.])")


def answer_attacks(problem: str, reference: str, task: str) -> Attacks:
    """Attacks on a comparison of answers, for task "math" or "exact"."""
    answer, seen = reference.strip(), {_bare(reference)}
    words = _words_of_answer(problem, answer) | {"ANSWER": [reference]}
    for rule in TEXTS["math"] * (task == "math") + TEXTS["exact"]:
        match = re.fullmatch(rule.get("when", "(?s:.*)"), answer)
        if match is None:
            continue
        groups = {
            name: [group]
            for name, group in zip(("FIRST", "SECOND", "THIRD"), match.groups(), strict=False)
        }
        for text in filled(rule["texts"], words | groups):
            if _bare(text) not in seen:
                seen.add(_bare(text))
                yield rule["family"], rf"\boxed{{{text}}}"
    for rule in TEXTS["marked"]:
        pairs = itertools.permutations((reference, words["OTHER"][0]))
        texts = [
            filled(rule["texts"], words | {"ONE": [first], "TWO": [second]})
            for first, second in pairs
        ]
        yield from ((rule["family"], text) for text in dict.fromkeys(itertools.chain(*texts)))


def _words_of_answer(problem: str, answer: str) -> Words:
    changed = [
        f"{answer[: m.start()]}{int(m[0]) + 1}{answer[m.end() :]}"
        for m in _DIGITS.finditer(answer)
    ]
    unit = r"(?<=[\d}) ])%s(?![a-zA-Z])"
    words: Words = {
        "COPIED": list(_copied(problem, answer)),
        "PART": list(_parts(answer)),
        "CHANGED": changed[:3],
        "SWAPPED": [answer.replace(old, new) for old, new in TEXTS["swaps"].items()],
        "CONVERTED": [
            re.sub(unit % re.escape(old), new, answer) for old, new in TEXTS["units"].items()
        ],
        "OTHER": ["1234567", "x+17"],
        **dict.fromkeys(("WHOLE", "NEXT", "DOUBLE", "ABOVE"), ()),
    }
    if choice := re.fullmatch(r"\(?([A-J])\)?", answer):
        words["OTHER"] = [letter for letter in "ABCD" if letter != choice[1]]
    elif re.fullmatch(r"-?\d{1,15}", answer):
        value = int(answer)
        words["OTHER"] = [str(value + 1), str(-value) if value else "7", str(10 * value + 10)]
        near = {
            "WHOLE": answer,
            "NEXT": value + 1,
            "DOUBLE": 2 * value,
            "ABOVE": abs(value) + 1,
        }
        words |= {name: [str(number)] for name, number in near.items()}
    return words


def _bare(text: str) -> str:
    """Normalize a text: equal results are the same answer."""
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
        made = filled(texts.get(kind, []), {"NAME": [name], "OUTPUT": outputs})
        yield from ((family, text) for text in made)
