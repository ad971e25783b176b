"""`current_time`: the time of the turn, in UTC and in one time zone.

Reads no clock: the time is the context's.
"""

from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

from segue.domain.tool import Tool, ToolContext, ToolRetry, ToolSpec


def current_time_tool() -> Tool:
    """Returns `{"utc", "local", "timezone", "weekday"}`: ISO 8601 to the second, the weekday of `local` in English."""
    spec = ToolSpec(
        name="current_time",
        description="The current date, time and weekday, in UTC and in a time zone if one is given.",
        input_schema={
            "type": "object",
            "properties": {
                "timezone": {
                    "type": "string",
                    "description": "IANA name such as Europe/Rome. Without it: UTC.",
                    "maxLength": 64,
                }
            },
            "additionalProperties": False,
        },
        idempotent=True,
    )
    return Tool(spec=spec, run=_current_time)


async def _current_time(arguments: dict[str, Any], context: ToolContext) -> object:
    name = arguments.get("timezone", "UTC")
    local = context.now.astimezone(_zone(name))
    return {
        "utc": _to_the_second(context.now.astimezone(UTC)),
        "local": _to_the_second(local),
        "timezone": name,
        "weekday": local.strftime("%A"),
    }


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    # A folder such as "Europe", a name with ".." and an empty one each fail in their own way.
    except (KeyError, ValueError, OSError):
        raise ToolRetry(
            "This time zone is unknown. Use an IANA name such as Europe/Rome, America/New_York or UTC."
        ) from None


def _to_the_second(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds")
