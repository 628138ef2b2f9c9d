"""Times of day, and times of a race: "2:15", "2:15 p.m.", "14:15", "noon"."""

import re

from r3_openrlhf.rewards.answers.kinds import Kind
from r3_openrlhf.rewards.answers.number_words import value_in_words
from r3_openrlhf.rewards.answers.patterns import phrases
from r3_openrlhf.rewards.answers.plain import plain

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
    spoken = _SPOKEN_HALF.sub("", name)
    apart = _PARTS.fullmatch(spoken)
    words = (apart[1], apart[3]) if apart else ("", "")
    part, hour = (
        _PART.get(word) or int(value_in_words(word.replace("-", " ")) or 0) for word in words
    )
    if apart and part and hour and part < 60:
        clock = hour * 60 + (part if apart[2] in ("past", "after") else -part)
        text = f"{(clock // 60 - 1) % 12 + 1}:{clock % 60:02d}{name[len(spoken) :]}"
    said = _CLOCK["time"].fullmatch(text) or _CLOCK["time"].fullmatch(text + ".")
    if said is None or not (said["minute"] or said["half"]):
        return None
    hour, minute, second = int(said["hour"]), int(said["minute"] or 0), int(said["second"] or 0)
    half = _HALVES.get(re.sub("[ .]", "", (said["half"] or "").lower()), "")
    if hour > 24 or minute > 59 or second > 59 or half and hour > 12:
        return None
    if hour > 12 or hour == 0 or not half and said["hour"][0] == "0":  # 03:45 is of 24 hours
        half = "p" if 12 < hour < 24 else "a"
    return hour % 12 * 3600 + minute * 60 + second, half


def _recognise(reference: str, problem: str) -> bool:
    text = plain(reference)
    if _AS_CLOCK.fullmatch(text):
        return _CLOCK["asked"].search(problem) is not None and not _CLOCK["ratio_asked"].search(
            problem
        )
    return text.lower() in _NAMED or len(text) < 20 and _SAID.search(text) is not None


def _same(said: Time, wanted: Time) -> bool:
    return said[0] == wanted[0] and (said[1] == wanted[1] or not (said[1] and wanted[1]))


KIND = Kind(
    name="time of day",
    rank=12,
    recognise=_recognise,
    read=_read,
    same=_same,
    find=lambda sentence, problem: _IN_TEXT.findall(plain(sentence)),
)
