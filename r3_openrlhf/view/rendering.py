"""Templates -> HTML. What a run wrote is text: autoescape is on, nothing is marked as safe."""

import json
import re
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from r3_openrlhf.method.types import Verdict
from r3_openrlhf.runs.step_groups import StepGroup

STATIC = Path(__file__).with_name("static")
ROOT_PATH = ContextVar("ROOT_PATH", default="")  # of the request, where a proxy has the pages
DASH = "–"  # where there is no value
SIGNS = {Verdict.CORRECT: "✓", Verdict.WRONG: "✗", Verdict.UNGRADED: "?"}
CHIP_WIDTH = 18  # pixels, the gap to the next one included
BAR_HEIGHT = 5.5  # pixels of |A| = 1; bars end at |A| = 2
_ROW = re.compile(r"^- (?P<first>.+?): (?P<second>.+)$", re.MULTILINE)
_NAME = re.compile(r"`([^`]+)`")
_LINK = re.compile(r"\[([^]]+)\]\([^)]+\)")


@cache
def environment() -> Environment:
    """Load the templates of this package."""
    templates = Environment(
        loader=PackageLoader("r3_openrlhf.view"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters |= {
        "number": number,
        "signed": signed,
        "percent": percent,
        "count": count,
        "json": json_block,
        "start": start_of,
        "strip": strip,
        "word": word,
    }
    templates.globals |= {
        "words": glossary(),
        "link": link,
        "static": lambda name: f"{link('static')}/{name}",
    }
    return templates


def link(*parts: object) -> str:
    """Return the address of a page on the server."""
    return f"{ROOT_PATH.get()}/" + "/".join(quote(str(part), safe="") for part in parts)


def render(template: str, **values: object) -> str:
    """Render a page. Lone surrogates, which UTF-8 cannot carry, become replacement characters."""
    text = environment().get_template(template).render(**values)
    return text.encode("utf-8", "replace").decode("utf-8")


def json_block(value: object) -> Markup:
    """JSON for a <script type="application/json">: nothing in it can end the block."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def word(text: str, name: str | None = None) -> Markup:
    """Mark up a word so that pointing at it shows its meaning. name: how the glossary has it."""
    return Markup('<abbr title="{}">{}</abbr>').format(glossary()[name or text], text)


def number(value: float | None, digits: int = 3) -> str:
    """Format a number with `digits` decimals; a dash for None."""
    return DASH if value is None else f"{value:,.{digits}f}"


def signed(value: float | None, digits: int = 3) -> str:
    """Format a number with its sign, which is a true minus; one that rounds to zero has none."""
    if value is None:
        return DASH
    text = f"{value:+.{digits}f}"
    return text.replace("-", "−") if float(text) else text[1:]


def percent(value: float | None, digits: int = 0) -> str:
    """Format a share in percent."""
    return DASH if value is None else f"{100 * value:.{digits}f} %"


def count(value: float | None) -> str:
    """Format a value as a whole number."""
    return DASH if value is None else f"{value:,.0f}"


def start_of(text: str | None, length: int = 90) -> str:
    """Return the beginning of a text on one line."""
    line = " ".join((text or "").split())
    return line if len(line) <= length else line[: length - 1] + "…"


def strip(group: StepGroup) -> Markup:
    """Draw a chip per rollout, below them the advantages as bars, and the same in words. A full-size
    step has thousands of chips: too many for a macro. Nothing of it is a text of a model."""
    chips: list[str] = []
    up: list[str] = []
    down: list[str] = []
    for place, row in enumerate(group.rows):
        advantage = row["advantage"]
        kinds = {
            "cut": row["truncated"],
            "recalled": row["recalled_from"] is not None,
            "ranked": row["ranked"],
            "out": advantage
            is None,  # not trained on: ungraded, or it gave way to a recalled one
        }
        names = " ".join([row["verdict"], *(name for name, holds in kinds.items() if holds)])
        chips.append(f'<i class="chip {names}">{SIGNS[row["verdict"]]}</i>')
        if advantage:
            height = round(min(abs(advantage) * BAR_HEIGHT, 2 * BAR_HEIGHT), 1)
            bars, sign = (up, "-") if advantage > 0 else (down, "")
            bars.append(f"M{place * CHIP_WIDTH + 4} 12v{sign}{height}h8V12z")
    width = len(chips) * CHIP_WIDTH
    return Markup(
        f'<span class="strip lazy" aria-hidden="true">{"".join(chips)}</span>'
        f'<svg class="bars" width="{width}" height="24" aria-hidden="true"><path class="axis" d="M0 12h{width - 2}"/>'
        f'<path class="plus" d="{"".join(up)}"/><path class="minus" d="{"".join(down)}"/></svg>'
        f'<span class="said">{words_of(group)}</span>'
    )


def words_of(group: StepGroup) -> str:
    """Say what a strip shows, for a screen reader."""
    counts = {
        "ungraded": group.num_ungraded,
        "cut": group.num_cut,
        "recalled": group.num_recalled,
        "ranked": group.num_ranked,
    }
    others = [f"{number} {name}" for name, number in counts.items() if number]
    return ", ".join([f"{group.num_correct} right", f"{group.num_wrong} wrong", *others])


# ── meanings of keys and words: docs/metrics.md, linked in this folder ──


@cache
def meanings() -> dict[str, str]:
    """Key of metrics.jsonl -> its meaning. A name without a "/" has the path of the last one."""
    meaning_of = {}
    for row in _rows(0):
        path = ""
        for name in _NAME.findall(row["first"]):
            key = name if "/" in name else path + name
            path = key[: key.rfind("/") + 1]
            meaning_of[key] = _plain(row["second"])
    return meaning_of


@cache
def glossary() -> dict[str, str]:
    """Word -> what it means here."""
    return {
        word.strip(): _plain(row["second"])
        for row in _rows(1)
        for word in _plain(row["first"]).split(",")
    }


def _rows(part: int) -> list[re.Match[str]]:
    text = (
        Path(__file__)
        .with_name("metrics.md")
        .read_text(encoding="utf-8")
        .split("\n## Glossary\n")[part]
    )
    return list(_ROW.finditer(text))


def _plain(text: str) -> str:
    return _LINK.sub(r"\1", text).replace("`", "")
