"""The words of a command in a script of bash, which is read and never run.

Known: assignments, defaults (`${A:-1}`, `${A:=1}`), cuts (`${A##*/}`, `${A%.*}`, `${A/x/y}`), arrays, sums
(`$((2 * A))`), quotes, comments, here-documents, functions with their arguments, `set --`, `shift`, `case` (an unknown
word fits its first part), loops, and commands in quotes, as `srun bash -c "..."` has them. Of an `if` all assignments
count. The body of a loop that the script alone does not decide is read once, and what it assigns is not known after it.
`$(...)` stays as it is, but for `$(... || echo 1)`, which is 1, and paths (`$(cd "$(dirname "$0")" && pwd)`); so does a variable that is not known."""

import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from r3_openrlhf.method.errors import ConfigError
from r3_openrlhf.stack.shell_arithmetic import (
    Known,
    as_one_word,
    is_test_true,
    is_true,
    sum_of,
    take_step,
)

_HEREDOC = re.compile(
    r"^[^\n]*?\bread\b[^\n]*?(\w+)\s*<<-?\s*['\"]?(\w+)['\"]?\n(.*?)\n\s*\2$", re.M | re.S
)
_QUOTED = r"\"(?:\\.|[^\"\\])*\""
_DEFAULT = rf"(?:[^{{}}\"]|{_QUOTED}|\{{(?:[^{{}}]|\{{[^{{}}]*\}})*\}})*"
_FILLED = rf"\$\{{{_DEFAULT}\}}|\$\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"
_INSIDE = r"(?:[^()]|\((?:[^()]|\([^()]*\))*\))*"  # of parentheses
_OF_PATH = re.compile(r"(basename|dirname|realpath|readlink\s+-f)\s+(?:--\s+)?(.+)", re.S)
_FOLDER = re.compile(
    r"(?:cd\s+(?:--\s+)?(.+?)\s*(?:&?>\s*/dev/null\s*(?:2>&1\s*)?)?(?:&&|;)\s*)?pwd(?:\s+-[LP])?",
    re.S,
)
# possessive: a quote that never ends is read once
_DOUBLE = rf"\"(?:\\.|{_FILLED}|[^\"\\])*+\""
_TOKEN = re.compile(
    r"(?P<comment>\#[^\n]*)|(?P<redirection>\d*[<>]+&?\s*[^\s;&|]*)|(?P<end>;;|&&|\|\||[;&|\n()])"
    rf"|(?P<word>(?:\\.|'[^']*'|{_DOUBLE}|{_FILLED}|[^\s'\"\\;&|<>()])+)|[^\S\n]+|.",
    re.S,
)
_PART = re.compile(rf"'([^']*)'|({_DOUBLE})|\\(.)|((?:{_FILLED}|[^'\"\\])+)", re.S)
_CHANGE = (
    rf"(?P<empty>:?)(?P<sign>[-=])(?P<default>{_DEFAULT})|:(?P<start>\d+)"
    rf"|(?P<cut>\#\#?|%%?|//?)(?P<pattern>{_DEFAULT})"
)
_VARIABLE = re.compile(
    rf"\\(?P<escaped>[\"\\$`])|\$\{{(?P<name>\w+|[@*])(?:\[(?:[@*]|(?P<first>0))\])?(?:{_CHANGE})?\}}"
    rf"|(?P<count>\$\#|\$\{{\#\}})|\$(?P<plain>[a-zA-Z_]\w*|\d|[@*])|\$\(\((?P<sum>(?:[^()]|\([^()]*\))*)\)\)"
    rf"|\$\([^()]*\|\|\s*echo\s+(?P<echo>[\w./-]+)\s*\)"
    rf"|\$\(\s*(?P<command>(?:basename|cd|dirname|pwd|realpath|readlink)\b{_INSIDE})\)"
)
_ASSIGNMENT = re.compile(r"(\w+)(\+?)=(.*)", re.S)
_BEFORE = {"export", "declare", "local", "readonly", "then", "else", "do", "{"}
_ARGUMENT = re.compile(r"\$(?:\d|\{\d+\})")
_ARE_GIVEN = "#"  # in Known: the arguments ($1, ...) are those of a function or of `set --`
_MOST_CALLS = 1000
_MOST_TURNS = 1000  # of all loops
_LOOPS = {"for", "while", "until", "select"}
_LEAVES = {"break", "continue"}
_RANGE = re.compile(r"([^{}'\"]*)\{(-?\d+)\.\.(-?\d+)\}([^{}'\"]*)")
_CHOICE = re.compile(r"([^{}'\"$]*)\{([^{}'\",]*(?:,[^{}'\",]*)+)\}([^{}'\"]*)")
_SEQUENCE = re.compile(r"\$\(\s*seq((?:\s+-?\d+){1,3})\s*\)")
_IS_OPEN = re.compile(
    r"[$`*?]|\["
)  # a word that a script does not decide: a command, a pattern of files
_LONGEST = 1000  # characters of a value in which `${A/x/y}` looks for a pattern


