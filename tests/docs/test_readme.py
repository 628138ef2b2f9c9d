"""The README can be read in one sitting, and its map of the files is right."""

import re
import subprocess
from xml.etree import ElementTree

import pytest

from tests.docs.pages import DOCS, REPOSITORY, blocks_of, links_of

README = REPOSITORY / "README.md"
LINES = README.read_text(encoding="utf-8").splitlines()


def test_it_is_short_and_says_which_r3_this_is():
    assert len(LINES) <= 120
    assert [line for line in LINES if len(line) > 100] == []
    start = " ".join(LINES[:6])
    for words in ("2601.19620", "routing replay", "reverse-curriculum"):
        assert words in start


def tree(text: str) -> dict[str, str]:
    """Path -> purpose, of a drawn tree. Depth is two blanks a level; names with commas between them share a line."""
    found, above = {}, []
    for line in text.splitlines():
        match = re.fullmatch(r"((?:  )*)([\w./-]+(?:, [\w./-]+)*)(?:\s\s+(.+))?", line)
        assert match, f"{line!r} is no line of the tree"
        depth = len(match[1]) // 2
        for name in match[2].split(", "):
            above = [*above[:depth], name]
            found["".join(above)] = match[3]
    return found


def the_tree() -> dict[str, str]:
    (block,) = [block for block in blocks_of(README) if block.text.startswith("r3_openrlhf/")]
    return tree(block.text)


def test_the_map_names_what_exists_and_says_what_it_is_for():
    for path, purpose in the_tree().items():
        assert (REPOSITORY / path).exists(), f"{path} does not exist"
        assert (REPOSITORY / path).is_dir() == path.endswith("/")
        assert purpose, f"{path} has no purpose"


def rooms() -> set[str]:
    """The folders at the root of the repository and of the package."""
    command = ["git", "-C", str(REPOSITORY), "ls-files"]
    tracked = subprocess.run(
        command, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    found = {re.match(r"(?:r3_openrlhf/)?[^/]+/|", path)[0] for path in tracked}
    return {room for room in found if room and not room.startswith(".")}


@pytest.mark.skipif(not (REPOSITORY / ".git").exists(), reason="no checkout")
def test_the_map_has_every_room_and_agents_md_names_it():
    assert rooms() - set(the_tree()) == set()
    text = (REPOSITORY / "AGENTS.md").read_text()
    assert [
        room for room in sorted(rooms()) if room.removeprefix("r3_openrlhf/") not in text
    ] == []


def test_a_wrong_map_is_found():
    assert tree("a/  one\n  b.py   two\n  c/\nd") == {
        "a/": "one",
        "a/b.py": "two",
        "a/c/": None,
        "d": None,
    }
    with pytest.raises(AssertionError, match="is no line of the tree"):
        tree("a/\n |- b")


def test_it_links_to_the_site_and_to_the_picture():
    links = links_of(README)
    assert "docs/figures/mechanisms.svg" in links
    for page in ("tutorial.md", "method.md", "RESULTS.md"):
        assert f"docs/{page}" in links


def test_the_picture_is_one():
    """Well-formed, of a size that fits, and it needs nothing from elsewhere."""
    text = (DOCS / "figures" / "mechanisms.svg").read_text()
    root = ElementTree.fromstring(text)
    assert root.tag.endswith("svg")
    left, top, width, height = map(float, root.attrib["viewBox"].split())
    assert (left, top) == (0, 0) and width <= 1000 and height <= 500
    assert set(re.findall(r"https?://[^\"' ]+", text)) == {"http://www.w3.org/2000/svg"}
    words = " ".join(root.itertext())
    for name in ("Replay", "Reflection", "Ranking"):
        assert name in words


def labels_in(page) -> list[str]:
    """The first column of the tables of a run that a page shows."""
    lines = [
        line
        for block in blocks_of(page)
        for line in block.text.splitlines()
        if line.startswith("│")
    ]
    labels = [line.split("│")[1].strip() for line in lines]
    samples = (
        re.sub(r"^(held-out (?:accuracy, |pass@))\d+", r"\1{samples}", label)
        for label in labels
    )
    return [re.sub(r", step \d+ -> \d+$", "", label) for label in samples]


def test_what_the_quickstart_shows_is_what_it_shows_now():
    printed = "".join(
        (REPOSITORY / "r3_openrlhf" / "runs" / name).read_text()
        for name in ("report.py", "report.toml", "display.py")
    )
    found = [
        label.removeprefix("seconds per step: ")
        for label in labels_in(README)
        if not label.startswith("mean of ")
    ]
    assert len(found) >= 4
    assert [
        label for label in found if f'"{label}"' not in printed and label not in printed
    ] == []
