"""Bodies of the HTTP routes. What comes in is read by msgspec, what goes out is described by pydantic."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Raw, Struct, field
from msgspec.json import schema_components
from pydantic import BaseModel

from r3_openrlhf.config.answer_tasks import DEFAULT_TASK, TASKS

MAX_ITEMS = 1024
Text = Annotated[str, Meta(max_length=4_000_000)]
NULL = Raw(b"null")


class GradeItem(Struct, forbid_unknown_fields=True):
    """One response to grade."""

    response: Annotated[Text, Meta(description="What the model wrote, without the prompt")]
    references: Annotated[
        list[Text], Meta(min_length=1, max_length=100, description="Accepted answers; any of them counts")
    ]
    num_tokens: Annotated[int, Meta(ge=0, le=10_000_000, description="Length of the response, for the length reward")]
    task: Annotated[
        str, Meta(max_length=200, description=f"{', '.join(TASKS)}, or what the service has as --task")
    ] = DEFAULT_TASK
    truncated: Annotated[bool, Meta(description="The response ended because of the token limit")] = False
    # Raw: not read here but in the grading process, at the item's own cost
    metadata: Annotated[
        Raw,
        Meta(
            description="reasoning_gym: the entry of the data set",
            extra_json_schema={"anyOf": [{"type": "object"}, {"type": "null"}]},
        ),
    ] = field(default_factory=lambda: NULL)
    problem: Annotated[Text, Meta(description="math: the problem; a formula copied from it is no answer")] = ""


class GradeBody(Struct, forbid_unknown_fields=True):
    """The body of /grade."""

    items: Annotated[list[GradeItem], Meta(min_length=1, max_length=MAX_ITEMS)]


Label = Annotated[
    Raw,
    Meta(
        extra_json_schema={
            "anyOf": [
                {"type": "string"},
                {"type": "number"},
                {"type": "array", "items": {"type": "string"}},
                {"type": "object"},
                {"type": "null"},
            ]
        }
    ),
]


class StockBody(Struct):
    """OpenRLHF's remote reward request; the three lists have the same length."""

    query: Annotated[list[Text], Meta(min_length=1, max_length=MAX_ITEMS, description="Prompt and response, decoded")]
    prompts: Annotated[list[Text], Meta(min_length=1, max_length=MAX_ITEMS)]
    labels: Annotated[list[Label], Meta(min_length=1, max_length=MAX_ITEMS)]


def body_schemas() -> dict[str, Any]:
    """JSON schemas of the bodies, by name, for the components of an OpenAPI document."""
    _, components = schema_components([GradeBody, StockBody], ref_template="#/components/schemas/{name}")
    return components


class GradeResult(BaseModel):
    """The grade of one item; score and reward are null where it could not be graded."""

    verdict: Literal["correct", "wrong", "ungraded"]
    reason: str
    score: float | None
    reward: float | None
    extracted: str | None
    seconds: float
    extras: dict[str, float | str]


class GradeAnswer(BaseModel):
    """One result per item, in the same order."""

    results: list[GradeResult]


class StockAnswer(BaseModel):
    """Numbers for one item, lists for several; null where an item could not be graded."""

    rewards: float | list[float | None]
    scores: float | list[float | None]
    extra_logs: dict[str, float | list[float | None]]


class Problem(BaseModel):
    """The reason why a request was not answered."""

    detail: str
