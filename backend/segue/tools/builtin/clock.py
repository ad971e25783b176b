"""`current_time`: the time of the turn, in UTC and in one time zone, the user's if none is given.

Reads no clock: the time is the context's.
"""

from datetime import UTC, datetime
from typing import Any

from segue.domain.clock import known_zone, local_time
from segue.domain.tool import Tool, ToolContext, ToolRetry, ToolSpec


def current_time_tool() -> Tool:
    """Returns `{"utc", "local", "timezone", "weekday"}`: ISO 8601 to the second, the weekday of `local` in English."""
    spec = ToolSpec(
        name="current_time",
        description="The current date, time and weekday, in UTC and in a time zone.",
        input_schema={
            "type": "object",
            "properties": {
                "timezone": {
                    "type": "string",
                    "description": "IANA name such as Europe/Rome. Without it: the user's own.",
                    "maxLength": 64,
                }
            },
            "additionalProperties": False,
        },
        idempotent=True,
    )
    return Tool(spec=spec, run=_current_time)


async def _current_time(arguments: dict[str, Any], context: ToolContext) -> object:
    try:
        name = known_zone(arguments.get("timezone", context.time_zone))
    except ValueError as error:
        raise ToolRetry(str(error)) from None
    local = local_time(context.now, name)
    return {
        "utc": _to_the_second(context.now.astimezone(UTC)),
        "local": _to_the_second(local),
        "timezone": name,
        "weekday": local.strftime("%A"),
    }


def _to_the_second(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds")
