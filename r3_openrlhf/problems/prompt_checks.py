"""Check that prompts hold the problem, the whole problem and nothing else: a Finding for each way they do not."""

import contextlib
import html
import mimetypes
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from r3_openrlhf.config import DataConfig
from r3_openrlhf.config.finding import Finding
from r3_openrlhf.method.errors import quoted
from r3_openrlhf.problems.columns import content_of, value_at
from r3_openrlhf.problems.label import Label
from r3_openrlhf.problems.prompts import columns_in
from r3_openrlhf.problems.reference_checks import CERTAIN, FEW, SUSPICIOUS, option_columns
from r3_openrlhf.problems.references import text_of
from r3_openrlhf.problems.table import Numeral, parse_json

# <|anything|>, [|user|], <start_of_turn>, [INST], [SYSTEM_PROMPT], or a turn of the assistant that begins at the end
_TEMPLATE = re.compile(
    r"[<\[][|｜][^<>|｜\s]{1,40}[|｜][>\]]|\]~\w\]|<(?:start|end)_of_\w+>|\[/?INST\]|\[/?[A-Z]+_[A-Z_\d]+\]|<</?SYS>>"
)
_SPEAKER = re.compile(r"(?:\bassistant|### ?response)\s*[:>\]]+\s*\Z", re.IGNORECASE)
# \n and \t before a letter begin these commands of LaTeX; any other one was typed for a line break or a tab, if not
# in a quoted text of a program
_COMMANDS = {
    "n": "abla|atural|eq?|earrow|eg|ewline|exists|geq?|gtr|i|icefrac|leq?|less|mid|oindent|ormalsize|ot|otin|parallel|prec|"
    "sim|subseteq|subset|succ|supseteq|u|umber|onumber|vdash|warrow|(?:Left|Right|left|right)arrow",
    "t": "able|ag|an|anh|au|ext\\w*|frac|herefore|heta|hinspace|ilde|imes|iny|o|op|ri\\w+",
}
_TYPED = re.compile(
    "|".join(
        rf"\\{letter}(?!['\"`]|(?:{names})(?![a-zA-Z]))" for letter, names in _COMMANDS.items()
    )
    + r"|\\u[0-9a-fA-F]{4}"
)
# what near copies may differ in: spaces, LaTeX's own, its marks of formulas, quotes, and marks that separate no numbers
_SPACING = re.compile(
    r"\\[,;:! ()\[\]]|\\q?quad\b|\\(?:left|right)(?![a-zA-Z])|(?<=\\)[dt](?=frac)|[\s~$\"'`“”„‘’«»]|[.,;:?](?!\s*\d)"
)
_DASHES = re.compile("[\u2010-\u2015\u2212]")
_PLACEHOLDER = re.compile(
    r"<(?:image|img|video|audio)\b[^<>]*>|<(?:image|img|video|audio)_?\d*>|\\includegraphics\b|!\[[^\]]*\]\("
    r"|\[(?:image|img|figure|video|audio)[\s_\d]*\]",
    re.IGNORECASE,
)
_MEDIA = re.compile(
    r"(?:image|img|picture|photo|figure|video|audio)(?:s|_?(?:url|path|file|name)s?)?",
    re.IGNORECASE,
)
# the first characters of images in base64: PNG, JPEG, GIF, WebP
_BASE64 = re.compile(r"(?:data:(?:image|video|audio)/|iVBORw0K|/9j/|R0lGOD|UklGR)\S*")
_SPLITS = {
    "train",
    "training",
    "test",
    "testing",
    "valid",
    "val",
    "validation",
    "dev",
    "eval",
    "held_out",
    "held-out",
}
_TRAINED = re.compile(r"(?:is|in|for)_?train(?:ing)?", re.IGNORECASE)
_FLAG = re.compile(
    r"(?:is|in|for)?_?(test|valid|validation|val|dev|eval|held_?out)", re.IGNORECASE
)
# the bytes of UTF-8 read as Windows-1252 (Ã© for é), or lost; é and ß before a quote or a hard space are no such
_CONTINUED = f"[{''.join(bytes([byte]).decode('cp1252', 'ignore') for byte in range(0x80, 0xC0) if byte != 0xA0)}]"
_TORN = re.compile(
    f"[Â-Þ]{_CONTINUED}|Ã\xa0|[à-ï]{_CONTINUED}{{2}}|ð{_CONTINUED}{{3}}|[\x80-\x9f\ufffd]|锟斤拷"
)
_FOREIGN = re.compile(r"[^\x00-\x7f]{4,}")
_CODE_PAGES = [
    "cp1250",
    "cp1251",
    "cp1253",
    "cp1254",
    "cp866",
    "koi8_r",
    "mac_roman",
    "gbk",
    "big5",
    "shift_jis",
    "euc_kr",
]
# the end of a template: a speaker's name or a tag, where the answer begins
_CUE = re.compile(
    r"(?:\A|[\n.!?>。？！]\s*)(?P<cue>[^\w\s]*[^\W\d_]\w*(?: \w+)?[^\w\s]{0,2}[:：]\s*(?:<\w+>)?)\s*\Z|(?P<tag><[^<>/\s]+>\w*)\s*\Z"
)
_MARKUP = re.compile(
    r"</(?:p|div|span|b|i|em|strong|li|td|tr|a|sup|sub)>|<br ?/?>|&(?:amp|lt|gt|quot|nbsp|#\d+|#x[0-9a-f]+);",
    re.I,
)
_BEFORE = 8  # characters in front of an answer that leaks
# nothing but marks follows it on its line, or a sentence
_AFTER = re.compile(r"[\W_]*(?:\n|\Z)|[.!]\s")
_SOME = 0.3  # of the problems
# Columns of what follows the problem; any other one is worth a word
_AFTERWARDS = (
    "solution",
    "explanation",
    "rationale",
    "reason",
    "response",
    "output",
    "answer",
    "generat",
    "complet",
)
SENTENCE = 4  # words; names of levels and topics have fewer
_TAIL = 60  # characters in which a solution ends with its answer
# GPQA's "Incorrect Answer 1", SciQ's distractor1
_WRONG_OPTION = re.compile(
    r"(?:incorrect|wrong|false|distractor)s?(?:[ _-]?(?:answer|option|choice)s?)?[ _-]?\d*",
    re.IGNORECASE,
)
# what Python or JSON prints of a dictionary with texts as keys, or of a list that begins with a text or a dictionary
_STRUCTURE = re.compile(
    r"\s*(?:\{\s*(?:'[^']*'|\"[^\"]*\")\s*:.*\}|\[\s*(?:'[^']*'\s*[,\]]|\"[^\"]*\"\s*[,\]]|\{\s*['\"]).*(?<=[\]}]))\s*",
    re.S,
)
_READ_BY_TEMPLATES = ("tools", "documents")  # arguments of transformers' apply_chat_template
_OF_MESSAGES = {"role", "content", "from", "value"}


