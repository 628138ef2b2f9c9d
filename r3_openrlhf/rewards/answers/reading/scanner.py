r"""One scanner over a response: where its marks are, and what each holds.

A mark has a first sign: `\boxed`, `<`, `####`, "answer". The text is searched for these signs, which is quick at any length, and a
pattern is tried only where one stands, or in a window around it. So no pattern runs over unbounded text, and white space in a row
is bounded (MAX_BLANKS). `extraction.py` chooses among the marks by their rank."""

import json
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby, islice
from typing import TypeVar

from r3_openrlhf.rewards.answers.text.patterns import Phrase, phrases

MAX_MARKS = 50  # only the last ones are looked at
MAX_BLANKS = 16  # in a row
FEW_SIGNS = 16
CHARS_PER_SIGN = 400  # with more signs a search for each is slow
MAX_QUESTIONS = 32  # the first of those that may be made up
STATEMENT_CHARS = 4000  # "the answer is ..." is looked for in the last ones
CHARS_OF_AN_END = 500  # and in these first
CHARS_OF_A_STATEMENT = 300
CHARS_BEFORE_A_STATEMENT = 60  # which may deny it
CHARS_OF_A_LEAD = 40  # "Now let's solve " before "another problem"
CHARS_OF_AN_OPEN_BOX = 100
CHARS_OF_A_BLOCK = 2000
CHARS_BEHIND_THE_LAST = 120  # "(or 9)." after the last mark

ALTERNATIVE = r" \lor "  # between answers that are offered side by side
MAX_BETWEEN_ALTERNATIVES = 160  # characters
MAX_BETWEEN = 199  # with tags among them
OPEN_THINKING = "<think>"

BOX = re.compile(r"\\(?:boxed|fbox|framebox)(?![a-zA-Z])")
_MARKS = phrases("marks")
_STATEMENT = phrases("statement")
_BETWEEN = phrases("between")
_TAKES_BACK = phrases("withdrawn")
_COMPUTES = phrases("computes")
THINKING_MARK = _MARKS["thinking"]
TOKEN_OF_A_MARK = _MARKS["token"]
_FIRST_SIGNS = {
    "<": _MARKS["behind_angle"],
    "[": _MARKS["behind_bracket"],
    "◁": _MARKS["behind_triangle"],
}
_NEXT_QUESTION = phrases("in_small_letters", flags=0)["next_question"].pattern
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_TAG = re.compile(r"<(?P<slash>/?)answer>", re.IGNORECASE)
CHARS_AFTER = 160  # of the text after an answer, which may take it back
CHARS_BEFORE = 80  # of the text before it
_WHITE = re.compile(r"[^\S\n]*\n\s*|[^\S\n]{2,}|[^\S\n ]")  # all but a single space
_LONG_BLANK = re.compile(rf"\s{{{MAX_BLANKS + 1},}}")
_AS_SPACES = bytes.maketrans(b"\t\n\v\f\r\x1c\x1d\x1e\x1f", b" " * 9)
CHARS_OF_A_FORMULA = 80  # around a box
_CLOSES = re.compile(r"\\[)\]]")
_STATES = (
    "answer",
    "final answer",
    "no wait",
    "no, wait",
    "correct option",
    "correct choice",
    "choose",
    "select",
    "pick",
    "respuesta",
    "resposta",
    "antwort",
    "risposta",
)
_STATES_ELSEWHERE = ("选", "réponse", "ответ", "Ответ", "答案")
_NAMES_ANOTHER = ("another", "a new", "next")
_IN_NO_STATEMENT = re.compile(r"[\d$\\=(]")
_LONG_WORD = re.compile(r"[^\W_]{3,}|\d+")
_QUESTION_ENDS = re.compile(r"\n\s*\n|\b(?:answer|solution|assistant)\s*[:.]", re.IGNORECASE)
_SHORT_ANSWER = re.compile(r"[^\n]{0,200}\d[^\n]{0,200}\s*|\s*[\w-]+(?: [\w-]+){0,3} ?[.!]?\s*")
SENTENCE_BEGINS = re.compile(r"(?:[.!?]\s+|。\s*)(?=[A-Z\d$])|\n\s*")
_HEADING = re.compile(r"[\s*_]*(?:\d+[.):]\s*)?[A-Za-z]{3,}")
_ANSWER_KEYS = frozenset(
    ["answer", "final_answer", "result", "solution", "correct_answer", "choice", "response"]
)
_FULL_WIDTH = re.compile("[\uff10-\uff19\uff21-\uff3a\uff41-\uff5a\uff5b\uff5d]")
# in UTF-8: one byte is quickly found
_FIRST_OF_FULL_WIDTH = b"\xef"
_FIRST_OF_WIDE_BLANK = b"\xe3"
Found = TypeVar("Found")
# the signs of ASCII, as wide as a Chinese one
FULL_WIDTH = {code: chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)}


