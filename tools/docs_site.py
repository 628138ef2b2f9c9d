"""Hooks of mkdocs.yml: links to files of the repository, marks of commands that no test executes, pages without a menu.

A page links to `../r3_openrlhf/method/core/advantages.py`. That works in the repository, and nowhere on a site that holds
docs/ alone. Here each file that a page links to becomes a page of its own, with its text, and the links lead there.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).parent))
import api_page  # noqa: E402

# pages lie in docs/ itself, so all of these leave it
LINK = re.compile(r"\]\((?:\.\./)+([^)#\s]+)(#[^)\s]*)?\)")
NOT_EXECUTED = re.compile(r"^( *)<!-- (not executed: .+?) -->$", re.MULTILINE)
LANGUAGES = {
    ".py": "python",
    ".sh": "bash",
    ".yaml": "yaml",
    ".toml": "toml",
    ".jsonl": "json",
    ".json": "json",
}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """A page that no menu of mkdocs.yml names is in the menu "More"."""
    named = {page for section in config.nav or [] for page in next(iter(section.values()))}
    others = sorted({page.name for page in Path(config.docs_dir).glob("*.md")} - named)
    if config.nav and others:
        config.nav.append({"More": others})
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Adds index.md, which is README.md, api.md, and a page for each file outside docs/ that a page links to."""
    if "api.md" in str(config.nav):
        files.append(
            File.generated(
                config,
                "api.md",
                content=f"---\nsearch:\n  boost: 0.0001\n---\n\n{api_page.page()}",
            )
        )
    repository = Path(config.config_file_path).parent
    if not files.get_file_from_path("index.md"):
        files.append(File.generated(config, "index.md", content=front_page(repository)))
    linked = {
        match[1]
        for file in files.documentation_pages()
        for match in LINK.finditer(file.content_string)
    }
    for path in sorted(linked):
        # a link to nothing stays as it is, and --strict refuses it
        if (repository / path).is_file():
            files.append(
                File.generated(
                    config, source_page(path), content=page_of(repository / path, name=path)
                )
            )
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Leads links out of docs/ to those pages, and shows why a block is not executed."""
    if page.file.src_uri.startswith("source/"):
        return markdown
    markdown = LINK.sub(
        lambda match: (
            f"]({source_page(match[1])})"
            if files.get_file_from_path(source_page(match[1]))
            else match[0]
        ),
        markdown,
    )
    return NOT_EXECUTED.sub(r"\1*\2*{ .not-executed }\n", markdown)


def front_page(repository: Path) -> str:
    """README.md as a page of docs/."""
    text = (repository / "README.md").read_text(encoding="utf-8")
    return re.sub(
        r"\]\((?!https?:|#)(docs/)?", lambda match: "](" if match[1] else "](../", text
    )


def source_page(path: str) -> str:
    return f"source/{path}.md"


def page_of(file: Path, *, name: str) -> str:
    """The file's text as a page that the search leaves out."""
    text = file.read_text(encoding="utf-8")
    head = f"---\ntitle: {name}\nsearch:\n  exclude: true\n---\n\n"
    fence = "`" * max(3, 1 + max(map(len, re.findall(r"`+", text)), default=0))
    language = LANGUAGES.get(file.suffix, "text")
    return f'{head}# {name}\n\n{fence}{language} linenums="1"\n{text.rstrip()}\n{fence}\n'
