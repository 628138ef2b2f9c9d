"""Bodies of the HTTP routes, as msgspec reads them."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Raw, Struct, field

from r3_openrlhf.config.answer_tasks import DEFAULT_TASK

MAX_ITEMS = 1024
Text = Annotated[str, Meta(max_length=4_000_000)]


class GradeItem(Struct, forbid_unknown_fields=True):
    """One response to grade.

    response: without the prompt. references: accepted answers; any of them counts. task: one of
    TASKS, or the service's own. metadata: an object or null, not read here but in the grading
    process, at the item's own cost."""

    response: Text
    references: Annotated[list[Text], Meta(min_length=1, max_length=100)]
    num_tokens: Annotated[int, Meta(ge=0, le=10_000_000)]
    task: Annotated[str, Meta(max_length=200)] = DEFAULT_TASK
    truncated: bool = False
    metadata: Raw = field(default_factory=lambda: Raw(b"null"))
    problem: Text = ""


class GradeBody(Struct, forbid_unknown_fields=True):
    """The body of /grade."""

    items: Annotated[list[GradeItem], Meta(min_length=1, max_length=MAX_ITEMS)]
