"""Bodies of requests: read within bounds, parsed off the event loop; metadata unchanged."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

import msgspec
from starlette.requests import Request

from r3_openrlhf.config.answer_tasks import TASKS
from r3_openrlhf.rewards.answers.request import GradeRequest
from r3_openrlhf.rewards.server.admission_queue import Busy, Question
from r3_openrlhf.rewards.server.schema import GradeBody

MAX_REASON_CHARS = 300
Parsed = TypeVar("Parsed")

_decode = msgspec.json.Decoder(GradeBody).decode


class Refused(Exception):
    """This body is not taken: status and sentence. unread: the rest will not be read."""

    def __init__(self, status: int, reason: str, *, unread: bool = False) -> None:
        super().__init__(reason)
        self.status = status
        self.unread = unread


class Bodies:
    """max_bytes: of one body. max_bytes_in_all: of those that are being read or parsed
    (`num_bytes`); one alone may have more. read_timeout_s: until a body is there."""

    def __init__(self, *, max_bytes: int, max_bytes_in_all: int, read_timeout_s: float) -> None:
        self._max_bytes = max_bytes
        self._max_bytes_in_all = max_bytes_in_all
        self.num_bytes = 0
        self._read_timeout_s = read_timeout_s

    async def read(self, request: Request, parse: Callable[[bytes], Parsed]) -> Parsed:
        """Refused, Busy; what `parse` raises; starlette's ClientDisconnect."""
        body = bytearray()
        try:
            async with asyncio.timeout(self._read_timeout_s):
                async for piece in request.stream():
                    body += piece
                    self.num_bytes += len(piece)
                    if len(body) > self._max_bytes:
                        raise Refused(413, f"a body has at most {self._max_bytes} bytes", unread=True)
                    if self.num_bytes > max(len(body), self._max_bytes_in_all):
                        raise Busy(unread=True)
            if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
                # a page in a browser may send other types to a loopback address without asking
                raise Refused(422, "the content type of a body is application/json")
            return await asyncio.to_thread(parse, bytes(body))
        except TimeoutError:
            raise Refused(408, f"the body did not come within {self._read_timeout_s:g} s", unread=True) from None
        finally:
            self.num_bytes -= len(body)


def parse_grade_body(body: bytes, *, own_task: str) -> list[Question]:
    """The items of /grade. Refused: the body has not the documented form.

    own_task: of this service; of the tasks that users have written, a caller can have no other one.
    """
    questions = []
    for i, item in enumerate(_read(body).items):
        if item.task not in TASKS and item.task != own_task:
            raise Refused(422, f"no such task; known: {', '.join({*TASKS, own_task})} - at `$.items[{i}].task`")
        metadata = bytes(item.metadata)
        if metadata[:1] not in (b"{", b"n"):
            raise Refused(422, f"Expected `object | null` - at `$.items[{i}].metadata`")
        facts = {"references": tuple(item.references), "metadata": metadata if metadata[:1] == b"{" else None}
        questions.append(Question.of(GradeRequest(**msgspec.structs.asdict(item) | facts)))
    return questions


def _read(body: bytes) -> GradeBody:
    """A refusal with the place but without the value, which may be long or not be JSON."""
    try:
        return _decode(body)
    except msgspec.ValidationError as error:
        reason = str(error) if "`$" in str(error) else f"{error} - at `$`"
        raise Refused(422, reason.encode("ascii", "replace").decode()[-MAX_REASON_CHARS:]) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refused(422, f"this is no JSON: {error} - at `$`") from error
    except RecursionError as error:
        raise Refused(400, "this is nested too deep for parsing") from error
