"""The final answer of a response, which is hostile text of any length: one of its marks (scanner.py), or its end.

Over all of the text run only the scanner's searches for signs. The patterns of this file run over windows: the last
STATEMENT_CHARS of a text, and the last LINE_CHARS of its last line."""

import re
from dataclasses import dataclass
from itertools import groupby

from r3_openrlhf.rewards.answers.amounts.comparison import number
from r3_openrlhf.rewards.answers.amounts.units import unit_of
from r3_openrlhf.rewards.answers.reading.scanner import (
    ALTERNATIVE,
    BOX,
    CHARS_BEHIND_THE_LAST,
    SENTENCE_BEGINS,
    STATEMENT_CHARS,
    answer_of_json,
    answer_part,
    boxed_answer,
    end_of_last_tag,
    end_of_what_is_withdrawn,
    has_box_behind,
    last_line,
    last_statement,
    line_behind_hashes,
    may_state,
    place_of_last_box,
    tagged_answer,
    with_last_box_closed,
    without_blanks,
)
from r3_openrlhf.rewards.answers.text.arithmetic import rough_value
from r3_openrlhf.rewards.answers.text.number_words import is_number_word, value_in_words
from r3_openrlhf.rewards.answers.text.patterns import phrases
from r3_openrlhf.rewards.answers.text.plain import CHINESE, in_english

MAX_ANSWER_CHARS = 1000  # a final answer longer than this is compared as text only
TAIL_CHARS = 1000  # without a box, the answer is looked for in the end of the response
CHARS_BEFORE_A_GUESS = 60  # in the same clause
LINE_CHARS = 400  # of a last line that is longer, its end

_STATEMENT, _STATED, _GUESS = map(phrases, ("statement", "stated", "guess"))
_WORDS_OF_REASONS = ("since", "because", "which", " but ", " it", " (")
_TEMPLATES = {  # what a sentence states, in this order
    "hedged": r"\text{{{hedged}}}",
    "choice": "{letter}",
    "amount": r"{number}\text{{ {of}}}",
    "label": r"\textbf{{({a}{b})}} {value}",
    "words": "{words}",
    "formula": "{formula}",
}
_BLOCK = re.compile(r"```\w*\n([^\n`]+)\n```\s*$")
_IS_SENTENCE = re.compile(r"[a-z] (?:is|are|was|were|equals|has|have|had) .*\d")
_OPENS_MATH = re.compile(
    r"(?:\$|\\\()(?:[^$a-zA-Z\n\\]|\\[a-zA-Z]+|\\[,;:! ]|(?<![a-zA-Z])[a-zA-Z](?![a-zA-Z]))*$"
)
_JSON_LIST = re.compile(r"(\[[^$\\]*\"[^$\\]*\])")  # the whole of a last line
_BOLD = re.compile(r"\s*\*\*([^*\n]{1,200})\*\*[.\s]*")
UPRIGHT = re.compile(r"\\(?:mathrm|text|operatorname)\s*\{\s*([ei])\s*\}")
_MINUS = re.compile(r"\b(?:minus|negative)\s+(?=\d)")
_IS_MINUS = re.compile(r"(?<=\s)[–—](?=\d)|(?<=is\s)(?:minus|negative)\s+(?=\d)")
_IN_TYPE = re.compile(
    r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|emph|underline)\s*\{\s*([^{}$]*?)\s*\}"
)
_COMMAND_CHARS = 20  # of LaTeX, at most
_ENDS_IN_COMMAND = re.compile(r"\\[a-zA-Z]+$")
# a response, or its last line, that is only a letter: "**(C)**"; and one of a few words
_LONE_CHOICE = re.compile(r"[\s*_$(\"'`]*([A-J]|[-+]?\d+(?:[.,]\d+)*)[\s*_$)\"'`.]*")
_FEW_WORDS = re.compile(
    r"[\s*_\"]*([A-Za-z]+|(?i:(?:there (?:is|are) )?(?:no|infinitely many|an infinite number of) [a-z ]{3,40}|all real numbers(?: (?:except|but) [-\w/ ]{1,20})?)|[A-Z][a-z]+(?:[ '-][A-Z][a-z]+){1,3})[\s*_\".!]*"
)
_IS_FORMULA = re.compile(r"(?!\([^()]*=)(?=.*\w)")  # not "(2 + 3 = 5)"
# what is before the last of several numbers
_LISTED = re.compile(
    r"(?:[\d})$]|\.{3}|…)\s*(?:,\s|,\s+\$?-?\d+\$?,?\s+and\s|;|,?\s*\bor\b|\s\d+\s)\s*[\\$(]*[-+]?$"
)
_OFFERS = re.compile(r"[\w})$]\s*,?\s*\bor\b\s*[\\$(]*[-+]?$")  # before a number
_CODE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_ASKS = re.compile(r"\d[^.!?\n]*[?？][\s*_]*$")  # "Is the answer 7?"
# "$A = 8\text{ cm}$."
_MEASURED = re.compile(
    r"\$(?:[^$=\n]{0,80}=)?([^$=\n]{1,60}\\(?:text|mathrm)\{[^$=\n]{1,40})\$[.\s*]*$"
)
# behind words or a colon, and before words
_NUMBER_AT_THE_END = re.compile(
    r"(?:^|\n|(?<=[a-zA-Z][a-zA-Z:])\s)\$?(?P<number>-?\d{1,12}(?:,\d{3})*(?:\.\d{1,12})?)(?:\s[a-zA-Z ,'-]*)?[.!*]*\s*$"
)
_LAST_NUMBER = re.compile(r"\d+(?:[.,]\d+)*(?=\D*$)")
# broken off
_UNFINISHED = (
    "^",
    "_",
    "+",
    "-",
    "*",
    "/",
    "=",
    "\\",
    "{",
    "(",
    "[",
    "<",
    ">",
    "&",
)