class Command(NamedTuple):
    """The words of a command, and what a reader should know of how they were found."""

    words: list[str]
    notes: list[str]


def command_words(words: Sequence[str], module: re.Pattern[str], name: str) -> Command:
    """Return the words after `module` (`name` in a refusal): of a script if its path is the last word, and all
    before it NAME=VALUE, as in front of bash; else of the command itself.

    ConfigError: the script does not exist, or does not call it."""
    *given, path = words
    values = [_ASSIGNMENT.fullmatch(word) for word in given]
    is_script = all(values) and not path.startswith("-")
    if is_script and not Path(path).is_file():
        raise ConfigError(
            f"{path}: there is no such script; give its path, or the command's own words"
        )
    if not is_script:
        place = next(
            (number for number, word in enumerate(words) if module.fullmatch(word)), -1
        )
        return Command(list(words[place + 1 :]), [])
    known = {match[1]: [match[3]] for match in values if match}
    places = {"HOME": [str(Path.home())], "PWD": [str(Path.cwd())], "0": [path]}
    places["BASH_SOURCE"] = [path]
    notes: list[str] = []
    text = Path(path).read_text(encoding="utf-8")
    found = words_after(text, module, places | known, notes)
    if found is None:
        raise ConfigError(
            f"{path} does not call {name}; give its script, or the words after it themselves"
        )
    return Command(found, notes)


def words_after(
    text: str,
    module: re.Pattern[str],
    known: Known | None = None,
    notes: list[str] | None = None,
) -> list[str] | None:
    """Return the words after the one that is `module`, of the first command with it; None: there is none.

    notes: learns of a loop that runs the command again. ConfigError: a loop does not end."""
    text = text.replace("\\\n", " ").replace("$(pwd)", "$PWD")
    text = _HEREDOC.sub(lambda found: f'{found[1]}="{found[3]}"', text)
    return _search(text, module, {"@": []} | (known or {}), [] if notes is None else notes)


@dataclass
class _Case:
    """A `case` around a statement."""

    word: str
    asks: bool = True  # for the pattern of a part?
    fits: bool = False
    reads: bool = False  # does the present part count?
    is_done: bool = False  # did a part count?


Statement = tuple[list[str], str]  # raw words, and what ends them


