"""Which conversation was the last with a service: a small file of ids. Without it a new one begins, no more."""

import json
import os
from contextlib import suppress
from pathlib import Path


def _file() -> Path:
    home = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(home).expanduser() / "segue" / "chat.json"


def _all() -> dict[str, str]:
    try:
        known = json.loads(_file().read_text("utf-8"))
    except (OSError, ValueError, RuntimeError):  # the last where there is no home
        return {}
    return known if isinstance(known, dict) else {}


def last_session(service: str) -> str | None:
    """`service` is a name for where its sessions are: a URL, a data folder."""
    known = _all().get(service)
    return known if isinstance(known, str) else None


def remember(service: str, session_id: str) -> None:
    with suppress(OSError, RuntimeError):
        file = _file()
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        written = file.with_suffix(f".{os.getpid()}")
        written.write_text(json.dumps({**_all(), service: session_id}, indent=1), "utf-8")
        written.replace(file)
