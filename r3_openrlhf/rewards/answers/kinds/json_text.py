"""JSON: the same content in any order of keys and with any white space."""

import json

from r3_openrlhf.rewards.answers.kinds import Kind

_NAMES_OF_ANSWERS = frozenset(
    ["answer", "ground_truth", "final_answer", "target", "label", "solution", "reference"]
)


def _read(text: str, problem: str) -> str | None:
    text = text.strip().removeprefix("```json").strip("`").strip()
    if text[:1] not in "{[" or len(text) > 5000:
        return None
    try:
        return json.dumps(
            json.loads(text.replace("\\{", "{").replace("\\}", "}")), sort_keys=True
        )
    except (ValueError, RecursionError):
        return None


def _recognise(reference: str, problem: str) -> bool:
    content = json.loads(read) if (read := _read(reference, problem)) else None
    if isinstance(content, dict):
        return bool(content) and not (len(content) == 1 and content.keys() & _NAMES_OF_ANSWERS)
    return isinstance(content, list) and _has_more_than_numbers(content)


def _has_more_than_numbers(items: list) -> bool:
    """Tell whether a list holds a text, an object, true, false or null, at any depth; else it is mathematics."""
    return any(
        _has_more_than_numbers(item)
        if isinstance(item, list)
        else item is None or isinstance(item, (str, dict, bool))
        for item in items
    )


def _find(sentence: str, problem: str) -> list[str]:
    """Return what is in the outermost brackets of a sentence."""
    starts = [place for sign in "{[" if (place := sentence.find(sign)) >= 0]
    return [sentence[min(starts) : max(map(sentence.rfind, "}]")) + 1]] if starts else []


KIND = Kind(
    name="JSON",
    recognise=_recognise,
    read=_read,
    find=_find,
)