@dataclass
class _Reader:
    """Follows statements up to the first command with `module`; `known` learns their variables."""

    text: str
    module: re.Pattern[str]
    known: Known
    notes: list[str]
    given: Known = field(init=False)  # before the script's own
    functions: dict[str, list[Statement]] = field(default_factory=dict)
    active: list[str] = field(default_factory=list)  # functions that are being called
    num_calls: int = 0
    num_turns: int = 0

    def __post_init__(self) -> None:
        self.given = dict(self.known)

    def follow(self, statements: Iterable[Statement]) -> list[str] | None:
        """Return the words after `module`; None: no statement has it."""
        cases: list[_Case] = []
        following = iter(statements)
        for raw, end in following:
            raw = _in_cases(raw, end, cases, self.known)
            while raw and raw[0] in _BEFORE:
                raw = raw[1:]
            is_skipped = not all(case.reads for case in cases)
            if not raw or is_skipped:
                continue
            if name := _defined(raw, end):
                self.functions[name] = _body(itertools.chain([(raw[2:], end)], following))
                continue
            words = self._loop(raw, end, following) if raw[0] in _LOOPS else self._read(raw)
            if words is not None:
                return words
        return None

    def _read(self, raw: list[str]) -> list[str] | None:
        """Read one statement: assignments, `set`, `shift`, the call of a function, or any other command."""
        known, assignments = self.known, _assignments(raw)
        for assignment in assignments:
            _assign(assignment, known)
        if assignments:
            return None
        command = list(itertools.dropwhile(_ASSIGNMENT.fullmatch, raw))
        words = _expanded(command, known)
        match words:
            case ["set", *options] if "--" in options:
                known["@"] = options[options.index("--") + 1 :]
                known[_ARE_GIVEN] = []
            case ["shift", *number] if all(map(str.isdecimal, number)):
                known["@"] = known["@"][int(number[0]) if number else 1 :]
            case [name, *arguments] if name in self.functions:
                return self._call(name, arguments)
            case _:
                return _words_after(words, self.module, known, self.text, self.notes)
        return None

    def _loop(
        self, raw: list[str], end: str, following: Iterator[Statement]
    ) -> list[str] | None:
        """Read a loop, turn after turn; it takes its statements from `following`."""
        conditions, body = _parts_of_loop(raw, end, following)
        if raw[0] in ("while", "until"):
            found = self.follow(conditions)
            return found or self._while(conditions, body, until=raw[0] == "until")
        head = _filled_word(raw[1], self.known) if len(raw) > 1 else ""
        if head.startswith("(("):
            return self._for_numbers(head.removeprefix("((").removesuffix("))"), body)
        words: list[str] | None = list(self.known["@"])
        if raw[2:3] == ["in"]:
            words = _words_of_loop(raw[3:], self.known)
        if words is None or raw[0] == "select":
            self._forget([head])
            return self._once(body)
        for number, word in enumerate(words):
            self.known[head] = [word]
            if _may_leave(body):
                return self._once(body)
            found = self._turn(body)
            if found is not None:
                more = words[number + 1 :]
                if more:
                    self.notes.append(
                        f"a loop calls it {len(more) + 1} times; this is the call with {head}={word}. "
                        f"The others have {head}={', '.join(more)}"
                    )
                return found
        return None

    def _for_numbers(self, head: str, body: list[Statement]) -> list[str] | None:
        """Read `for ((A=0; A<3; A++))`."""
        first, condition, step = [*head.split(";"), "", ""][:3]
        if not take_step(first, self.known):
            self._forget(re.findall(r"[a-zA-Z_]\w*", head))
            return self._once(body)

        def goes_on() -> bool | None:
            return is_true(condition, self.known)

        def after_turn() -> None:
            if not take_step(step, self.known):
                self._forget(re.findall(r"[a-zA-Z_]\w*", step))

        return self._turns(body, goes_on, after_turn)

    def _while(
        self, conditions: list[Statement], body: list[Statement], *, until: bool
    ) -> list[str] | None:
        """Read `while` or `until`. One without end, or that the script does not decide, is read once."""
        raw = conditions[0][0] if len(conditions) == 1 else []
        if raw in (["true"], [":"]):
            return self._once(body)

        def goes_on() -> bool | None:
            if len(raw) == 1 and raw[0].startswith("\\(\\("):
                text = _filled_word(raw[0], self.known)
                found = is_true(text.removeprefix("((").removesuffix("))"), self.known)
            else:
                found = is_test_true(_expanded(raw, self.known))
            return found if found is None else found is not until

        return self._turns(body, goes_on, lambda: None)

    def _turns(
        self,
        body: list[Statement],
        goes_on: Callable[[], bool | None],
        after_turn: Callable[[], None],
    ) -> list[str] | None:
        is_on = goes_on()
        if is_on is None or _may_leave(body):
            return self._once(body) if is_on is not False else None
        while is_on:
            found = self._turn(body)
            if found is not None:
                after_turn()
                if goes_on() is not False:
                    self.notes.append("a loop calls it more than once; this is the first call")
                return found
            after_turn()
            is_on = goes_on()
            if is_on is None:
                return self._once(body)
        return None

    def _turn(self, body: list[Statement]) -> list[str] | None:
        self.num_turns += 1
        if self.num_turns > _MOST_TURNS:
            raise ConfigError(
                f"the loops of the script take more than {_MOST_TURNS:,} turns; write the command's own words"
            )
        return self.follow(body)

    def _once(self, body: list[Statement]) -> list[str] | None:
        """Read a body that runs an unknown number of times: what it assigns is not known after it."""
        before = dict(self.known)
        found = self._turn(body)
        if found is None:
            names = [name for name, words in self.known.items() if before.get(name) != words]
            self._forget(names)
        return found

    def _forget(self, names: Iterable[str]) -> None:
        """Take the values of variables back to those from outside the script, if there are any."""
        for name in names:
            if name in self.given:
                self.known[name] = self.given[name]
            else:
                self.known.pop(name, None)

    def _call(self, name: str, arguments: list[str]) -> list[str] | None:
        self.num_calls += 1
        if name in self.active or self.num_calls > _MOST_CALLS:
            return None
        before = {key: self.known[key] for key in ("@", _ARE_GIVEN) if key in self.known}
        self.known |= {"@": arguments, _ARE_GIVEN: []}
        self.active.append(name)
        found = self.follow(self.functions[name])
        self.active.pop()
        del self.known[_ARE_GIVEN]
        self.known |= before
        return found


