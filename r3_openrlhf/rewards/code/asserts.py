"""Tests that are written as code, in two confined processes: one has the tests, the other the
program.

In each, an object of the other one is a `Stub`; data, calls and results travel as text (data.py).
The program reaches no test and no expected value: it can use what the tests give it, and no value
of a test is shown to an object that is not of a class the tests ask for. Standard library only."""

from __future__ import annotations

import builtins
import collections
import contextlib
import functools
import importlib
import io
import itertools
import json
import re
import sys
import threading
import traceback
import types
from collections.abc import Awaitable, Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from r3_openrlhf.rewards.code.assertions import Assertions
from r3_openrlhf.rewards.code.data import NotPlain, decode, encode

NAME = "solution.py"  # of the program, in its exceptions
_SPREADS = re.compile(r"allclose|isclose|assert_allclose|assert_array_\w+")
# no program can import the package
_PYTEST = Path(__file__).with_name("pytest_stand_in.txt").read_text("utf-8")
MAX_MESSAGE_BYTES = 2**27  # both ends have a limit of memory and of time as well
MAX_SHARED_CHARS = 1000  # of data that both ends go on to share after the call that it was in
_SHARED = '{"shared": ['
_MUTABLE = (list, dict, set, bytearray, collections.deque)


def _specials(names: str, *, prefixes: Sequence[str] = ("",)) -> frozenset[str]:
    return frozenset(f"__{prefix}{name}__" for name in names.split() for prefix in prefixes)


_COMPARISONS = _specials("lt le eq ne gt ge")
_OPERATORS = _specials(
    "add sub mul matmul truediv floordiv mod divmod pow lshift rshift and xor or",
    prefixes=("", "r", "i"),
)
_CHECKS = _specials("instancecheck subclasscheck")
_OTHERS = _specials(
    "call next iter reversed getitem setitem delitem len contains bool str repr format hash enter exit await aiter anext"
    " aenter aexit neg pos abs invert int float complex index round trunc floor ceil"
)
_SPECIALS = _COMPARISONS | _OPERATORS | _CHECKS | _OTHERS
# with these an object that is no data could pass for a value that it does not have
_CLAIMS = _specials("len contains")
_READABLE = _specials("name qualname doc module annotations")
_OF_PROGRAM = _READABLE | _specials(
    "cause code defaults func mro bases abstractmethods wrapped"
)
# what an object may say that it is: nothing that has a value
_KINDS = {
    "type": type,
    "function": types.FunctionType,
    "method": types.MethodType,
    "generator": types.GeneratorType,
}
# of the tests' objects: modules and frames lead anywhere, the others have nothing but a call or the next item
_HIDDEN = (types.ModuleType, types.FrameType, types.CodeType, types.TracebackType)
_FUNCTIONS = (types.FunctionType, types.MethodType, types.BuiltinFunctionType)
_CLOSED = (*_FUNCTIONS, types.GeneratorType, types.CoroutineType, type)


def failure(error: BaseException) -> tuple[str, str]:
    """Status and detail of an exception: its type and the program's last line in it."""
    lines = [
        line
        for frame, line in traceback.walk_tb(error.__traceback__)
        if frame.f_code.co_filename == NAME
    ]
    kinds = ((MemoryError, "memory"), (PermissionError, "blocked"))
    status = next((status for kind, status in kinds if isinstance(error, kind)), "error")
    name = str(type(error).__name__)[:80]
    return status, f"{name} at line {lines[-1]}" if lines else name


class ProgramGone(Exception):
    """The program's process has ended, or does not keep to the protocol."""


