"""Bodies of the HTTP routes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

MAX_ITEMS = 1024
Text = Annotated[str, Field(max_length=4_000_000)]


class GradeItem(BaseModel):
    """One response to grade."""

    model_config = ConfigDict(extra="forbid")

    response: Text = Field(description="What the model wrote, without the prompt")
    references: list[Text] = Field(min_length=1, max_length=100, description="Accepted answers; any of them counts")
    task: Literal["math", "exact", "reasoning_gym"] = "math"
    num_tokens: int = Field(ge=0, le=10_000_000, description="Length of the response, for the length reward")
    truncated: bool = Field(default=False, description="The response ended because of the token limit")
    metadata: dict[str, Any] | None = Field(default=None, description="reasoning_gym: the entry of the data set")
    problem: Text = Field(default="", description="math: the problem; a formula copied from it is no answer")
    key: str = Field(default="", max_length=200, description="Idempotency key: the same key is graded once")


class GradeBody(BaseModel):
    model_config = ConfigDict(extra="forbid")

    items: list[GradeItem] = Field(min_length=1, max_length=MAX_ITEMS)


class GradeResult(BaseModel):
    verdict: Literal["correct", "wrong", "ungraded"]
    reason: str
    score: float | None
    reward: float | None
    extracted: str | None
    seconds: float


class GradeAnswer(BaseModel):
    """One result per item, in the same order."""

    results: list[GradeResult]


class StockBody(BaseModel):
    """OpenRLHF's remote reward request; the three lists have the same length."""

    query: list[Text] = Field(min_length=1, max_length=MAX_ITEMS, description="Prompt and response, decoded")
    prompts: list[Text] = Field(min_length=1, max_length=MAX_ITEMS)
    labels: list[str | int | float | list[str] | dict[str, Any] | None] = Field(min_length=1, max_length=MAX_ITEMS)


class StockAnswer(BaseModel):
    """Numbers for one item, lists for several; null where an item could not be graded."""

    rewards: float | list[float | None]
    scores: float | list[float | None]
    extra_logs: dict[str, float | list[float | None]]


class Problem(BaseModel):
    detail: str