@dataclass(frozen=True, slots=True)
class Mark:
    """A marked answer, text[start:end] with its mark; content: None if not closed, or empty."""

    start: int
    end: int
    content: str | None


def once(find: Callable[[str], Found]) -> Callable[[str], Found]:
    """Remember what is found in the last text, which is asked more than once. It is known by identity: a long text is not
    hashed."""
    last: tuple[str, Found] | None = None

    def find_once(text: str) -> Found:
        nonlocal last
        known = last
        if known is None or known[0] is not text:
            known = text, find(text)
            last = known
        return known[1]

    return find_once


# The signs


def positions(text: str, signs: Iterable[str]) -> list[int]:
    """Return where any of the signs stands in a text, in order."""
    found = []
    for sign in signs:
        at = text.find(sign)
        while at >= 0:
            found.append(at)
            at = text.find(sign, at + 1)
    return sorted(found)


def matches_at(
    pattern: Phrase | re.Pattern, text: str, places: Iterable[int]
) -> Iterator[re.Match]:
    """Match a pattern at these places, but not within a match before."""
    behind = 0
    for place in places:
        match = pattern.match(text, place) if place >= behind else None
        if match is not None:
            behind = match.end()
            yield match


def in_small_letters(text: str) -> str:
    """Return a text with the letters of ASCII in small, each at its place; other scripts stay as they are."""
    if text.isascii():
        return text.lower()
    return text.encode("utf-8", "surrogatepass").lower().decode("utf-8", "surrogatepass")


# The part of a response that holds its answer


def answer_part(response: str, problem: str = "") -> str | None:
    """Return the part of a response that holds its answer: after the thinking part, in its
    section for the answer, before an invented next turn or question. None: it is still thinking."""
    text = _in_plain_signs(response)
    signs = _signs(text)
    start = _end_of_thinking(text, signs)
    if start is None:
        return None
    signs = [sign for sign in signs if sign.start() >= start]
    end = _begin_of_next_turn(text, signs, start)
    part = _before_the_next_question(text[start:end], problem)
    end = start + len(part)
    inside = _last_section(text, [sign for sign in signs if sign.end() <= end])
    if inside is None:
        return part
    lone = "\n" not in inside and not re.search(r"answer|boxed|####", inside, re.IGNORECASE)
    return f"<answer>{inside}</answer>" if lone else inside


def _in_plain_signs(text: str) -> str:
    """Shorten long runs of white space to one or two signs, and write digits and letters of full width as in ASCII."""
    if text.isascii():
        return _with_short_blanks(text)
    coded = text.encode("utf-8", "surrogatepass")
    if _FIRST_OF_FULL_WIDTH in coded and _FULL_WIDTH.search(text):
        text = text.translate(FULL_WIDTH)
    has_wide_blanks = "\xa0" in text or "\u2003" in text
    if _FIRST_OF_WIDE_BLANK in coded:
        has_wide_blanks = has_wide_blanks or "\u3000" in text
    if has_wide_blanks or b" " * (MAX_BLANKS + 1) in coded.translate(_AS_SPACES):
        return _LONG_BLANK.sub(_short_blank, text)
    return text


def _with_short_blanks(text: str) -> str:
    """Shorten the long runs of white space of an ASCII text, which are quickly found."""
    spaces = text.encode().translate(_AS_SPACES)
    long_blank = b" " * (MAX_BLANKS + 1)
    parts: list[str] = []
    behind = 0
    place = spaces.find(long_blank)
    while place >= 0:
        run = _LONG_BLANK.match(text, place)
        assert run is not None  # both say what is white space
        parts += [text[behind:place], _short_blank(run)]
        behind = run.end()
        place = spaces.find(long_blank, behind)
    return "".join([*parts, text[behind:]]) if parts else text


