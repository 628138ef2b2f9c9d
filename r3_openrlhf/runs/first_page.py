"""The first page of a run: what is read, what the model reads, what the grader says, and what looks
wrong.

A run on garbage looks like any other for hours. This page shows in ten seconds what no number does:
a prompt without spaces, a reference that is no answer, a grader that accepts everything."""

from __future__ import annotations

import inspect
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from r3_openrlhf.config import R3Config, RewardConfig
from r3_openrlhf.config.answer_tasks import TASKS
from r3_openrlhf.config.code_tests import read_tests
from r3_openrlhf.config.finding import Finding
from r3_openrlhf.config.idle_rows import why_all_rows_stay
from r3_openrlhf.config.reward_functions import BUILT_IN, reward_function
from r3_openrlhf.method.core.distill import TaughtRows
from r3_openrlhf.method.errors import ConfigError, quoted
from r3_openrlhf.problems.label import Label
from r3_openrlhf.problems.prompts import RunPrompts
from r3_openrlhf.problems.training_file import PreparedData, read_prompts
from r3_openrlhf.rewards.answers.references import read_reference
from r3_openrlhf.rewards.answers.request import GradeRequest
from r3_openrlhf.rewards.exchange import Grade, in_group
from r3_openrlhf.rewards.probe import Probe, grades_of, probe_rewards
from r3_openrlhf.rewards.thinking import as_graded
from r3_openrlhf.runs.directory import RunDirectory, write_whole
from r3_openrlhf.runs.models.checks import (
    directory_findings,
    end_notes,
    load_tokenizer,
    template_findings,
    tokenizer_findings,
)
from r3_openrlhf.runs.overview import overview

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

NUM_EXAMPLES = 3
_PROMPT_LINES, _LINE_CHARS = 8, 110  # of a prompt on the page; JSON has all of it
_MOST_FOUND = 40  # lines of what was found
_TEACHER_LINES = 24  # of a teacher's, whose text is around the problem
SHOWN = "(a right response of this problem)"
_TRIES = (r"\boxed{{{}}}", "The answer is {}.")


@dataclass(frozen=True, kw_only=True)
class Example:
    """One problem as the run sees it.

    Attributes:
        prompt: Decoded from the ids that the model reads.
        read_as: For each reference, what the grader compares with; a user's own grader gets the
            reference itself.
        said: (response, what the grader said to it): the reference in a box and in a sentence, then
            a wrong answer. For tests of programs a program that does nothing."""

    uid: str
    prompt: str
    references: list[str]
    read_as: list[str]
    said: list[tuple[str, str]] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class FirstPage:
    """The page that a person reads before anything expensive starts."""

    used: int
    left_out: dict[str, int] = field(default_factory=dict)  # reason -> rows
    steps: int | None = None
    examples: list[Example] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)  # of each: rows, columns, form of answers
    # of all rows: lengths, kinds of references, the oddest
    overview: list[str] = field(default_factory=list)
    rewards: list[str] = field(default_factory=list)  # the user's own rewards on one problem
    algorithm: list[str] = field(default_factory=list)  # of a training run: `algorithm_lines`
    # what a reader might not expect of data, template, engine or machine, and is no fault
    found: list[str] = field(default_factory=list)
    # of history.start: number, origin, three rows
    imported: list[str] = field(default_factory=list)
    # the prompt after which a response of the first example is scored (distill), as the model reads it
    teacher: str = ""

    def check(self) -> None:
        """ConfigError: something is wrong for sure."""
        if refusals := [one.sentence for one in self.findings if one.refuses]:
            raise ConfigError("; ".join(refusals))

    def as_dict(self) -> dict[str, Any]:
        """Return the fields for JSON, uncut."""
        return asdict(self) | {"read": self.used + sum(self.left_out.values())}

    def lines(self) -> list[str]:
        """Return the page as lines of text."""
        left = ", ".join(
            f"{count:,} {reason}" for reason, count in self.left_out.items() if count
        )
        read = self.used + sum(self.left_out.values())
        rows = f"{read:,} rows read, {self.used:,} used" + (
            f"; left out: {left}" if left else ""
        )
        found = [f"Problems   {rows}", *(f"           {source}" for source in self.sources)]
        if self.steps is not None:
            found.append(f"Steps      {self.steps:,}")
        found += _beside("Rows       ", self.overview)
        found += [
            f"{'Algorithm  ' if i == 0 else ' ' * 11}{line}"
            for i, line in enumerate(self.algorithm)
        ]
        for number, example in enumerate(self.examples, start=1):
            found.append(f"Example {number}")
            found += _beside("  prompt     ", example.prompt.split("\n"))
            readings = zip(example.references, example.read_as, strict=True)
            found += _beside(
                "  reference  ",
                [
                    one if one == read else f"{one[: _LINE_CHARS // 2]} -> {read}"
                    for one, read in readings
                ],
            )
            found += _beside(
                "  grader     ",
                [f"{response}: {verdict}" for response, verdict in example.said],
            )
        if self.teacher:
            found += _beside("Teacher    ", self.teacher.split("\n"), most=_TEACHER_LINES)
        for text in self.imported:
            found += _beside("Imported   ", text.split("\n"))
        found += _beside(
            "Rewards    ", [part for one in self.rewards for part in wrap(one, _LINE_CHARS)]
        )
        found += _beside(
            "Found      ",
            [part for one in self.found for part in _wrapped(one)],
            most=_MOST_FOUND,
        )
        notes = [
            ("Refused" if one.refuses else "Warning", one.sentence) for one in self.findings
        ]
        return found + [f"{word}: {_clean(sentence)}" for word, sentence in notes]


