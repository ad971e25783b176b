"""An MCP server's offers beside tools: resources, their templates, and prompts, bounded here. Resources are listed when
a connection begins, since most servers have none; prompts on request; both again after a change.
"""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol, TypeVar

import anyio
import mcp_types
from mcp import Client, MCPError
from mcp.shared.uri_template import InvalidUriTemplate, UriTemplate
from pydantic import ValidationError

from segue.domain.tool import ToolFailed, ToolRetry
from segue.domain.visible import visible
from segue.mcp.large_messages import UNREAD, unpacked
from segue.mcp.server_connection import all_pages
from segue.mcp.status import MAX_URI_CHARS, FilledPrompt, McpPrompt, PromptArgument, PromptMessage
from segue.mcp.tool_mapping import resource_value, words_of
from segue.tools.normalize import Unread, clean_text

MAX_FILLED_CHARS: Final = 32_000  # what a user may say at once
_MAX_LISTED: Final = 500
_MAX_NAME: Final = 200
_MAX_DESCRIPTION: Final = 500

Returned = TypeVar("Returned")


class AskServer(Protocol):
    """Returns the result of a request to the server. Raises ToolFailed and ToolRetry."""

    async def __call__(self, what: str, request: Callable[[Client], Awaitable[Returned]]) -> Returned: ...


@dataclass(frozen=True, slots=True)
class Resources:
    """A server's list, in plain values. `may_read` says whether an address is in it."""

    listed: tuple[dict[str, Any], ...]
    templates: tuple[dict[str, Any], ...]
    patterns: tuple[UriTemplate, ...]

    def may_read(self, uri: str) -> bool:
        if any(resource["uri"] == uri for resource in self.listed):
            return True
        return any(pattern.match(uri, max_uri_length=MAX_URI_CHARS) is not None for pattern in self.patterns)


class Offers:
    """The offers of one server, over all its connections. `has_resources`: it listed any last, or linked to some."""

    def __init__(self, server: str, ask: AskServer) -> None:
        self.has_resources = self.has_prompts = False
        self._server = server
        self._ask = ask
        self._resources: Resources | None = None
        self._linked: dict[tuple[str, str], None] = {}  # sessions and addresses of resources, the newest last
        self._prompts: tuple[McpPrompt, ...] | None = None
        self._changes = 0

    async def begin(self, client: Client) -> None:
        self.has_prompts = client.server_capabilities.prompts is not None
        self.forget()
        await self.look(client)

    def forget(self) -> None:
        self._resources = self._prompts = None
        self._changes += 1

    async def look(self, client: Client) -> None:
        """Lists the resources if they are not known. A server that cannot list them now keeps its list."""
        if client.server_capabilities.resources is None:
            self.has_resources = bool(self._linked)
        elif self._resources is None:
            changes = self._changes
            with anyio.move_on_after(5.0), suppress(MCPError, ValidationError):
                self._keep(await _list_resources(client), changes)

    def _keep(self, listed: Resources, changes: int) -> None:
        self.has_resources = bool(listed.listed or listed.templates or self._linked)
        if changes == self._changes:
            self._resources = listed

    def note_links(self, session: str, result: mcp_types.CallToolResult) -> None:
        """Notes the resources that a result links to, for its session: a server need not list them."""
        links = [(session, block.uri) for block in result.content if isinstance(block, mcp_types.ResourceLink)]
        self._linked = dict.fromkeys([*self._linked, *links][-_MAX_LISTED:])
        self.has_resources = self.has_resources or bool(links)

    async def resources(self) -> Resources:
        if (kept := self._resources) is not None:
            return kept
        changes, listed = self._changes, await self._ask("resources/list", _list_resources)
        self._keep(listed, changes)
        return listed

    async def read(self, session: str, uri: str) -> object:
        """Returns the content at an address that is listed or was linked to in the session. Raises ToolRetry."""
        if len(uri) > MAX_URI_CHARS or not ((session, uri) in self._linked or (await self.resources()).may_read(uri)):
            raise ToolRetry(
                f"{self._server} lists no resource {uri[:200]!r}, nor a template that it fits. mcp_list_resources "
                "lists those there are. If an earlier result has linked to it, call that tool again."
            )
        return _value_of(await self._ask("resources/read", lambda client: client.session.read_resource(uri)))

    async def prompts(self) -> tuple[McpPrompt, ...]:
        if (kept := self._prompts) is not None:
            return kept
        changes, listed = self._changes, await self._ask("prompts/list", partial(_list_prompts, self._server))
        if changes == self._changes:
            self._prompts = listed
        return listed

    async def fill(self, name: str, arguments: Mapping[str, str]) -> FilledPrompt:
        """Raises ToolFailed if the server fails, or returns too much."""
        result = await self._ask("prompts/get", lambda client: client.session.get_prompt(name, dict(arguments)))
        messages = [
            PromptMessage(each.role, clean_text(words_of(each.content) or f"[{each.content.type}]"))
            for each in result.messages
        ]
        if sum(len(each.content) for each in messages) > MAX_FILLED_CHARS:
            raise ToolFailed(f"The prompt is longer than {MAX_FILLED_CHARS} characters.")
        return FilledPrompt(_text(result.description, _MAX_DESCRIPTION), messages)


