"""Addresses of pages: the same names as paths of a server, or as files in the same folders."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection
from typing import Protocol
from urllib.parse import quote

Parts = tuple[str, ...]
_PLAIN = re.compile(r"[\w.=+-]{1,80}")


class Links(Protocol):
    """Where pages and files are, seen from one page."""

    def page(self, *parts: object) -> str | None:
        """The address of a page; None: it is not there."""

    def static(self, name: str) -> str:
        """The address of a file of static/."""


class ServerLinks:
    """Paths below the server's root. `version` of the files in static/: a browser keeps them until it is another one."""

    def __init__(self, *, version: str = "0") -> None:
        self._version = version

    def page(self, *parts: object) -> str:
        """Every page is there."""
        return "/" + "/".join(quote(str(part), safe="") for part in parts)

    def static(self, name: str) -> str:
        """Below /static/."""
        return f"/static/{name}?v={self._version}"


class FileLinks:
    """Relative paths from the page `here` to the pages of an export."""

    def __init__(self, here: Parts, exported: Collection[Parts]) -> None:
        self._up = "../" * file_of(here).count("/")
        self._exported = exported

    def page(self, *parts: object) -> str | None:
        """None for a page that is not in the export."""
        wanted = tuple(map(str, parts))
        return self._up + quote(file_of(wanted)) if wanted in self._exported else None

    def static(self, name: str) -> str:
        """Below static/."""
        return f"{self._up}static/{name}"


def file_of(parts: Parts) -> str:
    """The file of a page. A part that is no plain name, like the uid of somebody's data set, becomes its hash."""
    return "/".join((*map(_plain, parts), "index.html"))


def _plain(part: str) -> str:
    if _PLAIN.fullmatch(part) and part.strip("."):
        return part
    return "x" + hashlib.blake2b(part.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
