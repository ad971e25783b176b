"""Arguments of a call as the model is shown them later: the long ones cut. They are run and stored whole. Pure."""

from itertools import islice
from typing import Any, Final

import orjson

MAX_SHOWN: Final = 20
MAX_KEY_CHARS: Final = 60


def clipped(args: dict[str, Any], max_chars: int) -> dict[str, Any]:
    """Returns arguments in about so many characters."""
    if len(orjson.dumps(args).decode()) <= max_chars:
        return args
    share = max_chars // min(len(args), MAX_SHOWN)
    return {key[:MAX_KEY_CHARS]: _cut(value, share) for key, value in islice(args.items(), MAX_SHOWN)}


def _cut(value: Any, max_chars: int) -> Any:
    written = value if isinstance(value, str) else orjson.dumps(value).decode()
    return value if len(written) <= max_chars else f"{written[:max_chars]}…"
