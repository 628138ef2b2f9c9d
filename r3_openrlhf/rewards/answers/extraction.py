"""The final answer of a response, which is hostile text of any length.

Over all of it run only patterns that are linear. The others run over windows: the last STATEMENT_CHARS of a text, and the last
LINE_CHARS of its last line; no run of white space is longer than MAX_BLANKS there."""

import json
import re
from dataclasses import dataclass
from itertools import groupby, islice

from r3_openrlhf.rewards.answers.comparison import number
from r3_openrlhf.rewards.answers.marks import (
    ALTERNATIVE,
    BOX,
    boxed_answer,
    end_of_what_is_withdrawn,
    tagged_answer,
    without_blanks,
)
from r3_openrlhf.rewards.answers.number_words import is_number_word, value_in_words
from r3_openrlhf.rewards.answers.patterns import phrases
from r3_openrlhf.rewards.answers.plain import in_english
from r3_openrlhf.rewards.answers.units import unit_of

MAX_ANSWER_CHARS = 1000  # a final answer longer than this is compared as text only
TAIL_CHARS = 1000  # without a box, the answer is looked for in the end of the response
CHARS_BEFORE_A_GUESS = 60  # in the same clause
STATEMENT_CHARS = 4000  # and "the answer is ..." in this much of it
LINE_CHARS = 400  # of a last line that is longer, its end
MAX_BLANKS = 16  # in a row
MAX_QUESTIONS = 32  # the first of those that may be made up

