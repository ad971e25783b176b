"""MCP servers, prompts and logins as the API shows them. Without servers, nothing of the protocol is imported."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Final, Literal

from segue.domain.field_types import doc
from segue.tools.catalog import DefinitionChange

MAX_URI_CHARS: Final = 2000  # of a resource
STDERR_SHOWN: Final = 10  # lines, but where all are
CALLBACK_PATH: Final = "/mcp/oauth/callback"
DOCUMENT_PATH: Final = "/mcp/oauth/client.json"


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A tool that a server lists and that is not offered to agents."""

    name: Annotated[str, doc("The server's name for the tool.")]
    reason: Annotated[str, doc("Why the tool is left out.")]


@dataclass(frozen=True, slots=True)
class McpServerStatus:
    """A server of mcp.json, as this process sees it."""

    name: Annotated[str, doc("The name of the server in mcp.json.")]
    state: Annotated[str, doc("`connecting`, `ready`, or `failed: ` followed by the reason.")]
    since: Annotated[datetime, doc("When the server entered this state.")]
    tools: Annotated[list[str], doc("The tools it offers; while it is away, those it last offered.")]
    left_out: Annotated[list[LeftOut], doc("Tools that it lists but that cannot be offered, 50 at most.")]
    last_error: Annotated[str | None, doc("Why the server last failed; null if it never did.")]
    last_error_at: Annotated[datetime | None, doc("When the server last failed; null if it never did.")]
    stderr: Annotated[list[str], doc("The last lines that its process wrote to stderr, 50 at most, without secrets.")]
    changes: Annotated[list[DefinitionChange], doc("The tools whose definition the server has changed, and how.")] = (
        field(default_factory=list)
    )


@dataclass(frozen=True, slots=True)
class PromptArgument:
    """An argument that a prompt is filled with."""

    name: Annotated[str, doc("The name of the argument, for `arguments`.")]
    description: Annotated[str, doc("What the argument is, in the server's words.")]
    required: Annotated[bool, doc("Whether the prompt cannot be filled without the argument.")]


@dataclass(frozen=True, slots=True)
class McpPrompt:
    """A prompt that an MCP server offers to users. All texts are the server's."""

    server: Annotated[str, doc("The name of the server in mcp.json.")]
    name: Annotated[str, doc("The server's name for the prompt.")]
    title: Annotated[str, doc("A name for people; equals `name` if the server gives no other.")]
    description: Annotated[str, doc("What the prompt is for.")]
    arguments: Annotated[list[PromptArgument], doc("The arguments that the prompt is filled with.")]


@dataclass(frozen=True, slots=True)
class PromptMessage:
    """One message of a filled prompt."""

    role: Annotated[Literal["user", "assistant"], doc("Whose message it would be: the user's or the assistant's.")]
    content: Annotated[str, doc("The text; `[image]` and the like stand for content that is not text.")]


@dataclass(frozen=True, slots=True)
class FilledPrompt:
    """A prompt filled with its arguments. Nothing was sent: that is left to the user."""

    description: Annotated[str, doc("What the prompt is for.")]
    messages: Annotated[list[PromptMessage], doc("The messages, in their order.")]


@dataclass(frozen=True, slots=True)
class BegunLogin:
    """Where the user logs in at an MCP server."""

    url: Annotated[str, doc("The address to open in a browser. It is for the caller only, and works once.")]
    expires_at: Annotated[datetime, doc("Until when the login has to be finished.")]


@dataclass(frozen=True, slots=True)
class McpLogin:
    """Whether a user is logged in at an MCP server that asks for it. Has no token."""

    server: Annotated[str, doc("The name of the server in mcp.json.")]
    state: Annotated[Literal["logged_in", "logged_out"], doc("Whether the caller is logged in.")]
    since: Annotated[datetime | None, doc("When the caller logged in; null without a login.")]
    scope: Annotated[str | None, doc("What the login allows, in the server's own words, if it says so.")]


@dataclass(frozen=True, slots=True)
class FinishedLogin:
    """Whose login the callback has finished. `key` is that of the question that steps wait with for it."""

    owner: str
    server: str
    key: str


class LoginRefused(Exception):
    """A callback that gives no user a login; the message says why, with advice."""