def _short_blank(run: re.Match) -> str:
    if "\n" not in run[0]:
        return " "
    return "\n\n" if run[0].count("\n") > 1 else "\n"


def _signs(text: str) -> list[re.Match]:
    """Return the marks of thinking, of another turn and of a section in a text, in order; `lastgroup` says which."""
    found: list[re.Match] = []
    for sign, pattern in _FIRST_SIGNS.items():
        found += _marks_behind(sign, pattern.pattern, text)
    return sorted(found, key=lambda mark: mark.start())


def _marks_behind(sign: str, pattern: re.Pattern, text: str) -> Iterator[re.Match]:
    """Yield the matches of a pattern, each of which begins with this sign. Where the signs are close together, the pattern
    finds the others itself."""
    place = text.find(sign)
    tried = 0
    while place >= max(0, CHARS_PER_SIGN * (tried - FEW_SIGNS)):
        tried += 1
        mark = pattern.match(text, place)
        if mark is not None:
            yield mark
        place = text.find(sign, place + 1 if mark is None else mark.end())
    if place >= 0:
        yield from pattern.finditer(text, place)


def after_thinking(response: str) -> str | None:
    """Return the part after the last mark that closes thinking, or after the notes in a tag of any
    other name with which a response begins; the whole response without marks; None when it never
    stops.

    Marks: <think>, <Think >, <thinking>, <thought>, [THINK], ◁think▷ and their closing forms. Where
    the prompt has opened thinking, the caller puts `OPEN_THINKING` in front of the response."""
    start = _end_of_thinking(response, _signs(response))
    return None if start is None else response[start:]


def _end_of_thinking(text: str, signs: list[re.Match]) -> int | None:
    marks = [sign for sign in signs if sign.lastgroup == "thinking"]
    if marks:
        return marks[-1].end() if closes_thinking(marks[-1]) else None
    notes = _MARKS["opened"].match(text)
    if notes is None:
        return 0
    closing = f"</{notes['name']}>"
    place = text.rfind(closing)
    if place < 0:
        return None
    end = place + len(closing)
    return end if text[end:].strip() else 0


def closes_thinking(mark: re.Match) -> bool:
    """Tell whether a mark of thinking ends it: </think>, <|END_THINKING|>, the channel of the answer."""
    return any(mark[name] for name in ("slash", "ends", "stops", "final"))


def _begin_of_next_turn(text: str, signs: list[re.Match], start: int) -> int:
    """Return where the next turn begins, that the model made up; the end of the text: there is none."""
    for sign in signs:
        if sign.lastgroup == "turn" and text[start : sign.start()].strip():
            return sign.start()
    return len(text)


def _before_the_next_question(text: str, problem: str) -> str:
    """Cut a text that has an answer before the next question that the model made up."""
    words: set[str] = set()
    for start, end, word, is_numbered in islice(_questions(text), MAX_QUESTIONS):
        is_part = is_numbered and word in words  # "Question 1: ... Question 2: ..."
        words.add(word)
        before = text[:start]
        if (
            not is_part
            and before.strip()
            and _answers(before)
            and not _restates(text[end:], problem)
        ):
            return before
    return text


def _questions(text: str) -> list[tuple[int, int, str, bool]]:
    """Start, end, first word and whether it has a number of what may begin a question: "Question 2:", "another problem"."""
    small = "\n" + in_small_letters(text)
    found = [
        (mark.start(), mark.end() - 1, mark["word"], bool(mark["number"]))
        for mark in _NEXT_QUESTION.finditer(small)
    ]
    places = [place - 1 for place in positions(small, _NAMES_ANOTHER)]
    for mark in matches_at(_MARKS["another_question"], text, places):
        lead = _MARKS["lead_of_another"].search(
            text[max(0, mark.start() - CHARS_OF_A_LEAD) : mark.start()]
        )
        if lead is not None:
            found.append((mark.start() - len(lead[0].lstrip(".!?\n ")), mark.end(), "", False))
    return sorted(found)