_STATEMENT, _STATED, _GUESS = map(phrases, ("statement", "stated", "guess"))
# Without one of these an ASCII text has no statement: most have none, and this is cheap.
_WORDS_OF_STATEMENTS = [
    "answer",
    "wait",
    "correct ",
    "choose",
    "select",
    "pick",
    "respuesta",
    "resposta",
    "antwort",
    "risposta",
]
_WORDS_OF_REASONS = ("since", "because", "which", " but ", " it", " (")
OPEN_THINKING = "<think>"
_MARKS = phrases("marks")
THINKING_MARK = _MARKS["thinking"]
TOKEN_OF_A_MARK = _MARKS["token"]
_ANSWER_KEYS = frozenset(
    ["answer", "final_answer", "result", "solution", "correct_answer", "choice", "response"]
)
_SHORT_ANSWER = re.compile(r"[^\n]{0,200}\d[^\n]{0,200}\s*|\s*[\w-]+(?: [\w-]+){0,3} ?[.!]?\s*")
_LONG_BLANK = re.compile(rf"\s{{{MAX_BLANKS + 1},}}")
_QUESTION_ENDS = re.compile(r"\n\s*\n|\b(?:answer|solution|assistant)\s*[:.]", re.IGNORECASE)
_TEMPLATES = {  # what a sentence states, in this order
    "hedged": r"\text{{{hedged}}}",
    "choice": "{letter}",
    "amount": r"{number}\text{{ {of}}}",
    "label": r"\textbf{{({a}{b})}} {value}",
    "words": "{words}",
    "formula": "{formula}",
}
_BLOCK = re.compile(r"```\w*\n([^\n`]+)\n```\s*$")
_LONG_WORD = re.compile(r"[^\W_]{3,}|\d+")
_SENTENCE_BEGINS = re.compile(r"(?:[.!?]\s+|。\s*)(?=[A-Z\d$])|\n\s*")
_IS_SENTENCE = re.compile(r"[a-z] (?:is|are|was|were|equals|has|have|had) .*\d")
_OPENS_MATH = re.compile(
    r"(?:\$|\\\()(?:[^$a-zA-Z\n\\]|\\[a-zA-Z]+|\\[,;:! ]|(?<![a-zA-Z])[a-zA-Z](?![a-zA-Z]))*$"
)
_BOLD = re.compile(r"\s*\*\*([^*\n]{1,200})\*\*[.\s]*")
UPRIGHT = re.compile(r"\\(?:mathrm|text|operatorname)\s*\{\s*([ei])\s*\}")
_MINUS = re.compile(r"\b(?:minus|negative)\s+(?=\d)")
_IS_MINUS = re.compile(r"(?<=\s)[–—](?=\d)|(?<=is\s)(?:minus|negative)\s+(?=\d)")
_IN_TYPE = re.compile(
    r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|emph|underline)\s*\{\s*([^{}$]*?)\s*\}"
)
# a response, or its last line, that is only a letter: "**(C)**"; and one of a few words
_LONE_CHOICE = re.compile(r"[\s*_$(\"'`]*([A-J]|[-+]?\d+(?:[.,]\d+)*)[\s*_$)\"'`.]*")
_FEW_WORDS = re.compile(
    r"[\s*_\"]*([A-Za-z]+|(?i:(?:there (?:is|are) )?no [a-z ]{3,40}|all real numbers(?: (?:except|but) [-\w/ ]{1,20})?)|[A-Z][a-z]+(?:[ '-][A-Z][a-z]+){1,3})[\s*_\".!]*"
)
_IS_FORMULA = re.compile(r"(?!\([^()]*=)(?=.*\w)")  # not "(2 + 3 = 5)"
# what is before the last of several numbers
_LISTED = re.compile(
    r"(?:[\d})$]|\.{3}|…)\s*(?:,\s|,\s+\$?-?\d+\$?,?\s+and\s|;|,?\s*\bor\b|\s\d+\s)\s*[\\$(]*[-+]?$"
)
_CODE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_ASKS = re.compile(r"\d[^.!?\n]*[?？][\s*_]*$")  # "Is the answer 7?"
# "$A = 8\text{ cm}$."
_MEASURED = re.compile(
    r"\$(?:[^$=\n]{0,80}=)?([^$=\n]{1,60}\\(?:text|mathrm)\{[^$=\n]{1,40})\$[.\s*]*$"
)
_LAST_NUMBER = re.compile(r"\d+(?:[.,]\d+)*(?=\D*$)")
_HEADING = re.compile(r"[\s*_]*(?:\d+[.):]\s*)?[A-Za-z]{3,}")
_FULL_WIDTH = re.compile("[\uff10-\uff19\uff21-\uff3a\uff41-\uff5a\uff5b\uff5d]")
# the signs of ASCII, as wide as a Chinese one
FULL_WIDTH = {code: chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)}
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
_CJK = re.compile(r"[\u3000-\u30ff\u3400-\u9fff\uff00-\uffef]+")


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
    behind = end_of_what_is_withdrawn(text)
    text = without_blanks(text[behind:])
    boxed = boxed_answer(text, fills=BOX.search(problem) is not None)
    boxed = _with_what_follows(boxed, text, problem) if boxed else None
    marked = _after_marker(text)
    if (
        boxed
        and not marked
        and not _STATEMENT["may_follow"].search(text, max(0, len(text) - STATEMENT_CHARS))
    ):
        return FinalAnswer(boxed, exact=True)
    statement = last_statement(text)
    if boxed and not (statement and _overrides_a_box(text, statement[0])):
        behind_boxes = marked is not None and BOX.search(text, marked[0]) is None
        return FinalAnswer(marked[1] if marked and behind_boxes else boxed, exact=True)
    if tagged := tagged_answer(text):
        return FinalAnswer(_with_what_follows(tagged, text, problem), exact=True)
    if marked:
        return FinalAnswer(marked[1], exact=True)
    if noted := _in_json(text):
        return noted
    if truncated or behind is not None and statement is None:
        return FinalAnswer(boxed, exact=True) if boxed else None
    return _guess(text, statement[1] if statement else None)


def _with_what_follows(marked: str, text: str, problem: str) -> str:
    r"""Add the scale, percent sign or unit that follows the last mark: 8\text{ cm} of "$\boxed{8}$ cm"."""
    if len(marked) > MAX_ANSWER_CHARS:
        return marked
    offered = _STATED["offered"].search(text, text.rfind(marked) + len(marked))
    if offered and BOX.search(text, offered.start()) is None:
        return marked + ALTERNATIVE + offered["other"]
    every = list(_STATED["scaled"].finditer(text))
    said = every[-1] if every else None
    if (
        said is None
        or BOX.search(text, said.end())
        or number(marked) is None
        or unit_of(marked)
    ):
        return marked
    if said["scale"] and said["scale"].lower() in problem.lower():
        return marked  # "How many million?" wants the bare number
    word = said["said"].strip("}").replace("}", "")
    whole = f"{marked}\\%" if word in ("%", "\\%", "percent") else rf"{marked}\text{{ {word}}}"
    return marked if said["unit"] and unit_of(whole) is None else whole


