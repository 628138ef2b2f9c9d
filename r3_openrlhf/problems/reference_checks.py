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
IS_IT_THE_ANSWER = "is it the column with the answer?"
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
    of_user = TASKS[known[0].task].of_user
    is_math = known[0].task == "math"
    column = _Column(known, f"data.path {path}", answer_key)
    first = Counter(label.references[0] for label in known)
    if len(first) == 1 and len(known) >= FEW:
        refuses = not of_user and len(known) >= MANY
        column.add(
            f"all {len(known)} answers ({answer_key}) are {quoted(next(iter(first)))}; {USE}",
            refuses=refuses,
        )
    if of_user:
        return column.findings
    if is_math:
        _check_texts(column)
    copies = [label for label in known if _is_own_problem(label)]
    column.say(copies, "are the problem itself", suspicious=0.0)
    if len(known) >= MANY and len(first) > 2:
        _check_stand_ins(column, first, columns, is_math=is_math)
    if is_math and len(known) >= FEW:
        _check_several(column)
    _check_options(column, is_math=is_math)
    _check_frequencies(column, first, is_math=is_math)
    return column.findings


def _check_stand_ins(
    column: _Column, first: Counter[str], columns: Sequence[str], *, is_math: bool
) -> None:
    """Find letters and numbers that stand for something else: an option, a row, a rate."""
    if all(_LETTER.fullmatch(text) for text in first):
        _check_letters(column, columns)
    if is_math:
        _check_places(column)
        _check_row_numbers_and_rates(column)
        _check_tries(column)


def _check_texts(column: _Column) -> None:
    """Find solutions, sentences, options, names: answers of task math are short and alone."""
    long: list[Label] = []
    of_lines: list[Label] = []
    short: list[Label] = []
    for label in column.known:
        if min(len(text) for text in label.references) > LONGEST_ANSWER:
            long.append(label)
        elif all("\n" in text.strip() for text in label.references):
            of_lines.append(label)
        else:
            short.append(label)
    column.say(
        long,
        f"are longer than {LONGEST_ANSWER} characters, as solutions are and answers are not",
    )
    column.say(of_lines, "have several lines, as solutions and lists of options have")
    _check_words(column, short)
    options = [label for label in short if any(map(_OPTIONS.search, label.references))]
    column.say(options, "list options, of which one would be the answer")
    if len(column.known) >= FEW:
        _check_names(column)


def _check_words(column: _Column, short: Sequence[Label]) -> None:
    """Find answers that are sentences or have several words, among the short ones."""
    prose: list[Label] = []
    phrases: list[Label] = []
    for label in short:
        fewest = min(num_words(text) for text in label.references)
        if fewest >= MOST_WORDS:
            prose.append(label)
        elif fewest >= SOME_WORDS:
            phrases.append(label)
    column.say(prose, f"have {MOST_WORDS} words or more, as sentences have", certain=0.5)
    column.say(
        phrases,
        f"have {SOME_WORDS} words or more, and are compared word by word",
        certain=NEVER,
        suspicious=0.5,
    )


def _check_names(column: _Column) -> None:
    """Find names of files or rows: no two are the same."""
    names = [label for label in column.known if _NAME.fullmatch(label.references[0])]
    if len({label.references[0] for label in names}) == len(names):
        column.say(names, "are names of files or rows", certain=0.5, suspicious=0.5)


def _check_letters(column: _Column, columns: Sequence[str]) -> None:
    """Find letters of options that the problem does not hold; all answers are letters."""
    without = [label for label in column.known if _OPTION.search(label.problem) is None]
    listing = _listing_of_options(columns)
    remedy = "make a column that lists them"
    if listing:
        remedy = f"use data.prompt_template='{{problem}}{listing}'"
    column.say(
        without,
        "are letters of options, which the problem does not hold",
        certain=0.5,
        remedy=remedy,
    )


def _listing_of_options(columns: Sequence[str]) -> str:
    """Return the part of a template that lists the options; empty: the file has none."""
    whole = OPTION_COLUMNS & set(columns)
    if whole:
        return f" {{{min(whole)}}}"
    names = option_columns(columns)
    return "".join(f" ({name[-1].upper()}) {{{name}}}" for name in names)


def _check_places(column: _Column) -> None:
    """Find digits that are places of options, which the problem lists by letters."""
    places = [label for label in column.known if _is_place(label)]
    column.say(
        places,
        "are places of options, which the problem lists by letters",
        certain=0.5,
        suspicious=0.5,
        remedy="make a column of letters, or of the options' texts",
    )


def _check_row_numbers_and_rates(column: _Column) -> None:
    """Find a column that counts the rows, from 0 or 1, or that holds pass rates alone."""
    texts = [label.references[0] for label in column.known]
    from_zero = [str(number) for number in range(len(texts))]
    from_one = [str(number) for number in range(1, len(texts) + 1)]
    if texts in (from_zero, from_one):
        what = "are the numbers of the rows"
    elif all(_RATE.fullmatch(text) for text in texts):
        what = "are from 0 to 1 or 0 to 100%, as pass rates are"
    else:
        return
    column.say(column.known, what, certain=NEVER, remedy=IS_IT_THE_ANSWER)


