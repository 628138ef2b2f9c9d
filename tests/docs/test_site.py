"""The site builds without a warning, asks no other host for anything, and shows every page."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest

import r3_openrlhf
from tests.docs.pages import REPOSITORY, SITE_PAGES

sys.path.insert(0, str(REPOSITORY / "tools"))
import api_page  # noqa: E402


def build(config, site) -> subprocess.CompletedProcess:
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "-f",
        str(config),
        "-d",
        str(site),
    ]
    surroundings = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}  # an advertisement
    return subprocess.run(command, env=surroundings, capture_output=True, text=True)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    place = tmp_path_factory.mktemp("site")
    done = build(REPOSITORY / "mkdocs.yml", place)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return place


class Requests(HTMLParser):
    """What a browser fetches to show a page, and the words of its paragraphs."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.paragraphs: list[str] = []
        self._inside = False

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        if tag in ("script", "img", "iframe", "source", "object", "video"):
            self.fetched.append(values.get("src") or values.get("data") or "")
        if tag == "link" and values.get("rel") not in ("canonical", "prev", "next"):
            self.fetched.append(values.get("href", ""))
        if tag == "p":
            self._inside = True
            self.paragraphs.append("")

    def handle_endtag(self, tag):
        if tag == "p":
            self._inside = False

    def handle_data(self, data):
        if self._inside:
            self.paragraphs[-1] += data


def read(page) -> Requests:
    parser = Requests()
    parser.feed(page.read_text(encoding="utf-8"))
    return parser


def test_no_page_asks_another_host(site):
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > len(SITE_PAGES)
    asked = {url for page in pages for url in read(page).fetched}
    assert not [url for url in asked if re.match(r"[a-z]*:?//", url)]
    styles = "".join(style.read_text() for style in site.rglob("*.css"))
    assert not re.findall(r"(?:@import|url\()\s*[\"']?(?:https?:)?//[^)\"']*", styles)


def test_lists_are_lists(site):
    """A list right below a line of text is a list for some readers of Markdown only."""
    lines = {
        (page.stem, line)
        for page in site.glob("*.html")
        for paragraph in read(page).paragraphs
        for line in paragraph.splitlines()
    }
    assert [line for line in lines if re.match(r"(?:[*-]|\d\.) ", line[1])] == []


def test_a_file_of_the_repository_is_a_page_and_a_mark_is_visible(site):
    source = (site / "source/r3_openrlhf/method/core/advantages.py.html").read_text()
    assert "def group_advantages" in re.sub(r"<[^>]+>", "", source)
    assert (
        'href="source/r3_openrlhf/method/core/advantages.py.html"'
        in (site / "method.html").read_text()
    )
    assert "not executed: " in " ".join(read(site / "usage.html").paragraphs)


def test_the_python_interface_has_every_public_name_with_its_arguments(site):
    text = re.sub(r"<[^>]+>", " ", (site / "api.html").read_text())
    public, words = set(r3_openrlhf.__all__) - api_page.ELSEWHERE, " ".join(text.split())
    assert [name for name in public if f" {name} " not in words] == []
    documented = {name for names in api_page.SECTIONS.values() for name in names}
    assert documented | api_page.ELSEWHERE == set(r3_openrlhf.__all__)
    assert "held-out accuracy that the arms are to reach" in text  # an argument of compare


def test_every_page_is_in_the_menu(site):
    menu = (site / "index.html").read_text().partition("<article")[0]
    assert [
        page.stem
        for page in SITE_PAGES
        if page.stem != "index" and f'href="{page.stem}.html"' not in menu
    ] == []


def copy_of_the_site(place, **pages: str):
    """mkdocs.yml with its hooks, over other pages."""
    (place / "docs").mkdir()
    (place / "tools").symlink_to(REPOSITORY / "tools")
    settings = (REPOSITORY / "mkdocs.yml").read_text().partition("\nnav:")[0]
    (place / "mkdocs.yml").write_text(f"{settings}\nnav:\n  - Start:\n      - index.md\n")
    for name, text in pages.items():
        (place / "docs" / f"{name}.md").write_text(text)
    return build(place / "mkdocs.yml", place / "site")


def test_a_broken_link_is_refused(tmp_path):
    done = copy_of_the_site(
        tmp_path, index="# Start\n\n[gone](../r3_openrlhf/gone.py) [gone](gone.md)\n"
    )
    assert done.returncode != 0
    assert "gone.py" in done.stderr and "gone.md" in done.stderr