def _answers(text: str) -> bool:
    """Tell whether a text has an answer already, so that another question after it is made up."""
    return (
        boxed_answer(text) is not None
        or tagged_answer(text) is not None
        or line_behind_hashes(text) is not None
        or last_statement(text) is not None
        or _SHORT_ANSWER.fullmatch(text) is not None
    )


def _restates(text: str, problem: str) -> bool:
    """Tell whether a question is the problem itself."""
    question = _QUESTION_ENDS.split(text.strip()[: len(problem) + 40])[0]
    asked, own = (set(_LONG_WORD.findall(part.lower())) for part in (question, problem))
    return bool(own) and 2 * len(asked & own) > len(own)


def _last_section(text: str, signs: list[re.Match]) -> str | None:
    """Return what the last section for the answer holds: <output>...</output>, <|begin_of_solution|>..."""
    opened: dict[str, int] = {}
    inside = None
    for sign in signs:
        if sign.lastgroup != "section":
            continue
        name = sign["name"].lower()
        ends_any = name.startswith("end_")
        if not (sign["closes"] or ends_any):
            opened[name] = sign.end()
            continue
        if ends_any and opened:
            name = next(reversed(opened))
        start = opened.pop(name, None)
        content = "" if start is None else text[start : sign.start()].strip()
        inside = content or inside
    return inside


# Boxes and tags


@once
def _boxes(text: str) -> tuple[re.Match, ...]:
    """Return the commands of the last boxes of a text, in order."""
    if "\\" not in text or text.rfind("box") < 0:  # quicker than `in`
        return ()
    return tuple(deque(BOX.finditer(text), MAX_MARKS))


def without_blanks(text: str) -> str:
    """Remove the boxes that are to be filled in from a text."""
    places = [box.start() for box in _boxes(text)]
    parts: list[str] = []
    behind = 0
    for box in matches_at(_MARKS["blank_box"], text, places):
        parts += [text[behind : box.start()], " "]
        behind = box.end()
    return "".join([*parts, text[behind:]]) if parts else text


def with_last_box_closed(text: str) -> str:
    r"""Add the last brace where a text ends in a box that lacks only this one: "\boxed{\frac{1}{2}"; \boxed{7 may be cut off."""
    boxes = _boxes(text)
    rest = text[boxes[-1].end() :].strip(" $.") if boxes else ""
    is_short = rest.startswith("{") and len(rest) <= CHARS_OF_AN_OPEN_BOX and "\n" not in rest
    if not is_short or not rest.endswith("}"):
        return text
    depth = sum((sign == "{") - (sign == "}") for sign in _BRACE.findall(rest))
    return text.rstrip(" $.") + "}" if depth == 1 else text


def boxed_answer(text: str, *, fills: bool = False) -> str | None:
    """Return the last boxes as one answer, with those that "or" or tags join to them. fills: the problem has a box in a
    formula, which is filled in."""
    group = _last_group(text, _boxes_from_the_end(text))
    if not group:
        return None
    answer = _joined(text, group, fills=fills)
    others = [
        tag.content
        for tag in _tags(text)
        if tag.content and BOX.search(tag.content) is None and _stands_beside(text, tag, group)
    ]
    return " or ".join(dict.fromkeys([answer, *others]))


def tagged_answer(text: str) -> str | None:
    """Return the last <answer>...</answer>, with those that belong to it as boxes do, as one answer."""
    tags = _tags(text)
    if not tags or tags[-1].end < 0:
        return None  # it never closes
    group = _last_group(text, reversed(tags))
    return _joined(text, group) if group else None


def place_of_last_box(text: str) -> int:
    """Return where the last box begins; -1: there is none."""
    boxes = _boxes(text)
    return boxes[-1].start() if boxes else -1


def end_of_last_tag(text: str) -> int:
    """Return where the last <answer>...</answer> ends; -1: there is none."""
    return max((tag.end for tag in _tags(text)), default=-1)


def has_box_behind(text: str, place: int) -> bool:
    """Tell whether a box begins at this place or after it."""
    return place_of_last_box(text) >= place


