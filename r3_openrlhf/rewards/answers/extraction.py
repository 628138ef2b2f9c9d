"""The final answer of a response. Every function is linear in the text, which is hostile."""

from __future__ import annotations

import re
from dataclasses import dataclass

from r3_openrlhf.rewards.answers.marks import BOX, boxed_answer, end_of_what_is_withdrawn, tagged_answer
from r3_openrlhf.rewards.answers.patterns import phrases

MAX_ANSWER_CHARS = 1000  # a final answer longer than this is compared as text only
TAIL_CHARS = 1000  # without a box, the answer is looked for in the end of the response
CHARS_BEFORE_A_GUESS = 60  # in the same clause
STATEMENT_CHARS = 4000  # and "the answer is ..." in this much of it

_STATEMENT, _STATED, _GUESS = map(phrases, ("statement", "stated", "guess"))
# Without one of these an ASCII text has no statement: most have none, and this is cheap.
_WORDS_OF_STATEMENTS = "answer,correct ,choose,select,pick,respuesta,resposta,antwort,risposta".split(",")
_WORDS_OF_REASONS = ("since", "because", "which", " but ", " it", "(check", "(verif")
OPEN_THINKING = "<think>"
THINKING_MARK = re.compile(r"[<\[◁] {0,3}(/?) {0,3}(?:\w{1,9}:)?(?:think(?:ing)?|thought) {0,3}[>\]▷]", re.IGNORECASE)
UPRIGHT = re.compile(r"\\(?:mathrm|text|operatorname)\s*\{\s*([ei])\s*\}")
_MINUS = re.compile(r"\b(?:minus|negative)\s+(?=\d)")
_IN_TYPE = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|emph|underline)\s*\{\s*([^{}$]*?)\s*\}")
# a response, or its last line, that is only a letter: "**(C)**"; and one of a few words
_LONE_CHOICE = re.compile(r"[\s*_$(]*([A-J])[\s*_$).]*")
_FEW_WORDS = re.compile(r"[\s*_\"]*([A-Za-z]+|[A-Z][a-z]+(?:[ '-][A-Z][a-z]+){1,3})[\s*_\".!]*")
_IS_FORMULA = re.compile(r"(?!\([^()]*=)(?=.*\w)")  # not "(2 + 3 = 5)"
# what is before the last of several numbers
_LISTED = re.compile(r"[\d})$]\s*(?:,\s|;|,?\s*\bor\b|\s\d+\s)\s*[\\$(]*[-+]?$")
_LAST_NUMBER = re.compile(r"\d+(?:[.,]\d+)*(?=\D*$)")
_HEADING = re.compile(r"[\s*_]*(?:\d+[.):]\s*)?[A-Za-z]{3,}")
_FULL_WIDTH = re.compile("[\uff10-\uff19\uff21-\uff3a\uff41-\uff5a\uff5b\uff5d]")
# the signs of ASCII, as wide as a Chinese one
FULL_WIDTH = {code: chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)}
_UNFINISHED = ("^", "_", "+", "-", "*", "/", "=", "\\", "{", "(", "[", "<", ">", "&")  # broken off
_CJK = re.compile(r"[\u3000-\u30ff\u3400-\u9fff\uff00-\uffef]+")


@dataclass(frozen=True, slots=True)
class FinalAnswer:
    """`exact`: the text is the answer. Else it is somewhere in it; `stated`: announced there."""

    text: str
    exact: bool
    stated: bool = False


def final_answer(response: str, *, truncated: bool) -> FinalAnswer | None:
    """The places of an answer in common use, in this order, after the thinking part:

    an explicit "final answer is ..." after the last box, the last box that is not taken back, the
    last <answer> tag, the line after the last "####" (GSM8K), the last statement with "answer", the
    end of the response. The last two are guesses, not made for a truncated response: the number at
    which the limit struck is no answer."""
    text = after_thinking(response)
    if text is None:
        return None
    if not text.isascii() and _FULL_WIDTH.search(text):
        text = text.translate(FULL_WIDTH)
    behind = end_of_what_is_withdrawn(text)
    text = text[behind:]
    boxed = boxed_answer(text)
    if boxed and "final answer" not in text[-STATEMENT_CHARS:].lower():
        return FinalAnswer(boxed, exact=True)
    statement = last_statement(text)
    if boxed and not (statement and _overrides_a_box(text, statement[0])):
        return FinalAnswer(boxed, exact=True)
    tagged = tagged_answer(text)
    if tagged:
        return FinalAnswer(tagged, exact=True)
    marker = text.rfind("####")
    line, _, rest = text[marker + 4 :].lstrip(" ").partition("\n")
    if marker >= 0 and line.strip() and not (_HEADING.match(line) and (rest.strip() or last_statement(line))):
        return FinalAnswer(line.strip(), exact=True)  # no heading
    if truncated or behind is not None and statement is None:
        return FinalAnswer(boxed, exact=True) if boxed else None
    return _guess(text, statement[1] if statement else None)