def near(label: Label) -> str:
    """Return a problem without white space, case and LaTeX's spacing: equal for near copies."""
    text = "\n".join([*(turn["content"] for turn in label.turns or []), label.problem])
    return _SPACING.sub(
        "", _DASHES.sub("-", unicodedata.normalize("NFKC", html.unescape(text)))
    ).casefold()


def check_prompts(labels: Sequence[Label], *, path: str, data: DataConfig) -> list[Finding]:
    """Find what the model would read and nobody means: templates in templates, typed line
    breaks, copies, answers, lost letters, replaced turns."""
    findings = []
    total, where = len(labels), f"data.path {path}"

    def say(found: Sequence[Label], what: str, *, certain: float = 2.0) -> None:
        if found and len(found) >= SUSPICIOUS * total:
            sentence = f"{where}: {len(found)} of {total} problems {what.format(quoted(found[0].problem))}"
            findings.append(Finding(sentence, refuses=len(found) >= certain * total))

    if data.chat_template:
        marks = {id(label): mark for label in labels if (mark := _mark(label.problem))}
        marked = [label for label in labels if id(label) in marks]
        mark = next(iter(marks.values()), "")
        what = f"are in a chat template already ({mark}), and would be put into another; use "
        say(
            marked,
            what + "data.chat_template=false, or a column with the bare problem",
            certain=CERTAIN,
        )
    escaped = [
        label for label in labels if "\n" not in label.problem and _TYPED.search(label.problem)
    ]
    say(
        escaped,
        "have line breaks as two characters, a backslash and an n, or letters as codes, like {}; the model will read them so",
    )
    cues = Counter(cue for label in labels if (cue := _cue(label.problem)))
    for cue, count in cues.most_common(1) if data.chat_template else ():
        if count >= max(FEW, CERTAIN * total):
            what = f"end with {quoted(cue)}, as templates do where an answer begins, and are put into another one, like {{}}"
            say([label for label in labels if _cue(label.problem) == cue], what)
    marked_up = [label for label in labels if _MARKUP.search(label.problem)]
    say(marked_up, "have tags or entities of HTML, like {}; the model will read them so")
    printed = [label for label in labels if _is_structure(label.problem)]
    say(
        printed,
        "are a printed structure, like {}; the model will read its quotes and braces, so make a column of the text alone",
    )
    torn = [
        label for label in labels if _is_torn("\n".join([label.problem, *label.references]))
    ]
    say(
        torn,
        "have letters of another encoding, like {}; write the file as UTF-8 from its source",
    )
    shown = [label for label in labels if _PLACEHOLDER.search(label.problem)]
    say(
        shown,
        "name an image, a video or a sound that the model is not given, like {}; use rows without",
    )
    first: dict[str, Label] = {}
    copies = [label for label in labels if first.setdefault(near(label), label) is not label]
    say(
        copies,
        "differ from an earlier one in white space, case, punctuation or LaTeX spacing alone, like {}; leave them out",
    )
    shots = {
        near(Label(uid="", problem=shot["problem"], references=[], task=""))
        for shot in data.few_shot
    }
    if shots and (shown := [label for label in labels if near(label) in shots]):
        what = f"{len(shown)} of {total} problems are worked examples of data.few_shot, like {quoted(shown[0].problem)}"
        findings.append(Finding(f"{where}: {what}; leave them out"))
    say(_leaks(labels), "say their answer, always after the same words, like {}; cut it off")
    if data.system_prompt is not None:
        replaced = [
            label for label in labels if (label.turns or [{"role": ""}])[0]["role"] == "system"
        ]
        say(
            replaced,
            "have a system turn, which data.system_prompt replaces; set it to null to keep theirs",
        )
    return findings


