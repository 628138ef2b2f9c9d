"""reasoning_gym without the libraries that draw: its data sets of automata and of ARC bring matplotlib and drawsvg along.

No scorer draws, and they are a third of what a grading process would import."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

DRAWING = frozenset({"matplotlib", "mpl_toolkits", "drawsvg"})


class _Nothing:
    """In the place of a function or class of a library that draws: it takes no arguments and does nothing."""


class _Empty(ModuleType):
    def __getattr__(self, name: str) -> type[_Nothing]:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Nothing


class _Finder(MetaPathFinder, Loader):
    """Finds an empty module wherever one of `libraries` or a part of it is imported."""

    def __init__(self, libraries: frozenset[str]) -> None:
        self.libraries = libraries

    def find_spec(self, fullname: str, *_: object, **__: object) -> ModuleSpec | None:
        return ModuleSpec(fullname, self, is_package=True) if fullname.split(".")[0] in self.libraries else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Empty(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


@contextmanager
def no_drawing() -> Iterator[None]:
    """What is imported in here gets empty modules for them; who imports them later gets the libraries.

    Where one of them is loaded already, none is replaced: they belong together."""
    finder = _Finder(frozenset() if DRAWING & sys.modules.keys() else DRAWING)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name, module in sys.modules.items() if isinstance(module, _Empty)]:
            del sys.modules[name]
