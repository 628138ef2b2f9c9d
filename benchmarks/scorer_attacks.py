"""Answers that solve nothing, for the scorers of reasoning_gym: those that are called right, or get no verdict.

    python benchmarks/scorer_attacks.py countdown rubiks_cube --size 2

The guards in r3_openrlhf/rewards/answers/guards/scorer_guards.py are tested with them (tests/rewards/answers/test_scorer_guards.py).
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
from collections.abc import Iterator
from typing import Any

from r3_openrlhf.config import DataConfig, RewardConfig
from r3_openrlhf.evaluation.attacks.generate import TEXTS, Attacks, Words, filled
from r3_openrlhf.evaluation.grading import Grading
from r3_openrlhf.problems.sources import load_problems

_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?![\w])")
_ANY_NUMBER = re.compile(r"-?(?:\d{1,300}(?:\.\d*)?|\.\d{1,300})(?:[eE][-+]?\d{1,2}(?!\d))?")
_CHANGES = (
    lambda x: x + 1,
    lambda x: x - 1,
    lambda x: -x if x else x + 1,
    lambda x: 10 * x + (not x),
    lambda x: x + 100,
    lambda x: round(x * 1.009, 3) + 0.06,
)
_SOLVES = re.compile(
    r"answer|solution|sorted|result|target|output|difficulty|source|states|simplified"
)
_JOINERS = (", ", " ", "\n", " or ", "", " ∧ ", " and ", " & ")


def scorer_attacks(entry: dict[str, Any]) -> Attacks:
    """Attacks on the scorer of any data set.

    Data sets with many solutions, whose scorers play a solution through, get no distorted
    solutions: one more move may be as right.
    """
    name, answer = entry["metadata"]["source_dataset"], str(entry.get("answer") or "")
    words = _words_of_entry(entry, answer)
    for rule in TEXTS["scorers"]:
        for text in dict.fromkeys(filled(rule["texts"], words)):
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
    question, metadata, rng = (
        entry["question"].strip(),
        entry["metadata"],
        random.Random(entry["question"]),
    )
    is_played = metadata["source_dataset"] in TEXTS["played_through"]
    correct = answer if isinstance(entry.get("answer"), str) and not is_played else ""
    nans, count = TEXTS["not_finite"], max(1, len(_NUMBER.findall(answer)))
    lines = [line.strip() for line in question.splitlines() if line.strip()]
    parts = [part.strip(" .?:=") for line in lines[-6:] for part in re.split(r"[:=?]", line)]
    formulas = re.findall(r"[-+*/^()0-9a-zA-Z_ .|&<>~]{5,}", question)[-10:]
    options = re.findall(r"[\"'(\[]([^\"'()\[\]\n]{1,30})[\"')\]]", question)
    all_options = dict.fromkeys([*options, *re.findall(r"\b[A-Za-z]+\b", question)[-40:]])
    others = [
        "1",
        correct[::-1],
        *options[:2],
        *([] if _NUMBER.fullmatch(correct) else ["zebra"]),
    ]
    target, numbers = metadata.get("target"), metadata.get("numbers")
    words: Words = {
        "NAN": nans,
        "LISTED": [", ".join([word] * count) for word in nans],
        "QUOTED": [json.dumps([word] * count) for word in nans],
        "FILLED": [_NUMBER.sub(word, answer) for word in nans],
        "QUESTION": [
            question,
            *lines,
            *filter(None, parts),
            *(formula.strip() for formula in formulas),
        ],
        "FACT": [
            fact
            for key, value in metadata.items()
            if not _SOLVES.search(key)
            for fact in _facts(value)
        ],
        "OPTIONS": [
            *(joiner.join(all_options) for joiner in _JOINERS),
            ", ".join(map(str, range(200))),
        ],
        "OPTION": [other for other in others if other not in correct],
        "OWN": [correct] if correct else [],
        "CHANGED": list(_with_other_numbers(correct)) if len(correct) < 2000 else [],
        "MIXED": list(_mixed(correct, rng)) if correct else [],
        "GAMES": [
            "".join(rng.choices("UDLR", k=500)),
            *(moves * 50 for moves in TEXTS["moves"]),
        ],
        "INTEGRAND": [metadata["integrand"]] if "integrand" in metadata else [],
        "VARIABLE": [metadata["variable"]] if "integrand" in metadata else [],
        "TARGET": [],
        "SUM": [],
    }
    if isinstance(numbers, list) and isinstance(target, int | float):
        whole = int(target)
        words["SUM"] = ["+".join(map(str, numbers))]
        words["TARGET"] = [
            f"{whole}e0",
            hex(whole),
            "_".join(str(whole)),
            bin(whole),
            oct(whole),
            f"0{whole}",
        ]
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
    yield from (
        correct[:i] + correct[i + 1] + correct[i] + correct[i + 2 :]
        for i in range(min(4, len(correct) - 1))
    )
    lines, words = correct.splitlines(), correct.split(", ")
    if len(set(lines)) > 1:
        yield from ("\n".join(lines[::-1]), "\n".join(lines[:-1]))
    if len(set(words)) > 2:
        yield from (", ".join(words[:-1]), ", ".join([*words, words[0]]))


def main() -> None:
    """Print what is not called wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="+", help="data sets of reasoning_gym")
    parser.add_argument("--size", type=int, default=2, help="entries of each")
    options = parser.parse_args()
    with Grading(RewardConfig()) as grading:
        for name in options.names:
            labels = load_problems(
                DataConfig(path=f"reasoning_gym:{name}", reasoning_gym={"size": options.size})
            ).labels
            cases = [
                (label, attack)
                for label in labels
                for attack in scorer_attacks(label.metadata or {})
            ]
            texts = [f"<answer>{answer}</answer>" for _, (_, answer) in cases]
            requests = [
                grading.request(label, text, num_tokens=len(text), truncated=False)
                for (label, _), text in zip(cases, texts, strict=True)
            ]
            grades = grading.grade(requests)
            shown = [
                (*case[1], grade)
                for case, grade in zip(cases, grades, strict=True)
                if grade.verdict != "wrong"
            ]
            print(f"{name}: {len(cases)} tried, {len(shown)} not called wrong")
            for family, answer, grade in shown:
                print(f"  {grade.verdict} ({grade.reason}), {family}: {answer[:100]!r}")


if __name__ == "__main__":
    main()