def _mark(problem: str) -> str:
    found = _TEMPLATE.search(problem) or _SPEAKER.search(problem, max(0, len(problem) - _TAIL))
    return found[0].strip() if found else ""


def _cue(problem: str) -> str:
    found = _CUE.search(problem, max(0, len(problem) - _TAIL))
    return (found["cue"] or found["tag"]) if found else ""


def _is_structure(text: str) -> bool:
    """Return if a text is a printed dictionary or list, and nothing else."""
    text = text.strip()
    return text[-1:] in ("}", "]") and _STRUCTURE.fullmatch(text) is not None


def _is_torn(text: str) -> bool:
    """Tell whether letters are lost, or bytes of UTF-8 were read in another code page."""
    if text.isascii() or _TORN.search(text):
        return not text.isascii()
    for page in _CODE_PAGES if (runs := _FOREIGN.findall(text)) else ():
        with contextlib.suppress(UnicodeError):
            return bool(max(runs, key=len).encode(page).decode())
    return False


def _leaks(labels: Sequence[Label]) -> list[Label]:
    """Return the problems with their answer after the same words, if they are most."""
    after: dict[str, list[Label]] = {}
    for label in labels:
        answer = label.references[0].strip() if label.references else ""
        begin, _, end = label.problem.rpartition(answer or "\0")
        if begin and not begin[-1:].isalnum() and _AFTER.match(end):
            after.setdefault(begin[-_BEFORE:], []).append(label)
    words, most = max(after.items(), key=lambda entry: len(entry[1]), default=("", []))
    return (
        most
        if len(most) >= max(FEW, _SOME * len(labels)) and re.search(r"[^\W\d_]", words)
        else []
    )