class Peer:
    """One end of the link between the two processes.

    operations: what the other end may ask for, besides the use of objects that it was given.
    guards: this is the tests' end.
    """

    def __init__(
        self, link: int, operations: dict[str, Callable[..., object]], *, guards: bool
    ) -> None:
        self._connection = Connection(link)
        self._operations = operations
        self.guards = guards
        self._objects: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._stand_ins: dict[tuple[int, bool], Any] = {}
        # number -> data that both ends have, and its text as both know it
        self._shared: dict[int, list[Any]] = {}
        # numbers; the other end's are even where these are odd
        self._unused = itertools.count(1 + guards, 2)
        self._lock = threading.RLock()
        self._depth = 0
        self.assertions = Assertions({})
        # at the tests' end: an assertion did not hold in a function that the program called
        self.has_failed = False

    def ask(self, operation: str, *arguments: object) -> Any:
        """Return what the other side answers. It may ask in between.

        Raises:
            BaseException: the type that the other side raised, or a stand-in. ProgramGone."""
        with self._lock, self._exchange():
            had_failed = self.has_failed
            self._send(
                {
                    "ask": operation,
                    "arguments": [self._write(argument) for argument in arguments],
                }
            )
            while "ask" in (message := self._receive()):
                self._answer(message)
            if message["printed"]:
                sys.stdout.write(message["printed"])
            if "error" in message:
                error = self._exception(message)
                if isinstance(error, AssertionError):
                    # the program has swallowed nothing: the test gets it
                    self.has_failed = had_failed
                if isinstance(error, StopIteration) and arguments[1:2] != ("__next__",):
                    # which would end a loop of the test
                    raise RuntimeError("it raised StopIteration") from None
                raise error
            return self._read(message["value"])

    @contextlib.contextmanager
    def _exchange(self) -> Iterator[None]:
        """First forget what is too large to be compared each time, or old and not in use here."""
        room = MAX_SHARED_CHARS
        for place, number in enumerate(reversed([*self._shared] if not self._depth else [])):
            known = self._shared[number]
            room -= len(known[1]) + 50
            if room < 0 or place > 2 and sys.getrefcount(known[0]) < 3:
                del self._shared[number]
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    def _answer(self, request: dict[str, Any]) -> None:
        answer: dict[str, Any] = {}
        try:
            with self._exchange():
                arguments = [self._read(text) for text in request["arguments"]]
                if request["ask"] in self._operations:
                    value = self._operations[request["ask"]](*arguments)
                else:
                    self._check_use(*arguments[:2])
                    value = _USES[request["ask"]](*arguments)
            answer = {"value": self._write(value)}
        except ProgramGone:
            raise
        except BaseException as error:  # whatever it is, the other side is told what kind
            self.has_failed |= self.guards and self.assertions.is_verdict(error)
            answer = self._told(error)
        self._send(answer | {"printed": _printed()})

    def _check_use(self, value: object, name: object = None) -> None:
        """Refuse what the program was not given, and what leads from there to the tests."""
        if self.guards and id(value) not in self._numbers:
            raise TypeError("no object of the tests")
        if self.guards and isinstance(name, str) and name not in _SPECIALS | _READABLE:
            if name.startswith(("_", "assert")) or isinstance(value, _CLOSED):
                raise AttributeError(name)

    def _told(self, error: BaseException, *, is_cause: bool = False) -> dict[str, Any]:
        kind = TypeError if isinstance(error, NotPlain) else type(error)
        try:
            content = encode([list(error.args), vars(error)], exact=True)
        except NotPlain:  # also where one of them is an object
            content = '[[], {"dict": []}]'
        cause = (
            self._told(error.__cause__, is_cause=True)
            if error.__cause__ and not is_cause
            else None
        )
        return {
            "error": self._write(kind),
            "detail": failure(error)[1],
            "content": content,
            "cause": cause,
        }

    def _exception(self, message: dict[str, Any]) -> BaseException:
        kind = self._read(message["error"]) or Exception  # of a module that is not loaded here
        try:
            arguments, attributes = decode(message["content"])
            error: BaseException = kind(*arguments)
            vars(error).update(attributes)
        except Exception:  # a constructor with other arguments
            error = (
                kind.__new__(kind)
                if isinstance(kind, type) and issubclass(kind, Exception)
                else RuntimeError()
            )
        error = error if isinstance(error, (Exception, SystemExit)) else RuntimeError()
        vars(error)["of_program"] = str(message.get("detail", ""))[:200]
        error.__cause__ = message.get("cause") and self._exception(message["cause"])
        return error

    def _text(self, value: object) -> str:
        return encode(value, exact=True, of_object=self._described, max_bytes=MAX_MESSAGE_BYTES)

    def _write(self, value: object) -> str:
        """Write a value; data that can change is from now on the same at both ends."""
        text = self._text(value)
        if not _has_mutable(value):
            return text
        known = (number for number, (data, _) in self._shared.items() if data is value)
        number = next(known, None) or next(self._unused)
        self._shared[number] = [value, text]
        return f"{_SHARED}{number}, {text}]}}"

    def _read(self, text: str) -> Any:
        if not text.startswith(_SHARED):
            return decode(text, of_object=self._object, max_bytes=MAX_MESSAGE_BYTES)
        number, _, text = text[len(_SHARED) : -2].partition(", ")
        value = decode(text, of_object=self._object, max_bytes=MAX_MESSAGE_BYTES)
        known = self._shared.setdefault(int(number), [value, text])
        if known[0] is not value:
            _replace(known[0], value)
            known[1] = text
        return known[0]

    def _described(self, value: Any) -> list[object]:
        """Give an object of this process a number, and say what the other process can do with it."""
        number = value._Stub__number if isinstance(value, Stub) else None
        if issubclass(type(value), type):
            number = vars(value).get("_Stub__number")
        if number is not None:
            return ["yours", number]
        if self.guards and isinstance(value, _HIDDEN):
            raise NotPlain(f"a value of type {type(value).__name__}")
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self._objects)
            self._objects.append(value)
        specials = sorted(
            name for name in _SPECIALS if getattr(type(value), name, None) is not None
        )
        if isinstance(value, type) and hasattr(value, "__class_getitem__"):
            specials.append("__class_getitem__")
        base = (
            value.__mro__[1]
            if isinstance(value, type) and issubclass(value, BaseException)
            else None
        )
        name = (
            value.__name__
            if base
            else "type"
            if isinstance(value, type)
            else type(value).__name__
        )
        return ["mine", self._numbers[id(value)], str(name), specials, base]

    def _object(self, description: Sequence[Any]) -> object:
        whose, number, *known = description
        if whose == "yours":
            return self._objects[number]
        name, specials, base = known
        if "__await__" in specials:
            return _awaited(self, Stub(self, number, known))
        if (number, False) not in self._stand_ins:
            if isinstance(base, type) and issubclass(base, BaseException):
                self._stand_ins[number, False] = type(name, (base,), {"_Stub__number": number})
            else:
                self._stand_ins[number, False] = _stub_class(
                    name, tuple(specials), self.guards
                )(self, number, known)
        return self._stand_ins[number, False]

    def named(self, name: str) -> Any:
        """Return what the program calls so. Of a class, by its capital letter, a test makes objects."""
        value = self.ask("name", name)
        return self.making(value) if name.strip("_")[:1].isupper() else value

    def making(self, value: object) -> Any:
        """Return a class whose objects are a test's; other values as they are."""
        if isinstance(value, Stub) and "__instancecheck__" in value._Stub__known[1]:
            object.__setattr__(value, "_Stub__makes", True)
        return value

    def trusted(self, stub: Stub) -> Stub:
        """Return the same object for a test that made it: its operators get the test's values."""
        name, specials, _ = known = stub._Stub__known
        key = stub._Stub__number, True
        return self._stand_ins.setdefault(
            key, _stub_class(name, tuple(specials), False)(self, key[0], known)
        )

    def _send(self, message: dict[str, Any]) -> None:
        changes = message["changes"] = list[Any]()
        for number, known in self._shared.items():
            with contextlib.suppress(NotPlain):
                if (text := self._text(known[0])) != known[1]:
                    known[1] = text
                    changes.append([number, text])
        try:
            self._connection.send_bytes(json.dumps(message).encode())
        except OSError as error:
            raise ProgramGone("it has ended") from error

    def _receive(self) -> dict[str, Any]:
        try:
            message = json.loads(self._connection.recv_bytes(2 * MAX_MESSAGE_BYTES))
            for number, text in message["changes"]:
                if number in self._shared:
                    self._read(f"{_SHARED}{number}, {text}]}}")
        # it has ended, or its answer is no data
        except (OSError, EOFError, ValueError, TypeError, LookupError, RecursionError) as error:
            raise ProgramGone(type(error).__name__) from error
        return message