def end_of_what_is_withdrawn(text: str) -> int | None:
    """Return where the last mark ends, if there are marks and all are taken back; else None."""
    last = None
    for marks in (_boxes_from_the_end(text), reversed(_tags(text))):
        for mark in marks:
            if mark.content is None:
                continue
            if not is_withdrawn(text, mark.start, mark.end):
                return None
            last = mark.end if last is None else max(last, mark.end)
    return last


def is_withdrawn(text: str, start: int, end: int) -> bool:
    """Tell whether the words directly before text[start:end], or directly after it, take it back.

    Only whole clauses count: "\\boxed{5}. This is no coincidence", "... Check: 4 is wrong" do not."""
    before = text[max(0, start - CHARS_BEFORE) : start]
    sentence = max(map(before.rfind, ".!?"))  # it has all that can be said before
    return _takes_back(before[max(sentence, 0) :], text[end : end + CHARS_AFTER])


@lru_cache(maxsize=64)  # a mark is asked about more than once
def _takes_back(before: str, after: str) -> bool:
    # every run of white space is one space or one line break: the patterns are then linear
    before, after = (
        _WHITE.sub(lambda run: "\n" if "\n" in run[0] else " ", text)
        for text in (before, after)
    )
    return (
        _TAKES_BACK["after"].match(after) or _TAKES_BACK["before"].search(before)
    ) is not None


def _in_its_formula(text: str, box: Mark) -> str:
    r"""Return a box's content in the formula that computes with it: 9+1 of "$\boxed{9}+1$"."""
    content = box.content or ""
    before, after = (
        text[max(0, box.start - CHARS_OF_A_FORMULA) : box.start],
        text[box.end :][:CHARS_OF_A_FORMULA],
    )
    begin = text.rfind("\n\n", 0, box.start)
    paragraph = text[max(begin, 0) : box.start].replace("$$", "$").replace("\\$", "")
    if paragraph.count("$") % 2 or paragraph.count("\\(") + paragraph.count("\\[") > len(
        _CLOSES.findall(paragraph)
    ):
        before, after = _COMPUTES["ends"].split(before)[-1], _COMPUTES["ends"].split(after)[0]
        computed = _COMPUTES["before"].search(before) or _COMPUTES["after"].match(after)
    else:
        sign = _COMPUTES["minus"].search(before)
        before, after = sign[0] if sign else "", ""
        computed = sign
    inner = content if content.isalnum() else f"({content})"
    whole = f"{before}{inner}{after}".strip()
    return whole if computed and whole.count("{") == whole.count("}") else content


def _joined(text: str, marks: list[Mark], *, fills: bool = False) -> str:
    if len(marks) == 1 and not fills and text.startswith("\\", marks[0].start):
        return _in_its_formula(text, marks[0])
    between = [text[a.end : b.start] for a, b in zip(marks, marks[1:], strict=False)]
    if len(marks) == 2 and _BETWEEN["about"].search(between[0]):
        return r" \approx ".join(_contents(marks))  # exact and rounded
    if any(map(_BETWEEN["another"].search, between)):
        return ALTERNATIVE.join(_contents(marks))
    return (" or " if any(map(_BETWEEN["says_or"].search, between)) else ", ").join(
        _contents(marks)
    )


def _contents(marks: list[Mark]) -> list[str]:
    """Return the contents of the marks; a direct repetition counts once."""
    return [content for content, _ in groupby(mark.content for mark in marks if mark.content)]


def _last_group(text: str, marks_from_the_end: Iterable[Mark]) -> list[Mark]:
    """Return the last mark that holds an answer, and those before it of the same answer, in order."""
    group: list[Mark] = []
    for mark in marks_from_the_end:
        if group and group[0].start - mark.end > MAX_BETWEEN:
            break
        if mark.content is not None and is_withdrawn(text, mark.start, mark.end):
            continue
        if not group:
            group += [mark] if mark.content else []
        elif mark.content is None or not belongs_together(text[mark.end : group[0].start]):
            break
        else:
            group.insert(0, mark)
    return group


