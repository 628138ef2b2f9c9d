"""The page that a run wrote before its first step, from first_page.json, for a run that has no numbers yet."""

from typing import Any

from r3_openrlhf.method.errors import R3Error
from r3_openrlhf.runs.directory import RunDirectory
from r3_openrlhf.runs.files import read_json

Part = tuple[str, list[str]]  # a title and its lines


def first_page_of(run: RunDirectory) -> list[Part]:
    """Return its parts; [] where there is none, one sentence where it is damaged."""
    if not run.first_page.is_file():
        return []
    try:
        return _parts(read_json(run.first_page, dict))
    except (R3Error, TypeError, KeyError, ValueError, AttributeError) as error:
        text = str(error) if isinstance(error, R3Error) else "first_page.json is damaged"
        return [("Before step 1", [text])]


def _parts(page: dict[str, Any]) -> list[Part]:
    left_out = ", ".join(f"{count:,} {why}" for why, count in page["left_out"].items() if count)
    rows = f"{page['read']:,} rows read, {page['used']:,} used"
    parts: list[Part] = [
        (
            "Problems",
            [rows + (f"; left out: {left_out}" if left_out else ""), *page["sources"]],
        ),
        ("Steps", [f"{page['steps']:,}"] if page["steps"] is not None else []),
        ("Algorithm", page["algorithm"]),
        ("Found", page.get("found", [])),
        ("Warnings", [one["sentence"] for one in page["findings"]]),
    ]
    for number, example in enumerate(page["examples"], start=1):
        said = [f"{response}: {verdict}" for response, verdict in example["said"]]
        references = [f"reference: {one}" for one in example["references"]]
        prompt = example["prompt"].split("\n")
        parts.append((f"Example {number}", [*prompt, *references, *said]))
    parts.append(("Rewards", page["rewards"]))
    parts.append(("Rows", page["overview"]))
    return [(title, [str(line) for line in lines]) for title, lines in parts if lines]