async def _list_resources(client: Client) -> Resources:
    session = client.session
    found = await all_pages(session.list_resources, lambda page: page.resources, most=_MAX_LISTED)
    listing = session.list_resource_templates
    templates = await all_pages(listing, lambda page: page.resource_templates, most=_MAX_LISTED)
    kept = [each for each in templates if len(each.uri_template) <= MAX_URI_CHARS]
    patterns = []
    for each in kept:
        with suppress(InvalidUriTemplate):  # it says nothing about what fits it
            patterns.append(UriTemplate.parse(each.uri_template))
    return Resources(
        tuple(_described(each, uri=each.uri) for each in found if len(each.uri) <= MAX_URI_CHARS),
        tuple(_described(each, uri_template=each.uri_template) for each in kept),
        tuple(patterns),
    )


def _described(offered: mcp_types.Resource | mcp_types.ResourceTemplate, **address: str) -> dict[str, Any]:
    about = {
        "title": (offered.title or offered.name)[:_MAX_NAME],
        "description": (offered.description or "")[:_MAX_DESCRIPTION],
        "mime_type": offered.mime_type,
        "size_bytes": offered.size if isinstance(offered, mcp_types.Resource) else None,
    }
    return address | {name: value for name, value in about.items() if value not in (None, "")}


def _value_of(result: mcp_types.ReadResourceResult) -> object:
    """Returns the one content that was read, or the list of them."""
    match result.contents:
        case [mcp_types.TextResourceContents(uri=uri, text=text)] if uri == UNREAD:
            return Unread(text, _value_in)
        case [one]:
            return resource_value(one)
        case several:
            return [resource_value(each) for each in several]


def _value_in(packed: str) -> object:
    return _value_of(mcp_types.ReadResourceResult.model_validate_json(unpacked(packed)))


async def _list_prompts(server: str, client: Client) -> tuple[McpPrompt, ...]:
    listed = await all_pages(client.session.list_prompts, lambda page: page.prompts, most=_MAX_LISTED)
    return tuple(_prompt(server, each) for each in listed if 0 < len(each.name) <= _MAX_NAME)


def _prompt(server: str, prompt: mcp_types.Prompt) -> McpPrompt:
    named = (each for each in (prompt.arguments or [])[:20] if len(each.name) <= _MAX_NAME)
    shown = ((each.name, _text(each.description, _MAX_DESCRIPTION), bool(each.required)) for each in named)
    title = _text(prompt.title, _MAX_NAME) or _text(prompt.name, _MAX_NAME)
    description, arguments = _text(prompt.description, _MAX_DESCRIPTION), [PromptArgument(*each) for each in shown]
    return McpPrompt(server, prompt.name, title, description, arguments)


def _text(text: str | None, limit: int) -> str:
    return visible(clean_text((text or "")[:limit]))