def answer_part(response: str, problem: str = "") -> str | None:
    """Return the part of a response that holds its answer: after the thinking part, in its
    section for the answer, before an invented next turn or question. None: it is still thinking."""
    text = after_thinking(response)
    if text is None:
        return None
    if not text.isascii():
        text = text.translate(FULL_WIDTH) if _FULL_WIDTH.search(text) else text
    text = _LONG_BLANK.sub(
        lambda run: "\n\n" if run[0].count("\n") > 1 else "\n" if "\n" in run[0] else " ", text
    )
    text = _before_the_next(text, problem)
    if "<" in text and (
        sections := [
            part for part in _MARKS["section"].finditer(text) if part["inside"].strip()
        ]
    ):
        inside = sections[-1]["inside"].strip()
        lone = "\n" not in inside and not re.search(r"answer|boxed|####", inside, re.IGNORECASE)
        text = f"<answer>{inside}</answer>" if lone else inside
    return text


def _before_the_next(text: str, problem: str) -> str:
    """Cut a text before the next turn, or the next question, that the model made up."""
    if "<" in text or "[" in text:
        turn = next(
            (
                mark
                for mark in _MARKS["next_turn"].finditer(text)
                if text[: mark.start()].strip()
            ),
            None,
        )
        text = text[: turn.start()] if turn else text
    words: set[str] = set()
    for mark in islice(_MARKS["next_question"].finditer(text), MAX_QUESTIONS):
        word = (mark["word"] or "").lower()
        is_part = mark["number"] and word in words  # "Question 1: ... Question 2: ..."
        words.add(word)
        before = text[: mark.start()]
        if (
            not is_part
            and before.strip()
            and _answers(before)
            and not _restates(text[mark.end() :], problem)
        ):
            return before
    return text


def _answers(text: str) -> bool:
    """Tell whether a text has an answer already, so that another question after it is made up."""
    return (
        boxed_answer(text) is not None
        or tagged_answer(text) is not None
        or _after_marker(text) is not None
        or last_statement(text) is not None
        or _SHORT_ANSWER.fullmatch(text) is not None
    )


def _restates(text: str, problem: str) -> bool:
    """Tell whether a question is the problem itself."""
    question = _QUESTION_ENDS.split(text.strip()[: len(problem) + 40])[0]
    asked, own = (set(_LONG_WORD.findall(part.lower())) for part in (question, problem))
    return bool(own) and 2 * len(asked & own) > len(own)


def _after_marker(text: str) -> tuple[int, str] | None:
    """Position and line of the last "#### 18"; None where it is a heading."""
    marker = text.rfind("####")
    if marker < 0:
        return None
    line, _, rest = text[marker + 4 :].lstrip(" ").partition("\n")
    is_heading = _HEADING.match(line) and (_says_more(rest) or last_statement(line))
    return (marker, line.strip()) if line.strip() and not is_heading else None


def _says_more(text: str) -> bool:
    """Tell whether a text says more than that the answer before it is right."""
    statement = last_statement(text)
    if statement is None or re.search(r"\d", text):
        return bool(text.strip())
    return _STATEMENT["checks"].match(statement[1].removeprefix("Answer:")) is None


def _in_json(text: str) -> FinalAnswer | None:
    """Return the answer of a JSON text in a code block or at the end."""
    if "{" not in text or '"' not in text or not (blocks := _MARKS["json"].findall(text)):
        return None
    try:
        content = json.loads(next(block for block in blocks[-1] if block))
    except (ValueError, RecursionError):
        return None
    known = [content[key] for key in content if key.lower().replace(" ", "_") in _ANSWER_KEYS]
    if (
        len(known) != 1
        or known[0] is None
        or isinstance(known[0], (dict, float))
        and known[0] != known[0]
    ):
        return None
    value = known[0]
    return FinalAnswer(value if isinstance(value, str) else json.dumps(value), exact=True)


