"""What is stored about each token of a group's responses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from r3_openrlhf.view.links import Links
from r3_openrlhf.view.responses import of_group, open_group
from r3_openrlhf.view.site import Site
from r3_openrlhf.view.token_texts import MISSING
from r3_openrlhf.view.token_values import TokenValues, as_numbers, peak_tokens, token_values


def tokens_of_group(
    site: Site,
    name: str,
    step: int,
    context: str,
    uid: str,
    *,
    only: Sequence[int] | None = None,
    beside_text: bool = False,
) -> dict[str, Any]:
    """Values of each token of a group's responses, as plain JSON.

    only: places of the responses that are wanted. beside_text: the reader has the texts, so lengths of pieces are enough.
    """
    opened = open_group(site, name, step, context, uid)
    run, rows = opened.run, opened.rows
    places = range(len(rows)) if only is None else only
    for place in places:
        opened.check(place)
    columns = of_group(run, step, opened.group, run.token_columns(step, uid))
    values, why = token_values(
        run,
        [rows[place] for place in places],
        [columns[place] for place in places],
        step=step,
        texts=site.texts_of(run),
    )
    config = run.config
    peak_fraction = config.ranking.peak_fraction if config else None
    found = [
        None if one is None else _as_json(place, one, peak_fraction, text=rows[place]["text"] if beside_text else None)
        for place, one in zip(places, values, strict=True)
    ]
    clip = [1 - config.train.eps_clip_low, 1 + config.train.eps_clip_high] if config else None
    if why == MISSING:
        why = site.why_no_texts(run)
    return {"responses": found, "why": why, "clip": clip}


def tokens_page(site: Site, links: Links, name: str, step: int, context: str, uid: str, place: int) -> str:
    """One response as a heat map."""
    found = tokens_of_group(site, name, step, context, uid, only=[place])
    opened = open_group(site, name, step, context, uid)
    return site.render("tokens.html", links, **opened.names, one=opened.shown(place), tokens=found)


def _as_json(place: int, values: TokenValues, peak_fraction: float | None, *, text: str | None) -> dict[str, Any]:
    found: dict[str, Any] = {"place": place, "peak": []}
    lengths = lengths_within(text, values.pieces) if text is not None else None
    if lengths is not None:
        found |= {"lengths": lengths, "rest": "".join(values.pieces)[len(text or "") :]}
    else:
        found["pieces"] = values.pieces
        if values.ids is not None:
            found["ids"] = values.ids.tolist()
    if values.logprobs is not None:
        found["logprob"] = as_numbers(values.logprobs)
    if values.entropies is not None:
        found["entropy"] = as_numbers(values.entropies)
        if peak_fraction is not None:
            found["peak"] = peak_tokens(values.entropies, peak_fraction=peak_fraction)
    if values.policy_logprobs is not None and values.logprobs is not None:
        found["ratio"] = as_numbers(values.policy_logprobs.astype(np.float32) - values.logprobs.astype(np.float32))
    return found


def lengths_within(text: str, pieces: Sequence[str]) -> list[int] | None:
    """Length of each piece in UTF-16 units, as JavaScript counts; None if the page's text is not the pieces in order.

    The last pieces may follow the text, because special tokens are not in it. A page turns carriage returns, zeros and lone surrogates into
    something else.
    """
    whole = "".join(pieces)
    if not whole.startswith(text) or any(character in whole for character in "\r\0"):
        return None
    try:
        if whole.isascii() or len(whole.encode("utf-16-le")) == 2 * len(whole):  # one unit a character
            return list(map(len, pieces))
        return [len(piece.encode("utf-16-le")) // 2 for piece in pieces]
    except UnicodeEncodeError:
        return None