def page_of_run(
    config: R3Config,
    tokenizer: PreTrainedTokenizerBase | None,
    model: str | None,
    data: PreparedData,
    *,
    num_held_out: int | None = None,
) -> FirstPage:
    """Make the page of a training run, from its training file. Only `FirstPage.check` raises.

    num_held_out: the problems in the held-out file; None: there is none, or it has not been read."""
    prompts, labels = read_prompts(data.path)
    places = range(0, len(labels), max(1, data.num_problems // NUM_EXAMPLES))[:NUM_EXAMPLES]
    problems = list(map(Label.from_json, labels))
    rows = [(problems[i], prompts[i]) for i in places]
    left_out = Counter({"equal to an earlier one": data.num_duplicates})
    for source in data.sources:
        left_out.update(source.left_out)
    start = FirstPage(
        used=data.num_problems,
        left_out=dict(left_out),
        steps=num_steps(config, data),
        findings=data.findings,
        found=data.notes,
        sources=[
            one.how_read
            if one.name is None
            else f"{one.name}: {one.num_rows:,} rows read, {one.num_used:,} used; {one.how_read}"
            for one in data.sources
        ],
        overview=overview(problems, prompts),
        algorithm=algorithm_lines(config, num_held_out=num_held_out),
    )
    return make_page(start, config, tokenizer, model, rows)


def add_to_page(run: RunDirectory, part: str, sentences: Sequence[str]) -> None:
    """Append sentences to a list of the run's first_page.json ("found", "imported")."""
    if not sentences:
        return
    page = json.loads(run.first_page.read_text(encoding="utf-8"))
    page[part] += sentences
    write_whole(run.first_page, json.dumps(page, ensure_ascii=False) + "\n")


def num_steps(config: R3Config, data: PreparedData) -> int:
    """Count the steps of the whole run, whose last batch may be short; at most train.max_steps."""
    steps = -(-data.num_problems // config.rollout.batch_size) * config.train.num_epochs
    return min(steps, config.train.max_steps or steps)


def page_of_tasks(config: R3Config, model: str | None, data: PreparedData) -> FirstPage:
    """Make the page of an agentic run: model and number of tasks; prompts only arise in play."""
    tokenizer = model and load_tokenizer(
        model, trusted=config.model.trust_remote_code, data=config.data
    )
    steps, algorithm = num_steps(config, data), algorithm_lines(config)
    return make_page(
        FirstPage(used=data.num_problems, steps=steps, algorithm=algorithm),
        config,
        tokenizer,
        model,
        [],
    )


def algorithm_lines(config: R3Config, *, num_held_out: int | None = None) -> list[str]:
    """Name what the update is made of, what is on and off, and what measures it.

    num_held_out: the held-out problems, where they have been read."""
    algorithm, train = config.algorithm, config.train
    if not algorithm.own_advantages:
        estimator = f"{algorithm.estimator} of OpenRLHF"
    elif config.is_agentic:
        estimator = str(config.agents.estimator)
    else:
        estimator = (
            config.algo if algorithm.advantages is not None else str(config.advantage.function)
        )
        estimator += ", which has no baseline" if config.estimator.trains_equal_groups else ""
    bounds = {
        name: value
        for name, value in config.loss_settings._asdict().items()
        if name in config.loss.reads
    }
    clip = ", ".join(
        f"{name} {'off' if value is None else f'{value:g}'}" for name, value in bounds.items()
    )
    parts = {
        **{name: getattr(config, name).enabled for name in ("replay", "reflection", "ranking")},
        "teacher": config.distill.enabled,
        "rehearsal": config.replay.rehearse.share > 0,
        "imported successes": config.has_imported,
        "warm start": config.has_imported and config.replay.imported.warm_start > 0,
        "prefix groups": config.has_imported
        and config.replay.imported.use in ("prefix", "all"),
        "success weight": config.advantage.success_scale != 1,
        "states": config.exploration.rrl.ratio > 0,
        "critic": algorithm.has_critic,
        "group filter": config.filters_groups,
        "overlong penalty": algorithm.overlong_penalty,
        # what a function returns is the reward as it is (rewards/exchange.py)
        "length reward": config.reward.length_reward_max_tokens is not None
        and not config.reward.all_functions,
        "KL": train.kl_coef > 0,
    }
    has_none = not algorithm.mechanisms and not config.exploration.rrl.ratio
    without = ["without R³; algo=r3 adds it"] if has_none else []
    return [
        f"{config.algo}: estimator {estimator}; loss {config.loss_name}, {train.loss_aggregation}; clip: {clip or 'none'}",
        f"on: {', '.join(name for name, is_on in parts.items() if is_on) or 'nothing'}",
        f"off: {', '.join(name for name, is_on in parts.items() if not is_on)}",
        *without,
        *_teacher_line(config),
        *_routing_line(config),
        _idle_rows_line(config),
        *_single_response_line(config),
        _held_out_line(config, num_held_out),
    ]


def _single_response_line(config: R3Config) -> list[str]:
    if config.rollout.n_samples_per_prompt > 1:
        return []
    return [
        "one response a prompt: nothing is compared within a group, so r3/groups counts no mixed or collapsed ones"
    ]


_KEPT = {
    "all": "every row keeps its group's advantage",
    "untaught": "a taught row has no other advantage",
    "none": "no row has another advantage",
}


def _teacher_line(config: R3Config) -> list[str]:
    """Say which rows are taught, by what, and what becomes of their group's advantage."""
    distill = config.distill
    if not distill.enabled:
        return []
    rows = "every response" if distill.rows == TaughtRows.ALL else "failures"
    known = f"a right response ({distill.source})"
    if distill.answer:
        known += ", or the reference answer,"
    kept = {
        "all": "added to its group's advantage",
        "untaught": "in place of a taught row's group advantage",
        "none": "the only advantage",
    }[distill.group_advantage]
    bound = "" if distill.bound is None else f" within {distill.bound:g} nats"
    if distill.compares_logits:
        return [
            f"teacher: {rows} with {known} to show are scored again after it; {distill.loss} to the teacher on the "
            f"{distill.support}'s {distill.top_k} likeliest tokens, weight {distill.weight}, times "
            f"{distill.coef:g} joins the loss; {_KEPT[distill.group_advantage]}"
        ]
    return [
        f"teacher: {rows} with {known} to show are scored again after it; the gap of each token{bound}, weight "
        f"{distill.weight}, times {distill.coef:g} is {kept}"
    ]


def _routing_line(config: R3Config) -> list[str]:
    if not config.rollout.routing_replay:
        return []
    return [
        "routing: the policy's passes send each token to the experts that the engine chose; recalled rows to the stored ones"
    ]


def _idle_rows_line(config: R3Config) -> str:
    why = why_all_rows_stay(config)
    return f"rows with advantage 0: {'skip the update' if why is None else f'in the update, because {why}'}"


def _held_out_line(config: R3Config, number: int | None) -> str:
    held_out = config.held_out
    if held_out.path is None:
        return "Warning: no held-out problems, so r3 compare will refuse this run; set held_out.path"
    most = held_out.max_samples
    count = "all" if most is None else f"up to {most:,}"
    count = f"{number:,}" if number is not None else count
    # every run's until there was a key for it
    heat = "" if held_out.temperature == 1 else f" at temperature {held_out.temperature:g}"
    return (
        f"held out: {count} problems of {held_out.path}, {held_out.n_samples} responses each{heat}, "
        f"every {held_out.every_steps} steps"
    )


def make_page(
    start: FirstPage,
    config: R3Config,
    tokenizer: PreTrainedTokenizerBase | None,
    model: str | None,
    rows: Sequence[tuple[Label, str]],
) -> FirstPage:
    """`start` with what is said of some problems with final prompts (`rows`); without a model, of the problems alone."""
    reward, found, shown = config.reward, list[Finding](), [prompt for _, prompt in rows]
    notes = list(start.found)
    said = _grades(reward, rows)
    if tokenizer is not None and model is not None:
        ids = [
            tokenizer(text=prompt, add_special_tokens=False)["input_ids"] for prompt in shown
        ]
        shown, used_ids = (
            list(map(tokenizer.decode, ids)),
            [number for one in ids for number in one],
        )
        found += [
            *directory_findings(model),
            *tokenizer_findings(
                tokenizer, model, [label.problem for label, _ in rows], used=used_ids
            ),
            *template_findings(tokenizer, model, config.data, ids[0] if ids else []),
        ]
        notes += end_notes(tokenizer, model, config.data)
    examples = [
        Example(
            uid=label.uid,
            prompt=prompt,
            references=list(label.references),
            read_as=[_read_as(label.task, text, label.problem) for text in label.references],
            said=verdicts,
        )
        for (label, _), prompt, verdicts in zip(rows, shown, said, strict=True)
    ]
    probed = probe(reward, rows)
    found += [
        *start.findings,
        *(probed.findings if probed is not None else _grader_findings(rows, examples)),
    ]
    rewards = probed.rewards if probed is not None else []
    teacher = _teacher_prompt(config, tokenizer, rows)
    return replace(
        start,
        examples=examples,
        findings=found,
        found=notes,
        rewards=rewards,
        teacher=teacher,
    )


def _teacher_prompt(
    config: R3Config,
    tokenizer: PreTrainedTokenizerBase | None,
    rows: Sequence[tuple[Label, str]],
) -> str:
    """Return the teacher's prompt of the first problem with room for it, with a stand-in for the response."""
    if not config.distill.enabled or tokenizer is None:
        return ""
    prompts = RunPrompts(config, tokenizer)
    for label, _ in rows:
        prompt = prompts.teacher_of_text(label, SHOWN)
        if prompt is not None:
            return str(
                tokenizer.decode(tokenizer(prompt, add_special_tokens=False)["input_ids"])
            )
    return ""


def probe(config: RewardConfig, rows: Sequence[tuple[Label, str]]) -> Probe | None:
    """List the answers of the user's functions and servers; None: the built-in grader's turn."""
    if not rows or not (config.urls or config.all_functions):
        return None
    label, prompt = rows[0]
    if not label.references and (asks := _asks_for_reference(config)):
        what = f"{asks} judges by a reference, and the problems have none; name their column in data.answer_key"
        return Probe([], [Finding(what, refuses=True)])
    return probe_rewards(config, label, prompt)


def _asks_for_reference(config: RewardConfig) -> str:
    wanted = {"reference", "references", "ground_truth"}
    for path in config.all_functions:
        if path == BUILT_IN:
            return BUILT_IN
        found = reward_function("reward.function", path)
        if wanted & set(inspect.signature(found.call).parameters):
            return f"reward.function {path}"
    return ""


def _grades(
    config: RewardConfig, rows: Sequence[tuple[Label, str]]
) -> list[list[tuple[str, str]]]:
    # a server may be down: `probe_rewards` asks each about one problem
    if config.urls or not rows:
        return [[] for _ in rows]
    asked = [_asked(label, prompt, rows) for label, prompt in rows]
    grades = iter(grades_of(config, [request for each in asked for request in each.values()]))
    return [[(response, _words(next(grades))) for response in each] for each in asked]


def _words(grade: Grade) -> str:
    verdict = str(grade.verdict)
    return verdict if grade.reason == verdict else f"{verdict} ({grade.reason})"


def _asked(
    label: Label, prompt: str, rows: Sequence[tuple[Label, str]]
) -> dict[str, GradeRequest]:
    if not label.references:  # only the scorer of its task knows the answer
        return {}
    close = "</think> " if as_graded(prompt, "") else ""
    reference = (
        read_reference(label.references[0]).text
        if label.task == "math"
        else label.references[0]
    )
    others = [
        other.references[0]
        for other, _ in rows
        if other.references and other.references[0] not in label.references
    ]
    wrong = others[0] if others else "-8675309"

    def request(response: str) -> GradeRequest:
        text = as_graded(prompt, close + response)
        return GradeRequest.about(label, text, num_tokens=len(response), prompt=prompt)

    responses = [*(text.format(reference) for text in _TRIES), _TRIES[0].format(wrong)]
    if TASKS[label.task].runs_programs:  # a right one is not known
        responses = [TASKS[label.task].answer_form % "pass"]
    return dict(zip(responses, in_group(list(map(request, responses))), strict=True))


def _grader_findings(
    rows: Sequence[tuple[Label, str]], examples: Sequence[Example]
) -> list[Finding]:
    asked = [example.said for example in examples if example.said]
    if not asked:
        return []
    own = not TASKS[rows[0][0].task].of_user
    found = []
    unpaid = [
        said
        for said in asked
        if said[1:] and not any(verdict.startswith("correct") for _, verdict in said[:-1])
    ]
    if unpaid:
        response, verdict = unpaid[0][0]
        found.append(
            Finding(
                f"the grader pays the reference of {len(unpaid)} of {len(asked)} examples neither in a box nor in a sentence "
                f"({quoted(response)}: {verdict}); is data.answer_key the column with the answer, and data.task its grader?",
                refuses=own and len(unpaid) == len(asked),
            )
        )
    programs = [said[0][1] for said in asked if not said[1:]]
    if programs and all(verdict.startswith("ungraded") for verdict in programs):
        found.append(
            Finding(
                f"the programs of responses cannot be run here: {programs[0]}", refuses=True
            )
        )
    paid = [said[-1][0] for said in asked if said[-1][1].startswith("correct")]
    if paid:
        found.append(
            Finding(
                f"the grader pays a wrong answer in {len(paid)} of {len(asked)} examples ({quoted(paid[0])}); look at the references "
                "above, or at the grader",
                refuses=own and len(paid) == len(asked) and len(asked) > 1,
            )
        )
    return found


def _read_as(task: str, reference: str, problem: str) -> str:
    if TASKS[task].runs_programs:
        tests = read_tests(reference)
        return f"{tests.number} tests of {tests.kind}"
    if task != "math":
        return reference
    read = read_reference(reference, problem)
    return f"{read.text} ({read.kind})" if read.kind else read.text


def _wrapped(text: str) -> list[str]:
    """Return lines that break between words: a path stays whole."""
    return wrap(text, _LINE_CHARS, break_on_hyphens=False, break_long_words=False)


def _beside(head: str, lines: Sequence[str], *, most: int = _PROMPT_LINES) -> list[str]:
    """Format a stranger's text as a block after `head`, without control characters. "…": a line is cut."""
    cleaned = map(_clean, lines)
    shown = [
        line if len(line) <= _LINE_CHARS else f"{line[: _LINE_CHARS - 1]}…" for line in cleaned
    ]
    if len(shown) > most:
        half = most // 2
        shown = [*shown[:half], f"... {len(shown) - most:,} lines ...", *shown[-half:]]
    return [
        f"{head if number == 0 else ' ' * len(head)}{line}".rstrip()
        for number, line in enumerate(shown)
    ]


def _clean(text: str) -> str:
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)