def _has_mutable(argument: object) -> bool:
    if isinstance(argument, (list, tuple)) and any(map(_has_mutable, argument)):
        return True
    return isinstance(argument, _MUTABLE) or type(argument).__name__ == "ndarray"


def _replace(argument: Any, changed: Any) -> None:
    """Do to an argument what the other side did to it in place."""
    if type(argument) is not type(changed):
        return
    if isinstance(argument, (list, tuple)) and len(argument) == len(changed):
        for place, (item, new) in enumerate(zip(argument, changed, strict=True)):
            if _has_mutable(item) and type(item) is type(new):
                _replace(item, new)
            elif isinstance(argument, list):
                argument[place] = new
    elif isinstance(argument, (dict, set, collections.deque)):
        argument.clear()
        (argument.extend if isinstance(argument, collections.deque) else argument.update)(
            changed
        )
    elif not isinstance(argument, tuple):
        argument[:] = changed


class Stub:
    """A stand-in for an object of the other process. Its class has the special methods that the
    object's has (_stub_class)."""

    __slots__ = ("__known", "__makes", "__number", "__peer")
    __all__ = ()  # `import *` takes nothing: a test gets the names that it uses one by one

    def __init__(self, peer: Peer, number: int, known: Sequence[Any]) -> None:
        for name, value in {
            "peer": peer,
            "number": number,
            "known": known,
            "makes": False,
        }.items():
            object.__setattr__(self, f"_Stub__{name}", value)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in _OF_PROGRAM:
            raise AttributeError(name)
        return self.__peer.ask("attribute", self, name)

    def __setattr__(self, name: str, value: object) -> None:
        self.__peer.ask("set attribute", self, name, value)

    def __delattr__(self, name: str) -> None:
        self.__peer.ask("delete attribute", self, name)

    def __deepcopy__(self, _: object) -> object:
        return self.__peer.ask("apply", "copy", "deepcopy", [self], {})

    def __array__(self, *_: object, **__: object) -> object:
        raise TypeError("an object of the program is no array")


