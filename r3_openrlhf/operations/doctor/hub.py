"""Ask the hub of Hugging Face for a model or a data set, without loading it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from r3_openrlhf.method.errors import on_one_line

TIMEOUT_S = 10.0
REFUSED = range(400, 500)  # HTTP statuses: no such name, no such revision, no access
BUSY = 429  # too many requests: no answer about the name

Kind = Literal["model", "dataset"]
Answer = Literal["there", "cached", "refused", "not asked"]


def ask(kind: Kind, name: str, *, revision: str | None) -> tuple[Answer, str]:
    """Return the answer of the hub, else of its cache on this machine, and the reason in one line.

    "not asked": the hub is switched off or gave no answer, and the cache does not have it."""
    try:
        from huggingface_hub import HfApi, constants
    except ImportError as error:
        return "not asked", str(error)
    if constants.HF_HUB_OFFLINE:
        return _of_cache(kind, name, "HF_HUB_OFFLINE is set")
    try:
        HfApi().repo_info(name, repo_type=kind, revision=revision, timeout=TIMEOUT_S)
    except Exception as error:  # the hub's errors have no common class
        reason = on_one_line(str(error).strip() or type(error).__name__)[:200]
        status = getattr(getattr(error, "response", None), "status_code", 0)
        if status in REFUSED and status != BUSY:
            return "refused", reason
        return _of_cache(kind, name, reason)
    return "there", "the hub has it"


def _of_cache(kind: Kind, name: str, why: str) -> tuple[Answer, str]:
    """Look into the hub's cache. why: the reason why the hub itself did not answer."""
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    folder = repo_folder_name(repo_id=name, repo_type=kind)
    if any(Path(constants.HF_HUB_CACHE, folder, "snapshots").glob("*/*")):
        return "cached", why
    return "not asked", why
