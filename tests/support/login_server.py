"""An MCP server at which each user logs in, and its authorization server, in one: real HTTP, and what it heard.

A browser that comes to `/authorize` says who it is by `?user=`, as a person would type it. Fields of the metadata are
the test's to change; a token that was taken back, or is of another audience, is refused as real servers do.
"""

import asyncio
import base64
import hashlib
import json
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

import httpx2
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from tests.support.server import serving

INITIALIZED = {
    "protocolVersion": "2025-06-18",
    "serverInfo": {"name": "diary", "version": "1"},
    "capabilities": {"tools": {}},
}
TOOLS = [
    {"name": "whoami", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}},
    {
        "name": "write",
        "inputSchema": {"type": "object", "properties": {"line": {"type": "string"}}, "required": ["line"]},
    },
]


@dataclass(slots=True)
class LoginServer:
    """`tokens` are those that work, with the user and the scope of each; `ran` are the calls that were run, by user."""

    url: str = ""
    resource: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    places: dict[str, Callable[[Request], Response]] = field(default_factory=dict)
    expires_in: int | None = 3600
    needs: str = "diary"
    refuses_with: int = 400
    tokens: dict[str, tuple[str, str]] = field(default_factory=dict)
    refreshes: dict[str, tuple[str, str]] = field(default_factory=dict)
    codes: dict[str, dict[str, str]] = field(default_factory=dict)
    clients: list[dict[str, Any]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    forms: list[dict[str, str]] = field(default_factory=list)
    revoked: list[str] = field(default_factory=list)
    ran: list[tuple[str, str]] = field(default_factory=list)
    gate: asyncio.Event | None = None  # what token requests wait for
    at_gate: asyncio.Event = field(default_factory=asyncio.Event)
    call_gate: asyncio.Event | None = None  # what calls of tools wait for
    at_call_gate: asyncio.Event = field(default_factory=asyncio.Event)
    hello_gate: asyncio.Event | None = None  # what handshakes wait for
    at_hello_gate: asyncio.Event = field(default_factory=asyncio.Event)
    all_tokens: set[str] = field(default_factory=set)
    own_tools: dict[str, list[dict[str, Any]]] = field(default_factory=dict)  # of a user, in the place of TOOLS
    busy: str = ""  # the user whose calls are to come an hour later

    @property
    def mcp(self) -> str:
        return f"{self.url}/mcp"

    def expire(self) -> None:
        """Every access token is refused from now on; refresh tokens work."""
        self.tokens.clear()

    def revoke_all(self) -> None:
        self.tokens.clear()
        self.refreshes.clear()

    async def serve(self, request: Request) -> Response:  # noqa: PLR0911 (a return for each place)
        path = request.url.path
        self.asked.append(path)
        if (special := self.places.get(path)) is not None:
            return special(request)
        match path:
            case "/.well-known/oauth-protected-resource/mcp":
                described = {
                    "resource": self.mcp,
                    "authorization_servers": [self.url],
                    "scopes_supported": [self.needs],
                }
                return JSONResponse(described | self.resource)
            case "/.well-known/oauth-authorization-server":
                return JSONResponse(self.described())
            case "/register":
                return self._register(await request.json())
            case "/authorize":
                return self._authorize(dict(request.query_params))
            case "/token":
                form = dict(parse_qsl((await request.body()).decode()))
                self.at_gate.set()
                if self.gate is not None:
                    await self.gate.wait()
                return self._give(form)
            case "/revoke":
                self.revoked.append(dict(parse_qsl((await request.body()).decode()))["token"])
                return Response()
            case "/mcp":
                return await self._speak(request)
            case _:
                return Response(status_code=404)

    def described(self) -> dict[str, Any]:
        endpoints = {f"{name}_endpoint": f"{self.url}/{path}" for name, path in ENDPOINTS.items()}
        fixed = {
            "issuer": self.url,
            "code_challenge_methods_supported": ["S256"],
            "response_types_supported": ["code"],
            "authorization_response_iss_parameter_supported": True,
        }
        return {name: value for name, value in (endpoints | fixed | self.metadata).items() if value is not None}

    def _register(self, wanted: dict[str, Any]) -> Response:
        self.clients.append(wanted)
        return JSONResponse({**wanted, "client_id": f"client-{len(self.clients)}"}, 201)

    def _authorize(self, query: dict[str, str]) -> Response:
        """Returns to where the client said, with a code for the user who is at the browser, or asks who that is."""
        if "user" not in query:
            kept = "".join(f'<input type="hidden" name="{name}" value="{escape(query[name])}">' for name in query)
            return HTMLResponse(f'<form>{kept}<label>User <input name="user"></label><button>Allow</button></form>')
        code = secrets.token_hex(8)
        self.codes[code] = query
        back = {"state": query["state"], "iss": self.url} | (
            {"error": "access_denied"} if query.get("user") == "nobody" else {"code": code}
        )
        return RedirectResponse(f"{query['redirect_uri']}?{urlencode(back)}", 302)

    def _give(self, form: dict[str, str]) -> Response:
        self.forms.append(form)
        if form["grant_type"] == "refresh_token":
            user = self.refreshes.pop(form["refresh_token"], None)  # a refresh token works once
        else:
            user = self._of_code(form)
        if user is None or form["resource"] != self.mcp:
            return JSONResponse({"error": "invalid_grant"}, self.refuses_with)
        access, again = f"access-{secrets.token_hex(12)}", f"refresh-{secrets.token_hex(12)}"
        self.tokens[access], self.refreshes[again] = user, user
        self.all_tokens |= {access, again}
        given = {"access_token": access, "token_type": "bearer", "refresh_token": again, "scope": user[1]}
        return JSONResponse(given | ({"expires_in": self.expires_in} if self.expires_in is not None else {}))

    def _of_code(self, form: dict[str, str]) -> tuple[str, str] | None:
        query = self.codes.pop(form["code"], None)
        challenge = base64.urlsafe_b64encode(hashlib.sha256(form["code_verifier"].encode()).digest()).rstrip(b"=")
        if query is None or query["code_challenge"] != challenge.decode() or query["client_id"] != form["client_id"]:
            return None
        return (query["user"], query.get("scope", "")) if query["redirect_uri"] == form["redirect_uri"] else None

    async def _speak(self, request: Request) -> Response:  # noqa: PLR0911 (a return for each method)
        user, scope = self.tokens.get(request.headers.get("authorization", "").removeprefix("Bearer "), ("", ""))
        if not user:
            challenge = f'Bearer resource_metadata="{self.url}/.well-known/oauth-protected-resource/mcp"'
            return Response(status_code=401, headers={"WWW-Authenticate": challenge})
        body = json.loads(await request.body() or b"{}")
        match body.get("method"):
            case "initialize":
                self.at_hello_gate.set()
                if self.hello_gate is not None:
                    await self.hello_gate.wait()
                return _said(body, INITIALIZED)
            case "tools/list":
                return _said(body, {"tools": self.own_tools.get(user, TOOLS)})
            case "tools/call" if self.needs not in scope.split():
                challenge = f'Bearer error="insufficient_scope", scope="{self.needs}"'
                return Response(status_code=403, headers={"WWW-Authenticate": challenge})
            case "tools/call" if self.busy == user:
                return Response(status_code=429, headers={"Retry-After": "3600"})
            case "tools/call":
                self.at_call_gate.set()
                if self.call_gate is not None:
                    await self.call_gate.wait()
                self.ran.append((user, body["params"]["name"]))
                return _said(body, {"content": [{"type": "text", "text": f"This is {user}."}]})
            case _ if "id" in body:
                missing = {"code": -32601, "message": "no"}
                return JSONResponse({"jsonrpc": "2.0", "id": body["id"], "error": missing})
            case _:
                return Response(status_code=202 if body else 405)


ENDPOINTS = {"authorization": "authorize", "token": "token", "registration": "register", "revocation": "revoke"}


def _said(body: Any, result: Any) -> Response:
    return JSONResponse({"jsonrpc": "2.0", "id": body["id"], "result": result})


@asynccontextmanager
async def serving_logins(config: Path) -> AsyncIterator[LoginServer]:
    """Adds it as `diary` to the servers of an mcp.json."""
    server = LoginServer()
    methods = ["GET", "POST", "DELETE"]
    async with serving(Starlette(routes=[Route("/{path:path}", server.serve, methods=methods)])) as url:
        server.url = url
        _add(config, server)
        yield server


def _add(config: Path, server: LoginServer) -> None:
    servers = json.loads(config.read_text())["mcpServers"] | {"diary": {"url": server.mcp, "oauth": True}}
    config.write_text(json.dumps({"mcpServers": servers}))


async def at_browser(link: str, user: str) -> str:
    """Logs in as a person would, and returns the address that the browser is sent back to."""
    async with httpx2.AsyncClient() as browser:
        answer = await browser.get(f"{link}&{urlencode({'user': user})}")
    assert answer.status_code == 302, answer.text
    return str(answer.headers["location"])


def query_of(link: str) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(link).query).items()}