@functools.cache
def _stub_class(name: str, specials: tuple[str, ...], guards: bool) -> type:
    """Make a class whose instances do what an object with these special methods does.

    guards: an object that is no data is given no value of a test, and has no length."""
    kept = _SPECIALS.intersection(specials) - (_CLAIMS if guards else frozenset())
    # of a class that a test names the length counts, as that of Enum's
    if "__instancecheck__" in specials:
        kept |= {"__len__"}.intersection(specials)
    methods: dict[str, Any] = {special: _forwarded(special, guards) for special in kept}
    if "__class_getitem__" in specials:
        methods["__getitem__"] = lambda self, _: self
    methods.setdefault("__hash__", Stub.__hash__)
    methods["__doc__"] = property(
        lambda self: self._Stub__peer.ask("attribute", self, "__doc__")
    )
    if name != "module":  # which may be large
        methods["__dict__"] = property(
            lambda self: self._Stub__peer.ask("attribute", self, "__dict__")
        )
    methods["__slots__"] = ()
    methods["__dir__"] = lambda self: self._Stub__peer.ask(
        "apply", "builtins", "dir", [self], {}
    )
    if kind := _KINDS.get(name):
        methods["__class__"] = property(lambda _: kind)
    return type(name, (Stub,), methods)


def _forwarded(special: str, guards: bool) -> object:
    """Make the special method that asks the other end. `guards`: as in `_stub_class`."""
    shows_none = special in _COMPARISONS or guards and special in _OPERATORS

    def method(self: Stub, *arguments: Any, **keywords: Any) -> Any:
        peer = self._Stub__peer
        if peer.guards and any(isinstance(given, types.TracebackType) for given in arguments):
            error = next(given for given in arguments if isinstance(given, BaseException))
            is_verdict = peer.assertions.is_verdict(error, handler=sys._getframe(1))
            result = call(self, *arguments, **keywords)
            return _goes_on(result) if is_verdict else result
        return call(self, *arguments, **keywords)

    def call(self: Stub, *arguments: Any, **keywords: Any) -> Any:
        peer = self._Stub__peer
        arguments = _without_tracebacks(arguments)
        if peer.guards and _hold_values(arguments):
            if shows_none:
                return NotImplemented
            if special in _CHECKS:
                return False
        if special in _CLAIMS and guards and not self._Stub__makes:
            raise TypeError("an object of the program has no length")
        if special == "__call__":
            makes = self._Stub__makes
            result = peer.ask("call", self, tuple(keywords), *keywords.values(), *arguments)
        else:
            makes = special in _OPERATORS and not guards
            result = peer.ask("special", self, special, *arguments)
        if special in ("__enter__", "__iter__") and _is_same_object(result, self):
            return self  # a test may ask with `is`
        if makes and peer.guards and isinstance(result, Stub):
            return peer.trusted(result)
        return result

    return method


