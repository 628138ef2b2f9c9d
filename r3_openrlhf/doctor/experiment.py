"""The paths of an experiment: does its configuration hold, are its model and its problems there, how much will it write?"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from r3_openrlhf.doctor.line import FAIL, NOTE, Line
from r3_openrlhf.errors import ConfigError, R3Error

if TYPE_CHECKING:
    from r3_openrlhf.config import R3Config


def configuration(settings: tuple[str, ...]) -> tuple[R3Config | None, list[Line]]:
    """The configuration that `r3 train SETTINGS` would use, and its line. No line and None where nothing is given."""
    names = [setting.partition("=")[2] for setting in settings if setting.startswith("experiment=")]
    if not settings:
        return None, []
    try:
        if len(names) != 1:
            raise ConfigError("r3 doctor takes one experiment=NAME and then key=value settings, as r3 train does")
        from r3_openrlhf.config_loading import load_config

        config = load_config(names[0], [setting for setting in settings if not setting.startswith("experiment=")])
    except R3Error as error:
        return None, [_failed("configuration", " ".join(settings), "holds", str(error))]
    except ImportError as error:
        remedy = f"{error}: make setup (or make setup-gpu)"
        return None, [_failed("configuration", "cannot be read", "holds", remedy)]
    return config, [Line(what="configuration", found=" ".join(settings), wanted="holds")]


def path_lines(config: R3Config) -> list[Line]:
    """Lines about the model, the problems and the held-out problems; one that fails where a library is missing."""
    try:
        lines = [_model_line(config)]
        if config.is_agentic:
            return [*lines, _environment_line(config)]
        lines.append(_data_line("data.path", config.data.path, lambda: _check_data(config)))
        if config.held_out.path is not None:
            lines.append(_data_line("held_out.path", config.held_out.path, lambda: _check_held_out(config)))
    except ImportError as error:
        return [_failed("model and data", "cannot be looked at", "there", f"{error}: make setup (or make setup-gpu)")]
    return lines


def expected_bytes(config: R3Config) -> int:
    """What a run on GPUs writes at least: the history's limit, and its checkpoints where the model's size is known.

    A checkpoint has 2 bytes a parameter for the weights and 12 for Adam in float32 (master copy and two moments), a copy
    in Hugging Face format 2. One more checkpoint than checkpoint.max_num is there while it is written. Of the copies there
    is one more, too, and the best one. Where all copies stay, only as many as checkpoints are counted: how many there
    will be is not known here.
    """
    checkpoint = config.checkpoint
    number = checkpoint.max_num + 1 if checkpoint.save_steps > 0 else 0
    copies = (checkpoint.max_num_hf or checkpoint.max_num) + (2 if config.held_out.path else 1)
    per_parameter = number * 14 + 2 + (2 * copies if checkpoint.save_hf and number else 0)  # 2: final_model
    return config.history.max_bytes + per_parameter * _parameters(config.model.path)


def _parameters(path: str) -> int:
    """From the weights of a directory (2 bytes each), else from the name ("...-1.5B"); 0 where neither tells."""
    if Path(path).is_dir():
        return sum(file.stat().st_size for file in Path(path).glob("*.safetensors")) // 2
    match = re.search(r"(\d+(?:\.\d+)?)[bB](?![A-Za-z])", path)
    return int(float(match[1]) * 1e9) if match else 0


def _model_line(config: R3Config) -> Line:
    from r3_openrlhf.models.locate import BUILDERS, locate_model

    path = config.model.path
    line = {"what": "model.path", "wanted": "a model's directory or name"}
    try:
        located = locate_model(path)
    except R3Error as error:
        return Line(found=path, status=FAIL, remedy=str(error), **line)
    if path in BUILDERS and not Path(located).is_dir():
        return Line(found=f"{path}, not built yet", status=NOTE, remedy="the first run builds it", **line)
    if Path(located).is_dir():
        return Line(found=f"{path} ({located})" if located != path else path, **line)
    return _hub_line(path, "config.json", "model", line)


def _data_line(what: str, path: str, check) -> Line:
    line = {"what": what, "wanted": "problems that can be read"}
    try:
        check()
    except R3Error as error:
        return Line(found=path, status=FAIL, remedy=str(error), **line)
    from r3_openrlhf.problems.sources import REASONING_GYM

    if path.startswith(REASONING_GYM) or Path(path).exists():
        return Line(found=path, **line)
    return _hub_line(path, "README.md", "dataset", line)


def _environment_line(config: R3Config) -> Line:
    from r3_openrlhf.agents.environment import make_environment

    line = {"what": "agents.environment", "wanted": "an environment that can be made"}
    name = str(config.agents.environment)
    try:
        make_environment(name, config.agents.options).close()
    except R3Error as error:
        return Line(found=name, status=FAIL, remedy=str(error), **line)
    return Line(found=name, **line)


def _check_data(config: R3Config) -> None:
    from r3_openrlhf.problems.sources import check_source

    check_source(config.data)


def _check_held_out(config: R3Config) -> None:
    from r3_openrlhf.problems.held_out import check_held_out_source

    check_held_out_source(config)


def _hub_line(name: str, file: str, kind: str, line: dict[str, str]) -> Line:
    """The hub is not asked. What lies in its cache needs no network."""
    from huggingface_hub import try_to_load_from_cache

    if isinstance(try_to_load_from_cache(name, file, repo_type=kind), str):
        return Line(found=f"{name}, in the hub's cache", **line)
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return Line(found=f"{name}, not in the cache", status=FAIL,
                    remedy="HF_HUB_OFFLINE is set: fetch it first, or give a directory", **line)  # fmt: skip
    return Line(
        found=f"{name}, on the hub", status=NOTE, remedy="the hub was not asked; the run will download it", **line
    )


def _failed(what: str, found: str, wanted: str, remedy: str) -> Line:
    return Line(what=what, found=found, wanted=wanted, status=FAIL, remedy=remedy)