def _search(
    text: str, module: re.Pattern[str], known: Known, notes: list[str]
) -> list[str] | None:
    """Follow the statements of a text; then those of functions that nobody calls by name."""
    text = as_one_word(text)
    reader = _Reader(text, module, known, notes)
    found = reader.follow(_statements(text))
    for body in list(reader.functions.values()):
        if found is None:
            found = reader.follow(body)
    return found


def _defined(raw: Sequence[str], end: str) -> str | None:
    """Return the name of a function whose body begins here: `f() {`, `function f() {` or `function f {`."""
    match raw:
        case [name] if end == "(":
            return name
        case ["function", name] if end in ("(", "\n"):
            return name
        case ["function", name, "{", *_]:
            return name
    return None


def _body(statements: Iterator[Statement]) -> list[Statement]:
    """Take the statements up to the brace that closes the first one."""
    body: list[Statement] = []
    depth = 0
    for raw, end in statements:
        if depth == 0 and raw[:1] not in ([], ["{"]):
            return [(raw, end)]  # no braces: a subshell, or no function
        closes = raw[:1] == ["}"]
        depth += (raw[:1] == ["{"]) - closes
        if closes and depth == 0:
            break
        body.append((raw, end))
    return body


def _first_word(raw: Sequence[str]) -> str:
    return next((word for word in raw if word not in _BEFORE), "")


def _parts_of_loop(
    raw: list[str], end: str, following: Iterator[Statement]
) -> tuple[list[Statement], list[Statement]]:
    """Take the statements of a loop up to its `done`: (those before `do`, the body)."""
    conditions: list[Statement] = [(raw[1:], end)]
    body: list[Statement] = []
    depth, is_in_body = 0, False
    for words, ends in following:
        first = _first_word(words)
        if not is_in_body and words[:1] == ["do"]:
            is_in_body, words = True, words[1:]
        if first in _LOOPS:
            depth += 1
        elif first == "done" and depth == 0:
            break
        elif first == "done":
            depth -= 1
        (body if is_in_body else conditions).append((words, ends))
    return conditions, body


def _may_leave(body: Iterable[Statement]) -> bool:
    """Return True if a `break` or `continue` is in the body, which some condition decides."""
    return any(_first_word(raw) in _LEAVES for raw, _ in body)


def _words_of_loop(raw: Sequence[str], known: Known) -> list[str] | None:
    """Return what a loop goes over: words, `{1..3}`, `{a,b}`, `$(seq 3)`; None: the script does not decide it."""
    found: list[str] = []
    for word in itertools.chain.from_iterable(map(_unfolded, raw)):
        numbers = _SEQUENCE.fullmatch(word)
        if numbers:
            first, step, last = _bounds(*map(int, numbers[1].split()))
            if step == 0:
                return None
            found += map(str, range(first, last + (1 if step > 0 else -1), step))
            continue
        words = _expanded([word], known)
        if any(_IS_OPEN.search(one) for one in words):
            return None
        found += words
    return found


def _bounds(first: int, *others: int) -> tuple[int, int, int]:
    """Return (first, step, last) of the arguments of seq: LAST, FIRST LAST, or FIRST STEP LAST."""
    if not others:
        return 1, 1, first
    if len(others) == 1:
        return first, 1, others[0]
    return first, others[0], others[1]


def _unfolded(word: str) -> list[str]:
    """Return the words that bash makes of `a{1..3}` or `{a,b}`; of any other word itself."""
    numbers, choice = _RANGE.fullmatch(word), _CHOICE.fullmatch(word)
    if numbers:
        first, last = int(numbers[2]), int(numbers[3])
        step = 1 if first <= last else -1
        return [
            f"{numbers[1]}{number}{numbers[4]}" for number in range(first, last + step, step)
        ]
    if choice:
        return [f"{choice[1]}{part}{choice[3]}" for part in choice[2].split(",")]
    return [word]