def _goes_on(result: Any) -> object:
    """Let an exception leave its `with` block, whatever `__exit__` or `__aexit__` says of it."""

    async def awaited() -> None:
        await result

    return awaited() if isinstance(result, types.CoroutineType) else None


def _without_tracebacks(arguments: Sequence[Any]) -> tuple[Any, ...]:
    """Replace the traceback that `with` hands to `__exit__` by None."""
    return tuple(
        None if isinstance(argument, types.TracebackType) else argument
        for argument in arguments
    )


def _hold_values(arguments: Sequence[Any]) -> bool:
    """Tell whether one of the arguments is a value of this end."""
    return not all(isinstance(argument, Stub) for argument in arguments)


def _is_same_object(result: object, stub: Stub) -> bool:
    """Tell whether an answer stands for the same object of the other process as a stub."""
    number = getattr(result, "_Stub__number", None)
    return bool(number == stub._Stub__number)


async def _awaited(peer: Peer, stub: Stub) -> object:
    return peer.ask("await", stub)


def _await(awaitable: Awaitable[object]) -> object:
    """Run what the other end awaits. A loop of this end may be waiting for that one."""

    async def result() -> object:
        return await awaitable

    asyncio = importlib.import_module("asyncio")
    around = asyncio._get_running_loop()
    asyncio._set_running_loop(None)
    try:
        return asyncio.run(result())
    finally:
        asyncio._set_running_loop(around)


# What one end does with objects of the other one
_USES: dict[str, Callable[..., Any]] = {
    "call": lambda function, names, *given: function(
        *given[len(names) :], **dict(zip(names, given, strict=False))
    ),
    "special": lambda value, name, *arguments: getattr(type(value), name)(value, *arguments),
    "attribute": lambda value, name: (
        dict(vars(value)) if name == "__dict__" else getattr(value, name)
    ),
    "set attribute": setattr,
    "delete attribute": delattr,
    "await": _await,
}


# The program's end

_output = io.StringIO()


def _printed() -> str:
    """Take what was printed since the last call; the tests' end prints it."""
    text = _output.getvalue()
    _output.seek(0)
    _output.truncate()
    return text


