"""Refuse a model whose files hold a weight that is not finite, before an engine serves it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from r3_openrlhf.method.errors import ConfigError, quoted

if TYPE_CHECKING:
    from torch import Tensor


def check_weights(model: str) -> None:
    """Read each .safetensors file of a model's directory once; other formats and hub names are not read.

    ConfigError: a weight is NaN or infinite."""
    from safetensors import SafetensorError, safe_open

    for file in sorted(Path(model).glob("*.safetensors")):
        try:
            with safe_open(file, framework="pt") as weights:
                names = (
                    name for name in weights.keys() if not is_finite(weights.get_tensor(name))
                )  # noqa: SIM118
                name = next(names, None)
        except (SafetensorError, OSError):
            continue  # the engine says what is wrong with the file
        if name is not None:
            raise ConfigError(
                f"{file} holds a value that is not finite in {quoted(name)}: the model is ruined; use an earlier checkpoint (--step), "
                "or another model"
            )


def is_finite(weight: Tensor) -> bool:
    """Tell whether no value is NaN or infinite, without a copy of the weight."""
    if not weight.is_floating_point() or not weight.numel():
        return True
    if weight.itemsize == 1:  # torch finds no extremes of 8 bits
        weight = weight.float()
    low, high = weight.aminmax()
    return bool(low.isfinite() and high.isfinite())
