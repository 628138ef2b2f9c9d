r"""Words: "east", "\text{the function is even}", "Evelyn"; articles, case and punctuation aside."""

import re

from r3_openrlhf.rewards.answers.kinds import Kind, last_sentence
from r3_openrlhf.rewards.answers.text.number_words import value_in_words
from r3_openrlhf.rewards.answers.text.patterns import phrases, table
from r3_openrlhf.rewards.answers.text.plain import normal_words, plain

_LETTERS = re.compile(r"(?=.*[a-z])[^\W\d_]+(?:[ '’.-]+[^\W\d_]+)*")
_SAYS = phrases("words_of_formulas")
_MEANINGS = frozenset(
    word for words in table("spelling.toml")["words"].values() for word in words.split(", ")
)
_CONNECTIVES = frozenset(("and", "the", "only", "one", "all"))
_IN_DOLLARS = re.compile(r"\$[a-zA-Z]\$")
_IS_WORD = re.compile(
    r"[^\W\d_]{4,}|(?=[^\W\d_]*[aeiou])(?![abcd]{3}$)[^\W\d_]{3}", re.IGNORECASE
)
# no products of letters: "HTH", "ABDC", "XI", "on"; "T, F, T" is a sequence, as a letter comes again
_NAME = re.compile(
    r"[A-Z]{3,}|(?=[XL]*[IV])[IVXL]{2,}|(?=.*([a-zA-Z]),.*\1)[a-zA-Z](?:, ?[a-zA-Z])+"
    r"|(?:an|am|as|at|be|by|do|go|he|if|in|is|it|me|my|no|of|on|or|so|to|up|us|we)"
)
_ASKS_WHO = re.compile(r"(?i)\b(?:who|which|whose)\b")
_IS_THE_ONE = re.compile(
    r"(?:(?:So|Thus|Hence|Therefore),? )?((?!(?:It|Th[a-z]+|S?[Hh]e) )(?:[A-Z][\w'’.-]*(?: (?:van|von|de|da|of) | |$)){1,3}|[Tt]he (?:[a-z]+ ){1,2}(?!is|was))(?:is|was|has|had|does|did|can|will|wrote|won|[a-z]{2,}(?:s|ed))\b(?! (?:not|no)\b|n.t\b)"
)
_IT_IS = re.compile(r"It (?:is|was) ((?:[A-Z][\w'’.-]*\s){1,3})(?:who|that)\b(?! (?:not|no)\b)")
_A_NAME = re.compile(r"(?:(?:So|Thus|Hence|Therefore),? )?((?:[A-Z][\w'’.-]*\s){1,3})")
_VERB = re.compile(r"\s+[a-z]{2,}(?=\s)")
# another clause with a subject of its own
_ANOTHER_SUBJECT = re.compile(
    r"(?:[,;:–—]\s+|\s(?=and|but|while|whereas))(?:(?:and|but|while|yet|whereas)\s+)?[A-Z]\w+\s+[a-z]"
)
_CLAUSE = re.compile(r",\s(?:but|and so|so|hence|thus|therefore)\s")
_AROUND_A_NAME = re.compile(r"\\triangle(?![a-zA-Z])|(?<=[IVX]) only(?=\}?$)")


def _recognise(reference: str, problem: str) -> bool:
    text = plain(reference)
    if _NAME.fullmatch(text) and text.lower() not in _MEANINGS:
        return True
    if (
        not _LETTERS.fullmatch(text)
        or _SAYS["formula"].search(text)
        or text.lower() in _MEANINGS
        or "\\" in text
        or _IN_DOLLARS.search(reference)
    ):
        return False
    return value_in_words(text) is None and any(
        _IS_WORD.fullmatch(word) and word.lower() not in _CONNECTIVES
        for word in re.split(r"[ '’.-]+", text)
    )


def _read(text: str, problem: str) -> str | None:
    return normal_words(_AROUND_A_NAME.sub("", text)) or None if len(text) < 400 else None


def _find(sentence: str, problem: str) -> list[str]:
    """Return the last sentence, or its subject where the problem asks who or which: "Evelyn is the fastest."."""
    last = _CLAUSE.split(last_sentence(sentence)[0])[-1]
    subject = _subject(last, problem)
    other = _ANOTHER_SUBJECT.search(last, subject.end()) if subject else None
    if other and not _says_what_is_asked(last[: other.start()], last[other.start() :], problem):
        return []
    return [subject[1] if subject else last]


def _subject(sentence: str, problem: str) -> re.Match | None:
    """Match who a sentence says it is, where the problem asks so; "Jane ate it." says it by the verb of "Who ate it?"."""
    asks = _ASKS_WHO.search(problem)
    if asks is None:
        return None
    said = _IT_IS.match(sentence) or _IS_THE_ONE.match(sentence)
    verb = _VERB.match(problem, asks.end())
    if said or verb is None:
        return said
    named = _A_NAME.match(sentence)
    return named if named and sentence.startswith(verb[0].strip() + " ", named.end()) else None


def _says_what_is_asked(clause: str, other: str, problem: str) -> bool:
    """Tell whether a clause has words of "Who won the race?" that another one has not."""
    asked = set(re.findall(r"[a-z]{3,}", _ASKS_WHO.split(problem)[-1].lower()))
    asked -= {"the", "was", "were", "has", "had", "and", "are"}
    own, others = (
        set(re.findall(r"[a-z]{3,}", text.lower())) & asked for text in (clause, other)
    )
    return bool(own - others)


def word_f1(said: str, wanted: str) -> float:
    """F1 of the words that two texts share, as for SQuAD: articles, case and punctuation aside."""
    a, b = (
        [
            word
            for word in re.findall(r"\w+", plain(text).lower())
            if word not in ("a", "an", "the")
        ]
        for text in (said, wanted)
    )
    shared = sum(min(a.count(word), b.count(word)) for word in set(a))
    return 2 * shared / (len(a) + len(b)) if shared else 0.0


KIND = Kind(
    name="words",
    recognise=_recognise,
    read=_read,
    find=_find,
)
