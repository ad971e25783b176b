"""The report: facts under stable names, what is wrong, and what to do about it; as JSON and as text.

Removes secrets from everything that it shows.
"""

from dataclasses import asdict, dataclass, field, is_dataclass
from datetime import datetime
from typing import Any

import orjson

from segue.domain.redaction import without_secret_texts

MAX_TEXT_CHARS = 200
LABEL_WIDTH = 22
_UNITS = {"_bytes": "bytes", "_s": "seconds", "_ms": "milliseconds"}


@dataclass(frozen=True, slots=True)
class Finding:
    area: str
    what: str
    do: str


@dataclass(slots=True)
class Report:
    """`parts` by name, in the order in which they are shown. A part is None if it could not be read."""

    title: str
    parts: dict[str, Any] = field(default_factory=dict)
    problems: list[Finding] = field(default_factory=list)
    notes: list[Finding] = field(default_factory=list)

    @property
    def healthy(self) -> bool:
        return not self.problems

    def problem(self, area: str, what: str, do: str) -> None:
        self.problems.append(Finding(area, what, do))

    def note(self, area: str, what: str, do: str) -> None:
        """Adds what is worth knowing although nothing is broken."""
        self.notes.append(Finding(area, what, do))

    def as_json(self, at: datetime) -> dict[str, Any]:
        found = {
            "at": at,
            "healthy": self.healthy,
            "problems": [asdict(finding) for finding in self.problems],
            "notes": [asdict(finding) for finding in self.notes],
            **{name: _plain(part) for name, part in self.parts.items()},
        }
        cleaned: dict[str, Any] = without_secret_texts(found)
        return cleaned

    def json_text(self, at: datetime) -> str:
        return orjson.dumps(self.as_json(at), option=orjson.OPT_INDENT_2 | orjson.OPT_UTC_Z).decode()

    def lines(self, at: datetime) -> list[str]:
        found = self.as_json(at)
        lines = [f"{self.title}, {at:%Y-%m-%d %H:%M:%S} UTC"]
        for name in self.parts:
            lines += ["", _heading(name), *_rows(found[name])]
        for title, findings in (("Problems", found["problems"]), ("Worth knowing", found["notes"])):
            if findings:
                lines += ["", title]
            for finding in findings:
                lines += [f"  {finding['area']}: {_one_line(finding['what'])}", f"      → {_one_line(finding['do'])}"]
        return [*lines, "", "Nothing is wrong." if self.healthy else f"{len(self.problems)} to see to."]


def _plain(part: Any) -> Any:
    """Returns dicts for dataclasses, also in lists."""
    if isinstance(part, list):
        return [_plain(each) for each in part]
    return asdict(part) if is_dataclass(part) and not isinstance(part, type) else part


def _rows(part: Any) -> list[str]:
    match part:
        case None:
            return ["  -"]
        case dict():
            return [line for name, value in part.items() if value is not None for line in _row(name, value)]
        case list():
            return [f"  - {_items(item)}" for item in part] or ["  none"]
        case _:
            return [f"  {_shown('', part)}"]


def _row(name: str, value: Any) -> list[str]:
    label = f"  {_label(name):<{LABEL_WIDTH}}"
    match value:
        case [dict(), *_]:
            return [f"  {_label(name)}", *(f"    - {_items(item)}" for item in value)]
        case dict() if value:
            return [f"{label} {_items(value)}"]
        case _:
            return [f"{label} {_shown(name, value)}"]


def _items(item: Any) -> str:
    if not isinstance(item, dict):
        return _shown("", item)
    return ", ".join(
        f"{_label(name)} {_shown(name, value)}" for name, value in item.items() if value not in (None, [], ())
    )


def _shown(name: str, value: Any) -> str:
    match value:
        case None | [] | () | {}:
            return "none"
        case bool():
            return "yes" if value else "no"
        case datetime():
            return f"{value:%Y-%m-%d %H:%M:%S} UTC"
        case int() | float():
            return _number(name, value)
        case dict():
            return f"({_items(value)})"
        case _:
            each = value if isinstance(value, list | tuple) else (value,)
            return ", ".join(_one_line(str(text)) for text in each)


def _number(name: str, value: float) -> str:
    """Takes the unit from the end of the name."""
    if name.endswith("bytes"):
        return _size(value)
    if name.endswith("_ms"):
        return f"{value:g} ms"
    return _duration(value) if name.endswith("_s") else f"{value:g}"


def _label(name: str) -> str:
    unit = next((unit for unit in _UNITS if name.endswith(unit)), "")
    return name.removesuffix(unit).replace("_", " ")


def _heading(name: str) -> str:
    return name.replace("_", " ").capitalize()


def _size(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:  # noqa: PLR2004 (the next unit)
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"


def _duration(seconds: float) -> str:
    sign, left = ("-", -seconds) if seconds < 0 else ("", seconds)
    if left < 120:  # noqa: PLR2004 (minutes say more from here on)
        return f"{sign}{left:g} s"
    minutes, _ = divmod(int(left), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{sign}{hours} h {minutes} min" if hours else f"{sign}{minutes} min"


def _one_line(text: str) -> str:
    """Returns printable text only: tools and users wrote it, and it goes to a terminal."""
    joined = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return joined if len(joined) <= MAX_TEXT_CHARS else f"{joined[: MAX_TEXT_CHARS - 1]}…"
