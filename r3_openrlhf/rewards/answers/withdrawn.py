r"""Whether a marked answer is taken back by the words directly around it: "\boxed{5} is incorrect", "I doubt that \boxed{5}".

Only whole clauses count: "\boxed{5}. This is not a coincidence" and "\boxed{5}. Check: 4 is wrong" take nothing back.
"""

from __future__ import annotations

import re
from functools import lru_cache

CHARS_BEHIND = 160  # of the text behind an answer
CHARS_BEFORE = 80  # of the text before it

_WHITE = re.compile(r"[^\S\n]*\n\s*|[^\S\n]{2,}|[^\S\n ]")  # all but a single space
_MARKS = r"(?:[\s$*_.,;:!?)\]}(\[—–…-]|\\[)\],;!]|</answer>)*"
_TURN = r"(?:(?<!\?\s)(?:but|however|though|yet|wait|no|hmm|oops|sorry|actually|and|oh)\b[\s,.!…—–-]*){0,4}"
_I_SEE = r"(?:(?:i\s+(?:think|believe|know|see|reali[sz]e)|it\s+turns\s+out)\s+(?:that\s+)?)?"
_IT = (
    r"(?:(?:(?:the|this|that|my)(?:\s+(?:above|boxed|previous|last))?\s+(?:answer|value|result|solution|box|number|one|guess)"
    r"|this|that|it|which)(?=\s|['’]s\b)\s*)?"
)
_RIGHT = (
    r"(?:it\b|(?:(?:the|a|an|my|our|really|actually|quite)\s+)*"
    r"(?:(?:right|correct|true|valid|final|actual)(?:\s+(?:answer|solution|result|value|one))?|answer|solution)\b)"
)
_FALSE = (
    r"(?:wrong|incorrect|false|invalid|mistaken|nonsense|impossible|an?\s+(?:mistake|error|lie|typo)"
    r"|an?\s+(?:wrong|incorrect|false)\s+(?:answer|result|value|solution|guess))\b"
)
_IS = r"(?:is|was|['’]s|must\s+be|has\s+to\s+be|seems(?:\s+to\s+be)?|looks|appears(?:\s+to\s+be)?)"
_CANNOT = r"(?:(?:is|was)n['’]t|cannot\s+be|can['’]t\s+be|can\s+not\s+be|does\s+not\s+seem|doesn['’]t\s+seem)"
_I_TAKE_BACK = (
    r"(?:i\s+(?:retract|withdraw|reject|take)(?:\s+(?:this|that|it|the\s+answer))?(?:\s+back)?"
    r"|i(?:\s+was|\s+am|['’]m)\s+(?:wrong|mistaken)|i\s+made\s+(?:a\s+mistake|an\s+error)|i\s+(?:don['’]t|do\s+not)\s+think\s+so"
    r"|(?:scratch|scrap|forget|ignore|disregard|strike|cancel)\s+(?:this|that|it|the\s+(?:above|box|answer))(?:\s+(?:answer|box))?"
    r"|never\s*mind|just\s+kidding|not|wrong|incorrect|(?<=\?\s)no)\b|~~"
)
_CLAUSE_ENDS = r"(?=\s*(?:$|[^\w\s(\\$]|\n|(?:because|since|as|so|either|at\s+all|after\s+all|though|but)\b))"
_BEHIND = re.compile(
    rf"{_MARKS}{_TURN}(?:{_I_SEE}{_IT}(?:{_IS}\s+(?:\w+ly\s+|just\s+|also\s+|still\s+)?(?:{_FALSE}|not\s+{_RIGHT})|{_CANNOT}\s+{_RIGHT}"
    rf"|(?:does\s+not|doesn['’]t|did\s+not|didn['’]t)\s+work|fails)|{_I_TAKE_BACK}){_CLAUSE_ENDS}",
    re.IGNORECASE,
)
_BEFORE = re.compile(
    r"(?:(?<!no )(?<!without )(?<!beyond )(?<!not )\b(?:doubt|don['’]t\s+(?:think|believe)|do\s+not\s+(?:think|believe)|unlikely|(?:false|wrong|incorrect|untrue|impossible)\s+that|refuse)\b"
    r"(?:\s+(?:that|if|whether|it|the|answer|value|result|is|be|equals|to\s+say))*"
    r"|\b(?:ignore|disregard|forget|scrap|scratch|reject|strike|cross\s+out|discard|withdraw|retract|instead\s+of|rather\s+than)\s*(?:the|my|this|that|answer|box|guess|value|result|first|\s)*"
    r"|\b(?:is|are|was)(?:\s+(?:definitely|certainly|surely|clearly))?\s+not|\bisn['’]t|\bcannot\s+be|\bcan['’]t\s+be|\bnever|(?<!or )(?<!if )\bnot)"
    r"[ \t]*:?[ \t]*(?:\\[(\[])?[\s$*(]*$",
    re.IGNORECASE,
)
# Without one of these nothing is taken back, and most texts have none. "ſ" is an s where case does not count.
_SAYS_SOMETHING = re.compile(r"[^\W\d_]|~~")
_WORDS_BEFORE = (
    "not", "n't", "n’t", "never", "doubt", "unlikely", "that", "refuse", "ignore", "disregard", "forget", "scra", "reject", "strike",
    "cross", "discard", "withdraw", "retract", "instead", "rather", "ſ",
)  # fmt: skip


def is_withdrawn(text: str, start: int, end: int) -> bool:
    """Whether the words directly before text[start:end], or directly behind it, take it back."""
    behind, before = text[end : end + CHARS_BEHIND], text[max(0, start - CHARS_BEFORE) : start]
    return _takes_back(before, behind)


@lru_cache(maxsize=64)  # a mark is asked about more than once
def _takes_back(before: str, behind: str) -> bool:
    if _SAYS_SOMETHING.search(behind) and _BEHIND.match(_one_space(behind)):
        return True
    said = before.lower()
    return any(word in said for word in _WORDS_BEFORE) and _BEFORE.search(_one_space(before)) is not None


def _one_space(text: str) -> str:
    """Every run of white space as one space or one line break: the patterns are then linear."""
    return _WHITE.sub(lambda run: "\n" if "\n" in run[0] else " ", text)