def _stands_beside(text: str, tag: Mark, boxes: list[Mark]) -> bool:
    """Tell whether words such as "or" tie a tag to the boxes before or after it."""
    if tag.start >= boxes[-1].end:
        between = text[boxes[-1].end : tag.start]
    elif 0 <= tag.end <= boxes[0].start:
        between = text[tag.end : boxes[0].start]
    else:
        return False
    between = _TAG.sub("", between)
    return (
        belongs_together(between)
        and (_BETWEEN["separator"].search(between) or _BETWEEN["another"].search(between))
        is not None
    )


def belongs_together(between: str) -> bool:
    """Tell whether two marked answers with this text between them are parts of one."""
    between = _TAG.sub("", between) if len(between) <= MAX_BETWEEN else between
    if len(between) < MAX_BETWEEN_ALTERNATIVES and _BETWEEN["another"].search(between):
        return True
    if len(between) >= 70 or _BETWEEN["conclusion"].search(between):
        return False
    return len(between) < 10 or _BETWEEN["separator"].search(between) is not None


def _boxes_from_the_end(text: str) -> Iterator[Mark]:
    """Return the boxes of a text that are not to be filled in, the last one first."""
    end = len(text)  # where the next box begins
    for command in reversed(_boxes(text)):
        content, after = _box_content(text, command.end(), end)
        held = content or text[command.end() : after].strip(" {}")
        if after <= len(text) and _MARKS["blank"].fullmatch(held) is None:
            yield Mark(command.start(), after, content)
        end = command.start()


def _box_content(text: str, start: int, end: int) -> tuple[str | None, int]:
    """Return the braces' content after a command, or its first word ("\\boxed 5"); and its end."""
    opening = start
    while opening < end and text[opening].isspace():
        opening += 1
    if text.startswith("{", opening) and opening < end:
        closing = _matching_brace(text, opening, end)
        return (
            (None, end)
            if closing is None
            else (text[opening + 1 : closing].strip() or None, closing + 1)
        )
    word = text[opening : min(end, opening + 50)].split(maxsplit=1)
    return (word[0].strip("$.") or None, opening + len(word[0])) if word else (None, end)


def _matching_brace(text: str, opening: int, end: int) -> int | None:
    """Position of the brace that closes text[opening], escaped braces not counted, before `end`."""
    depth = 0
    for sign in _BRACE.finditer(text, opening, end):
        depth += (sign[0] == "{") - (sign[0] == "}")
        if depth == 0:
            return sign.start()
    return None


@once
def _tags(text: str) -> list[Mark]:
    """Return the last <answer> tags of a text, in order."""
    marks: list[Mark] = []
    closing: re.Match[str] | None = None
    for tag in reversed(list(_marks_behind("<", _TAG, text))[-2 * MAX_MARKS :]):
        if tag["slash"]:
            closing = tag
            continue
        content = text[tag.end() : closing.start()].strip() or None if closing else None
        marks.insert(0, Mark(tag.start(), closing.end() if closing else -1, content))
        closing = None
    return marks


# Other marks


def line_behind_hashes(text: str) -> tuple[int, str] | None:
    """Position and line of the last "#### 18"; None where it is a heading."""
    place = text.rfind("####")
    if place < 0:
        return None
    line, _, rest = text[place + 4 :].lstrip(" ").partition("\n")
    is_heading = _HEADING.match(line) and (_says_more(rest) or last_statement(line))
    return (place, line.strip()) if line.strip() and not is_heading else None


def _says_more(text: str) -> bool:
    """Tell whether a text says more than that the answer before it is right."""
    statement = last_statement(text)
    if statement is None or re.search(r"\d", text):
        return bool(text.strip())
    return _STATEMENT["checks"].match(statement[1].removeprefix("Answer:")) is None


def _last_block(text: str) -> str | None:
    """Return the JSON text that is the last line, or else in the last code block."""
    line = last_line(text[-CHARS_OF_A_BLOCK:]) or ""
    if line.startswith('{"'):
        return line
    end = text.rfind("```") if "`" in text else -1
    begin = text.rfind("```", 0, end) if end >= 0 else -1
    block = text[begin + 3 : end].removeprefix("json").strip() if begin >= 0 else ""
    return block if block.startswith("{") and len(block) <= CHARS_OF_A_BLOCK else None


