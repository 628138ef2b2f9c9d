"""Check that a file's references look like answers: a Finding for each way they do not."""

import itertools
import math
import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from r3_openrlhf.config.answer_tasks import TASKS
from r3_openrlhf.config.finding import Finding
from r3_openrlhf.method.errors import quoted
from r3_openrlhf.problems.label import Label

# Of DeepScaleR's 38,682 answers 3 are longer than 200 characters, 48 have several lines; of 9,739
# of GSM8K, MATH-500, Minerva, OlympiadBench 2 and 0. So 1% is worth a word, 10% is another column.
LONGEST_ANSWER = 200  # characters
SUSPICIOUS, CERTAIN, NEVER = 0.01, 0.1, 2.0
USE = "name the column with the final answer in data.answer_key"
SHORTEST_PROBLEM = 12  # characters; what is shorter may be a part of an answer by chance
# With one answer for all: few problems are not worth a word; fewer than MANY may mean it.
FEW, MANY = 8, 30
# DeepScaleR's commonest answer, 10, has 1.6%; one of four choices a quarter, "yes" half.
FREQUENT, MANY_TEXTS = 0.2, 20
# Sums of digits have at most 19 answers, and a data set of them rarely 1,000 problems.
PER_ANSWER = 50
# None of DeepScaleR's answers has so many words outside formulas; one of OlympiadBench's 675 has.
MOST_WORDS = 8
SOME_WORDS = 4  # of most answers of a file; a few names have so many
_WORD = re.compile(r"(?<![\\\w])[^\W\d_]{2,}")
_WORDS = re.compile(r"[^\W\d_]{2}[\w /&.-]*")
_LETTER = re.compile(r"\(?[A-Ja-j]\)?\.?")
# "(B) 12", "B. 12", "B: 12", "\\textbf{(B)}"
_OPTION = re.compile(r"(?:^|[\s({*])[Bb]\s*[).:}]")
# "A) 3 B) 4 C) 5", "a ) 38 , b ) 27.6 , c ) 30"
_OPTIONS = re.compile(
    r"(?:^|[\s(])A\s*[).:].*[\s(,;]B\s*[).:].*[\s(,;]C\s*[).:]", re.IGNORECASE | re.DOTALL
)
# in front of each option
_LISTED = re.compile(r"(?:^|[\s(,;])\(?[A-Ja-j]\s*[).:}]\s*")
OPTION_COLUMNS = frozenset(("choices", "options"))
_DIGIT = re.compile(r"\d")
# A file's name or address, a hash, "gsm8k_train_17"
_NAME = re.compile(r"https?://\S+|[0-9a-f-]{16,}|[A-Za-z][\w/.-]*[_/-]\d+")
# Of 16 tries
_RATE = re.compile(r"0?\.\d+|[01](?:\.0*)?|(?:\d{1,2}(?:\.\d+)?|100(?:\.0*)?)\s*%")
# 3/8 and 8/8: so many of the same number of tries
_SHARE = re.compile(
    r"(?:[a-z_ ]+[:=]?\s*)?(\d+)\s*(?:/|of|out of)\s*(\d+)(?:\s*[a-z]+)?", re.IGNORECASE
)
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
# few for many problems, and answers
_JUDGEMENTS = {
    "yes",
    "no",
    "maybe",
    "uncertain",
    "unknown",
}


@dataclass
class _Column:
    """The references of one source, and what was found so far."""

    known: list[Label]
    where: str
    answer_key: str
    findings: list[Finding] = field(default_factory=list)

    def say(
        self,
        labels: Sequence[Label],
        what: str,
        *,
        certain: float = CERTAIN,
        suspicious: float = SUSPICIOUS,
        remedy: str = USE,
    ) -> None:
        """Add a finding about these labels, if they are enough."""
        share = len(labels) / len(self.known)
        if labels and share >= suspicious:
            count = f"{len(labels)} of {len(self.known)} answers ({self.answer_key})"
            example = quoted(labels[0].references[0])
            self.findings.append(
                Finding(
                    f"{self.where}: {count} {what}, like {example}; {remedy}",
                    refuses=share >= certain,
                )
            )

    def add(self, what: str, *, refuses: bool = False) -> None:
        """Add a finding about the column as a whole."""
        self.findings.append(Finding(f"{self.where}: {what}", refuses=refuses))


