"""Draw entries of reasoning-gym that are the same in each process and for each size.

    python -m r3_openrlhf.problems.drawing TASK '{"seed": 42}'

writes one entry a line, as JSON. Imports nothing of the package: a process of its own starts with it."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator
from typing import Any

# They iterate over sets of strings, so their items change with PYTHONHASHSEED.
BY_HASH = frozenset(
    {
        "isomorphic_strings",
        "knight_swap",
        "polynomial_multiplication",
        "ransom_note",
        "word_ladder",
    }
)
# The library is asked for this many items first, then for twice as many, and so on.
_FIRST_SIZE = 128


class NotKept(Exception):
    """An entry that JSON does not hold."""


class NotDrawn(Exception):
    """The library does not take these options."""


def drawn(task: str, options: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the entries of a data set, those of BY_HASH from a process with a fixed hash seed.

    Args:
        options: of the data set, with its seed and without its size.

    Raises:
        NotDrawn: the library refuses the options, or fails; in its words.
        NotKept: an entry is not JSON.
    """
    fixed = not sys.flags.hash_randomization
    lines = _lines_of if fixed or task not in BY_HASH else _lines_of_process
    with contextlib.closing(lines(task, options)) as found:
        for line in found:
            yield json.loads(line)


def _lines_of(task: str, options: dict[str, Any]) -> Generator[str, None, None]:
    """Yield entry i as JSON. It is that of the first size in 128, 256, 512, ... that has one: acre draws other
    items for another size, so the sizes may not depend on how many are wanted."""
    import reasoning_gym

    start, size = 0, _FIRST_SIZE
    while True:
        try:
            entries = reasoning_gym.create_dataset(task, size=size, **options)
        except Exception as error:  # a task raises almost anything about its options
            if start:
                return  # word_ladder has no more than 20,000
            raise NotDrawn(_cause(error)) from error
        for index in range(start, size):
            try:
                entry = entries[index]
            except IndexError:  # it has no more
                return
            except Exception as error:
                raise NotDrawn(_cause(error)) from error
            try:
                line = json.dumps(entry)
            except TypeError as error:
                raise NotKept(str(error)) from error
            yield line
        start, size = size, 2 * size


def _lines_of_process(task: str, options: dict[str, Any]) -> Generator[str, None, None]:
    """Yield what `_lines_of` does, in a process whose hash seed is 0. It draws no more than a pipe holds."""
    paths = [path or os.getcwd() for path in sys.path]
    environment = {
        **os.environ,
        "PYTHONHASHSEED": "0",
        "PYTHONPATH": os.pathsep.join(paths),
    }
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, task, json.dumps(options)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment,
            text=True,
            encoding="utf-8",
        )
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if line.startswith("!"):
                    kind, reason = json.loads(line[1:])
                    raise {"NotKept": NotKept, "NotDrawn": NotDrawn}[kind](reason)
                yield line
            if process.wait():
                errors.seek(0)
                said = errors.read().decode(errors="replace").strip().splitlines()
                raise NotDrawn(said[-1] if said else f"exit status {process.returncode}")
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


def _cause(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return " ".join(str(error).split("\n")[0].split()) or type(error).__name__


def main() -> None:
    """Write the entries of sys.argv's data set; a line that begins with ! says why there are no more."""
    task, options = sys.argv[1:]
    # what the library prints goes to stderr
    output = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        for line in _lines_of(task, json.loads(options)):
            output.write(line + "\n")
            output.flush()
        output.close()
    except (NotKept, NotDrawn) as error:
        output.write("!" + json.dumps([type(error).__name__, str(error)]) + "\n")
        output.close()
    except BrokenPipeError:
        os._exit(1)  # nobody reads any more


if __name__ == "__main__":
    main()
