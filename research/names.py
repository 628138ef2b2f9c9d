"""Short facts that SmolLM2-135M names now and then: capitals, countries of cities, symbols of elements, first names of writers.

    model.path=research.names:smollm2   data.path=research.names:problems   data.reasoning_gym={seed: 1, part: train}

A problem is the beginning of a sentence, and right is what goes on with the answer (research/capitals/reward.py). Each seed draws SIZE
of the facts in names.tsv. Training asks for them in one wording, held-out problems in the other: held-out accuracy is about the same
facts, not about others. Chosen were facts whose answer is one token and, after the wording of training, has a probability in RATES
under the untrained model; `python -m research.names` measures it, and with --shown how well the model reads a shown answer. With one token
to sample, a run takes seconds.
"""

from __future__ import annotations

import csv
import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import click

from r3_openrlhf.runs.models.locate import resolve_model
from research.worlds import PARTS, check

SIZE = 256
RATES = (0.005, 0.1)
TRAINED = [f"model.layers.{layer}." for layer in range(24, 30)]  # the last fifth
FILE = Path(__file__).with_name("names.tsv")  # relation, subject, answer

LANGUAGES = ("french", "spanish", "italian", "latin", "portuguese", "dutch", "swedish")
SPACELESS = ('"', ".")
TEMPLATE = "{problem}{solution}.\n{problem}"  # distill.template of research/teacher.sh
# relation -> the wording of training, and that of held-out problems
WORDINGS = {
    "capital": ("{}'s capital is", "{} has its capital in"),
    "city": ("{} is a city in", "The country with the city of {} is"),
    "uscity": ("{} is a city in the state of", "{} lies in the state of"),
    "state": ("The postal abbreviation of {} is", "The postal code of the state of {} is"),
    "domain": ("The internet domain of {} is .", "Websites in {} end with ."),
    "symbol": ("In the periodic table {} is written as", "The symbol of the element {} is"),
    "element": ("The element with the symbol {} is called", "In chemistry {} stands for"),
    "first": ("The first name of {} was", "People called {} by the name of"),
}
WORDINGS |= {
    language: (
        f'English "{{}}" is {language.title()} "',
        f'The {language.title()} word for "{{}}" is "',
    )
    for language in LANGUAGES
}


class Name(NamedTuple):
    """A fact."""

    relation: str
    subject: str
    answer: str

    def problem(self, part: str) -> str:
        """The beginning of the sentence; an answer behind a mark of SPACELESS follows without a space."""
        return WORDINGS[self.relation][PARTS.index(part)].format(self.subject)


def names() -> list[Name]:
    """Return all names, in the order of the file."""
    with FILE.open(encoding="utf-8", newline="") as stream:
        return [
            Name(*row) for row in csv.reader(stream, delimiter="\t", quoting=csv.QUOTE_NONE)
        ]


def problems(*, seed: int, part: str, **of_solutions: float | str) -> Iterator[dict[str, Any]]:
    """The same SIZE facts in both parts. of_solutions: see research/successes.py; the problems are the same.

    ConfigError: no such part or key, a seed that is no whole number."""
    check(seed, part, of_solutions)
    for name in random.Random(f"names/{seed}").sample(names(), SIZE):
        yield {"problem": name.problem(part), "answer": name.answer}


def smollm2(directory: Path) -> None:
    """SmolLM2-135M-Instruct, of which a run trains the layers TRAINED."""
    shutil.copytree(resolve_model("smollm2"), directory, dirs_exist_ok=True)
    file = directory / "config.json"
    config = json.loads(file.read_text(encoding="utf-8")) | {"r3_trained": TRAINED}
    file.write_text(json.dumps(config, indent=2), encoding="utf-8")


def shown(name: Name, *, other: Name | None = None) -> str:
    """Return the prompt behind which a teacher scores in training (TEMPLATE): the sentence with its
    answer, or with that of another one, then its beginning again."""
    from r3_openrlhf.method.core.teacher_prompt import own_message

    problem = name.problem("train")
    of_solution = other or name
    beginning = of_solution.problem("train")
    solution = _space(beginning) + of_solution.answer
    return own_message(TEMPLATE, problem, solution)


def rates(chosen: list[Name], prompts: list[str]) -> list[float]:
    """Return the probability of each answer behind its prompt under the untrained model."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    directory = resolve_model("smollm2")
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(directory)
    found = []
    for name, text in zip(chosen, prompts, strict=True):
        prompt, answer = (
            tokenizer(part)["input_ids"] for part in (text, _space(text) + name.answer)
        )
        with torch.inference_mode():
            hidden = model.model(
                torch.tensor([prompt + answer]), use_cache=False
            ).last_hidden_state[0, len(prompt) - 1 : -1]
            logp = (
                model.lm_head(hidden)
                .log_softmax(-1)
                .gather(1, torch.tensor(answer)[:, None])
                .sum()
            )
        found.append(logp.exp().item())
    return found


def _space(problem: str) -> str:
    """Return what stands between the beginning of a sentence and its answer."""
    return "" if problem.endswith(SPACELESS) else " "


@click.command()
@click.option("--shown", "is_shown", is_flag=True, help="Behind the prompts of a teacher.")
def main(is_shown: bool) -> None:
    """Print how likely the answers are before training."""
    chosen = names()
    prompts = {part: [name.problem(part) for name in chosen] for part in PARTS}
    if is_shown:
        half = len(chosen) // 2
        others = chosen[half:] + chosen[:half]  # of another relation, mostly
        prompts = {
            "its own answer": [shown(name) for name in chosen],
            "another one's": [
                shown(name, other=other) for name, other in zip(chosen, others, strict=True)
            ],
        }
    for part, texts in prompts.items():
        measured = rates(chosen, texts)
        click.echo(
            f"{part}: {len(chosen)} facts, {min(measured):.4f} to {max(measured):.4f}, mean {fmean(measured):.4f}"
        )
        for relation in WORDINGS:
            of_relation = [
                rate
                for rate, name in zip(measured, chosen, strict=True)
                if name.relation == relation
            ]
            click.echo(f"  {relation}: {len(of_relation)} facts, mean {fmean(of_relation):.4f}")


if __name__ == "__main__":
    main()