Rows = Sequence[tuple[dict[str, Any], Label]]
# column -> its cells, each with the label of its row
Cells = dict[str, list[tuple[Any, Label]]]


def check_rows(
    rows: Rows,
    used: Collection[str],
    *,
    data: DataConfig,
    problem: str,
) -> list[Finding]:
    """Check the templates and the first rows of a table. `used`: columns that the run reads. problem: its key."""
    where = f"data.path {data.path}"
    cells = _unread_cells(rows, used)
    wrong_options = _wrong_option_columns(rows)
    sentences = [
        *_dropped_sentences(rows, problem=problem),
        *_missing_text_sentences(rows, cells, wrong_options, data=data),
        *_missing_option_sentences(rows, wrong_options),
        *_unreadable_cell_sentences(rows, cells),
        *_split_sentences(rows, cells, data=data),
    ]
    findings = _typed_escapes(data)
    if len(rows) >= FEW:
        for sentence in _places(rows):
            findings.append(Finding(f"{where}: {sentence}", refuses=True))
    for sentence in sentences:
        findings.append(Finding(f"{where}: {sentence}"))
    return findings


def _of_the_first(rows: Rows) -> str:
    return f"of the first {len(rows)} rows"


def _typed_escapes(data: DataConfig) -> list[Finding]:
    """Find the templates with a backslash and a letter where a line break was meant."""
    shots = " ".join(text for shot in data.few_shot for text in shot.values())
    templates = {
        "prompt_template": data.prompt_template,
        "system_prompt": data.system_prompt or "",
        "few_shot": shots,
    }
    findings = []
    for key, text in templates.items():
        typed = _TYPED.search(text)
        if typed is None:
            continue
        sentence = (
            f"data.{key} holds {quoted(typed[0])} as two characters, a backslash and a letter; on the command line write a real "
            "line break inside the quotes ($'...' in bash), or put the text into a YAML file"
        )
        findings.append(Finding(sentence))
    return findings


def _unread_cells(rows: Rows, used: Collection[str]) -> Cells:
    """Return the cells of the columns that the run does not read."""
    cells: Cells = {}
    for row, label in rows:
        unread = {column: cell for column, cell in row.items() if column not in used}
        for column, cell in _leaves(unread):
            cells.setdefault(column, []).append((cell, label))
    return cells


def _wrong_option_columns(rows: Rows) -> list[str]:
    """Return the columns that are named as wrong answers to choose from."""
    if not rows:
        return []
    first_row, _ = rows[0]
    return [column for column in first_row if _WRONG_OPTION.fullmatch(column)]


def _dropped_sentences(rows: Rows, *, problem: str) -> Iterator[str]:
    """Say that the problems have parts that do not become text."""
    dropped = [what for row, label in rows for what in _dropped(value_at(row, problem), label)]
    if len(dropped) > CERTAIN * len(rows):
        first = _of_the_first(rows)
        yield f"{len(dropped)} {first} have {dropped[0]}, which the model is not given"


def _missing_text_sentences(
    rows: Rows, cells: Cells, wrong_options: Collection[str], *, data: DataConfig
) -> Iterator[str]:
    """Say that texts which look like a part of the problem are not in the prompt."""
    if columns_in(data.prompt_template):
        return
    texts = []
    for column, found in cells.items():
        if column not in wrong_options and _is_part(column, found, len(rows)):
            texts.append(column)
    if not texts:
        return
    example, _ = cells[texts[0]][0]
    template = quoted("".join(f"{{{column}}} " for column in texts) + "{problem}")
    yield (
        f"texts of {' and '.join(texts)} are not in the prompt, like {quoted(example)}; if they are a part of the "
        f"problem, use data.prompt_template={template}"
    )


