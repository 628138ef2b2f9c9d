"""Plan a step's prompts: those of its groups, why each, and why not others (METHOD section 5)."""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Protocol

import numpy as np

from r3_openrlhf.method.core.distill import Shown
from r3_openrlhf.method.core.reflection import fit_attempt, hint_message, reflection_message
from r3_openrlhf.method.core.states import StoredState
from r3_openrlhf.method.core.teacher_prompt import answer_message, own_message, teacher_message
from r3_openrlhf.method.open_table import Name, loaded
from r3_openrlhf.method.settings import DistillSettings
from r3_openrlhf.method.types import Context, Rollout, Word


class ReflectionFate(Word):
    """Tell whether a problem got a reflection group in this step, and if not, why."""

    ASKED = "asked"
    OFF = "off"  # reflection.enabled=false, or there is no history
    BEFORE_FIRST_EPOCH = "before_first_epoch"
    UNKNOWN_PROBLEM = "unknown_problem"  # no graded rollout of it is known
    NOT_HARD = "not_hard"  # its stored rollouts are not below reflection.threshold
    CUT = "cut_by_max_share"
    WITHOUT_ERROR = "without_error"  # the store has no wrong answer of it (any more)
    WITHOUT_ROOM = "without_room"  # no error fits with the problem


@dataclass(frozen=True, slots=True, eq=False)
class Prefix:
    """The first tokens of a stored response. ids: int32 [n]; logprobs: float32 [n], as they were
    once sampled with; state: why they are continued, where a critic chose them."""

    ids: np.ndarray
    logprobs: np.ndarray
    state: StoredState | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ChosenStates:
    """States that a step's groups start from, and metrics of all states in the store."""

    prefixes: list[Prefix]
    metrics: dict[str, float]

    @property
    def uids(self) -> list[str]:
        """The problem of each prefix."""
        return [prefix.state.uid for prefix in self.prefixes if prefix.state is not None]


@dataclass(frozen=True, slots=True, eq=False)
class StepPrompt:
    """One prompt of the step; its responses are one group.

    Attributes:
        problem: as it was passed in; place: its index there, those of `states` after the problems.
        context: why it is asked: PLAIN, REFLECTION (with a stored error), PREFIX (from a stored
            state, or from the first part of an imported success).
        prompt: what `PromptMaker` made of it.
        prefix: the tokens that a response begins with; PREFIX only."""

    problem: Any
    place: int
    context: Context
    prompt: Any
    prefix: Prefix | None = None


@dataclass(slots=True)
class StepPrompts:
    """The prompts of a step (iterate over it), and the fate of every problem.

    Attributes:
        prompts: plain prompts in order, those with an error or a hint, those from a prefix.
        reflection: one fate per problem.
        state_metrics: of exploration.rrl, stored states by fate, their values and outcomes.
    """

    prompts: list[StepPrompt]
    reflection: list[ReflectionFate]
    state_metrics: dict[str, float] = field(default_factory=dict)

    def __iter__(self) -> Iterator[StepPrompt]:
        return iter(self.prompts)

    def metrics(self) -> dict[str, float]:
        """`r3/reflection/hard_prompts`, and a count for each reason against reflection."""
        why = Counter(self.reflection)
        hard = (
            ReflectionFate.ASKED,
            ReflectionFate.CUT,
            ReflectionFate.WITHOUT_ERROR,
            ReflectionFate.WITHOUT_ROOM,
        )
        reasons = [
            fate
            for fate in ReflectionFate
            if fate not in (ReflectionFate.ASKED, ReflectionFate.OFF)
        ]
        return (
            {"r3/reflection/hard_prompts": float(sum(why[fate] for fate in hard))}
            | {f"r3/reflection/{fate}": float(why[fate]) for fate in reasons}
            | self.state_metrics
        )


class PromptMaker(Protocol):
    """Renders a loop's prompts; they may be of any type: text, token ids, messages."""

    def plain(self, problem: Any) -> Any:
        """Return the prompt that asks the problem."""

    def reflection(self, problem: Any, error: Rollout | None) -> Any | None:
        """Return the prompt that shows a wrong answer and asks again, or without one shows the
        reference answer (reflection.hint); None: there is no room for it."""

    def teacher(
        self,
        problem: Any,
        success: Rollout | None,
        *,
        settings: DistillSettings,
        error: Rollout | None,
    ) -> Any | None:
        """Return the prompt behind which a response of the problem is scored (method/core/distill.py): it
        shows a success, or without one the reference answer; None: there is no room for it."""