@dataclass(frozen=True, slots=True)
class FinalAnswer:
    """`exact`: the text is the answer. Else it is somewhere in it; `stated`: announced there."""

    text: str
    exact: bool
    stated: bool = False


def final_answer(response: str, *, truncated: bool, problem: str = "") -> FinalAnswer | None:
    """Look for the answer in the usual places, in this order, after the thinking part and before a
    next question:

    an explicit "final answer is ..." or "#### ..." after the last box, the last box that is not
    taken back, the last <answer> tag, the line after the last "####" (GSM8K), the answer of a JSON
    text, the last statement with "answer", the end of the response. The last two are guesses, not
    made for a truncated response: the number at which the limit struck is no answer."""
    text = answer_part(response, problem)
    if text is None:
        return None
    if not truncated:
        text = with_last_box_closed(text)
    behind = end_of_what_is_withdrawn(text)
    text = without_blanks(text[behind:])
    boxed = boxed_answer(text, fills=BOX.search(problem) is not None)
    is_last = boxed is not None and not may_state(text, place_of_last_box(text))
    statement = None if is_last else last_statement(text)
    marked = _marked(text, problem, boxed, statement)
    if marked is not None:
        return FinalAnswer(marked, exact=True)
    if truncated or behind is not None and statement is None:
        return (
            FinalAnswer(with_what_follows(boxed, text, problem), exact=True) if boxed else None
        )
    return _guess(text, statement[1] if statement else None)


def _marked(
    text: str, problem: str, boxed: str | None, statement: tuple[int, str] | None
) -> str | None:
    """Return what the mark of the highest rank holds: a box, or "####" after it; a tag; "####"; a JSON text."""
    line = line_behind_hashes(text)
    if boxed and not (statement and _overrides_a_box(text, statement[0])):
        if line and not has_box_behind(text, line[0]):
            return line[1]
        return with_what_follows(boxed, text, problem)
    tagged = tagged_answer(text)
    if tagged:
        return with_what_follows(tagged, text, problem)
    return line[1] if line else answer_of_json(text)


