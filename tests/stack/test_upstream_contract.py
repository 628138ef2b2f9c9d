"""What the adapters rely on in OpenRLHF 0.11.2, vLLM and DeepSpeed. A new version that breaks one of them fails here,
with the file to look at, instead of failing silently in a run."""

import importlib
import importlib.metadata
import inspect
import re
import tomllib
from pathlib import Path

import pytest

pytest.importorskip("openrlhf", reason="OpenRLHF is not installed")

from tests.tables import rows_of  # noqa: E402

pytestmark = pytest.mark.stack


def test_version():
    assert importlib.metadata.version("openrlhf") == "0.11.2"


LINES = rows_of(Path(__file__).with_name("upstream_lines.txt"))


@pytest.mark.parametrize(("name", "line"), LINES)
def test_the_upstream_line_that_an_adapter_answers_is_still_there(name, line):
    module, _, path = name.partition(":")
    owner = importlib.import_module(module)
    for part in filter(None, path.split(".")):
        owner = getattr(owner, part)
        owner = (
            owner.__ray_metadata__.modified_class
            if hasattr(owner, "__ray_metadata__")
            else owner
        )
    assert line.replace("\\n", "\n") in inspect.getsource(owner)


OVERRIDES = tomllib.loads(Path(__file__).with_name("tables.toml").read_text())["overrides"]


def test_what_would_move_with_a_backend_that_has_no_deepspeed():
    """Molt has another in its place (docs/install.md#your-first-run-on-gpus): ours whose upstream module imports DeepSpeed or its strategy."""
    moves = set()
    for module, names in OVERRIDES.items():
        for name in names.split():
            parents = getattr(
                importlib.import_module(f"r3_openrlhf.stack.{module}"), name
            ).__mro__
            upstream = importlib.import_module(
                next(c.__module__ for c in parents if c.__module__.startswith("openrlhf."))
            )
            if re.search(
                r"^\s*(import|from) (deepspeed|openrlhf\.utils\.deepspeed)",
                inspect.getsource(upstream),
                re.M,
            ):
                moves.add(module)
    assert moves == {
        "async_trainer",
        "critic_actor",
        "policy_actor",
        "policy_update",
        "trainer",
    }


def parameters_of(owner: type, name: str) -> dict[str, inspect.Parameter]:
    """The parameters of a method, without _ray_trace_ctx, which Ray adds to those of its actors."""
    parameters = inspect.signature(getattr(owner, name)).parameters
    return {key: value for key, value in parameters.items() if key != "_ray_trace_ctx"}


@pytest.mark.parametrize("module", OVERRIDES)
def test_our_overrides_have_upstreams_signatures(module):
    owner = importlib.import_module(f"r3_openrlhf.stack.{module}")
    for child in (getattr(owner, name) for name in OVERRIDES[module].split()):
        upstream = next(c for c in child.__mro__ if c.__module__.startswith("openrlhf."))
        shared = {
            n for n in vars(child) if n in dir(upstream) and inspect.isfunction(vars(child)[n])
        } - {"__init__"}
        assert shared, child
        for name in shared:
            ours = parameters_of(child, name)
            theirs = list(parameters_of(upstream, name))
            # upstream does not know what comes after its own
            own = list(ours)[len(theirs) :]
            assert all(
                ours[parameter].default is not inspect.Parameter.empty for parameter in own
            )
            is_same = list(ours)[: len(theirs)] == theirs
            assert is_same or "args" in ours, f"{child.__name__}.{name}"