class _Input:
    """Standard input, as the tests have set it."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._peer.ask("stdin"), name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._peer.ask("stdin"))


def _apply(module: str, name: str, arguments: Sequence[Any], keywords: dict[str, Any]) -> Any:
    return getattr(importlib.import_module(module), name)(*arguments, **keywords)


_PARTS: dict[str, Any] = {kind.__name__: kind for kind in (property, classmethod, staticmethod)}


def _derive(
    name: str, bases: Sequence[Any], parts: dict[str, Any], keywords: dict[str, Any]
) -> type:
    """Make the class that a test derives from one of the program. Its functions are the test's."""

    def own(value: Any) -> Any:
        return (
            (lambda *given, **named: value(*given, **named))
            if type(value).__name__ == "function"
            else value
        )

    space = {
        key: _PARTS.get(kind, lambda part: part)(*map(own, values))
        for key, (kind, values) in parts.items()
    }
    return types.new_class(name, tuple(bases), keywords, lambda given: given.update(space))


def serve_program(link: int, module: types.ModuleType) -> None:
    """Serve the program's side, after it was loaded."""
    operations: dict[str, Callable[..., object]] = {
        "name": vars(module).__getitem__,
        "apply": _apply,
        "derive": _derive,
        "super": lambda kind, value, name: getattr(super(kind, value), name),
    }
    peer = Peer(link, operations, guards=False)
    sys.stdout, sys.stdin = _output, _Input(peer)
    builtins.input = lambda prompt="", /: peer.ask("input", str(prompt))
    while True:  # until the tests' side closes its end
        peer._answer(peer._receive())


# The tests' end


def run_test(link: int, setup: str, test: str, names: Sequence[str]) -> tuple[str, str, str]:
    """Run the tests' side: status, detail and value. names: those that are the program's."""
    operations: dict[str, Callable[..., object]] = {
        "input": lambda prompt: builtins.input(prompt),
        "stdin": lambda: sys.stdin,
    }
    peer = Peer(link, operations, guards=True)
    scope: dict[str, Any] = {"__name__": "test"}
    sys.modules["pytest"] = types.ModuleType("pytest")
    exec(_PYTEST, vars(sys.modules["pytest"]))
    try:
        for name in names:
            with contextlib.suppress(KeyError):  # the test that uses it finds out
                scope[name] = peer.named(name)
        sys.modules["solution"] = peer.ask(
            "apply", "importlib", "import_module", ["solution"], {}
        )
        _share_functions(peer, f"{setup}\n{test}")
        _share_classes(peer, scope)
        _guard_closeness(f"{setup}\n{test}")
        sources = {"setup.py": setup, "test.py": test}
        peer.assertions = Assertions(sources)
        for name, source in sources.items():
            exec(compile(source, name, "exec", dont_inherit=True), scope)
    except BaseException as error:  # the test's, or the program's within it: it does not hold
        of_program = getattr(error, "of_program", None)
        if isinstance(error, AssertionError) and of_program is None:
            return "finished", "", "false"
        return "error", of_program or type(error).__name__, ""
    return "finished", "", "false" if peer.has_failed else "true"


def _guard_closeness(source: str) -> None:
    """Compare nothing that numpy spreads over the expected values, or over none, and so sees no difference."""
    modules = ["numpy", "numpy.testing"] if "testing" in source else ["numpy"]
    for module in map(importlib.import_module, modules if "numpy" in sys.modules else ()):
        for name in filter(_SPREADS.fullmatch, list(vars(module))):
            vars(module)[name] = functools.partial(
                _compare, sys.modules["numpy"].size, vars(module)[name]
            )


def _compare(size: Callable[[Any], int], compare: Any, *given: Any, **named: Any) -> object:
    found, expected = [size(value) for value in (*given, *named.values())][:2]
    if found < expected or found > expected == 0:
        assert compare.__name__ in ("allclose", "isclose"), "values that are spread over others"
        return sys.modules["numpy"].False_
    return compare(*given, **named)


# Functions that look into an object: they run where it is. And those that set what both ends have
_OF_OBJECTS = {
    "copy": "copy",
    "dataclasses": "asdict astuple dataclass fields is_dataclass replace",
    "inspect": "signature getfullargspec getsource getdoc getmembers isgeneratorfunction iscoroutinefunction isabstract",
    "typing": "get_type_hints",
}
_OF_BOTH = {"random": "seed", "numpy.random": "seed", "sys": "setrecursionlimit"}