def with_what_follows(marked: str, text: str, problem: str) -> str:
    r"""Add the scale, percent sign or unit that follows the last mark: 8\text{ cm} of "$\boxed{8}$ cm"."""
    if len(marked) > MAX_ANSWER_CHARS:
        return marked
    box = place_of_last_box(text)
    place = text.rfind(marked) if box < 0 else text.find(marked, box)
    behind = max(place + len(marked), len(text) - CHARS_BEHIND_THE_LAST)
    offered = _STATED["offered"].search(text, behind)
    if offered and not has_box_behind(text, offered.start()):
        return marked + ALTERNATIVE + offered["other"]
    said = _said_of_the_last_mark(text)
    if said is None or number(marked) is None or unit_of(marked):
        return marked
    if said["scale"] and said["scale"].lower() in problem.lower():
        return marked  # "How many million?" wants the bare number
    word = said["said"].strip("}").replace("}", "")
    whole = f"{marked}\\%" if word in ("%", "\\%", "percent") else rf"{marked}\text{{ {word}}}"
    return marked if said["unit"] and unit_of(whole) is None else whole


def _said_of_the_last_mark(text: str) -> re.Match | None:
    """Match the last box, or a tag that closes after it, with the scale or unit behind it."""
    box = place_of_last_box(text)
    tag = end_of_last_tag(text) - len("</answer>")
    for place in (tag, box):
        said = _STATED["scaled"].match(text, place) if place >= max(box, 0) else None
        if said is not None:
            return said
    return None


def _overrides_a_box(text: str, start: int) -> bool:
    """Tell whether "final answer", or a line "Answer: D", follows the last box: not "... is verified"."""
    final = (
        _STATEMENT["final"].match(text, start)
        or _STATEMENT["corrects"].match(text, start)
        or _STATEMENT["line"].match(text, text.rfind("\n", 0, start) + 1)
    )
    return (
        final is not None
        and BOX.search(text, start) is None
        and _STATEMENT["answer_after_a_box"].match(text, final.end()) is not None
    )


def _guess(text: str, statement: str | None) -> FinalAnswer | None:
    """Return the answer of the last statement, or the end of a text without one."""
    if statement:
        return _guess_of_statement(in_english(statement))
    return _guess_of_end(_without_remarks(in_english(text[-STATEMENT_CHARS:])))


def _guess_of_statement(statement: str) -> FinalAnswer | None:
    """Return what a sentence announces; None: it asks, guesses or leaves a choice."""
    if _ASKS.search(statement) or _GUESS["unsure"].search(statement):
        return None
    if _GUESS["hedged"].search(statement):
        return None
    snippet = statement
    gives_reasons = any(word in snippet for word in _WORDS_OF_REASONS)
    if gives_reasons and not _STATED["exactly"].search(snippet):
        snippet = _STATEMENT["instead"].sub("", _STATEMENT["reason"].sub("", snippet))
    snippet = _in_plain_type(snippet)
    stated = _stated(snippet)
    if stated:
        return FinalAnswer(stated, exact=True)
    return _somewhere_in(snippet, stated=True)


def _guess_of_end(text: str) -> FinalAnswer | None:
    """Return what a text without a statement ends with; None: it asks, guesses or denies."""
    end = _end_of_last_line(text)
    bold = _BOLD.fullmatch(end)
    if bold and _IS_SENTENCE.search(bold[1]):
        text = end = bold[1]  # "**So there are 14 of them.**"
    last_sentence = SENTENCE_BEGINS.split(end.rstrip(" .\n"))[-1]
    if _ASKS.search(end) or _GUESS["unsure"].search(last_sentence):
        return None
    lone = _lone_answer(text, end)
    if lone:
        is_bounded = _is_bounded(end[: lone.start()])
        return None if is_bounded else FinalAnswer(lone[1], exact=True)
    if _is_denied(text):
        return None
    whole = _in_bold(end) or _whole_answer(end)
    if whole:
        return FinalAnswer(whole, exact=True)
    snippet = _in_plain_type(_first_number(text[-TAIL_CHARS:]))
    return _somewhere_in(snippet, stated=False)


def _lone_answer(text: str, end: str) -> re.Match | None:
    """Match a text, or its last line, that has only a letter, a few words, an amount or a block of code."""
    return (
        _LONE_CHOICE.fullmatch(end)
        or _JSON_LIST.fullmatch(end)
        or _FEW_WORDS.fullmatch(text)
        or _BOLD.fullmatch(end)
        or _MEASURED.search(end)
        or _BLOCK.search(text)
    )


