"""Completion of settings and runs in a shell, asked by click (docs/install.md: how to use it)."""

from __future__ import annotations

from pathlib import Path

import click
from click.shell_completion import CompletionItem


def complete_settings(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Keys, and the values of `experiment=`, `algo=` and of keys with a closed set of values.

    bash cuts words at "=", so that there `experiment=qu` arrives as three words; zsh and fish send
    one."""
    from r3_openrlhf.config.loading import experiments, presets
    from r3_openrlhf.config.map import settings

    keys = ["experiment", *(one.key for one in settings())]
    before = [str(word) for word in context.params.get(parameter.name or "") or ()]
    if before[-1:] == ["="]:
        before.pop()
    key, equals, start = incomplete.partition("=")
    kept = f"{key}="
    if not equals and before and before[-1] in keys:  # click takes a lone "=" away
        key, equals, start, kept = before[-1], "=", incomplete, ""
    if not equals:
        return [CompletionItem(f"{name}=") for name in keys if name.startswith(key)]
    values: dict[str, list[str]] = {"experiment": experiments(), "algo": presets()}
    values |= {one.key: list(one.allowed) for one in settings() if one.allowed and one.key not in values}
    offered = [CompletionItem(f"{kept}{value}") for value in values.get(key, []) if value.startswith(start)]
    return offered or [CompletionItem(incomplete, type="file")]


def complete_runs(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Run directories in runs/ and one level below it; elsewhere directories."""
    configs = sorted([*Path("runs").glob("*/config.yaml"), *Path("runs").glob("*/*/config.yaml")])
    runs = [CompletionItem(str(file.parent)) for file in configs if str(file.parent).startswith(incomplete)]
    return runs or [CompletionItem(incomplete, type="dir")]