def _share_functions(peer: Peer, source: str) -> None:
    for name, functions in (_OF_OBJECTS | _OF_BOTH).items():
        module = importlib.import_module(name) if name in source else sys.modules.get(name)
        for function in functions.split() if module else ():
            vars(module)[function] = functools.partial(
                _shared_call, peer, name, function, vars(module)[function]
            )
    if "patch" in source:
        _share_patches(peer, importlib.import_module("unittest.mock"))


def _share_patches(peer: Peer, mock: Any) -> None:
    """Let a test patch the program's modules, but for the streams, which are the test's."""

    def found(name: str) -> Any:
        return (
            sys if name == "sys" else peer.ask("apply", "pkgutil", "resolve_name", [name], {})
        )

    def patch_object(target: object, *given: object, **keywords: object) -> object:
        return plain(
            found(target.__name__) if isinstance(target, types.ModuleType) else target,
            *given,
            **keywords,
        )

    mock.pkgutil, plain = types.SimpleNamespace(resolve_name=found), mock.patch.object
    mock.patch.object = patch_object


def _shared_call(
    peer: Peer,
    module: str,
    name: str,
    function: Callable[..., object],
    *arguments: Any,
    **keywords: Any,
) -> object:
    if module in _OF_OBJECTS and not isinstance(arguments and arguments[0], Stub):
        return function(*arguments, **keywords)
    found = peer.ask("apply", module, name, arguments, keywords)
    return function(*arguments, **keywords) if module in _OF_BOTH else found


def _share_classes(peer: Peer, scope: dict[str, Any]) -> None:
    """Make classes that a test derives from the program's there, of functions that stay here; `super`
    and `type` know them."""

    def build(
        function: Callable[..., object], name: str, /, *bases: Any, **keywords: Any
    ) -> object:
        if not any(isinstance(given, Stub) for given in (*bases, *keywords.values())):
            return plain_build(function, name, *bases, **keywords)
        return moved(plain_build(function, name), bases, **keywords)

    def moved(plain: Any, bases: Sequence[Any] | None = None, /, **keywords: Any) -> object:
        if isinstance(plain, Stub) or plain.__module__ == "builtins":
            return plain
        known = [moved(base) for base in (plain.__bases__ if bases is None else bases)]
        made = peer.making(peer.ask("derive", plain.__name__, known, _parts(plain), keywords))
        plain._Stub__number = made._Stub__number
        return made

    def super_of(*given: object) -> object:
        if not given:
            frame = sys._getframe(1)
            given = frame.f_locals["__class__"], frame.f_locals[frame.f_code.co_varnames[0]]
        if not isinstance(given[0], Stub) and "_Stub__number" not in vars(given[0]):
            return super(*given)
        return type(
            "super", (), {"__getattribute__": lambda _, name: peer.ask("super", *given, name)}
        )()

    class Type(type):
        def __call__(cls, *given: object, **keywords: object) -> object:
            if len(given) != 1:
                return super().__call__(*given, **keywords)
            if not isinstance(given[0], Stub):
                return type(given[0])
            kind = peer.ask("apply", "builtins", "type", [given[0]], {})
            # an object that is no data has no type of data
            return kind if isinstance(kind, Stub) else None

        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, type) and (
                cls is scope["type"] or super().__instancecheck__(value)
            )

    plain_build = builtins.__build_class__
    vars(builtins)["__build_class__"] = build
    scope |= {"super": super_of, "type": Type("type", (type,), {})}


def _parts(kind: type) -> dict[str, Any]:
    """Take a class apart: name -> how it has a part, and values of which this is made."""
    parts: dict[str, Any] = {}
    for name, value in vars(kind).items():
        own = [value.fget, value.fset, value.fdel] if isinstance(value, property) else [value]
        own = [value.__func__] if isinstance(value, (classmethod, staticmethod)) else own
        # every class gets its own `__dict__` and the like
        if not isinstance(value, types.GetSetDescriptorType):
            parts[name] = (type(value).__name__, own)
    return parts