def _check_tries(column: _Column) -> None:
    """Find successes in one number of tries: 3/8 and 8/8."""
    shares: list[tuple[int, int]] = []
    for label in column.known:
        share = _SHARE.fullmatch(label.references[0])
        if share is None:
            return
        shares.append((int(share[1]), int(share[2])))
    tries = shares[0][1]
    if any(total != tries or successes > tries for successes, total in shares):
        return
    # an answer is reduced and seldom 1: 2/8 and 8/8 count tries
    if any(math.gcd(successes, tries) > 1 for successes, _ in shares):
        what = f"count successes in {tries} tries, as pass rates do"
        column.say(column.known, what, remedy=IS_IT_THE_ANSWER)


def option_columns(columns: Collection[str]) -> list[str]:
    """Return columns whose last letters or digits count on: A to D, opa to opd, option1 and option2."""
    for stem, begin in itertools.product(dict.fromkeys(name[:-1] for name in columns), "Aa01"):
        names = (f"{stem}{chr(ord(begin) + number)}" for number in range(9))
        if len(there := list(itertools.takewhile(columns.__contains__, names))) > 1:
            return there
    return []


def _is_place(label: Label) -> bool:
    """Return if the reference is a digit that counts options of the problem, and none of them."""
    reference = label.references[0]
    if not _DIGIT.fullmatch(reference):
        return False
    options = [text.strip() for text in _LISTED.split(label.problem)[1:]]
    if len(options) < 3 or int(reference) > len(options):
        return False
    return reference not in options


def _check_several(column: _Column) -> None:
    """Find rows with several answers of which each is accepted alone."""
    known = column.known
    parts = [label for label in known if len(_values(label)) > 1]
    suspicious = SUSPICIOUS
    if not parts:
        parts = [label for label in known if len(label.references) == 2]
        suspicious = 0.5  # two texts may be two names
    if not parts:
        return
    example = quoted(", ".join(parts[0].references))
    column.say(
        parts,
        "are several, and each is accepted alone",
        certain=NEVER,
        suspicious=suspicious,
        remedy=f"if all are meant, write one text, as in {example}",
    )


def _check_options(column: _Column, *, is_math: bool) -> None:
    """Find lists of all options in the place of the right one."""
    known = column.known
    several = [
        label for label in known if len(label.references) > 2 and len(_values(label)) != 1
    ]
    if len(several) <= len(known) / 2:
        return
    counts = Counter(len(label.references) for label in several)
    [(_, most_equal)] = counts.most_common(1)
    # exact: the aliases of a name are many, and never equally many
    if is_math or most_equal > 0.8 * len(known):
        column.add(
            f"{len(several)} of {len(known)} rows accept {max(counts)} different answers ({column.answer_key}), as a list of "
            f"all options would, like {quoted(str(several[0].references))}; {USE}",
            refuses=True,
        )


def _values(label: Label) -> set[float]:
    """Return the different numbers with which the references begin; empty: not all do."""
    values = set()
    for reference in label.references:
        number = _NUMBER.match(reference)
        if number is None:
            return set()
        values.add(float(number[0]))
    return values


def _check_frequencies(column: _Column, first: Counter[str], *, is_math: bool) -> None:
    """Find few different answers for many problems, as levels are, or one that is too frequent."""
    num_known = len(column.known)
    num_texts = len(first)
    if num_texts == 1:
        return
    if {text.strip().casefold() for text in first} <= _JUDGEMENTS:
        return
    answers = f"answers ({column.answer_key})"
    [(text, most)] = first.most_common(1)
    if num_texts > MANY_TEXTS:
        if most >= FREQUENT * num_known:
            column.add(f"{most} of {num_known} {answers} are {quoted(text)}; is it one?")
        return
    if num_known >= FEW * num_texts and all(_WORDS.fullmatch(text) for text in first):
        _add_few_words(column, first, is_math=is_math)
        return
    are_letters = all(_LETTER.fullmatch(text) for text in first)
    if is_math and num_known >= PER_ANSWER * num_texts and not are_letters:
        column.add(
            f"{num_known} {answers} are only {num_texts} different ones, like {quoted(text)}, as levels are; "
            f"{IS_IT_THE_ANSWER}"
        )


def _add_few_words(column: _Column, first: Counter[str], *, is_math: bool) -> None:
    """Add the finding that all answers are a few words."""
    num_known = len(column.known)
    num_in_problem = 0
    for label in column.known:
        if label.references[0].casefold() in label.problem.casefold():
            num_in_problem += 1
    examples = ", ".join(quoted(text, most=30) for text, _ in first.most_common(3))
    sentence = (
        f"{num_known} answers ({column.answer_key}) are only {len(first)} words ({examples} ...), as a level or a source is; "
        f"{USE}"
    )
    if is_math:
        sentence += ", or use data.task=exact if they are the answers"
    # two words may be yes and no
    are_many = is_math and len(first) > 2
    column.add(sentence, refuses=are_many and num_in_problem < CERTAIN * num_known)


def _is_own_problem(label: Label) -> bool:
    """Return if a reference is the problem, or holds it."""
    return any(_is_copy(reference, label.problem) for reference in label.references)


def _is_copy(reference: str, problem: str) -> bool:
    """Return if a reference is a problem, or holds one that is not short; white space aside."""
    if 2 * len(reference) < len(problem):  # the rest of a problem is not white space
        return False
    text = " ".join(reference.split()).casefold()
    bare = " ".join(problem.split()).casefold()
    return text == bare or (len(bare) >= SHORTEST_PROBLEM and bare in text)


def num_words(text: str) -> int:
    """Words of two letters or more that are no LaTeX commands."""
    return len(_WORD.findall(text))
