"""Tests that are written as code, in two confined processes: one has the tests, the other the
program.

In the tests' process the program's names are a `Stub`. A call goes to the other process as data,
and data comes back; what is no data (an object, a generator) stays there and has a number. Neither
reads anything but data: the program reaches no test or expected value. Standard library only."""

from __future__ import annotations

import ast
import builtins
import json
import socket
import struct
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

from r3_openrlhf.rewards.code.data import NotPlain, decode, encode

NAME = "solution.py"  # of the program, in its exceptions
MAX_NAMES = 10_000
MAX_MESSAGE_BYTES = 2**27  # both ends have a limit of memory and of time as well
_LENGTH = struct.Struct(">I")
_MUTABLE = (list, dict, set, bytearray)


def failure(error: BaseException) -> tuple[str, str]:
    """Status and detail of an exception: its type and the program's last line in it."""
    line, trace = 0, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == NAME:
            line = trace.tb_lineno
        trace = trace.tb_next
    kinds = ((MemoryError, "memory"), (PermissionError, "blocked"))
    status = next((status for kind, status in kinds if isinstance(error, kind)), "error")
    name = type(error).__name__
    return status, f"{str(name)[:80]} at line {line}" if line else str(name)[:80]


class ProgramError(Exception):
    """The program raised something of its own making."""


class ProgramGone(Exception):
    """The program's process has ended, or does not keep to the protocol."""


class CannotTravel(BaseException):
    """The test gives the program an object, neither data nor function. No test catches this."""


