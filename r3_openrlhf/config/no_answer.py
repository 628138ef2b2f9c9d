"""Texts with which public data sets say, in the column of the answers, that there is none."""

from __future__ import annotations

import re

# NuminaMath: "proof", "notfound"; pandas: "nan", "<NA>"; Excel: "#N/A"; people: "see solution", "???".
# In any case, without spaces. Words that may be answers ("none", "undefined", "NA", "-") are not here.
_SAYS_SO = re.compile(
    r"(?:the)?proof(?:omitted|below|above|needed|required|problem)?|(?:tobe)?prove[dn]?(?:it)?|q\.?e\.?d"
    r"|omitted|null|nan|#?n/a|n\.a|na>|tbd|todo|pending|un(?:answered|available|solved)"
    r"|(?:see|referto|cf)\.?(?:the|my|full|attached|above|below)*"
    r"(?:solution|explanation|answer|proof|text|figure|graph|diagram|work|image|video|link|above|below)s?(?:above|below)?"
    r"|(?:the|final)*(?:answer|solution|result)?s?(?:is|are)?(?:not|un)"
    r"(?:found|available|provided|given|applicable|specified|listed|stated|required|needed)"
    r"|(?:no|missing)(?:final|numerical|explicit|short)*answers?(?:is|was)?(?:found|given|available|provided|needed|required)?"
    r"|no(?:solution|proof|result)s?(?:found|given|available|provided)"
    r"|(?:answer|solution)s?(?:is)?(?:missing|omitted|pending)|missing|answers?(?:may|will)?var(?:y|ies)"
    r"|(?:答案|证明)?略|(?:详?见|参见)(?:解析|答案|解答|上|下|图)|\?+|-{2,}|—+|_+|\.{2,}|…+"
)
_FRAMES = re.compile(
    r"\\(?:text|mathrm|textbf|mbox|boxed)\s*\{([^{}]*)\}|[\s$\"'*\[\]()<{}!]+"
)  # not ">": the end of "<NA>"


def says_no_answer(reference: str) -> bool:
    r"""True if this is a note that there is no answer, such as "proof" or "\text{see solution}"."""
    text = reference if len(reference) <= 80 else ""
    while (inside := _FRAMES.sub(r"\1", text)) != text:
        text = inside
    text = text.casefold()
    return _SAYS_SO.fullmatch(text) is not None or _SAYS_SO.fullmatch(text.removesuffix(".")) is not None