def _guess(text: str, statement: str | None) -> FinalAnswer | None:
    """Return the answer of the last statement, or the end of a text without one."""
    if statement is None and (lone := _LONE_CHOICE.fullmatch(last_line(text) or "") or _FEW_WORDS.fullmatch(text)):
        return FinalAnswer(lone[1], exact=True)
    if (
        statement is None
        and "nswer" in text
        and _STATEMENT["says_none"].search(text, max(0, len(text) - STATEMENT_CHARS))
    ):
        return None
    snippet = text[-TAIL_CHARS:] if statement is None else statement
    if statement and any(word in snippet for word in _WORDS_OF_REASONS):
        snippet = _STATEMENT["instead"].sub("", _STATEMENT["reason"].sub("", snippet))
    if not snippet.isascii():
        snippet = _CJK.sub(r" \g<0> ", snippet)
    snippet = UPRIGHT.sub(r"\1", snippet).strip()
    if statement and (stated := _stated(snippet)):
        return FinalAnswer(stated, exact=True)
    if snippet.endswith("**") and snippet.count("**") % 2 == 0:
        snippet = snippet[:-2].rstrip()  # bold type
    if not snippet or snippet.endswith(_UNFINISHED) or BOX.search(snippet):
        return None
    return FinalAnswer(snippet, exact=False, stated=statement is not None)


def _stated(snippet: str) -> str | None:
    """The answer that a sentence states, where nothing else is there."""
    if exactly := _STATED["exactly"].search(snippet):
        math = exactly["math"] or ""  # after "\\$" a formula or a price
        return math.rpartition("\\$ ")[2].strip() or math or exactly["number"]
    snippet = _MINUS.sub("-", _IN_TYPE.sub(r"\1", snippet.replace("−", "-")))
    if hedged := _STATED["hedged"].search(snippet):
        return rf"\text{{{hedged['hedged']}}}"
    if choice := _STATED["choice"].search(snippet):
        return choice["letter"]
    if label := _STATED["label"].search(snippet):
        return rf"\textbf{{({label['a'] or label['b']})}} {label['value']}"
    if words := _STATED["words"].search(snippet):
        return words["words"]
    formula = _STATED["formula"].search(snippet)
    return formula["formula"].strip() if formula and _IS_FORMULA.match(formula["formula"]) else None


def why_no_guess(extracted: str, final: FinalAnswer) -> str | None:
    """Why a number at the end of a text is not its answer; None when nothing speaks against it.

    "several": it is the last of an enumeration, 7 of "it is 5 or 7". "no_answer": the words before
    it make it another number or none, as in "The answer exceeds 8", "See equation 8".
    """
    last = None if final.exact else _LAST_NUMBER.search(final.text)
    if last is None:
        return None
    if not final.stated and last[0] == extracted and _LISTED.search(final.text[: last.start()]):
        return "several"
    before = final.text[max(0, last.start() - CHARS_BEFORE_A_GUESS) : last.start()]
    if (
        last[0] in extracted
        and _GUESS["not_that"].search(before)
        and _GUESS["not_that"].search(_GUESS["clause_ends"].split(before)[-1])
    ):
        return "no_answer"
    return None


def last_statement(text: str) -> tuple[int, str] | None:
    """Position and text of the last sentence that announces an answer, in several languages."""
    tail = text[-STATEMENT_CHARS:].lower()
    if tail.isascii() and not any(word in tail for word in _WORDS_OF_STATEMENTS):
        return None
    match = None
    for found in _STATEMENT["any"].finditer(text, max(0, len(text) - STATEMENT_CHARS)):
        if _announces(text, found):
            match = found
    if match is None:
        return None
    start = match.start()
    if _STATEMENT["final"].match(text, start) is None:
        return start, "Answer: " + text[match.end() : match.end() + 300]
    return start, text[start : start + 300]


def _announces(text: str, statement: re.Match) -> bool:
    """Whether an answer follows: not in "This is the final answer." or "... is above."."""
    if _STATEMENT["final"].match(statement[0]) is None:
        return True
    if statement[0].lower().endswith("is") or text.startswith(":", statement.end()):
        return _STATEMENT["says_nothing"].match(text, statement.end() + text.startswith(":", statement.end())) is None
    return _STATEMENT["answer_follows"].match(text, statement.end()) is not None


def _overrides_a_box(text: str, start: int) -> bool:
    """Whether "final answer" and an answer follow the last box: not "... is verified"."""
    final = _STATEMENT["final"].match(text, start)
    return (
        final is not None
        and BOX.search(text, start) is None
        and _STATEMENT["answer_after_a_box"].match(text, final.end()) is not None
    )


def after_thinking(response: str) -> str | None:
    """The part after the last mark that closes thinking; the whole response without marks; None
    when it never stops.

    Marks: <think>, <Think >, <thinking>, <thought>, [THINK], ◁think▷ and their closing forms. Where
    the prompt has opened thinking, the caller puts `OPEN_THINKING` in front of the response."""
    end = None
    for mark in THINKING_MARK.finditer(response):
        end = mark.end() if mark[1] else -1
    if end is None:
        return response
    return None if end < 0 else response[end:]


def nesting_depth(text: str) -> int:
    """The largest number of brackets open at once, of any kind."""
    depth = deepest = 0
    for character in text:
        if character in "({[":
            depth += 1
            deepest = max(deepest, depth)
        elif character in ")}]":
            depth = max(0, depth - 1)
    return deepest


def last_line(text: str) -> str | None:
    """The last line that is not blank."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), None)
