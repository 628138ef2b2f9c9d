"""Templates -> HTML. Everything that comes out of a run is text: autoescape is on, and nothing marks it as safe."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

DASH = "–"  # where there is no value


@cache
def environment() -> Environment:
    """The templates of this package."""
    found = Environment(
        loader=PackageLoader("r3_openrlhf.viewer"),
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
    }
    return found


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


def number(value: float | None, digits: int = 3) -> str:
    """With so many digits behind the point; a dash for None."""
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


def start_of(text: str | None, length: int = 90) -> str:
    """The beginning of a text on one line."""
    line = " ".join((text or "").split())
    return line if len(line) <= length else line[: length - 1] + "…"