def _in_plain_type(snippet: str) -> str:
    """Write a sentence without marks of code and upright letters, and a minus as one sign."""
    if not snippet.isascii():
        snippet = CHINESE.sub(r" \g<0> ", snippet)
    snippet = UPRIGHT.sub(r"\1", _CODE.sub(r"\1", snippet))
    return _IS_MINUS.sub("-", snippet.replace("−", "-")).strip()


def _somewhere_in(snippet: str, *, stated: bool) -> FinalAnswer | None:
    """Return a text whose last formula may be the answer; None: it breaks off."""
    if snippet.endswith("**") and snippet.count("**") % 2 == 0:
        snippet = snippet[:-2].rstrip()  # bold type
    if not snippet or snippet.endswith(_UNFINISHED) or BOX.search(snippet):
        return None
    return FinalAnswer(snippet, exact=False, stated=stated)


def _end_of_last_line(text: str) -> str:
    """Return the last line that is not blank; of a long one the last words, after a sign that there were others."""
    line = last_line(text) or ""
    return line if len(line) <= LINE_CHARS else f"… {line[-LINE_CHARS:].partition(' ')[2]}"


def _without_remarks(text: str) -> str:
    """Leave out a check after the answer, "Let me verify: ...", and a clause that remarks on it."""
    check = _GUESS["check"].search(text)
    is_cut = (
        check
        and text[: check.start()].strip()
        and not _GUESS["doubts"].search(text, check.end())
    )
    return _GUESS["aside"].sub(".", text[: check.start()] if check and is_cut else text)


def _in_bold(line: str) -> str | None:
    """Return what alone is in bold type in a last line; not a heading, nor words next to a number."""
    runs = list(_BOLD.finditer(line))
    if len(runs) != 1 or runs[0][1].endswith(":") or line[runs[0].end() :].startswith(":"):
        return None
    others = line[: runs[0].start()] + line[runs[0].end() :]
    is_beside = (
        re.search(r"\d", others)
        and not re.search(r"\d", runs[0][1])
        or CHINESE.search(runs[0][1])
    )
    return None if is_beside or _GUESS["doubts"].search(line) else runs[0][1]


def _whole_answer(line: str) -> str | None:
    """Return the formula, list, tuple or amount with a unit that a last line is or states; None: it does not."""
    sentence = line[_begin_of_last_sentence(line) :]
    relation = _GUESS["relation"].search(sentence)
    if relation and not _GUESS["not_that"].search(sentence[: relation.start("said")]):
        return relation["said"].rstrip(".")
    stated = _stated_at_the_end(sentence)
    if stated:
        return stated
    whole = _GUESS["whole"].search(line)
    if whole:
        return whole["whole"]
    several = _GUESS["several"].search(line)
    if several and re.search(r",|\b(?:and|or)\b", several["several"]):
        return several["several"].strip(" .*")
    return None


def _begin_of_last_sentence(text: str) -> int:
    marks = SENTENCE_BEGINS.finditer(text.rstrip(" .\n"))
    return max((mark.end() for mark in marks), default=0)


def _stated_at_the_end(sentence: str) -> str | None:
    """Return the formula or amount with which a sentence ends; None: it is in doubt, or another number is meant."""
    if _GUESS["doubts"].search(sentence) or _number_of_subject(sentence, 0) is not None:
        return None
    for name in ("chain", "share", "is_formula"):
        said = _GUESS[name].search(sentence)
        if said:
            return _with_currency(said["said"])
    said = _GUESS["amount"].search(sentence)
    text = _with_currency(said["said"]) if said else ""
    amount = number(text)
    return text if amount and amount.unit else None


def _with_currency(text: str) -> str:
    r"""Write a price as LaTeX does: "\$5"."""
    text = text.strip(" .*")
    return f"\\{text}" if text.startswith("$") else text


def _is_denied(text: str) -> bool:
    """Tell whether a text has no answer, or every statement of one is denied or only thought of."""
    marks = list(_STATEMENT["answers"].finditer(text))
    denied = [
        _STATEMENT["denied"].search(text[max(0, mark.start() - 60) : mark.start()])
        for mark in marks
    ]
    return bool(marks) and all(denied) or _STATEMENT["says_none"].search(text) is not None