def _missing_option_sentences(rows: Rows, wrong_options: Sequence[str]) -> Iterator[str]:
    """Say that the problems do not show the wrong answers to choose from."""
    if not wrong_options:
        return
    without = [label for row, label in rows if not _shows_an_option(row, label, wrong_options)]
    if len(without) > CERTAIN * len(rows):
        yield (
            f"{' and '.join(wrong_options)} hold wrong answers to choose from, which {len(without)} {_of_the_first(rows)} do not show, so those are asked "
            "without options; for a choice, make a column of the problem with lettered options and one of the right letter"
        )


def _shows_an_option(row: dict[str, Any], label: Label, wrong_options: Sequence[str]) -> bool:
    """Tell whether one of the wrong options is in the text of the problem."""
    for column in wrong_options:
        if any(text in label.problem for text in _options(row, column)):
            return True
    return False


def _unreadable_cell_sentences(rows: Rows, cells: Cells) -> Iterator[str]:
    """Say which columns hold media, or what a chat template would read."""
    for column, found in cells.items():
        num_media = sum(_is_medium(cell, column) for cell, _ in found)
        if num_media:
            kind = "images, videos or sound"
        elif _is_for_templates(column, found):
            kind = f"{column} for a chat template"
        else:
            continue
        yield (
            f"the column {column} of {num_media or len(found)} {_of_the_first(rows)} holds {kind}, which the model is not given; "
            "use rows without"
        )


def _is_for_templates(column: str, found: Sequence[tuple[Any, Label]]) -> bool:
    """Tell whether a column is one that chat templates read, by its name or because all are tools."""
    if not found:
        return False
    return column in _READ_BY_TEMPLATES or all(_is_tool(cell) for cell, _ in found)


def _split_sentences(rows: Rows, cells: Cells, *, data: DataConfig) -> Iterator[str]:
    """Say that rows call themselves a split that is not the run's."""
    names = [name for column, found in cells.items() for name in _splits(column, found)]
    others = [name for name in names if name.lower()[:3] not in data.split]
    if others:
        what = f"call themselves {others[0]}, and data.split is {data.split}"
        yield (
            f"{len(others)} {_of_the_first(rows)} {what}; take them out, unless they are to be trained on"
        )


def _places(rows: Rows) -> Iterator[str]:
    """Say that the answers are places of a list, or of columns in a row, which the problem does not hold."""
    row, label = rows[0]
    options = {column: cell for column, cell in row.items() if isinstance(cell, list)}
    if names := option_columns(row):
        options[" and ".join(names)] = [
            text_of(row[name], key=name, what="column") for name in names
        ]
    for column, texts in options.items():
        places = set(map(str, range(len(texts) + 1)))
        if len(texts) < 2 or not all(
            label.references and label.references[0] in places for _, label in rows
        ):
            continue
        start = min(int(label.references[0]) for _, label in rows)
        template = "".join(
            f" ({place}) {{{name}}}" for place, name in enumerate(names, start=start)
        )
        remedy = "make a column of problems that lists those, and one of letters"
        remedy = (
            remedy
            if column in row
            else f"use data.prompt_template={quoted('{problem}' + template)}"
        )
        if not all(
            re.search(rf"\w\s*[).:\]}}]\s*{re.escape(str(text))}", label.problem)
            for text in texts
        ):
            yield f"the answers are places of {column}, like {quoted(label.references[0])}, which the problem does not hold; {remedy}"


def _options(row: dict[str, Any], column: str) -> list[str]:
    cell = row.get(column)
    texts = list(_texts(cell)) if isinstance(cell, list | dict) else [str(cell or "")]
    return [text.strip() for text in texts if text.strip()]


def _dropped(cell: object, label: Label) -> Iterator[str]:
    """Name what the messages of a problem have and its prompt lacks. An answer at their end may go."""
    messages = [one for one in cell if isinstance(one, dict)] if isinstance(cell, list) else []
    for key in {key for one in messages for key, value in one.items() if value} - _OF_MESSAGES:
        yield f"{key} in their messages"
    last = content_of(messages[-1]) if messages else None
    if (
        last
        and last.strip() not in label.problem
        and not any(text in last for text in label.references)
    ):
        yield f"a turn after the problem, {quoted(last)}"


