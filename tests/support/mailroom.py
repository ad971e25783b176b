"""An MCP server whose tools a mail could ask for: reading is free, the others are destructive and only write down what
they would have done.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from mcp.server.mcpserver import MCPServer

from tests.support.mcp_tools import Tools
from tests.support.server import serving
from tests.support.shelf import DESTROYS, READS


@dataclass(slots=True)
class Mailroom:
    """`effects` are the destructive calls in order, `mails` by id what a mail is."""

    url: str = ""
    effects: list[str] = field(default_factory=list)
    mails: dict[str, dict[str, str]] = field(default_factory=dict)


@asynccontextmanager
async def serving_mailroom() -> AsyncIterator[Mailroom]:
    room = Mailroom()
    async with serving(_server(room).streamable_http_app()) as url:
        room.url = f"{url}/mcp"
        yield room


def _server(room: Mailroom) -> MCPServer:
    tools = Tools()

    @tools.tool(annotations=READS)
    def search_mails(query: str) -> dict[str, object]:
        """Find mails by a word."""
        found = [{"id": known, **mail} for known, mail in room.mails.items() if query.lower() in str(mail).lower()]
        return {"mails": [{name: mail[name] for name in ("id", "sender", "subject")} for mail in found]}

    @tools.tool(annotations=READS)
    def read_mail(mail_id: str) -> dict[str, str]:
        """Read one mail."""
        return {"id": mail_id, **room.mails[mail_id]}

    @tools.tool(annotations=DESTROYS)
    def send_mail(to: str, text: str) -> str:
        """Send a mail."""
        room.effects.append(f"send {to} {text}")
        return "sent"

    @tools.tool(annotations=DESTROYS)
    def delete_mail(mail_id: str) -> str:
        """Delete a mail for good."""
        room.effects.append(f"delete {mail_id}")
        return "deleted"

    @tools.tool(annotations=DESTROYS)
    def pay(iban: str, amount: float) -> str:
        """Pay euros into an account."""
        room.effects.append(f"pay {iban} {amount:g}")
        return "paid"

    @tools.tool(annotations=DESTROYS)
    def forward_mail(mail_id: str, to: str) -> str:
        """Forward a mail."""
        room.effects.append(f"forward {mail_id} {to}")
        return "forwarded"

    @tools.tool(annotations=DESTROYS)
    def share_mail(mail_id: str, people: dict[str, str]) -> str:
        """Share a mail with people, each with a right."""
        room.effects.append(f"share {mail_id} {people}")
        return "shared"

    @tools.tool(annotations=DESTROYS)
    def allow_mail(mail_id: str, people: dict[str, bool]) -> str:
        """Say who may see a mail."""
        room.effects.append(f"allow {mail_id} {people}")
        return "allowed"

    return MCPServer("mail", log_level="CRITICAL", tools=tools.listed)
