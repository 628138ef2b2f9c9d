"""What an evaluation needs before its engine starts: tokenizer, prompts, settings, first pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from r3_openrlhf.config import BenchmarkConfig, DataConfig, R3Config
from r3_openrlhf.evaluation.benchmarks import ProblemSet
from r3_openrlhf.evaluation.model_source import PROMPT_KEYS, fingerprint
from r3_openrlhf.evaluation.plan import EvaluationPlan
from r3_openrlhf.evaluation.sample_file import EvaluationDirectory
from r3_openrlhf.evaluation.sampling import Work, make_work
from r3_openrlhf.method.errors import ConfigError
from r3_openrlhf.problems.prompts import prompt_of
from r3_openrlhf.rewards.thinking import response_text
from r3_openrlhf.runs.first_page import NUM_EXAMPLES, FirstPage, make_page
from r3_openrlhf.runs.models.checks import check_own_code, load_tokenizer
from r3_openrlhf.runs.models.locate import resolve_model

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """The model that is sampled: a directory or hub name, and its tokenizer."""

    path: str
    tokenizer: PreTrainedTokenizerBase

    def text_of(self, token_ids: Sequence[int]) -> str:
        """Decode a response."""
        return response_text(self.tokenizer, token_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedEvaluation:
    """A plan with its prompts.

    Attributes:
        settings: What all samples of the directory share (`settings_of`).
        work: Every problem of the plan with its prompt, sampled already or not.
        pages: For each benchmark that is a file, what is read and what looks wrong."""

    plan: EvaluationPlan
    model: LoadedModel
    directory: EvaluationDirectory
    settings: dict[str, Any]
    work: Sequence[Work]
    pages: Sequence[FirstPage]


def prepare_evaluation(plan: EvaluationPlan) -> PreparedEvaluation:
    """Load the tokenizer and make every prompt. Writes nothing; sets plan.config.data.template_date
    where the chat template writes a date.

    Raises R3Error with one sentence for everything that a user can get wrong."""
    config = plan.config
    model = _load_model(plan.source.path, config)
    directory = _directory_of(plan.output, plan.source.output)
    _set_template_date(config.data, model.tokenizer, directory)
    settings = settings_of(plan.options, config, weights=fingerprint(model.path))
    work = [
        make_work(each.name, label, config.data, model.tokenizer)
        for each in plan.sets
        for label in each.labels
    ]
    pages = [_page(each, config, model) for each in plan.sets if Path(each.source).is_file()]
    return PreparedEvaluation(
        plan=plan,
        model=model,
        directory=directory,
        settings=settings,
        work=work,
        pages=pages,
    )


def _load_model(path: str, config: R3Config) -> LoadedModel:
    model = resolve_model(path, revision=config.model.revision)
    check_own_code(config.model, model)
    tokenizer = load_tokenizer(model, trusted=config.model.trust_remote_code, data=config.data)
    return LoadedModel(path=model, tokenizer=tokenizer)


def _directory_of(output: str | None, default: Path) -> EvaluationDirectory:
    """Return the directory `output`, or else `default`. ConfigError: the default is a link."""
    if output is None and (default.is_symlink() or default.parent.is_symlink()):
        raise ConfigError(
            f"{default} is a link, and an evaluation is written there; use --output DIR"
        )
    return EvaluationDirectory(output or default)


def _set_template_date(
    data: DataConfig, tokenizer: PreTrainedTokenizerBase, directory: EvaluationDirectory
) -> None:
    """Keep the date that a chat template writes: the same command continues on another day."""
    writes_date = "strftime_now" in str(tokenizer.chat_template or "")
    if writes_date and data.template_date is None:
        data.template_date = directory.first_date() or date.today().isoformat()


def settings_of(options: BenchmarkConfig, config: R3Config, *, weights: str) -> dict[str, Any]:
    """Return the settings that a file's samples share. The model's path and the hardware may differ."""
    shared = {
        "weights": weights,
        "n_samples": options.n_samples,
        "temperature": options.temperature,
        "top_p": options.top_p,
        "max_new_tokens": options.max_new_tokens,
        "seed": options.seed,
        **{f"data.{key}": getattr(config.data, key) for key in PROMPT_KEYS},
        "data.chat_template_kwargs": config.data.chat_template_kwargs or None,
        "rollout.stop": config.rollout.stop or None,
        "data.template_date": config.data.template_date,
    }
    return {key: config.typed.get(key, value) for key, value in shared.items()}


def _page(problems: ProblemSet, config: R3Config, model: LoadedModel) -> FirstPage:
    labels = problems.labels[:: max(1, len(problems.labels) // NUM_EXAMPLES)][:NUM_EXAMPLES]
    rows = [(label, prompt_of(model.tokenizer, config.data, label)) for label in labels]
    left_out = {
        "equal to an earlier one": problems.num_duplicates,
        "without problem or usable answer": problems.num_unusable,
    }
    start = FirstPage(used=len(problems.labels), left_out=left_out, found=problems.notes)
    return make_page(start, config, model.tokenizer, model.path, rows)