def _is_part(column: str, found: Sequence[tuple[Any, Label]], num_rows: int) -> bool:
    """Return if some rows have a text of some words there which is no solution, and most differ."""
    if any(word in column.lower() for word in _AFTERWARDS):
        return False
    texts = [(cell, label) for cell, label in found if _has_some_words(cell)]
    different = {cell for cell, _ in texts}
    if len(texts) < CERTAIN * num_rows or len(different) < 2:
        return False
    num_solutions = sum(_ends_with_answer(cell, label) for cell, label in texts)
    num_repeats = sum(_repeats_problem(cell, label) for cell, label in texts)
    if len(texts) <= 2 * max(num_solutions, num_repeats):
        return False
    num_words = sum(len(cell.split()) for cell, _ in texts)
    return 5 * len(different) > len(texts) or num_words > SENTENCE * len(texts)


def _has_some_words(cell: object) -> bool:
    """Return if a cell is a text of two words or more, and no structure."""
    if not isinstance(cell, str) or isinstance(cell, Numeral):
        return False
    return len(cell.split()) > 1 and cell[:1] not in "[{"


def _ends_with_answer(text: str, label: Label) -> bool:
    """Return if a long text ends with a reference, as solutions do."""
    tail = text[-_TAIL:]
    return len(text) > _TAIL and any(reference in tail for reference in label.references)


def _repeats_problem(text: str, label: Label) -> bool:
    """Return if a text is a part of the problem, or holds it."""
    return text.strip() in label.problem or label.problem in text


def _is_tool(cell: object) -> bool:
    first = cell[0] if isinstance(cell, list) else None
    return isinstance(first, dict) and not first.keys().isdisjoint(("function", "parameters"))


def _is_medium(cell: object, column: str = "") -> bool:
    if isinstance(cell, list):
        return bool(cell) and _is_medium(cell[0], column)
    if isinstance(cell, dict):
        return any(_is_medium(one, column) for one in cell.values())
    if (
        isinstance(cell, str)
        and len(cell.split()) == 1
        and _MEDIA.fullmatch(column.rpartition(".")[2])
    ):
        return True
    if isinstance(cell, str):
        kind = (
            mimetypes.guess_type(cell.partition("?")[0])[0] if len(cell.split()) == 1 else None
        )
        return (kind or "").startswith(("image/", "video/", "audio/")) or _BASE64.fullmatch(
            cell
        ) is not None
    # what `datasets` makes of an image
    return isinstance(cell, bytes) or hasattr(cell, "tobytes")


def _splits(column: str, found: Sequence[tuple[Any, Label]]) -> list[str]:
    """Names of splits in a column that holds nothing else, or is a flag as is_test."""
    if _TRAINED.fullmatch(column.rpartition(".")[2]):
        return ["test" for cell, _ in found if str(cell).lower() in ("false", "0")]
    if flag := _FLAG.fullmatch(column.rpartition(".")[2]):
        return [
            flag[1]
            for cell, _ in found
            if cell is True or cell == 1 or str(cell).lower() in ("true", "1")
        ]
    names = [
        cell
        for cell, _ in found
        if isinstance(cell, str) and cell.lower().rstrip("_-0123456789") in _SPLITS
    ]
    return names if len(names) == len(found) else []


def _leaves(row: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted name, cell) of what a row holds; a list is one text, and JSON texts are what they hold."""
    for column, cell in row.items():
        if isinstance(cell, str) and cell[:1] in ("[", "{"):
            with contextlib.suppress(ValueError):
                cell = parse_json(cell)
        if isinstance(cell, dict) and not _is_medium(cell):
            yield from _leaves(cell, f"{prefix}{column}.")
        elif isinstance(cell, list) and cell:
            yield (
                f"{prefix}{column}",
                cell if _is_medium(cell) or _is_tool(cell) else ", ".join(_texts(cell)),
            )
        elif cell or isinstance(cell, int):
            yield f"{prefix}{column}", cell


def _texts(cell: object) -> Iterator[str]:
    for one in (
        cell.values() if isinstance(cell, dict) else cell if isinstance(cell, list) else ()
    ):
        yield from _texts(one) if isinstance(one, list | dict) else [str(one)]
