"""`data.sources`: a list of paths, or of entries with a path and keys of `data` of their own."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from r3_openrlhf.method.errors import ConfigError, quoted

# What a source cannot have, and what to do instead
_INSTEAD = {
    "stop": "rollout.stop is one for all sources: a response ends at any of its texts",
    "function": "give it a grader of its own with task: my_module:grade, or let one reward.function look at `row`",
}
_INSTEAD |= {
    "reward": _INSTEAD["function"],
    "functions": _INSTEAD["function"],
    "reward_function": _INSTEAD["function"],
}
# What `path` is until the sources are known; afterwards it is their paths.
SOURCES = "sources"


def entries_of(sources: Sequence[Any], *, allowed: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Each source as {name, weight or None, path, and what it sets of `allowed`}.

    allowed: key -> its type in config.DataConfig.

    Raises ConfigError: no path, a value of another type, a key that a source cannot have, a weight
    that is no number above 0, weights for some only, or two sources of one name.
    """
    entries = []
    for source in sources:
        entry = dict(source) if isinstance(source, Mapping) else {"path": source}
        path, weight = entry.get("path"), entry.get("weight")
        if not isinstance(path, str) or not path.strip():
            raise ConfigError(
                f"data.sources holds {quoted(source)}, which has no path; write a path, or {{path: ..., weight: ...}}"
            )
        unknown = sorted(set(map(str, entry)) - set(allowed) - {"name", "weight", "path"})
        if unknown and (instead := _INSTEAD.get(unknown[0].rpartition(".")[2])):
            raise ConfigError(
                f"data.sources sets {unknown[0]} for {path}, which a source cannot have; {instead}"
            )
        if unknown:
            raise ConfigError(
                f"data.sources sets {unknown[0]} for {path}; a source has path, name, weight, {', '.join(allowed)}"
            )
        for name in set(entry) & set(allowed):
            _check_type(str(path), name, entry[name], allowed[name])
        is_number = isinstance(weight, int | float) and not isinstance(weight, bool)
        if weight is not None and not (is_number and math.isfinite(weight) and weight > 0):
            raise ConfigError(
                f"data.sources gives {path} the weight {quoted(weight)}; use a number above 0, a share of the problems"
            )
        name = re.sub(
            r"[^\w.-]",
            "_",
            str(entry.get("name") or re.split(r"[/:]", path.rstrip("/"))[-1].partition(".")[0]),
        )
        entries.append(
            {
                "name": name,
                "weight": weight,
                **{k: v for k, v in entry.items() if k not in ("name", "weight")},
            }
        )
    names = [entry["name"] for entry in entries]
    double = next((name for name in names if names.count(name) > 1), None)
    if double is not None:
        raise ConfigError(
            f"data.sources has two sources called {double}; give each a name, as in {{path: ..., name: ...}}"
        )
    if len({entry["weight"] is None for entry in entries}) > 1:
        raise ConfigError(
            "data.sources has weights for some of its sources only; give all of them one, or none"
        )
    return entries


def _check_type(path: str, name: str, value: object, kind: object) -> None:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        instead = ""
        if name == "chat_template" and isinstance(value, str):
            instead = (
                "; a template of its own goes into chat_template_kwargs: {chat_template: ...}"
            )
        raise ConfigError(
            f"data.sources gives {path} the {name} {quoted(value)} ({error}){instead}"
        ) from error


def path_of(path: str | None, entries: Sequence[Mapping[str, Any]]) -> str:
    """Return the sources' name in messages. ConfigError if `data.path` names something else."""
    together = " + ".join(entry["path"] for entry in entries)
    if path not in (None, "???", SOURCES, together):
        raise ConfigError(
            f"data.path is {path} and data.sources is set; use one of them, as in data.sources=[]"
        )
    return together