class ChatPrompts:
    """Prompts of text for a tokenizer of transformers; a reflection prompt is one user turn
    (method/core/reflection.py).

    Args:
        tokenizer: counts, decodes stored attempts, has a chat template unless `render` is given.
        max_prompt_tokens: of a whole prompt; an attempt is shortened to fit, the problem never.
        max_attempt_tokens: of the attempt alone.
        message: problem -> the text of the user's turn; without it the attribute `problem`.
        render: text of the user's turn -> prompt, text or messages; without it the tokenizer's chat
            template. Both are functions or their import paths."""

    def __init__(
        self,
        tokenizer: Any,
        *,
        max_prompt_tokens: int,
        max_attempt_tokens: int = 2048,
        message: Name = attrgetter("problem"),
        render: Name | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.max_prompt_tokens = max_prompt_tokens
        self.max_attempt_tokens = max_attempt_tokens
        self.message: Callable[[Any], str] = loaded("message", message)
        self.render: Callable[[str], Any] = loaded("render", render) or self._chat

    def plain(self, problem: Any) -> Any:
        """Return the problem as a prompt."""
        return self.render(self.message(problem))

    def reflection(self, problem: Any, error: Rollout | None) -> Any | None:
        """Return the problem with a stored error and guidance, in the context; without an error,
        with the first of its `references`. None: no space for it, or no reference."""
        message = self.message(problem)
        if error is None:
            answers = getattr(problem, "references", None) or []
            prompts = [self.render(hint_message(message, answer)) for answer in answers[:1]]
            return next(
                (one for one in prompts if self.count(one) <= self.max_prompt_tokens), None
            )
        attempt = self._text(error)
        shortened = self.fit(
            attempt, lambda text: self.count(self.render(reflection_message(message, text)))
        )
        return (
            None if shortened is None else self.render(reflection_message(message, shortened))
        )

    def teacher(
        self,
        problem: Any,
        success: Rollout | None,
        *,
        settings: DistillSettings,
        error: Rollout | None = None,
    ) -> Any | None:
        """Return the problem with a right response, in the context; without a response, with the first
        of its `references`. Only the success is shortened. None: no space for it, or no reference."""
        if success is None:
            answers = getattr(problem, "references", None) or []
            if not answers:
                return None
            prompt = self.render(answer_message(self.message(problem), answers[0]))
            is_short = self.count(prompt) <= self._most_of_teacher(settings)
            return prompt if is_short else None
        wrong = None if error is None else self._text(error)
        return self.teacher_of_text(
            problem, self._text(success), settings=settings, wrong=wrong
        )

    def teacher_of_text(
        self,
        problem: Any,
        success: str,
        *,
        settings: DistillSettings,
        wrong: str | None = None,
    ) -> Any | None:
        """Return the same with the texts of a right response and, if one is shown, a wrong one."""
        message = self.message(problem)

        def prompt_with(solution: str) -> Any:
            if settings.template is not None:
                return self.render(own_message(settings.template, message, solution))
            says_verdict = settings.shows == Shown.VERDICT
            return self.render(
                teacher_message(message, solution, verdict=says_verdict, error=wrong)
            )

        solution = fit_attempt(
            success,
            num_prompt_tokens=lambda text: self.count(prompt_with(text)),
            num_tokens=self.count,
            max_prompt_tokens=self._most_of_teacher(settings),
            max_attempt_tokens=settings.max_success_tokens,
        )
        return None if solution is None else prompt_with(solution)

    def _most_of_teacher(self, settings: DistillSettings) -> int:
        """Return the most tokens of a teacher's prompt."""
        if settings.max_prompt_tokens is not None:
            return settings.max_prompt_tokens
        return self.max_prompt_tokens + settings.max_success_tokens

    def _text(self, rollout: Rollout) -> str:
        return self.tokenizer.decode(rollout.response_ids.tolist(), skip_special_tokens=True)

    def fit(self, attempt: str, num_prompt_tokens: Callable[[str], int]) -> str | None:
        """Shorten the attempt to fit with `num_prompt_tokens(attempt)`; None: it cannot."""
        return fit_attempt(
            attempt,
            num_prompt_tokens=num_prompt_tokens,
            num_tokens=self.count,
            max_prompt_tokens=self.max_prompt_tokens,
            max_attempt_tokens=self.max_attempt_tokens,
        )

    def count(self, prompt: str | Sequence[dict[str, str]]) -> int:
        """Tokens of a text, no special ones added, or of messages in the chat template."""
        text = prompt if isinstance(prompt, str) else self._template(prompt)
        return len(self.tokenizer(text=text, add_special_tokens=False)["input_ids"])

    def _chat(self, message: str) -> str:
        return self._template([{"role": "user", "content": message}])

    def _template(self, turns: Sequence[dict[str, str]]) -> str:
        return self.tokenizer.apply_chat_template(
            turns, tokenize=False, add_generation_prompt=True
        )


class RowPrompts:
    """Prompts of a data set's rows, in their form: text, or messages whose last one is the user's.

    Args: see ChatPrompts. A problem has the attribute `prompt`."""

    def __init__(
        self, tokenizer: Any, *, max_prompt_tokens: int, max_attempt_tokens: int = 2048
    ) -> None:
        self.tokenizer = tokenizer
        self.limits = {
            "max_prompt_tokens": max_prompt_tokens,
            "max_attempt_tokens": max_attempt_tokens,
        }

    def plain(self, problem: Any) -> Any:
        """Return the row's own prompt."""
        return problem.prompt

    def reflection(self, problem: Any, error: Rollout | None) -> Any | None:
        """Return the same with a stored error and guidance in its last message. None: no space for it."""
        return self._chat(problem).reflection(problem, error)

    def teacher(
        self,
        problem: Any,
        success: Rollout | None,
        *,
        settings: DistillSettings,
        error: Rollout | None = None,
    ) -> Any | None:
        """Return the same with a right response in its last message. None: no space for it."""
        return self._chat(problem).teacher(problem, success, settings=settings, error=error)

    def _chat(self, problem: Any) -> ChatPrompts:
        """Return the prompts of texts in the place of the row's last message."""
        prompt = problem.prompt
        message: str = prompt
        render: Callable[[str], Any] = str
        if not isinstance(prompt, str):
            *earlier, last = prompt
            message, render = (
                last["content"],
                lambda text: [*earlier, {**last, "content": text}],
            )
        return ChatPrompts(
            self.tokenizer, message=lambda _: message, render=render, **self.limits
        )


def uid_of(row: Mapping[str, Any]) -> str:
    """Return the id of a row's problem: its column `uid`, else a digest of its `prompt`, text or messages."""
    if row.get("uid") is not None:
        return str(row["uid"])
    return hashlib.sha256(json.dumps(row["prompt"], sort_keys=True).encode()).hexdigest()[:16]
