"""Times of day, and times of a race: "2:15", "2:15 p.m.", "14:15", "noon"."""

import re

from r3_openrlhf.rewards.answers.kinds import Kind
from r3_openrlhf.rewards.answers.text.number_words import value_in_words
from r3_openrlhf.rewards.answers.text.patterns import phrases
from r3_openrlhf.rewards.answers.text.plain import plain

# seconds since noon or midnight; which half of the day: "a", "p", or "" if that is not said
Time = tuple[int, str]

_CLOCK = phrases("clock")
_HALVES = {
    "am": "a",
    "inthemorning": "a",
    "pm": "p",
    "intheafternoon": "p",
    "intheevening": "p",
    "atnight": "p",
}
_NAMED = {"noon": "p", "12 noon": "p", "midday": "p", "midnight": "a", "12 midnight": "a"}
_AS_CLOCK = re.compile(r"(?:[01]?\d|2[0-4]):[0-5]\d(?::[0-5]\d)?")
_PARTS = re.compile(
    r"(?:a )?(half|quarter|[a-z\d-]+)(?: minutes?)? (past|after|to|before) ([a-z]+|\d+)"
)
_PART = {"half": 30, "quarter": 15} | {str(minute): minute for minute in range(60)}
_IN_TEXT = re.compile(
    r"(?i)\b\d{1,2}:\d\d(?: ?[ap]\.?m\b\.?)?|\b\d{1,2} ?[ap]\.?m\b|\b(?:half|(?:a )?quarter) (?:past|to) \w+|\b[a-z\d-]+ minutes? (?:past|to|after|before) \w+(?: ?[ap]\.?m\b)?"
)
_SPOKEN_HALF = re.compile(
    r"\s*(?:in the (?:morning|afternoon|evening)|at night|[ap]\.? ?m\.?)$"
)
_SAID = re.compile(r"(?i)[ap]\.? ?m\.?\b|o'?clock")


def _read(text: str, problem: str) -> Time | None:
    text = plain(text).strip(". ")
    name = re.sub(r"^(?:at|exactly|about) ", "", text.lower())
    if name in _NAMED:
        return 0, _NAMED[name]
    text = _as_digits(name) or text
    clock = _CLOCK["time"].fullmatch(text) or _CLOCK["time"].fullmatch(text + ".")
    if clock is None or not (clock["minute"] or clock["half"]):
        return None
    return _seconds_and_half(clock)


def _seconds_and_half(clock: re.Match[str]) -> Time | None:
    """Read the parts of a clock's time; None: there is no such time."""
    half = _HALVES.get(re.sub("[ .]", "", (clock["half"] or "").lower()), "")
    hour = int(clock["hour"])
    minute = int(clock["minute"] or 0)
    second = int(clock["second"] or 0)
    if hour > 24 or minute > 59 or second > 59:
        return None
    if half and hour > 12:
        return None
    if _is_of_24_hours(clock["hour"], half):
        half = "p" if 12 < hour < 24 else "a"
    return hour % 12 * 3600 + minute * 60 + second, half


def _is_of_24_hours(hour: str, half: str) -> bool:
    """Tell whether an hour is one of 24: 03:45 is, 3:45 may be of either half of the day."""
    if int(hour) > 12 or int(hour) == 0:
        return True
    return not half and hour.startswith("0")


def _as_digits(name: str) -> str | None:
    """Write "quarter past nine pm" as "9:15 pm"; None: the name of a time is not of this form."""
    without_half = _SPOKEN_HALF.sub("", name)
    spoken = _PARTS.fullmatch(without_half)
    if spoken is None:
        return None
    minutes = _number_of(spoken[1])
    hour = _number_of(spoken[3])
    if not minutes or not hour or minutes >= 60:
        return None
    if spoken[2] in ("to", "before"):
        minutes = -minutes
    total = hour * 60 + minutes
    half = name[len(without_half) :]
    return f"{(total // 60 - 1) % 12 + 1}:{total % 60:02d}{half}"


def _number_of(word: str) -> int:
    """Return the number of minutes or the hour that a word says; 0: it says none."""
    return _PART.get(word) or int(value_in_words(word.replace("-", " ")) or 0)


def _recognise(reference: str, problem: str) -> bool:
    text = plain(reference)
    if _AS_CLOCK.fullmatch(text):
        return _CLOCK["asked"].search(problem) is not None and not _CLOCK["ratio_asked"].search(
            problem
        )
    return text.lower() in _NAMED or len(text) < 20 and _SAID.search(text) is not None


def _same(said: Time, wanted: Time) -> bool:
    halves_agree = said[1] == wanted[1] or not said[1] or not wanted[1]
    return said[0] == wanted[0] and halves_agree


KIND = Kind(
    name="time of day",
    recognise=_recognise,
    read=_read,
    same=_same,
    find=lambda sentence, problem: _IN_TEXT.findall(plain(sentence)),
)
