"""The report: facts under stable names, what is wrong, what to do about it (`findings.toml`). Removes secrets."""

import re
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Self

import orjson
from rich import filesize

from segue.domain.redaction import without_secret_texts
from segue.language.lexicon import load_toml
from segue.tools.summaries import shown_line

OF_A_SESSION = "session open_turns last_error plan tools stored summary short_term_memory event_log"
FINDINGS = load_toml("findings.toml", package="segue.around.doctor")
LONG_S = 120
_line = partial(shown_line, limit=200)


@dataclass(slots=True)
class Diagnosis:
    """`parts` by name, in the order in which they are shown. A part is None if it could not be read."""

    title: str
    parts: dict[str, Any] = field(default_factory=dict)
    problems: list[dict[str, str]] = field(default_factory=list)
    notes: list[dict[str, str]] = field(default_factory=list)

    @classmethod
    def of(cls, session_id: str | None) -> Self:
        """Returns an empty report: of the service, or of one session, whose parts are all still unread."""
        return cls(f"Session {session_id}", dict.fromkeys(OF_A_SESSION.split())) if session_id else cls("Segue")

    @property
    def healthy(self) -> bool:
        return not self.problems

    def add(self, finding: str, **values: object) -> None:
        """Adds a row of `findings.toml`, such as `redis.full`, to the problems or the notes."""
        area, _, name = finding.partition(".")
        row = FINDINGS[area][name]
        found = {"area": area, "what": row["what"].format(**values), "do": row["do"].format(**values)}
        (self.notes if row.get("note") else self.problems).append(found)

    def as_json(self, at: datetime) -> dict[str, Any]:
        found = {"at": at, "healthy": self.healthy, "problems": self.problems, "notes": self.notes, **self.parts}
        cleaned: dict[str, Any] = without_secret_texts(orjson.loads(orjson.dumps(found, option=orjson.OPT_UTC_Z)))
        return cleaned

    def json_text(self, at: datetime) -> str:
        return orjson.dumps(self.as_json(at), option=orjson.OPT_INDENT_2).decode()

    def lines(self, at: datetime) -> list[str]:
        found = self.as_json(at)
        lines = [f"{self.title}, {at:%Y-%m-%d %H:%M:%S} UTC"]
        for name in self.parts:
            lines += ["", name.replace("_", " ").capitalize(), *_rows(found[name])]
        for title, findings in (("Problems", found["problems"]), ("Worth knowing", found["notes"])):
            if findings:
                lines += ["", title]
            for finding in findings:
                lines += [f"  {finding['area']}: {_line(finding['what'])}", f"      → {_line(finding['do'])}"]
        return [*lines, "", "Nothing is wrong." if self.healthy else f"{len(self.problems)} to see to."]


def _rows(part: Any) -> list[str]:
    match part:
        case dict():
            shown = {name: value for name, value in part.items() if value is not None}
            return [f"  {_label(name):<22} {_shown(name, value)}" for name, value in shown.items()]
        case [_, *_]:
            return [f"  - {_shown('', item)}" for item in part]
        case _:
            return [f"  {_shown('', part)}"]


def _shown(name: str, value: Any) -> str:  # noqa: PLR0911 (one line or two per kind of value)
    match value:
        case None:
            return "-"
        case list() | dict() if not value:
            return "none"
        case bool():
            return "yes" if value else "no"
        case int() | float():
            return _number(name, value)
        case dict():
            members = {key: each for key, each in value.items() if each not in (None, [])}
            return ", ".join(f"{_label(key)} {_shown(key, each)}" for key, each in members.items())
        case [dict(), *_]:
            return "".join(f"\n    - {_shown('', each)}" for each in value)
        case list():
            return ", ".join(_shown(name, each) for each in value)
        case _:
            return _line(str(value))


def _number(name: str, value: float) -> str:
    if name.endswith("bytes"):
        return filesize.decimal(int(value))
    if name.endswith("_ms"):
        return f"{value:g} ms"
    if not name.endswith("_s"):
        return f"{value:g}"
    return f"{value:g} s" if value < LONG_S else str(timedelta(seconds=round(value)))


def _label(name: str) -> str:
    return re.sub("_(bytes|ms|s)$", "", name).replace("_", " ")
