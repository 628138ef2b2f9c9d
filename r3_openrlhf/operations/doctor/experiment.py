"""Check an experiment: its configuration, its model and problems, and how much it will write."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from r3_openrlhf.method.errors import R3Error
from r3_openrlhf.operations.doctor.line import FAIL, NOTE, Line

if TYPE_CHECKING:
    from r3_openrlhf.config import R3Config
    from r3_openrlhf.runs.first_page import FirstPage

SETUP = "make setup (or make setup-gpu)"


def configuration(settings: tuple[str, ...]) -> tuple[R3Config | None, list[Line]]:
    """The configuration that `r3 train SETTINGS` would use, and its line. No line and None where nothing is given."""
    if not settings:
        return None, []
    line = {"what": "configuration", "wanted": "holds"}
    try:
        from r3_openrlhf.config.loading import load_config, split_settings

        config = load_config(*split_settings(settings, command="doctor"))
    except R3Error as error:
        return None, [Line(found=" ".join(settings), status=FAIL, remedy=str(error), **line)]
    except ImportError as error:
        return None, [Line(found="cannot be read", status=FAIL, remedy=f"{error}: {SETUP}", **line)]
    return config, [Line(found=" ".join(settings), **line)]


def path_lines(config: R3Config) -> list[Line]:
    """Lines about the model, the problems and the held-out problems; one that fails where a library is missing."""
    try:
        lines = [
            _line(
                "model.path",
                config.model.path,
                "a model's directory or name",
                lambda: _model(config, config.model.path),
            )
        ]
        if (critic := config.flag(key := "critic.model_name_or_path")) is not None:
            lines.append(
                _line(f"openrlhf.{key}", critic, "a model's directory or name", lambda: _model(config, critic))
            )
        if config.is_agentic:
            name = str(config.agents.environment)
            wanted = "an environment that can be made"
            return [*lines, _line("agents.environment", name, wanted, lambda: _environment(config, name))]
        wanted = "problems that can be read"
        lines.append(_line("data.path", config.data.path, wanted, lambda: _data(config)))
        if config.held_out.path is not None:
            lines.append(_line("held_out.path", config.held_out.path, wanted, lambda: _held_out(config)))
    except ImportError as error:
        return [
            Line(
                what="model and data",
                found="cannot be looked at",
                wanted="there",
                status=FAIL,
                remedy=f"{error}: {SETUP}",
            )
        ]
    return lines


def first_page(config: R3Config) -> FirstPage | None:
    """What `r3 train` would say first; None where model or problems are not on this machine. R3Error: they are of no use."""
    from r3_openrlhf.problems.files import is_on_the_hub
    from r3_openrlhf.runs.first_page import page_here
    from r3_openrlhf.runs.models.locate import locate_model

    model = locate_model(config.model.path)
    on_the_hub = not config.is_agentic and any(is_on_the_hub(part.path) for part in config.data.parts.values())
    if config.is_agentic or on_the_hub or not (Path(model) / "config.json").is_file():
        return None
    return page_here(config, model)


def page_lines(page: FirstPage) -> list[Line]:
    """Its findings as lines of the table."""
    return [
        Line(
            what="first page",
            found="see below",
            wanted="nothing to say",
            status=FAIL if one.refuses else NOTE,
            remedy=one.sentence,
        )
        for one in page.findings
    ]


def expected_bytes(config: R3Config) -> int:
    """What a run leaves on the disk as `r3 plan` says, and the checkpoint that is being written; the history's limit alone
    where the plan knows not the model or how many problems there are."""
    from r3_openrlhf.runs.planning.forecast import make_plan, num_problems_of
    from r3_openrlhf.runs.planning.formulas import checkpoint_bytes
    from r3_openrlhf.runs.planning.hardware import DEFAULT, GPUS
    from r3_openrlhf.runs.planning.shapes import known_shape

    shape, num_problems = known_shape(config.model.path), num_problems_of(config)
    if shape is None or num_problems is None:
        return config.history.max_bytes
    disk = make_plan(config, shape, GPUS[DEFAULT], num_problems=num_problems).disk
    models = 1 + config.algorithm.has_critic
    return sum(disk.values()) + models * checkpoint_bytes(shape.params, shape.params) * (
        config.checkpoint.save_steps > 0
    )


def _line(what: str, found: str, wanted: str, look: Callable[[], dict[str, str]]) -> Line:
    """look: what else the line says; an R3Error is its remedy."""
    try:
        return Line(**{"what": what, "found": found, "wanted": wanted, **look()})
    except R3Error as error:
        return Line(what=what, found=found, wanted=wanted, status=FAIL, remedy=str(error))


def _model(config: R3Config, path: str) -> dict[str, str]:
    from r3_openrlhf.runs.models.locate import is_built, locate_model
    from r3_openrlhf.runs.models.own_code import check_own_code

    located = locate_model(path)
    if Path(located).is_dir():
        check_own_code(config.model, located)
        return {"found": f"{path} ({located})" if located != path else path}
    if is_built(path):
        return {"found": f"{path}, not built yet", "status": NOTE, "remedy": "the first run builds it"}
    return _of_hub(path, "config.json", "model")


def _environment(config: R3Config, name: str) -> dict[str, str]:
    from r3_openrlhf.problems.agents.environment import make_environment

    make_environment(name, config.agents.options).close()
    return {}


def _data(config: R3Config) -> dict[str, str]:
    from r3_openrlhf.problems.sources import check_source

    check_source(config.data, with_rows=config.reward.reads_rows)
    return _problems([part.path for part in config.data.parts.values()])


def _held_out(config: R3Config) -> dict[str, str]:
    from r3_openrlhf.problems.held_out import check_held_out_source, held_out_data

    check_held_out_source(config)
    data = held_out_data(config)
    return _problems([part.path for part in data.parts.values()] if data is not None else [])


def _problems(paths: list[str]) -> dict[str, str]:
    from r3_openrlhf.problems.files import is_on_the_hub

    return next((_of_hub(path, "README.md", "dataset") for path in paths if is_on_the_hub(path)), {})


def _of_hub(name: str, file: str, kind: str) -> dict[str, str]:
    """The hub is not asked. What is in its cache needs no network."""
    from huggingface_hub import try_to_load_from_cache

    if isinstance(try_to_load_from_cache(name, file, repo_type=kind), str):
        return {"found": f"{name}, in the hub's cache"}
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        remedy = "HF_HUB_OFFLINE is set: fetch it first, or give a directory"
        return {"found": f"{name}, not in the cache", "status": FAIL, "remedy": remedy}
    return {
        "found": f"{name}, on the hub",
        "status": NOTE,
        "remedy": "the hub was not asked; the run will download it",
    }