def _guess(text: str, statement: str | None) -> FinalAnswer | None:
    """Return the answer of the last statement, or the end of a text without one."""
    statement = in_english(statement) if statement else None
    text = in_english(text[-STATEMENT_CHARS:])
    text = text if statement else _without_remarks(text)
    end = _end_of_last_line(text)
    if statement is None and (bold := _BOLD.fullmatch(end)) and _IS_SENTENCE.search(bold[1]):
        text = end = bold[1]  # "**So there are 14 of them.**"
    if _is_unsure(statement, end):
        return None
    if statement is None:
        lone = _LONE_CHOICE.fullmatch(end) or _FEW_WORDS.fullmatch(text) or _BOLD.fullmatch(end)
        if lone or (lone := _MEASURED.search(end) or _BLOCK.search(text)):
            return (
                None if _is_bounded(end[: lone.start()]) else FinalAnswer(lone[1], exact=True)
            )
        if _is_denied(text):
            return None
        if whole := _in_bold(end) or _whole_answer(end):
            return FinalAnswer(whole, exact=True)
    snippet = _first_number(text[-TAIL_CHARS:]) if statement is None else statement
    if (
        statement
        and any(map(snippet.__contains__, _WORDS_OF_REASONS))
        and not _STATED["exactly"].search(snippet)
    ):
        snippet = _STATEMENT["instead"].sub("", _STATEMENT["reason"].sub("", snippet))
    if not snippet.isascii():
        snippet = _CJK.sub(r" \g<0> ", snippet)
    snippet = _CODE.sub(r"\1", snippet)
    snippet = _IS_MINUS.sub("-", UPRIGHT.sub(r"\1", snippet).replace("−", "-")).strip()
    if statement and (stated := _stated(snippet)):
        return FinalAnswer(stated, exact=True)
    if snippet.endswith("**") and snippet.count("**") % 2 == 0:
        snippet = snippet[:-2].rstrip()  # bold type
    if not snippet or snippet.endswith(_UNFINISHED) or BOX.search(snippet):
        return None
    return FinalAnswer(snippet, exact=False, stated=statement is not None)


def _is_unsure(statement: str | None, end: str) -> bool:
    """Tell whether a statement, or the last sentence of a text without one, asks, guesses or leaves a choice."""
    said = statement or _SENTENCE_BEGINS.split(end.rstrip(" .\n"))[-1]
    if _ASKS.search(statement or end) or _GUESS["unsure"].search(said):
        return True
    return statement is not None and _GUESS["hedged"].search(statement) is not None


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
        re.search(r"\d", others) and not re.search(r"\d", runs[0][1]) or _CJK.search(runs[0][1])
    )
    return None if is_beside or _GUESS["doubts"].search(line) else runs[0][1]


def _whole_answer(line: str) -> str | None:
    """Return the formula, list, tuple or amount with a unit that a last line is or states; None: it does not."""
    sentence = line[
        max(
            (mark.end() for mark in _SENTENCE_BEGINS.finditer(line.rstrip(" .\n"))), default=0
        ) :
    ]
    if (said := _GUESS["relation"].search(sentence)) and not _GUESS["not_that"].search(
        sentence[: said.start("said")]
    ):
        return said["said"].rstrip(".")
    if not _GUESS["doubts"].search(sentence) and _number_of_subject(sentence, 0) is None:
        for name in ("chain", "share", "is_formula", "amount"):
            if said := _GUESS[name].search(sentence):
                text = said["said"].strip(" .*")
                text = f"\\{text}" if text[0] == "$" else text
                if name != "amount" or (amount := number(text)) and amount.unit:
                    return text
    if whole := _GUESS["whole"].search(line):
        return whole["whole"]
    several = _GUESS["several"].search(line)
    is_list = several and re.search(r",|\b(?:and|or)\b", several["several"])
    return several["several"].strip(" .*") if several and is_list else None


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
    begin = max(
        (mark.end() for mark in _SENTENCE_BEGINS.finditer(text.rstrip(" .\n"))), default=0
    )
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


def _stated(snippet: str) -> str | None:
    """Return the answer that a sentence states, where nothing else is there."""
    if exactly := _STATED["exactly"].search(snippet):
        math = exactly["math"] or ""  # after "\\$" a formula or a price
        return math.rpartition("\\$ ")[2].strip() or math or exactly["number"]
    if (value := value_in_words(snippet.removeprefix("Answer:").strip(" 。.个"))) is not None:
        return str(value)
    snippet = _MINUS.sub("-", _IN_TYPE.sub(r"\1", snippet.replace("−", "-")))
    for name, template in _TEMPLATES.items():
        if said := _STATED[name].search(snippet):
            text = template.format(**said.groupdict(""))
            if name == "amount" and not (number(text) or _GUESS["changed"].search(said["of"])):
                continue
            return text.strip() if name != "formula" or _IS_FORMULA.match(text) else None
    return None