def check_references(
    labels: Sequence[Label], *, path: str, answer_key: str, columns: Sequence[str] = ()
) -> list[Finding]:
    """Find what is wrong, or looks wrong, with the references of one source.

    Refused is what cannot be meant: see the constants of this file for each threshold. A grader of
    the user's own may compare anything, so there only a constant column is worth a word.

    Args:
        columns: all columns of the file.
    """
    known = [label for label in labels if label.references]
    if not known:
        return []
    of_user, is_math = TASKS[known[0].task].of_user, known[0].task == "math"
    column = _Column(known, f"data.path {path}", answer_key)
    first = Counter(label.references[0] for label in known)
    if len(first) == 1 and len(known) >= FEW:
        refuses = not of_user and len(known) >= MANY
        column.add(
            f"all {len(known)} answers ({answer_key}) are {quoted(next(iter(first)))}; {USE}",
            refuses=refuses,
        )
    if not of_user:
        if is_math:
            _check_texts(column)
        problem = [
            label
            for label in known
            if any(_is_copy(text, label.problem) for text in label.references)
        ]
        column.say(problem, "are the problem itself", suspicious=0.0)
        if len(known) >= MANY and len(first) > 2:
            _check_places(column, first, columns, is_math=is_math)
        _check_options(column, is_math=is_math)
        _check_frequencies(column, first, is_math=is_math)
    return column.findings


def _check_texts(column: _Column) -> None:
    """Find solutions, sentences, options, names: answers of task math are short and alone."""
    known = column.known
    long = [label for label in known if min(map(len, label.references)) > LONGEST_ANSWER]
    seen = {label.uid for label in long}
    lines = [
        one
        for one in known
        if one.uid not in seen and all("\n" in text.strip() for text in one.references)
    ]
    seen |= {label.uid for label in lines}
    short = [label for label in known if label.uid not in seen]
    words = {label.uid: min(map(num_words, label.references)) for label in short}
    prose = [label for label in short if words[label.uid] >= MOST_WORDS]
    some = [label for label in short if SOME_WORDS <= words[label.uid] < MOST_WORDS]
    options = [label for label in short if any(map(_OPTIONS.search, label.references))]
    names = (
        [label for label in known if _NAME.fullmatch(label.references[0])]
        if len(known) >= FEW
        else []
    )
    column.say(
        long,
        f"are longer than {LONGEST_ANSWER} characters, as solutions are and answers are not",
    )
    column.say(lines, "have several lines, as solutions and lists of options have")
    column.say(prose, f"have {MOST_WORDS} words or more, as sentences have", certain=0.5)
    some_words = f"have {SOME_WORDS} words or more, and are compared word by word"
    column.say(some, some_words, certain=NEVER, suspicious=0.5)
    column.say(options, "list options, of which one would be the answer")
    if len({label.references[0] for label in names}) == len(names):
        column.say(names, "are names of files or rows", certain=0.5, suspicious=0.5)


def _check_places(
    column: _Column, first: Counter[str], columns: Sequence[str], *, is_math: bool
) -> None:
    """Letters and numbers that stand for something else: an option, a row, a rate."""
    known, numbers = column.known, [label.references[0] for label in column.known]
    if all(map(_LETTER.fullmatch, first)):
        without = [label for label in known if _OPTION.search(label.problem) is None]
        what = "are letters of options, which the problem does not hold"
        there, names = OPTION_COLUMNS & set(columns), option_columns(columns)
        listing = (
            f" {{{min(there)}}}"
            if there
            else "".join(f" ({name[-1].upper()}) {{{name}}}" for name in names)
        )
        remedy = (
            f"use data.prompt_template='{{problem}}{listing}'"
            if listing
            else "make a column that lists them"
        )
        column.say(without, what, certain=0.5, remedy=remedy)
    if not is_math:
        return
    places = [
        label for label in known if _DIGIT.fullmatch(label.references[0]) and _is_place(label)
    ]
    what = "are places of options, which the problem lists by letters"
    column.say(
        places,
        what,
        certain=0.5,
        suspicious=0.5,
        remedy="make a column of letters, or of the options' texts",
    )
    remedy = "is it the column with the answer?"
    if any(numbers == list(map(str, range(start, start + len(known)))) for start in (0, 1)):
        column.say(known, "are the numbers of the rows", certain=NEVER, remedy=remedy)
    elif all(map(_RATE.fullmatch, numbers)):
        column.say(
            known,
            "are from 0 to 1 or 0 to 100%, as pass rates are",
            certain=NEVER,
            remedy=remedy,
        )
    shares = [
        tuple(map(int, share.groups())) for share in map(_SHARE.fullmatch, numbers) if share
    ]
    # an answer is reduced and seldom 1: 2/8 and 8/8 count tries
    counted = [one for one in shares if one[0] <= one[1] == shares[0][1] and math.gcd(*one) > 1]
    if (
        len(shares) == len(known) == sum(one[1] == shares[0][1] >= one[0] for one in shares)
        and counted
    ):
        column.say(
            known, f"count successes in {shares[0][1]} tries, as pass rates do", remedy=remedy
        )