def _assignments(words: Sequence[str]) -> list[re.Match[str]]:
    """Return the assignments of a statement that has nothing else; [] for any other statement."""
    matches = [_ASSIGNMENT.fullmatch(word) for word in words]
    assignments = [match for match in matches if match is not None]
    return assignments if len(assignments) == len(words) else []


def _assign(assignment: re.Match[str], known: Known) -> None:
    """Store what NAME=VALUE, NAME=(WORDS) or one of them with += gives to the variable."""
    name, more, value = assignment.groups()
    before = known.get(name, []) if more else []
    if not value.startswith("("):
        known[name] = ["".join(before) + _filled_word(value, known)]
        return
    elements: list[str] = []
    for raw, _ in _statements(value[1:-1]):
        elements += _expanded(raw, known)
    known[name] = before + elements


def _words_after(
    words: list[str], module: re.Pattern[str], known: Known, text: str, notes: list[str]
) -> list[str] | None:
    """Return the words after `module` of a command, or of one in its quotes; None without it.

    text: what the command was read from; a word that is all of it would be read for ever."""
    for place, word in enumerate(words):
        if module.fullmatch(word):
            return words[place + 1 :]
        if module.search(word) and word != text:
            quoted = _search(word, module, known, notes)
            if quoted is not None:
                return quoted
    return None


def _in_cases(raw: list[str], end: str, cases: list[_Case], known: Known) -> list[str]:
    """Follow `case`; returns what is left of the statement."""
    if raw and raw[0] == "case":
        word = _filled_word("".join(raw[1:2]), known)
        # a script is read without arguments
        cases.append(_Case(_ARGUMENT.sub("", word)))
        raw = raw[3:]
    elif raw and raw[0] == "esac" and cases:
        cases.pop()
        return raw[1:]
    if not cases:
        return raw
    here = cases[-1]
    if not here.asks:
        here.asks = end == ";;"
        return raw
    here.fits |= any(fnmatchcase(here.word, _filled_word(word, known)) for word in raw)
    if end == ")":  # an unknown word fits its first part
        here.reads = not here.is_done and (here.fits or "$" in here.word)
        here.is_done, here.asks, here.fits = here.is_done or here.reads, False, False
    return []


def _filled_word(word: str, known: Known) -> str:
    """Return a word without quotes, with the values of variables; it is not split."""
    texts = []
    for part in _PART.finditer(word):
        single, double, escaped, bare = part.groups()
        inside = double[1:-1] if double else bare or ""
        texts.append(single or escaped or _filled(inside, known))
    return "".join(texts)


def _statements(text: str) -> Iterator[tuple[list[str], str]]:
    """Yield the raw words of each command, an array as one, NAME=(...), and what ends it."""
    words: list[str] = []
    array: list[str] | None = None
    for token in _TOKEN.finditer(text):
        word, end = token["word"], token["end"]
        if array is not None:
            array += [word] if word else []
            if end == ")":
                words[-1] += f"({' '.join(array)})"
                array = None
        elif word:
            words.append(word)
        elif (
            end == "(" and words and words[-1].endswith("=") and text[token.start() - 1] == "="
        ):
            array = []
        elif end:
            yield words, end
            words = []
    yield words, ""


def _expanded(raw: list[str], known: Known) -> list[str]:
    """Words without quotes, with the values of variables; what is not quoted is split."""
    found: list[str] = []
    for word in raw:
        parts: list[str] = []
        for part in _PART.finditer(word):
            single, double, escaped, bare = part.groups()
            double = (double or "")[1:-1]
            array = _array(double, known)
            if array is not None:
                parts = (
                    [*parts[:-1], "".join(parts[-1:] + array[:1]), *array[1:]]
                    if array
                    else parts
                )
            elif bare is None:
                text = single or escaped or _filled(double, known)
                parts = [*parts[:-1], "".join(parts[-1:]) + text]
            else:
                texts = re.findall(rf"(?:{_FILLED}|\S)+", _filled(bare, known))
                parts = (
                    [*parts[:-1], "".join(parts[-1:] + texts[:1]), *texts[1:]]
                    if texts
                    else parts
                )
        found += parts
    return found


def _array(text: str, known: Known) -> list[str] | None:
    """Return the words of "$@", "${@:2}" or "${NAME[@]}"; None: the text is none of them, or is not known."""
    found = _VARIABLE.fullmatch(text) if "@" in text else None
    if found is None or found["default"] is not None or found["cut"]:
        return None
    words = _words_of(found["name"] or found["plain"] or "", known)
    if words is None or not found["start"]:
        return words
    return words[max(0, int(found["start"]) - 1) :]


