"""Dates: "2024-03-05", "March 5, 2024", "5.3.2024"; the year may be missing on one side."""

import datetime
import re

from r3_openrlhf.rewards.answers.kinds import Kind
from r3_openrlhf.rewards.answers.text.patterns import phrases, table
from r3_openrlhf.rewards.answers.text.plain import plain

Date = tuple[int | None, int, int]  # year, month, day

_MONTHS = {
    name: number
    for number, names in enumerate(table("months.toml")["months"], 1)
    for name in names.split()
}
_MONTH = rf"(?P<month>{'|'.join(sorted(_MONTHS, key=len, reverse=True))})\.?"
_DAY = r"(?P<day>\d{1,2})(?:st|nd|rd|th|er|[.º])?"
_YEAR = r"(?P<year>\d{4})"
_SPELLED = [
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"{_MONTH} (?:the )?{_DAY}(?:,? (?:of )?{_YEAR})?",
        rf"(?:the |der |den |am |le |el )*{_DAY} (?:of |de )?{_MONTH}(?:,? (?:de )?{_YEAR})?",
        rf"{_YEAR},? {_MONTH} {_DAY}",
        rf"{_DAY}-{_MONTH}-{_YEAR}",
    )
]
_ISO = re.compile(r"(?P<year>\d{4})[-/.](?P<month>\d{1,2})[-/.](?P<day>\d{1,2})(?:T[\d:.]+Z?)?")
_NUMBERS = re.compile(
    r"(?P<first>\d{1,2})(?P<mark>[/.-])(?P<second>\d{1,2})(?:(?P=mark)(?P<year>\d{4}|\d\d))?"
)
_CHINESE = re.compile(
    r"(?:(?P<year>\d{4}) ?年 ?)?(?P<month>\d{1,2}) ?月 ?(?P<day>\d{1,2}) ?[日号]"
)
_CALENDAR = phrases("calendar")
_WEEKDAY = re.compile(r"(?i)\b(mon|tue|wed|thu|fri|sat|sun)(?:(?:s|nes|rs|ur)?day)?\b")
_IN_TEXT = re.compile(
    "|".join(re.sub(r"\?P<\w+>", "?:", p.pattern) for p in (*_SPELLED, _ISO, _CHINESE))
    + r"|\d{1,2}/\d{1,2}(?:/\d{2,4})?",
    re.IGNORECASE,
)


def _read(text: str, problem: str) -> Date | None:
    date = _without_weekday(_CALENDAR["around"].sub("", plain(text)), problem)
    weekday = _WEEKDAY.search(text)
    if (
        date
        and date[0]
        and weekday
        and weekday[1].lower() != f"{datetime.date(date[0], *date[1:]):%a}".lower()
    ):
        return None  # it was no Friday
    return date


def _without_weekday(text: str, problem: str) -> Date | None:
    for pattern in (*_SPELLED, _ISO, _CHINESE):
        if said := pattern.fullmatch(text):
            month = (
                int(said["month"])
                if said["month"].isdigit()
                else _MONTHS[said["month"].lower()]
            )
            return _checked(said["year"], month, int(said["day"]))
    if said := _NUMBERS.fullmatch(text):
        first, second = int(said["first"]), int(said["second"])
        day_first = (
            first > 12
            or said["mark"] == "."
            or _CALENDAR["day_first"].search(problem) is not None
        )
        month, day = (second, first) if day_first else (first, second)
        return _checked(said["year"], month, day)
    return None


def _checked(year: str | None, month: int, day: int) -> Date | None:
    number = (2000 + int(year) if len(year) == 2 else int(year)) if year else None
    try:
        datetime.date(number or 2000, month, day)
    except ValueError:
        return None
    return number, month, day


def _recognise(reference: str, problem: str) -> bool:
    text = plain(reference)
    if _NUMBERS.fullmatch(text):
        return _CALENDAR["asked"].search(problem) is not None
    return len(text) < 40 and (
        _ISO.fullmatch(text) is not None
        or any(p.fullmatch(text) for p in (*_SPELLED, _CHINESE))
    )


def _same(said: Date, wanted: Date) -> bool:
    return said[1:] == wanted[1:] and (said[0] == wanted[0] or None in (said[0], wanted[0]))


KIND = Kind(
    name="date",
    recognise=_recognise,
    read=_read,
    same=_same,
    find=lambda sentence, problem: _IN_TEXT.findall(plain(sentence)),
)