def option_columns(columns: Collection[str]) -> list[str]:
    """Return columns whose last letters or digits count on: A to D, opa to opd, option1 and option2."""
    for stem, begin in itertools.product(dict.fromkeys(name[:-1] for name in columns), "Aa01"):
        names = (f"{stem}{chr(ord(begin) + number)}" for number in range(9))
        if len(there := list(itertools.takewhile(columns.__contains__, names))) > 1:
            return there
    return []


def _is_place(label: Label) -> bool:
    options = _LISTED.split(label.problem)[1:]
    reference = label.references[0]
    return (
        len(options) > 2
        and int(reference) <= len(options)
        and reference not in map(str.strip, options)
    )


def _check_options(column: _Column, *, is_math: bool) -> None:
    known = column.known
    if is_math and len(known) >= FEW:
        parts = [label for label in known if len(_values(label)) > 1]
        suspicious = SUSPICIOUS if parts else 0.5  # two texts may be two names
        parts = parts or [label for label in known if len(label.references) == 2]
        example = quoted(", ".join(parts[0].references)) if parts else ""
        remedy = f"if all are meant, write one text, as in {example}"
        column.say(
            parts,
            "are several, and each is accepted alone",
            certain=NEVER,
            suspicious=suspicious,
            remedy=remedy,
        )
    several = [
        label for label in known if len(label.references) > 2 and len(_values(label)) != 1
    ]
    counts = Counter(len(label.references) for label in several)
    same = counts.most_common(1)[0][1] if counts else 0
    # exact: the aliases of a name are many, and never equally many
    if len(several) > len(known) / 2 and (is_math or same > 0.8 * len(known)):
        column.add(
            f"{len(several)} of {len(known)} rows accept {max(counts)} different answers ({column.answer_key}), as a list of "
            f"all options would, like {quoted(str(several[0].references))}; {USE}",
            refuses=True,
        )


def _values(label: Label) -> set[float]:
    numbers = list(map(_NUMBER.match, label.references))
    return {float(number[0]) for number in numbers if number} if all(numbers) else set()


def _check_frequencies(column: _Column, first: Counter[str], *, is_math: bool) -> None:
    known, num_texts, count = column.known, len(first), f"({column.answer_key})"
    text, most = first.most_common(1)[0]
    few = is_math and 1 < num_texts <= MANY_TEXTS and len(known) >= PER_ANSWER * num_texts
    if num_texts > 1 and {text.strip().casefold() for text in first} <= _JUDGEMENTS:
        return
    if (
        1 < num_texts <= MANY_TEXTS
        and len(known) >= FEW * num_texts
        and all(map(_WORDS.fullmatch, first))
    ):
        in_problem = sum(
            label.references[0].casefold() in label.problem.casefold() for label in known
        )
        some = ", ".join(quoted(text, most=30) for text, _ in first.most_common(3))
        column.add(
            f"{len(known)} answers {count} are only {num_texts} words ({some} ...), as a level or a source is; {USE}"
            + (", or use data.task=exact if they are the answers" if is_math else ""),
            # two words may be yes and no
            refuses=is_math and num_texts > 2 and in_problem < CERTAIN * len(known),
        )
    elif few and not all(map(_LETTER.fullmatch, first)):
        column.add(
            f"{len(known)} answers {count} are only {num_texts} different ones, like {quoted(text)}, as levels are; "
            "is it the column with the answer?"
        )
    elif num_texts > MANY_TEXTS and most >= FREQUENT * len(known):
        column.add(f"{most} of {len(known)} answers {count} are {quoted(text)}; is it one?")


def _is_copy(reference: str, problem: str) -> bool:
    if 2 * len(reference) < len(problem):  # the rest of a problem is not white space
        return False
    text, bare = (" ".join(one.split()).casefold() for one in (reference, problem))
    return text == bare or (len(bare) >= SHORTEST_PROBLEM and bare in text)


def num_words(text: str) -> int:
    """Words of two letters or more that are no LaTeX commands."""
    return len(_WORD.findall(text))
