"""Check that problems look like problems: a Finding for each way they do not."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from r3_openrlhf.config import DataConfig
from r3_openrlhf.config.finding import Finding
from r3_openrlhf.method.errors import quoted
from r3_openrlhf.problems.label import Label
from r3_openrlhf.problems.reference_checks import CERTAIN, FEW, SUSPICIOUS

# <|anything|>, <start_of_turn>, [INST], [SYSTEM_PROMPT], or a turn of the assistant that begins at the end
_TEMPLATE = re.compile(
    r"<[|｜][^<>|｜\s]{1,40}[|｜]>|<(?:start|end)_of_\w+>|\[/?INST\]|\[/?[A-Z]+_[A-Z_]+\]|<</?SYS>>"
    r"|(?:\bassistant|### ?response)\s*[:>\]]+\s*\Z",
    re.IGNORECASE,
)
# \n and \t before a letter begin these commands of LaTeX; any other one was typed for a line break or a tab
_COMMANDS = {
    "n": "abla|atural|eq?|earrow|eg|ewline|exists|geq?|gtr|i|icefrac|leq?|less|mid|oindent|ormalsize|ot|otin|parallel|prec|"
    "sim|subseteq|subset|succ|supseteq|u|umber|onumber|vdash|warrow|(?:Left|Right|left|right)arrow",
    "t": "able|ag|an|anh|au|ext\\w*|frac|herefore|heta|hinspace|ilde|imes|iny|o|op|ri\\w+",
}
_TYPED = re.compile("|".join(rf"\\{letter}(?!(?:{names})(?![a-zA-Z]))" for letter, names in _COMMANDS.items()))
_SPACING = re.compile(r"\\[,;:! ]|\\q?quad\b|\\(?:left|right)(?![a-zA-Z])|[\s~$]")
_NOT_ASCII = re.compile(r"[^\x00-\x7f]{2,}|\ufffd")
_BEFORE = 8  # characters in front of an answer that leaks
_MOST = 0.8  # of the problems


def near(label: Label) -> str:
    """A problem without white space, case and LaTeX's spacing: equal for near copies."""
    text = "\n".join([*(turn["content"] for turn in label.turns or []), label.problem])
    return _SPACING.sub("", unicodedata.normalize("NFKC", text)).casefold()


def check_prompts(labels: Sequence[Label], *, path: str, data: DataConfig) -> list[Finding]:
    """What the model would read and nobody means: templates in templates, typed line breaks, copies,
    answers, lost letters, replaced turns."""
    findings = []
    total, where = len(labels), f"data.path {path}"

    def say(found: Sequence[Label], what: str, *, certain: float = 2.0) -> None:
        if found and len(found) >= SUSPICIOUS * total:
            sentence = f"{where}: {len(found)} of {total} problems {what.format(quoted(found[0].problem))}"
            findings.append(Finding(sentence, refuses=len(found) >= certain * total))

    if data.chat_template:
        marked = [label for label in labels if _TEMPLATE.search(label.problem)]
        what = "are in a chat template already, like {}, and would be put into another; use data.chat_template=false, or a column"
        say(marked, what + " with the bare problem", certain=CERTAIN)
    for key, text in (("prompt_template", data.prompt_template), ("system_prompt", data.system_prompt or "")):
        if typed := _TYPED.search(text):
            findings.append(
                Finding(
                    f"data.{key} holds {quoted(typed[0])} as two characters, a backslash and a letter; on the command line write a real "
                    "line break inside the quotes ($'...' in bash), or put the text into a YAML file"
                )
            )
    escaped = [label for label in labels if "\n" not in label.problem and _TYPED.search(label.problem)]
    say(escaped, "have line breaks as two characters, a backslash and an n, like {}; the model will read them so")
    torn = [label for label in labels if any(map(_is_torn, _NOT_ASCII.findall(label.problem)))]
    say(torn, "have letters of another encoding, like {}; write the file as UTF-8 from its source")
    first: dict[str, Label] = {}
    copies = [label for label in labels if first.setdefault(near(label), label) is not label]
    say(copies, "differ from an earlier one in white space, case or LaTeX spacing alone, like {}; leave them out")
    say(_leaks(labels), "say their answer, always after the same words, like {}; cut it off")
    if data.system_prompt is not None:
        replaced = [label for label in labels if (label.turns or [{"role": ""}])[0]["role"] == "system"]
        say(replaced, "have a system turn, which data.system_prompt replaces; set it to null to keep theirs")
    return findings


def _is_torn(run: str) -> bool:
    """True if these letters are the bytes of UTF-8 read as Windows-1252 (Ã© for é), or are lost."""
    try:
        return bool(run.encode("cp1252").decode("utf-8"))
    except UnicodeError:
        return "\ufffd" in run


def _leaks(labels: Sequence[Label]) -> list[Label]:
    """The problems with their answer at the end of a line, if it is most, and after the same words."""
    after: dict[str, list[Label]] = {}
    for label in labels:
        answer = label.references[0].strip() if label.references else ""
        begin, _, end = label.problem.rpartition(answer or "\0")
        if begin and not begin[-1:].isalnum() and re.match(r"[^\w\n]*(?:\n|\Z)", end):
            after.setdefault(begin[-_BEFORE:], []).append(label)
    words, most = max(after.items(), key=lambda entry: len(entry[1]), default=("", []))
    return most if len(most) >= max(FEW, _MOST * len(labels)) and re.search(r"[^\W\d_]", words) else []
