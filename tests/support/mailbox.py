"""The example mailbox, connected to a service under test, with an outbox and a switch of its own."""

import json
from pathlib import Path

from tests.support.commands import ROOT, python


def write_mailbox_config(folder: Path) -> tuple[Path, Path]:
    """An mcp.json in `folder`, and the outbox beside it that its server will write to; a file `offline` breaks it."""
    outbox = folder / "outbox.mbox"
    program, *options = python()
    server = {
        "command": program,
        "args": [*options, str(ROOT / "examples" / "mailbox" / "server.py")],
        "env": {"MAILBOX_OUTBOX": str(outbox), "MAILBOX_OFFLINE": str(folder / "offline")},
    }
    config = folder / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {"mailbox": server}}))
    return config, outbox