def why_no_guess(extracted: str, final: FinalAnswer) -> str | None:
    """Say why a number at the end of a text is not its answer; None when nothing speaks against it.

    "several": it is the last of an enumeration, 7 of "it is 5 or 7". "no_answer": the words before
    it make it another number or none, as in "The answer exceeds 8", "See equation 8".
    """
    last = None if final.exact else _LAST_NUMBER.search(final.text)
    if last is None:
        return None
    if not final.stated and last[0] == extracted and _LISTED.search(final.text[: last.start()]):
        return "several"
    if last[0] in extracted and _GUESS["scaled"].match(final.text, last.end()):
        return "no_answer"
    before = final.text[max(0, last.start() - CHARS_BEFORE_A_GUESS) : last.start()]
    return "no_answer" if last[0] in extracted and _is_bounded(before) else None


def _is_bounded(before: str) -> bool:
    """Tell whether the clause before a number makes it another one or none: "less than", "not $x=$"."""
    clause = _GUESS["clause_ends"].split(_OPENS_MATH.sub("", before))[-1]
    return _GUESS["not_that"].search(clause) is not None


def last_statement(text: str) -> tuple[int, str] | None:
    """Position and text of the last sentence that announces an answer, in several languages."""
    tail = text[-STATEMENT_CHARS:].lower()
    if tail.isascii() and not any(word in tail for word in _WORDS_OF_STATEMENTS):
        return None
    start = max(0, len(text) - STATEMENT_CHARS)
    marks = [mark for mark in _STATEMENT["any"].finditer(text, start) if _announces(text, mark)]
    found = [
        mark
        for mark in marks
        if not _STATEMENT["denied"].search(text[max(0, mark.start() - 60) : mark.start()])
    ]
    said = [mark for mark in found if text[mark.end() :].strip(" *_:$.\n")]
    last = text[said[-1].end() :] if len(said) > 1 else ""
    if last.count("{") > last.count("}") or last.replace("\\$", "").count("$") % 2 == 1:
        said.pop()  # it breaks off within a formula: "$\\frac{3}{"
    match = next(
        (mark for mark in reversed(said) if not _STATEMENT["checks"].match(text, mark.end())),
        None,
    )
    match = match or (said[-1] if said else None)
    if match is None:
        return None
    start, end = match.start(), match.end()
    # a check of the answer after it is another sentence: "The answer is 81. This answer is right."
    following = next((mark.start() for mark in marks if mark.start() > end), 0)
    stop = max(
        (mark.start() + 1 for mark in _SENTENCE_BEGINS.finditer(text, end, following)),
        default=len(text),
    )
    if _STATEMENT["final"].match(text, start) is None:
        return start, "Answer: " + text[end : min(end + 300, stop)].lstrip(" *_")
    return start, text[start : min(start + 300, stop)]


def _announces(text: str, statement: re.Match) -> bool:
    """Tell whether an answer follows: not in "This is the final answer." or "... is above."."""
    if _STATEMENT["final"].match(statement[0]) is None:
        return True
    if statement[0].lower().endswith("is") or text.startswith(":", statement.end()):
        return (
            _STATEMENT["says_nothing"].match(
                text, statement.end() + text.startswith(":", statement.end())
            )
            is None
        )
    return _STATEMENT["answer_follows"].match(text, statement.end()) is not None


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


def after_thinking(response: str) -> str | None:
    """Return the part after the last mark that closes thinking, or after the notes in a tag of any
    other name with which a response begins; the whole response without marks; None when it never
    stops.

    Marks: <think>, <Think >, <thinking>, <thought>, [THINK], ◁think▷ and their closing forms. Where
    the prompt has opened thinking, the caller puts `OPEN_THINKING` in front of the response."""
    end = None
    for mark in THINKING_MARK.finditer(response):
        end = mark.end() if closes_thinking(mark) else -1
    if end is not None:
        return None if end < 0 else response[end:]
    notes = _MARKS["opened"].match(response)
    if notes is None:
        return response
    closing = f"</{notes['name']}>"
    behind = response.rpartition(closing)[2]
    return None if closing not in response else behind if behind.strip() else response


def closes_thinking(mark: re.Match) -> bool:
    """Tell whether a mark of thinking ends it: </think>, <|END_THINKING|>, the channel of the answer."""
    return any(mark[name] for name in ("slash", "ends", "stops", "final"))


def nesting_depth(text: str) -> int:
    """Return the largest number of brackets open at once, of any kind."""
    depth = deepest = 0
    for character in text:
        depth = max(0, depth + (character in "({[") - (character in ")}]"))
        deepest = max(deepest, depth)
    return deepest


def last_line(text: str) -> str | None:
    """Return the last line that is not blank."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), None)
