"""Every link of every document leads somewhere; what a document calls a file, a key or a preset is one."""

import dataclasses
import re

import pytest

from r3_openrlhf.config import R3Config
from r3_openrlhf.config.loading import experiments, flatten, load_config, presets
from tests.docs.pages import DOCS, PAGES, PARSER, REPOSITORY, inline_code, links_of

PACKAGE = REPOSITORY / "r3_openrlhf"
KEYS = set(flatten(load_config("cpu_smoke", [])))
SECTIONS = sorted({key.partition(".")[0] for key in KEYS if "." in key})
FILE = re.compile(r"[\w./-]+\.(?:py|sh|md|yaml|toml|txt|svg|png)|(?:[\w-]+/)+")
KEY = re.compile(rf"((?:{'|'.join(SECTIONS)})\.[a-z_]+)(=.*)?")
# Files that a run or a build makes, and placeholders; anything else that looks like a file is one of the repository.
MADE_BY_A_RUN = re.compile(
    r"(?:RUN|OUT|runs|rollouts|held_out|data|evaluations|checkpoints|tensorboard|final_model|build|\.venv)/.*|(?:train|eval/held_out)/"
    r"|history\.sqlite.*|train\.(?:log|jsonl)|(?:config|settings|finished)\.yaml|(?:code_state|model_commit|error)\.txt|(?:comparison|results)\.md|my\.[a-z]+|[a-z_]+\.png"
)


def anchors_of(page) -> set[str]:
    """The anchors of the headings, as the site and the usual viewers make them."""
    tokens = PARSER.parse(page.read_text(encoding="utf-8"))
    heads = [
        tokens[i + 1].children for i, token in enumerate(tokens) if token.type == "heading_open"
    ]
    titles = ["".join(child.content for child in children) for children in heads]
    return {
        re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower())
        for title in titles
    }


def broken_links(page) -> list[str]:
    found = []
    for link in links_of(page):
        path, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", link):
            continue
        target = (page.parent / path).resolve() if path else page
        if not target.exists():
            found.append(f"{page.name} links to {link}, which does not exist")
        elif anchor and anchor not in anchors_of(target):
            found.append(f"{page.name} links to {link}, but {target.name} has no such heading")
    return found


def test_a_broken_link_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# A page\n\n[a](other.md) [b](#a-page) [c](#nothing) [d](https://arxiv.org) ![e](f.svg)"
    )
    assert [sentence.split()[3].rstrip(",") for sentence in broken_links(page)] == [
        "other.md",
        "#nothing",
        "f.svg",
    ]


def unknown_names(page) -> list[str]:
    """Inline code that looks like a file or a key of the configuration, and is none."""
    found = []
    for line, code in inline_code(page):
        for word in code.split():
            name = word.partition("::")[0]
            if MADE_BY_A_RUN.fullmatch(name):
                continue
            if FILE.fullmatch(name):
                if not any((place / name).exists() for place in (REPOSITORY, PACKAGE, DOCS)):
                    found.append(f"{page.name}:{line}: there is no file {name}")
            elif (key := KEY.fullmatch(word)) and key[1] not in KEYS:
                found.append(f"{page.name}:{line}: there is no key {key[1]}")
            elif word.startswith("algo=") and word[5:] not in {*presets(), "NAME"}:
                found.append(f"{page.name}:{line}: there is no preset {word[5:]}")
            elif word.startswith("experiment="):
                if (
                    word[11:] not in {*experiments(), "NAME"}
                    and not (REPOSITORY / word[11:]).is_file()
                ):
                    found.append(f"{page.name}:{line}: there is no experiment {word[11:]}")
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere_and_names_in_the_text_exist(page):
    assert broken_links(page) + unknown_names(page) == []


def test_a_name_that_does_not_exist_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "`method/core/advantages.py` `method/core/gone.py` `replay.k=4` `replay.kk` `algo=r3_gone` `experiment=gone` `RUN/config.yaml`"
        " `pytest tests/test_gone.py -k x` `no file`"
    )
    assert [sentence.split()[-1] for sentence in unknown_names(page)] == [
        "method/core/gone.py",
        "replay.kk",
        "r3_gone",
        "gone",
        "tests/test_gone.py",
    ]


def defaults_in(text: str) -> list[tuple[str, str]]:
    """(key, what the table of docs/method.md says its default is)."""
    rows = [line.split("|") for line in text.splitlines() if line.startswith("|")]
    pairs = [(KEY.match(row[4].strip().strip("`")), row[5].strip()) for row in rows]
    return [(key[1], default.split()[0]) for key, default in pairs if key and default]


def test_the_table_of_the_paper_has_the_defaults():
    settings = dataclasses.asdict(R3Config(run_dir="none"))
    found = defaults_in((DOCS / "method.md").read_text())
    assert len(found) > 10
    for key, said in found:
        section, name = key.split(".")
        value = settings[section][name]
        if key == "train.batch_size":
            assert (said, value) == ("the", None)  # "the whole step"
        else:
            assert said == str(value) or float(said) == value, (
                f"{key} is {value}, the table says {said}"
            )


def test_a_table_is_read():
    table = "| x | y | z | `replay.k` (k) | 2 rows | ours |\n| a | b | c | no key | 3 | d |"
    assert defaults_in(table) == [("replay.k", "2")]
