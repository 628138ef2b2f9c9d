"""The grader of training as plain futures: the engine's loop never waits for a grade."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING

from r3_openrlhf.config import RewardConfig
from r3_openrlhf.problems.sources import Label
from r3_openrlhf.rewards.answers.request import GradeRequest
from r3_openrlhf.rewards.client import make_grader
from r3_openrlhf.rewards.exchange import Grade
from r3_openrlhf.rewards.thinking import as_graded, response_text

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CLOSE_S = 5.0


class GradingThread:
    """Context manager. Grades in the worker processes, or on the servers, that `config` names; a thread looks after
    them."""

    def __init__(self, config: RewardConfig, *, prompt: str = "") -> None:
        """prompt: a final prompt; the others end as it does."""
        self._config, self._prompt = config, prompt

    def __enter__(self) -> GradingThread:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="r3-evaluation-grading", daemon=True)
        self._thread.start()
        self._grader = asyncio.run_coroutine_threadsafe(self._make(), self._loop).result()
        return self

    def __exit__(self, *error) -> None:
        self._grader.close()  # what is still waiting is answered as ungraded, and no one reads it
        asyncio.run_coroutine_threadsafe(self._last_words(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _last_words(self) -> None:
        """What is closed ends in the loop, which would complain otherwise."""
        if others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others, timeout=CLOSE_S)

    async def _make(self):
        return make_grader(self._config)  # inside the loop: a remote grader opens its connections there

    def is_silent(self, seconds: float) -> bool:
        """True if servers have given no answer for so long. Processes always answer within their own limits."""
        failing_since = getattr(self._grader, "failing_since", None)
        return failing_since is not None and time.monotonic() - failing_since >= seconds

    def text_of(self, tokenizer: PreTrainedTokenizerBase, token_ids: Sequence[int]) -> str:
        """What is graded of a response, as in training."""
        return response_text(tokenizer, token_ids)

    def submit(self, label: Label, text: str, *, num_tokens: int, truncated: bool) -> Future[Grade]:
        """Ask for the grade of one response. Returns at once."""
        request = GradeRequest(
            response=as_graded(self._prompt, text),
            references=tuple(label.references),
            task=label.task,
            num_tokens=num_tokens,
            truncated=truncated,
            metadata=label.metadata,
            problem=label.problem,
            row=label.row,
        )
        return asyncio.run_coroutine_threadsafe(self._grader.grade(request), self._loop)