class Peer:
    """One end of the link between the two processes.

    of_object: (object of this process) -> its stand-in in the other one; NotPlain where there is
    nothing. stub: (number) -> the stand-in for an object of the other process. operations: what the
    other side may ask for.
    """

    def __init__(
        self, link: int, operations: dict[str, Callable[..., object]], stub: Callable[[Peer, int], object]
    ) -> None:
        self._socket = socket.socket(fileno=link)
        self._operations, self._stub = operations, stub
        self.objects: list[object] = []

    def ask(self, operation: str, *arguments: object) -> Any:
        """Return what the other side answers. It may ask in between.

        Raises:
            Exception: the type that the other side raised, where it is a built-in one. ProgramGone.
        """
        self._send([operation, [self._write(argument) for argument in arguments]])
        while True:
            message = self._receive()
            if isinstance(message, list):
                self._answer(message)
                continue
            if "error" in message:
                raise _exception(message)
            for argument, changed in zip(arguments, message["changed"], strict=False):
                _replace(argument, changed and self._read(changed))
            return self._read(message["value"])

    def serve(self) -> None:
        """Answer until the other side closes its end."""
        while True:
            self._answer(self._receive())

    def _answer(self, request: Any) -> None:
        operation, texts = request
        try:
            arguments = [self._read(text) for text in texts]
            value = self._operations[operation](*arguments)
            written = [self._write(argument) if _has_mutable(argument) else "" for argument in arguments]
            changed = ["" if new == old else new for new, old in zip(written, texts, strict=True)]
            answer: dict[str, Any] = {"value": self._write(value), "changed": changed}
        except (ProgramGone, CannotTravel):
            raise
        except NotPlain as error:
            answer = {"error": "TypeError", "detail": str(error), "arguments": "[]"}
        except BaseException as error:  # whatever it is, the other side is told what kind
            answer = self._told(error)
        self._send(answer)

    def _told(self, error: BaseException) -> dict[str, Any]:
        known = next(kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "builtins")
        try:
            arguments = encode(list(error.args))
        except NotPlain:  # also where one of them is an object
            arguments = "[]"
        return {"error": known, "detail": failure(error)[1], "arguments": arguments}

    def _write(self, value: object) -> str:
        return encode(value, of_object=self._number, max_bytes=MAX_MESSAGE_BYTES)

    def _number(self, value: object) -> list[object]:
        if isinstance(value, Stub):
            return ["yours", value._Stub__number]
        if self._stub is Stub and not callable(value):
            raise CannotTravel(f"the test gives the program a value of type {type(value).__name__}")
        self.objects.append(value)
        return ["mine", len(self.objects) - 1]

    def _read(self, text: str) -> Any:
        return decode(text, of_object=self._object, max_bytes=MAX_MESSAGE_BYTES)

    def _object(self, content: Any) -> object:
        whose, number = content
        if whose == "yours":
            return self.objects[number]
        return self._stub(self, int(number))

    def _send(self, message: object) -> None:
        body = json.dumps(message).encode()
        try:
            self._socket.sendall(_LENGTH.pack(len(body)) + body)
        except OSError as error:
            raise ProgramGone("it has ended") from error

    def _receive(self) -> Any:
        (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
        if length > 2 * MAX_MESSAGE_BYTES:
            raise ProgramGone("its answer is too large")
        try:
            return json.loads(self._exactly(length))
        except (ValueError, RecursionError) as error:
            raise ProgramGone("its answer is no plain data") from error

    def _exactly(self, length: int) -> bytes:
        content = bytearray()
        while len(content) < length:
            received = self._socket.recv(min(length - len(content), 2**18))
            if not received:
                raise ProgramGone("it has ended")
            content += received
        return bytes(content)


def _has_mutable(argument: object) -> bool:
    return isinstance(argument, _MUTABLE) or (
        isinstance(argument, (list, tuple)) and any(isinstance(item, _MUTABLE) for item in argument)
    )


def _replace(argument: Any, changed: Any) -> None:
    """Do to an argument what the other side did to it in place."""
    if isinstance(argument, (list, tuple)) and isinstance(changed, (list, tuple)):
        for item, new in zip(argument, changed, strict=False):
            _replace(item, new)
    if type(argument) is not type(changed):
        return
    if isinstance(argument, (list, bytearray)) and argument != changed:
        argument[:] = changed
    elif isinstance(argument, (dict, set)) and argument != changed:
        argument.clear()
        argument.update(changed)


def _exception(message: dict[str, Any]) -> Exception:
    kind = getattr(builtins, str(message["error"]), None)
    try:
        arguments = decode(message["arguments"])
        if not (isinstance(kind, type) and issubclass(kind, Exception)):
            kind = ProgramError
        error: Exception = kind(*arguments)
    except (NotPlain, TypeError, ValueError):
        error = ProgramError()
    error.of_program = str(message.get("detail", ""))[:200]  # type: ignore[attr-defined]
    return error


def _forwarded(operation: str, kind: Callable[[Any], Any] = lambda answer: answer) -> Any:
    """A method that the program's object does."""

    def method(self: Any, *arguments: object) -> Any:
        return kind(self._Stub__peer.ask(operation, self, *arguments))

    return method


class Stub:
    """A stand-in for the program's object. Tests query it there; expected values stay here."""

    def __init__(self, peer: Peer, number: int) -> None:
        self.__dict__.update(_Stub__peer=peer, _Stub__number=number)

    def __call__(self, *arguments: object, **keywords: object) -> Any:
        """Return or raise what the program's function does."""
        return self.__peer.ask("call", self, list(arguments), keywords)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self.__peer.ask("attribute", self, name)

    __setattr__ = _forwarded("set attribute")
    __getitem__ = _forwarded("item")
    __setitem__ = _forwarded("set item")
    __len__ = _forwarded("len", int)
    __bool__ = _forwarded("bool", bool)
    __str__ = _forwarded("str", str)
    __repr__ = _forwarded("repr", str)

    def __iter__(self) -> Iterator[Any]:
        items = self.__peer.ask("iter", self)
        while True:
            values = self.__peer.ask("next", items)
            if not values:
                return
            yield values[0]

    def __next__(self) -> Any:
        values = self.__peer.ask("next", self)
        if not values:
            raise StopIteration
        return values[0]

    def __eq__(self, other: object) -> bool:
        """With another of its objects only: a test's value is not shown to it, nor equal to one."""
        return isinstance(other, Stub) and bool(self.__peer.ask("equal", self, other))

    def __hash__(self) -> int:
        return id(self)

    def __instancecheck__(self, value: object) -> bool:
        return isinstance(value, Stub) and bool(self.__peer.ask("is instance", value, self))


def _call(function: Any, arguments: Any, keywords: Any) -> Any:
    return function(*arguments, **keywords)


def _set_item(value: Any, key: Any, item: Any) -> None:
    value[key] = item


def _next(value: Any) -> list[Any]:
    for item in value:
        return [item]
    return []


_OPERATIONS: dict[str, Callable[..., object]] = {
    "call": _call,
    "attribute": lambda value, name: getattr(value, name),
    "item": lambda value, key: value[key],
    "set item": _set_item,
    "set attribute": setattr,
    "len": len,
    "bool": bool,
    "str": str,
    "repr": repr,
    "iter": iter,
    "next": _next,
    "equal": lambda value, other: value == other,
    "is instance": isinstance,
}


def _callback(peer: Peer, number: int) -> Callable[..., Any]:
    """A function of the test that the program was given."""

    def callback(*arguments: object) -> Any:
        return peer.ask("call back", number, list(arguments))

    return callback


def serve_program(link: int, module: types.ModuleType) -> None:
    """The program's side, after it was loaded."""
    names = [name for name in module.__dict__ if not name.startswith("_")][:MAX_NAMES]
    operations: dict[str, Callable[..., object]] = {
        **_OPERATIONS,
        "names": lambda: names,
        "name": lambda name: module.__dict__[name],
    }
    Peer(link, operations, _callback).serve()


def run_test(link: int, setup: str, test: str) -> tuple[str, str, str]:
    """The tests' side: status, value and detail."""
    peer: Peer

    def call_back(number: int, arguments: list[object]) -> object:
        function = peer.objects[number]
        return function(*arguments)  # type: ignore[operator]

    peer = Peer(link, {"call back": call_back}, Stub)
    try:
        codes = [compile(source, "test.py", "exec", dont_inherit=True) for source in (setup, test)]
        used = {
            node.id for source in (setup, test) for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)
        }
    except (SyntaxError, ValueError, RecursionError) as error:
        return "unavailable", "null", f"the test is no Python: {type(error).__name__}"
    try:
        solution = types.ModuleType("solution")
        sys.modules["solution"] = solution
        solution.__getattr__ = lambda name: _named(peer, name)  # type: ignore[method-assign]
        names = [name for name in peer.ask("names") if isinstance(name, str)]
        solution.__all__ = names  # type: ignore[attr-defined]
        known = set(names) & used - set(dir(builtins)) - (sys.stdlib_module_names & sys.modules.keys())
        scope: dict[str, Any] = {"__name__": "test"}
        scope |= {name: sys.modules[name] for name in used & sys.stdlib_module_names & sys.modules.keys()}
        scope |= {name: peer.ask("name", name) for name in sorted(known)}
        for code in codes:
            exec(code, scope)
    except AssertionError as error:
        if hasattr(error, "of_program"):
            return "error", "null", error.of_program
        return "finished", "false", ""
    except CannotTravel as error:
        return "unavailable", "null", str(error)
    except ModuleNotFoundError as error:
        if hasattr(error, "of_program"):
            return "error", "null", error.of_program
        return "unavailable", "null", f"the test needs a module that is not here: {error.name}"
    except BaseException as error:  # the test's, or the program's within it: it does not hold
        return "error", "null", getattr(error, "of_program", "") or type(error).__name__
    return "finished", "true", ""


def _named(peer: Peer, name: str) -> Any:
    if name.startswith("__") or name not in peer.ask("names"):
        raise AttributeError(name)
    return peer.ask("name", name)