def _first_number(text: str) -> str:
    """Cut a text that ends in a sentence such as "5 cars came in the first 15 minutes" after the 5."""
    begin = _begin_of_last_sentence(text)
    words = list(re.finditer(r"[a-z]+", text[begin:].lower()))
    if not re.search(r"\d", text[begin:]):  # "There are thirty-one of them."
        runs = [
            list(run)
            for is_one, run in groupby(words, lambda word: is_number_word(word[0]))
            if is_one
        ]
        in_words = (
            value_in_words(" ".join(word[0] for word in runs[0])) if len(runs) == 1 else None
        )
        if in_words is not None and in_words not in (0, 1):
            return f"{text[: begin + runs[0][0].start()]}{in_words}{text[begin + runs[0][-1].end() :]}"
    value = _number_of_subject(text, begin)
    return text if value is None else f"{text[:begin]}{value}"


def _number_of_subject(text: str, begin: int) -> object:
    sentence = _GUESS["subject"].match(text, begin)
    said = sentence["number"] if sentence else ""
    return said if said[:1].isdigit() else value_in_words(said)


def _without_type(typed: re.Match[str]) -> str:
    r"""Return what is in \text{}; a command before it stays one: "\circ C" of "\circ\text{C}"."""
    before = typed.string[max(0, typed.start() - _COMMAND_CHARS) : typed.start()]
    return f" {typed[1]}" if _ENDS_IN_COMMAND.search(before) else typed[1]


def _stated(snippet: str) -> str | None:
    """Return the answer that a sentence states, where nothing else is there."""
    if exactly := _STATED["exactly"].search(snippet):
        math = exactly["math"] or ""  # after "\\$" a formula or a price
        return math.rpartition("\\$ ")[2].strip() or math or exactly["number"]
    if (value := value_in_words(snippet.removeprefix("Answer:").strip(" 。.个"))) is not None:
        return str(value)
    snippet = _MINUS.sub("-", _IN_TYPE.sub(_without_type, snippet.replace("−", "-")))
    for name, template in _TEMPLATES.items():
        if said := _STATED[name].search(snippet):
            text = template.format(**said.groupdict(""))
            if name == "amount" and not (number(text) or _GUESS["changed"].search(said["of"])):
                continue
            return text.strip() if name != "formula" or _IS_FORMULA.match(text) else None
    return None


def number_at_the_end(final: FinalAnswer) -> str | None:
    r"""Return the number that a text ends with, or that it states: 100 of "A: 100", \frac{1}{2} of "Answer: \frac{1}{2}";
    None: a formula."""
    if final.stated:
        said = final.text.removeprefix("Answer:").strip(" $*.")
        return said if rough_value(said) is not None else None
    found = _NUMBER_AT_THE_END.search(final.text[-LINE_CHARS:])
    return None if found is None else found["number"]


def why_no_guess(extracted: str, final: FinalAnswer) -> str | None:
    """Say why a number at the end of a text is not its answer; None when nothing speaks against it.

    "several": it is the last of an enumeration, 7 of "it is 5 or 7". "no_answer": the words before
    it make it another number or none, as in "The answer exceeds 8", "See equation 8".
    """
    last = None if final.exact else _LAST_NUMBER.search(final.text)
    if last is None:
        return None
    ahead = final.text[: last.start()]
    if _is_one_of_several(extracted, last[0], ahead, stated=final.stated):
        return "several"
    if last[0] not in extracted:
        return None
    if _GUESS["scaled"].match(final.text, last.end()):
        return "no_answer"
    return "no_answer" if _is_bounded(ahead[-CHARS_BEFORE_A_GUESS:]) else None


def _is_one_of_several(extracted: str, last: str, ahead: str, *, stated: bool) -> bool:
    """Tell whether the last number of a text ends an enumeration, or "or" offers it beside what was read."""
    if not stated:
        return last == extracted and _LISTED.search(ahead) is not None
    is_read = last in extracted or " and " in extracted  # the parser reads "1/2 or 0.5" as two
    return not is_read and _OFFERS.search(ahead) is not None


def _is_bounded(before: str) -> bool:
    """Tell whether the clause before a number makes it another one or none: "less than", "not $x=$"."""
    clause = _GUESS["clause_ends"].split(_OPENS_MATH.sub("", before))[-1]
    return _GUESS["not_that"].search(clause) is not None
