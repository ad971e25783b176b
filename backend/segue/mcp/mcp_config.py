"""Reads `mcp.json`, the `mcpServers` format that people already have, and fills in its variables. Values of `env` and
`headers` are secrets; `args` and `url` may carry one, so no repr and no error shows any of them.
"""

import json
import os
import re
import stat
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, BeforeValidator, Field, SecretStr, ValidationError, field_validator, model_validator

from segue.domain.errors import AppError, app_error
from segue.domain.redaction import configured_secrets
from segue.domain.tool import Audience, DependencyGroup, SettlingCheck
from segue.mcp.other_clients_config import Faults, Translation
from segue.tools.tool_health import check_groups
from segue.tools.unknown_outcomes import read_check

MAX_ENV_FILE_BYTES: Final = 65_536

_VARIABLE: Final = re.compile(
    r"\$\{(?:(?P<kind>env|input|config|command|file):(?!-)(?P<of>[^}]*)"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?|(?P<slash>/))\}"
)
_LINE: Final = re.compile(r"\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(.*?)\s*")
MAX_BYTES: Final = 1_000_000
_SHOWN_ERRORS: Final = 3


class Variables:
    """The values of `${…}`: the environment, else the `secrets`, whose names are in upper case, else a default.
    `inputs` are the defaults of `${input:…}`. Folders are those of the file at `path`. `files` were read. Raises
    AppError with what is missing, `where` in mcp.json, and what to do about it.
    """

    def __init__(self, path: Path, secrets: Mapping[str, str], inputs: Mapping[str, str]) -> None:
        self.path = path
        self.files: list[Path] = []
        self.folder = path.absolute().parent
        self._secrets = secrets
        self._inputs = inputs
        workspace = self.folder.parent if self.folder.name in {".cursor", ".roo", ".vscode"} else self.folder
        self._places = {
            "workspaceFolder": str(workspace),
            "workspaceFolderBasename": workspace.name,
            "userHome": str(Path("~").expanduser()),
            "pathSeparator": os.sep,
        }

    def fill(self, text: str, where: str) -> str:
        return _VARIABLE.sub(lambda variable: self._value(variable, where), text)

    def env_file(self, name: str, where: str) -> dict[str, str]:
        """Returns the variables of a file of `NAME=value` lines."""
        path = self.folder / self.fill(name, where)
        self.files.append(path)
        try:
            with path.open("rb") as file:
                text = file.read(MAX_ENV_FILE_BYTES + 1)
            if len(text) > MAX_ENV_FILE_BYTES:
                raise self._missing(str(path), where, f"make it smaller than {MAX_ENV_FILE_BYTES} bytes")
            lines = text.decode("utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError):
            raise self._missing(str(path), where, "it cannot be read as UTF-8 text") from None
        return {match[1]: _unquoted(match[2]) for match in map(_LINE.fullmatch, lines) if match}

    def _value(self, variable: re.Match[str], where: str) -> str:
        match variable["kind"]:
            case "config" | "command" | "file":
                do = "only its editor knows it; write ${NAME} and set that variable"
                raise self._missing(variable[0][:64], where, do)
            case "input":
                name, default = re.sub(r"\W", "_", variable["of"]).upper(), self._inputs.get(variable["of"])
            case "env":
                name, default = variable["of"], None
            case _:
                name, default = variable["name"], variable["default"]
                place = os.sep if variable["slash"] else self._places.get(name)
                if place is not None:
                    return place
        value = os.environ.get(name, self._secrets.get(name.upper(), default))
        if value is None:
            raise self._missing(f"the environment variable {name[:64]}", where, "set it, or correct the name")
        return value

    def _missing(self, what: str, where: str, do: str) -> AppError:
        return _invalid(self.path, f"needs {what} at {where}: {do}")


def _unquoted(value: str) -> str:
    """A `#` after a space begins a comment, but not within quotes."""
    if value[:1] in {"'", '"'} and (end := value.find(value[0], 1)) > 0:
        return value[1:end]
    return re.split(r"\s#", value, maxsplit=1)[0].rstrip()


class _OfFile(BaseModel, extra="forbid", frozen=True, hide_input_in_errors=True):
    pass


class OAuthClientConfig(_OfFile):
    """Without `client_id` Segue registers itself, if the authorization server lets it. Without `scopes` it asks for
    those that the server names. With `issuer` users log in there or nowhere; without it the MCP server says where.
    """

    client_id: str | None = Field(default=None, min_length=1)
    client_secret: SecretStr | None = Field(default=None, min_length=1)
    issuer: str | None = Field(default=None, min_length=1)
    scopes: Annotated[
        tuple[str, ...] | None, BeforeValidator(lambda value: value.split() if isinstance(value, str) else value)
    ] = None

    def takes(self, issuer: str) -> bool:
        """Whether tokens of this authorization server may be used, and secrets be sent to its endpoints."""
        return self.issuer is None or self.issuer.rstrip("/") == issuer.rstrip("/")

    def expanded(self, expand: Callable[[str, str], str]) -> "OAuthClientConfig":
        """Returns it with variables filled in; `expand` takes a text and the name of its field."""
        texts = ((name, getattr(self, name)) for name in ("client_id", "issuer"))
        changes: dict[str, object] = {name: expand(text, name) for name, text in texts if text is not None}
        if self.client_secret is not None:
            changes["client_secret"] = SecretStr(expand(self.client_secret.get_secret_value(), "client_secret"))
        return self.model_copy(update=changes)

    @model_validator(mode="after")
    def _secret_has_a_client(self) -> Self:
        if self.client_secret is not None and self.client_id is None:
            raise ValueError("client_secret needs a client_id: give both")
        return self


OAuthSetting = Annotated[  # `true` is a client of whom nothing is known, `false` none
    OAuthClientConfig | None,
    BeforeValidator(lambda value: ({} if value else None) if isinstance(value, bool) else value),
]
Unannotated = Literal["ask", "write", "read_only"]
Names = Annotated[frozenset[str], Field(min_length=1)]


class McpServerConfig(_OfFile):
    """One server: a `command` to run (stdio) or a `url` to reach (streamable HTTP). Names of tools are the server's
    own, without `prefix`. Only `agents`, `users` and those in `groups` may use it, if they are given, and of them only
    those in its `tool_groups` a tool that is named there.
    """

    command: str | None = None
    args: tuple[str, ...] = Field(default=(), repr=False)
    env: dict[str, SecretStr] = {}
    cwd: str | None = None
    url: str | None = Field(default=None, repr=False)
    headers: dict[str, SecretStr] = {}
    oauth: OAuthSetting = None
    allow_private: bool = False  # needed by a `url` whose host is a name that leads to a private address
    prefix: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{0,32}$")] = "mcp_"
    timeout_s: Annotated[float, Field(gt=0, le=3600)] | None = None
    max_timeout_s: Annotated[float, Field(gt=0, le=86400)] | None = None
    confirm: dict[str, Literal[True, "always_ask"]] = {}
    disabled: frozenset[str] = frozenset()
    unannotated: Unannotated | None = None  # what a tool is whose server does not say
    only: frozenset[str] | None = None
    off: bool = False
    transport: Literal["stdio", "http", "sse"] | None = None
    env_file: str | None = None
    depends_on: dict[str, tuple[DependencyGroup, ...]] = {}
    verify: dict[str, Annotated[SettlingCheck, BeforeValidator(read_check)]] = {}
    idempotency_arg: dict[str, Annotated[str, Field(min_length=1)]] = {}
    agents: Names | None = None
    users: Names | None = None
    groups: Names | None = None
    tool_groups: dict[str, Names] = {}

    @property
    def secrets(self) -> frozenset[str]:
        """Returns the values of `env` and `headers` that a tool's answer must not contain."""
        own = self.oauth.client_secret if self.oauth else None
        values = {**self.env, **self.headers, **({"client_secret": own} if own else {})}
        return frozenset(configured_secrets({name: value.get_secret_value() for name, value in values.items()}))

    @property
    def never_logged(self) -> frozenset[str]:
        """Returns the texts that no log may contain: the secrets, and their likes in `args` and `url`."""
        parts = re.split(r"[/?&=:@#,\s]+", " ".join((*self.args, self.url or "")))
        return self.secrets | configured_secrets({str(place): part for place, part in enumerate(parts)})

    def audience_of(self, tool: str | None = None) -> Audience | None:
        """Returns who may use a tool, by the server's own name; None if all may."""
        given = self.agents, self.users, self.groups, self.tool_groups.get(tool or "")
        return Audience(*given) if any(given) else None

    @property
    def named_groups(self) -> frozenset[str]:
        return (self.groups or frozenset()).union(*self.tool_groups.values())

    def offers(self, tool: str) -> bool:
        return tool not in self.disabled and (self.only is None or tool in self.only)

    @property
    def dependencies(self) -> dict[str, tuple[DependencyGroup, ...]]:
        """Returns by the server's own names the dependencies of the tools that it offers."""
        return {tool: groups for tool, groups in self.depends_on.items() if self.offers(tool)}

    @field_validator("confirm", mode="before")
    @classmethod
    def _names_or_how_each_asks(cls, value: object) -> object:
        if isinstance(value, list) and all(isinstance(name, str) for name in value):
            return dict.fromkeys(value, True)
        if not isinstance(value, Mapping):
            raise ValueError('must be a list of names, or an object such as {"pay": "always_ask"}')  # noqa: TRY004 (pydantic's own)
        return value

    @field_validator("url")
    @classmethod
    def _http_only(cls, url: str | None) -> str | None:
        if url is not None and not url.startswith(("http://", "https://", "${")):
            raise ValueError("must start with http:// or https://")
        return url

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        check_groups(self.depends_on)
        if (self.command is None) == (self.url is None):
            raise ValueError("give either command (a program to run) or url (a streamable HTTP server)")
        if self.transport is not None and (self.transport == "stdio") != (self.url is None):
            raise ValueError(f"its type is {self.transport}: stdio needs a command, the others a url")
        if self.oauth is not None and (self.url is None or "authorization" in map(str.lower, self.headers)):
            raise ValueError("oauth is for a url without an Authorization header: leave one of the two out")
        return self


class McpConfig(_OfFile):
    """`ignored` are the keys of other clients that mean nothing here, each with the reason; `files` hold variables."""

    servers: dict[Annotated[str, Field(min_length=1, max_length=64)], McpServerConfig] = Field(alias="mcpServers")
    ignored: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()

    @property
    def with_logins(self) -> dict[str, McpServerConfig]:
        """The servers at which each user logs in."""
        return {name: server for name, server in self.servers.items() if server.oauth is not None and not server.off}

    @property
    def never_logged(self) -> frozenset[str]:
        return frozenset[str]().union(*(server.never_logged for server in self.servers.values()))


# Without what only keys of other clients become: the file has no keys of these names.
_KEYS: Final = McpServerConfig.model_fields.keys() - {"only", "off", "transport", "env_file"}


def read_mcp_config(
    path: Path, secrets: Mapping[str, str] = MappingProxyType({}), *, as_written: bool = False
) -> McpConfig:
    """Returns the servers of `path` with variables filled in, from the environment or else from the `secrets`, whose
    names are in upper case, and paths made absolute; none if there is no file. `as_written` fills in nothing. Raises
    AppError `mcp_config_invalid` (500) that names the file and what to correct.
    """
    try:
        translation = Translation(json.loads(_text_of(path), object_pairs_hook=_without_repetition), _KEYS)
        config = McpConfig.model_validate(translation.raw)
    except FileNotFoundError:
        return McpConfig(mcpServers={})
    except OSError as error:
        raise _invalid(path, f"cannot be read ({error.strerror}); make it readable or set MCP_CONFIG") from None
    except UnicodeDecodeError:
        raise _invalid(path, "is not UTF-8 text; save it as UTF-8") from None
    except json.JSONDecodeError as error:
        raise _invalid(path, f"is not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    except (RecursionError, ValueError, Faults) as error:
        raise _invalid(path, _what_is_wrong(error)) from None
    if as_written:
        return config
    variables = Variables(path, secrets, translation.inputs)
    servers = {name: _resolved(server, f"mcpServers.{name}", variables) for name, server in config.servers.items()}
    return McpConfig(mcpServers=servers, ignored=tuple(translation.ignored), files=tuple(variables.files))


def _text_of(path: Path) -> str:
    """Raises OSError, UnicodeDecodeError, Faults."""
    if not stat.S_ISREG(path.stat().st_mode) and not path.is_dir():
        raise Faults("the file: it must be an ordinary one")  # to open a pipe would wait for its writer
    with path.open("rb") as file:
        text = file.read(MAX_BYTES + 1)
    if len(text) > MAX_BYTES:
        raise Faults(f"the file: it must be smaller than {MAX_BYTES} bytes")
    return text.decode("utf-8-sig")


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """JSON keeps the last of two members of one name: a safeguard that stood in the first would be lost in silence."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in found if names.count(name) > 1)
        raise Faults(f"{twice[:64]!r} stands twice in one object: keep one of them")
    return found


def _invalid(path: Path, what: str) -> AppError:
    return app_error("mcp_config_invalid", path=path, what=what)


def _what_is_wrong(error: Exception) -> str:
    match error:
        case Faults(args=faults):
            problems = list(faults)
        case ValidationError():
            problems = []
            for each in error.errors(include_url=False, include_context=False, include_input=False):
                is_no_object = each["type"] in {"model_type", "dict_type"}
                fault = "it must be an object, { … }" if is_no_object else each["msg"].removeprefix("Value error, ")
                problems.append(f"{'.'.join(map(str, each['loc'])) or 'the file'}: {fault}")
        case _:
            return "holds a number too long or lists too deep to be read"
    more = f" (and {len(problems) - _SHOWN_ERRORS} more)" if len(problems) > _SHOWN_ERRORS else ""
    return f"must be corrected: {'; '.join(problems[:_SHOWN_ERRORS])}{more}"


def _resolved(server: McpServerConfig, where: str, variables: Variables) -> McpServerConfig:
    if server.off:
        return server

    def fill(text: str, field: str) -> str:
        return variables.fill(text, f"{where}.{field}")

    def fill_all(secrets: dict[str, SecretStr], field: str) -> dict[str, SecretStr]:
        return {key: SecretStr(fill(secret.get_secret_value(), f"{field}.{key}")) for key, secret in secrets.items()}

    def program(command: str) -> str:
        if command in {"python", "python3"}:
            return sys.executable
        return str(variables.folder / command) if "/" in command else command

    in_file = {} if server.env_file is None else variables.env_file(server.env_file, f"{where}.envFile")
    changes = {
        "command": server.command and program(fill(server.command, "command")),
        "args": tuple(fill(argument, "args") for argument in server.args),
        "env": {key: SecretStr(value) for key, value in in_file.items()} | fill_all(server.env, "env"),
        "cwd": str(variables.folder / fill(server.cwd or "", "cwd")),
        "url": server.url and fill(server.url, "url"),
        "headers": fill_all(server.headers, "headers"),
        "oauth": server.oauth and server.oauth.expanded(lambda text, field: fill(text, f"oauth.{field}")),
    }
    return server.model_copy(update=changes)