def _words_of(name: str, known: Known) -> list[str] | None:
    """Return the words of a variable or an argument; None: it is not known."""
    if name == "*":
        return known["@"]
    if not name.isdecimal() or name == "0":
        return known.get(name)
    place, arguments = int(name) - 1, known["@"]
    if place < len(arguments):
        return [arguments[place]]
    return [] if _ARE_GIVEN in known else None


def _filled(text: str, known: Known) -> str:
    """Fill in the values of variables; an unknown one without a default stays."""

    def value(found: re.Match[str]) -> str:
        if found["sum"] is not None:
            return sum_of(_filled(found["sum"], known), known) or found[0]
        if found["count"]:
            return str(len(known["@"]))
        if found["escaped"]:
            return found["escaped"]
        if found["echo"]:
            return found["echo"]
        if found["command"]:
            return _path_of(found["command"].strip(), known) or found[0]
        return _value_of_variable(found, known)

    return _VARIABLE.sub(value, text)


def _value_of_variable(found: re.Match[str], known: Known) -> str:
    """Return the value of `$NAME` or `${NAME...}`, or its default; an unknown one without stays."""
    name = found["name"] or found["plain"]
    words = _words_of(name, known)
    default = found["default"]
    if default is None:
        return found[0] if words is None else _changed(words, found, known)
    # with a colon, `${NAME:-...}`, an empty value is as good as none
    is_unset = not words or (found["empty"] and not any(words))
    if not is_unset:
        return _changed(words or [], found, known)
    text = _filled(re.sub(r'(?<!\\)"', "", default), known)
    if found["sign"] == "=":
        known[name] = [text]
    return text


def _changed(words: list[str], found: re.Match[str], known: Known) -> str:
    """Return the words of a variable after `[0]`, `:START` or a cut."""
    if found["first"]:
        words = words[:1]
    if found["start"]:
        # of arguments; of a text it counts characters
        if found["name"] not in ("@", "*"):
            return " ".join(words)[int(found["start"]) :]
        words = words[max(0, int(found["start"]) - 1) :]
    if found["cut"]:
        pattern = re.sub(r"(?<!\\)[\"']", "", found["pattern"])
        words = [_cut(word, found["cut"], _filled(pattern, known)) for word in words]
    return " ".join(words)


def _path_of(command: str, known: Known) -> str | None:
    """Return the path that `dirname PATH`, `cd PATH && pwd` and the like print; None: it is not known."""
    of_path, of_folder = _OF_PATH.fullmatch(command), _FOLDER.fullmatch(command)
    if of_path:
        word = of_path[2]
    elif of_folder:
        word = of_folder[1] or "."
    else:
        return None
    path, here = _filled_word(word, known), known.get("PWD")
    if _IS_OPEN.search(path) or not path:
        return None
    if of_path and of_path[1] == "basename":
        return None if " " in word else Path(path).name
    if of_path and of_path[1] == "dirname":
        return os.path.dirname(path.rstrip("/")) or "."
    return os.path.normpath(Path(here[0], path)) if here else None


def _cut(text: str, sign: str, pattern: str) -> str:
    """Return what bash leaves of a text: `#` and `%` take the shortest match from the begin or the end,
    `##` and `%%` the longest; `/` replaces the first match, `//` all."""
    if sign in ("/", "//"):
        return _replaced(
            text, *re.split(r"(?<!\\)/", pattern, maxsplit=1), all_of_them=sign == "//"
        )
    places = range(len(text) + 1)
    if sign in ("##", "%"):
        places = places[::-1]
    for place in places:
        part = text[:place] if "#" in sign else text[place:]
        if fnmatchcase(part, pattern):
            return text[place:] if "#" in sign else text[:place]
    return text


def _replaced(text: str, pattern: str, by: str = "", *, all_of_them: bool) -> str:
    pattern, by = pattern.replace("\\/", "/"), by.replace("\\/", "/")
    done, place = "", 0
    while place < len(text) <= _LONGEST and pattern:
        ends = range(len(text), place, -1)
        end = next((end for end in ends if fnmatchcase(text[place:end], pattern)), None)
        if end is None:
            done, place = done + text[place], place + 1
            continue
        done, place = done + by, end
        if not all_of_them:
            break
    return done + text[place:]
