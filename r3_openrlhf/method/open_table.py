"""Tables that a user may extend: a word of ours, or the import path of something of one's own.

    ranking.score=entropy                    an entry of ours
    ranking.score=my_package.scores:least    a function that Python can import
    ranking.score=scores.py:least            one in a file, relative to the working directory
    RankingSettings(score=least)             the function itself, in a loop of one's own

An unknown word is an error everywhere; there is no fallback entry.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from r3_openrlhf.method.errors import ConfigError, quoted

EntryT = TypeVar("EntryT")
if TYPE_CHECKING:
    Name: TypeAlias = str | Callable[..., Any]
else:
    Name: TypeAlias = str  # a file of settings holds texts alone
# Every key that may hold an import path: those of the tables, and of what calls `load_object`
IMPORT_KEYS = tuple(
    [
        "advantage.function",
        "exploration.rrl.cut",
        "agents.environment",
        "agents.tools",
        "algo",
        "data.path",
        "data.sources",
        "data.task",
        "distill.loss",
        "distill.source",
        "distill.weight",
        "held_out.path",
        "logging.tracker",
        "model.path",
        "ranking.score",
        "replay.imported.weight",
        "replay.order",
        "reward.code.languages",
        "reward.function",
        "reward.functions",
        "train.loss",
    ]
)
_LOOKING: ContextVar[bool] = ContextVar("looking", default=False)


@contextlib.contextmanager
def looking_only(looking: bool = True) -> Iterator[None]:
    """Import no key's value inside the block: settings of others are read, not run."""
    token = _LOOKING.set(looking or is_looking())
    try:
        yield
    finally:
        _LOOKING.reset(token)


def is_looking() -> bool:
    """Tell whether the caller is within `looking_only`."""
    return _LOOKING.get()


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the end of an error sentence: the most similar known name, or all of them."""
    known = list(known)
    lowered = {one.lower(): one for one in known}
    near = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.5)
    if near:
        return f"did you mean {lowered[near[0]]}?"
    return f"known: {', '.join(known[:12])}" + (" and more" if len(known) > 12 else "")


def is_import_path(name: str) -> bool:
    """Tell whether `name` has the form "package.module:attribute" or "file.py:attribute.of_it"."""
    module, colon, attribute = name.rpartition(":")
    return bool(colon and module) and all(part.isidentifier() for part in attribute.split("."))


def load_object(key: str, path: str) -> Any:
    """Import what a path names. `key`: the configuration key with it, for the sentence.

    ConfigError: no such file, module or attribute, or the module itself fails while it is imported.
    """
    module_name, _, attribute = path.rpartition(":")
    if not is_import_path(path):
        raise ConfigError(f"{key} is {quoted(path)}; use package.module:name or file.py:name")
    if is_looking():
        raise ConfigError(
            f"{key} is {quoted(path)}, and a command that only looks at a run never runs its code"
        )
    try:
        module = (
            _from_file(module_name) if module_name.endswith(".py") else _from_path(module_name)
        )
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"{key} is {quoted(path)}, which cannot be imported: {type(error).__name__}: {error}"
        ) from error
    try:
        return attrgetter(attribute)(module)
    except AttributeError as error:
        raise ConfigError(
            f"{key} is {quoted(path)}, but {module_name} has no {attribute}"
        ) from error


def _from_path(module_name: str) -> object:
    """Import a module of the environment, or of the working directory without a script there."""
    here = str(Path.cwd())
    if here in sys.path or "" in sys.path:
        return importlib.import_module(module_name)
    sys.path.append(here)
    try:
        return importlib.import_module(module_name)
    finally:
        sys.path.remove(here)


def _from_file(name: str) -> object:
    """Import the module of a file, once per process: the same file is the same module."""
    path = Path(name).expanduser().resolve()
    module_name = f"r3_user_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist")
    specification = importlib.util.spec_from_file_location(module_name, path)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[module_name] = module
    try:
        specification.loader.exec_module(module)
    except BaseException:
        del sys.modules[module_name]
        raise
    return module


def named_by(function: Callable[..., object], facts: Mapping[str, Any]) -> dict[str, Any]:
    """Keep those of `facts` that a function has a parameter for; none if it is no function, or says nothing of them."""
    parameters: Mapping[str, inspect.Parameter] = {}
    with contextlib.suppress(TypeError, ValueError):  # check_signature says so
        parameters = inspect.signature(function).parameters
    takes_all = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    return {name: value for name, value in facts.items() if takes_all or name in parameters}


def check_signature(
    key: str, path: str, function: Callable[..., object], *arguments: object, **keywords: object
) -> None:
    """Check that `function` can be called with these positional and keyword arguments.

    ConfigError: it is no function, or its parameters are others.
    """
    try:
        inspect.signature(function).bind(*arguments, **keywords)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{key} is {quoted(path)}, which cannot be called as it must be: {error}"
        ) from error


def tried(key: str, path: str, call: Callable[[], EntryT], *, on: str) -> EntryT:
    """Call a user's function on made-up values; `on` describes them. ConfigError where it fails."""
    try:
        return call()
    except Exception as error:
        raise ConfigError(
            f"{key} is {quoted(path)}, which fails on {on}: {type(error).__name__}: {error}"
        ) from error


def loaded(key: str, value: object) -> Any:
    """Return the object that an import path names; `value` itself where it is no text."""
    return load_object(key, value) if isinstance(value, str) else value


class OpenTable(Mapping[Any, EntryT], Generic[EntryT]):
    """Entries by name, and entries of a user by import path or as they are.

    Args:
        key: the configuration key whose values these are, for error sentences.
        entries: ours, in the order in which they are listed.
        of_user: (import path, the object that it names) -> an entry, checked; raises ConfigError.
        unread: import path -> the entry used for it within `looking_only`. Default: our first.
    """

    def __init__(
        self,
        key: str,
        entries: Mapping[str, EntryT],
        *,
        of_user: Callable[[str, Any], EntryT] | None = None,
        unread: Callable[[str], EntryT] | None = None,
    ) -> None:
        self.key = key
        self._entries = dict(entries)
        self._of_user, self._unread = of_user, unread
        self._found: dict[Any, tuple[Any, EntryT]] = {}  # with the object, whose id is its key

    def __getitem__(self, name: Any) -> EntryT:
        """Return the entry. Raises ConfigError, with the nearest name, where there is none."""
        key = name if isinstance(name, str) else id(name)
        if key in self._entries:
            return self._entries[key]
        if key in self._found:
            return self._found[key][1]
        is_path = isinstance(name, str) and is_import_path(name)
        if self._of_user is not None and is_path and is_looking():
            return self._unread(name) if self._unread else next(iter(self._entries.values()))
        if self._of_user is not None and (is_path or not isinstance(name, str)):
            described = name if is_path else quoted(getattr(name, "__qualname__", name))
            entry = self._of_user(described, loaded(self.key, name))
            self._found[key] = name, entry
            return entry
        own = "" if self._of_user is None else ", or package.module:name of your own"
        raise ConfigError(
            f"{self.key} is {quoted(name)}, which does not exist; {nearest(str(name), self._entries)}{own}"
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self._entries
