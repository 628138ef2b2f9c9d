"""Templates -> HTML. Everything that comes out of a run is text: autoescape is on, and nothing marks it as safe."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from r3_openrlhf.method.types import Verdict
from r3_openrlhf.view.step_groups import StepGroup
from r3_openrlhf.view.words import glossary

DASH = "–"  # where there is no value
SIGNS = {Verdict.CORRECT: "✓", Verdict.WRONG: "✗", Verdict.UNGRADED: "?"}
CHIP_WIDTH = 18  # pixels, the gap to the next one included
WORDS = (  # of the glossary, in the help of every page
    "arm", "collapsed", "coverage", "hard", "history", "policy lag", "ranked", "recall", "reflection group", "repaired", "truncated",
    "uid", "ungraded", "verdict",
)  # fmt: skip
BAR_HEIGHT = 5.5  # pixels of |A| = 1; bars end at |A| = 2


@cache
def environment() -> Environment:
    """The templates of this package."""
    found = Environment(
        loader=PackageLoader("r3_openrlhf.view"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters |= {
        "number": number,
        "signed": signed,
        "percent": percent,
        "count": count,
        "json": json_block,
        "start": start_of,
        "strip": strip,
        "word": word,
    }
    found.globals["words"] = {name: glossary()[name] for name in WORDS}
    return found


def compile_templates() -> None:
    """All of them, which takes a tenth of a second and would be done one by one."""
    for name in environment().list_templates(extensions=["html"]):
        environment().get_template(name)


def render(template: str, **values: Any) -> str:
    """A page. Lone surrogates, which models can write and UTF-8 cannot carry, become replacement characters."""
    text = environment().get_template(template).render(**values)
    return text.encode("utf-8", "replace").decode("utf-8")


def json_block(value: Any) -> Markup:
    """JSON for a <script type="application/json">: nothing in it can end the block."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def word(text: str, name: str | None = None) -> Markup:
    """A word that says what it means when one points at it. name: how the glossary has it."""
    return Markup('<abbr title="{}">{}</abbr>').format(glossary()[name or text], text)


def number(value: float | None, digits: int = 3) -> str:
    """A number with so many decimals; a dash for None."""
    return DASH if value is None else f"{value:,.{digits}f}"


def signed(value: float | None, digits: int = 3) -> str:
    """The same with its sign, which is a true minus; nothing rounded has none."""
    if value is None:
        return DASH
    text = f"{value:+.{digits}f}"
    return text.replace("-", "−") if float(text) else text[1:]


def percent(value: float | None, digits: int = 0) -> str:
    """A share in percent."""
    return DASH if value is None else f"{100 * value:.{digits}f} %"


def count(value: float | None) -> str:
    """A whole number."""
    return DASH if value is None else f"{value:,.0f}"


def short(value: float | None) -> str:
    """Three significant digits, with k, M or G where it is large."""
    if value is None:
        return DASH
    for limit, unit in ((1e9, " G"), (1e6, " M"), (1e4, " k")):
        if abs(value) >= limit:
            return f"{value / limit * (10 if limit == 1e4 else 1):.3g}{unit}"
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


def start_of(text: str | None, length: int = 90) -> str:
    """The beginning of a text on one line."""
    line = " ".join((text or "").split())
    return line if len(line) <= length else line[: length - 1] + "…"


def strip(group: StepGroup) -> Markup:
    """A chip per rollout, below them the advantages as bars, and the same in words. A full-size step has thousands of chips:
    too many for a macro. Nothing of it is a text of a model."""
    chips: list[str] = []
    up: list[str] = []
    down: list[str] = []
    for place, row in enumerate(group.rows):
        advantage = row["advantage"]
        kinds = {
            "cut": row["truncated"],
            "recalled": row["recalled_from"] is not None,
            "ranked": row["ranked"],
            "out": advantage is None,  # not trained on: ungraded, or it gave way to a recalled one
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
    """What a strip shows, for a screen reader."""
    counts = (
        (group.num_ungraded, "ungraded"),
        (group.num_cut, "cut"),
        (group.num_recalled, "recalled"),
        (group.num_ranked, "ranked"),
    )
    found = [f"{group.num_correct} right", f"{group.num_wrong} wrong"]
    return ", ".join([*found, *(f"{number} {name}" for number, name in counts if number)])
