"""The page docs/settings.md, from the code of the settings. `python tools/settings_page.py > docs/settings.md` writes it again."""

from __future__ import annotations

from r3_openrlhf.config.map import settings


def page() -> str:
    """The whole page in Markdown."""
    lines = [
        "# Settings",
        "",
        "Every key of a run's configuration with its default. `r3 config KEY` also prints its type, unit and allowed words.",
        "`tools/settings_page.py` writes this page.",
    ]
    sections: dict[str, list[str]] = {}
    for setting in settings():
        name = setting.key.rpartition(".")[0] or "run"
        sections.setdefault(name, []).append(
            f"- `{setting.key}: {setting.default}` {setting.meaning}".rstrip()
        )
    for name, keys in sections.items():
        lines += ["", f"## {name}", "", *keys]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
