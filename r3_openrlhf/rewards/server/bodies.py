"""Bodies of requests: read within bounds, parsed off the event loop; metadata unchanged."""

import asyncio
from typing import Annotated

import msgspec
from msgspec import Meta, Raw, Struct, field
from starlette.requests import Request

from r3_openrlhf.config.answer_tasks import DEFAULT_TASK, TASKS
from r3_openrlhf.rewards.answers.request import GradeRequest
from r3_openrlhf.rewards.exchange import encode_request
from r3_openrlhf.rewards.server.admission_queue import Question

MAX_REASON_CHARS = 300
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


_decode = msgspec.json.Decoder(GradeBody).decode


class Refused(Exception):
    """This body is not taken: status and sentence. After 408 and 413 the rest is not read."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


async def read_body(
    request: Request, *, own_task: str, max_bytes: int, timeout_s: float
) -> list[Question]:
    """Read the items of a request, as parse_grade_body. Refused; starlette's ClientDisconnect."""
    body = bytearray()
    try:
        async with asyncio.timeout(timeout_s):
            async for piece in request.stream():
                body += piece
                if len(body) > max_bytes:
                    raise Refused(413, f"a body has at most {max_bytes} bytes")
    except TimeoutError:
        raise Refused(408, f"the body did not come within {timeout_s:g} s") from None
    if (
        request.headers.get("content-type", "").partition(";")[0].strip().lower()
        != "application/json"
    ):
        # a page in a browser may send other types to a loopback address without asking
        raise Refused(422, "the content type of a body is application/json")
    return await asyncio.to_thread(parse_grade_body, bytes(body), own_task=own_task)


def parse_grade_body(body: bytes, *, own_task: str) -> list[Question]:
    """Read the items of /grade. Refused: the body has not the documented form.

    own_task: of this service; of the tasks that users have written, a caller can have no other one.
    """
    questions = []
    for i, item in enumerate(_read(body).items):
        if item.task not in TASKS and item.task != own_task:
            raise Refused(
                422,
                f"no such task; known: {', '.join({*TASKS, own_task})} - at `$.items[{i}].task`",
            )
        metadata = bytes(item.metadata)
        if metadata[:1] not in (b"{", b"n"):
            raise Refused(422, f"Expected `object | null` - at `$.items[{i}].metadata`")
        facts = {
            "references": tuple(item.references),
            "metadata": metadata if metadata[:1] == b"{" else None,
        }
        request = GradeRequest(**msgspec.structs.asdict(item) | facts)
        questions.append((request, encode_request(request)))
    return questions


def _read(body: bytes) -> GradeBody:
    """Decode a body. A refusal has the place but not the value, which may be long or not be JSON."""
    try:
        return _decode(body)
    except msgspec.ValidationError as error:
        reason = str(error) if "`$" in str(error) else f"{error} - at `$`"
        raise Refused(
            422, reason.encode("ascii", "replace").decode()[-MAX_REASON_CHARS:]
        ) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refused(422, f"this is no JSON: {error} - at `$`") from error
    except RecursionError as error:
        raise Refused(400, "this is nested too deep for parsing") from error