def answer_of_json(text: str) -> str | None:
    """Return the answer of a JSON text in a code block or at the end."""
    block = _last_block(text)
    if block is None:
        return None
    try:
        content = json.loads(block)
    except (ValueError, RecursionError):
        return None
    known = [content[key] for key in content if key.lower().replace(" ", "_") in _ANSWER_KEYS]
    if len(known) != 1 or known[0] is None or isinstance(known[0], dict):
        return None
    value = known[0]
    if value != value:  # NaN
        return None
    return value if isinstance(value, str) else json.dumps(value)


@once
def last_statement(text: str) -> tuple[int, str] | None:
    """Position and text of the last sentence that announces an answer, in several languages."""
    announced: list[re.Match] = []  # from the end
    said = _said_from_the_end(text, announced)
    last = next(said, None)
    if last is None:
        return None
    if _breaks_off(text[last.end() :]):
        last = next(said, last)
    match = last
    while _STATEMENT["checks"].match(text, match.end()):
        before = next(said, None)
        if before is None:
            match = last
            break
        match = before
    return match.start(), _sentence(text, match, announced)


def _said_from_the_end(text: str, announced: list[re.Match]) -> Iterator[re.Match]:
    """Yield what announces an answer that follows and is not denied, the last one first. announced: gets
    those that are passed, the denied ones included."""
    for mark in _statements_from_the_end(text):
        if not _announces(text, mark):
            continue
        announced.append(mark)
        before = text[max(0, mark.start() - CHARS_BEFORE_A_STATEMENT) : mark.start()]
        if _STATEMENT["denied"].search(before):
            continue
        if text[mark.end() :].strip(" *_:$.\n"):
            yield mark


def _breaks_off(text: str) -> bool:
    r"""Tell whether a text ends within a formula: "$\\frac{3}{"."""
    return text.count("{") > text.count("}") or text.replace("\\$", "").count("$") % 2 == 1


def _sentence(text: str, match: re.Match, announced: list[re.Match]) -> str:
    """Return a statement up to a check of it, which is another sentence: "The answer is 81. This answer is right."."""
    start, end = match.span()
    following = min((mark.start() for mark in announced if mark.start() > end), default=0)
    stop = max(
        (mark.start() + 1 for mark in SENTENCE_BEGINS.finditer(text, end, following)),
        default=len(text),
    )
    if _STATEMENT["final"].match(text, start) is not None:
        return text[start : min(start + CHARS_OF_A_STATEMENT, stop)]
    return "Answer: " + text[end : min(end + CHARS_OF_A_STATEMENT, stop)].lstrip(" *_")


def may_state(text: str, start: int) -> bool:
    """Tell whether a word that announces an answer stands in the text from `start`."""
    small = in_small_letters(text[start:])
    return any(sign in small for sign in _signs_of_statements(small))


def _signs_of_statements(text: str) -> tuple[str, ...]:
    """Return the signs of a statement that a text can have."""
    return _STATES if text.isascii() else _STATES + _STATES_ELSEWHERE


def _statements_from_the_end(text: str) -> Iterator[re.Match]:
    """Yield what announces an answer in the last STATEMENT_CHARS, the last one first. The end is searched first, from a
    sign that is in no such words, so that it is the end of none."""
    start = max(0, len(text) - STATEMENT_CHARS)
    sign = _IN_NO_STATEMENT.search(text, max(start, len(text) - CHARS_OF_AN_END))
    middle = start if sign is None else sign.start()
    yield from reversed(_statements(text, middle, len(text)))
    if middle > start:
        yield from reversed(_statements(text, start, middle))


def _statements(text: str, start: int, end: int) -> list[re.Match]:
    """Return what announces an answer in text[start:end]."""
    small = in_small_letters(text[start:end])
    places = [start + place for place in positions(small, _signs_of_statements(small))]
    return list(matches_at(_STATEMENT["any"], text, places))


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


def last_line(text: str) -> str | None:
    """Return the last line that is not blank."""
    said = text.rstrip()
    lines = said[-CHARS_OF_A_BLOCK:].splitlines()
    if len(lines) == 1 and len(said) > CHARS_OF_A_BLOCK:
        lines = said.splitlines()
    return lines[-1].strip() if lines else None
