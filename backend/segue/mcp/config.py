"""Reads `mcp.json`, the `mcpServers` format that people already have.

Knows the file and the environment, nothing of processes or connections. Values of `env` and `headers` are secrets;
`args` and `url` may carry one, so none of them is shown in a repr or an error.
"""

import json
import os
import re
import sys
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator, model_validator

from segue.domain.errors import AppError
from segue.domain.redaction import configured_secrets
from segue.domain.tool import DependencyGroup
from segue.tools.dependencies import check_groups

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_SHOWN_ERRORS = 3


class McpServerConfig(BaseModel):
    """One server: a `command` to run (stdio) or a `url` to reach (streamable HTTP).

    A `url` whose host is a name that leads to a private address needs `allow_private`.
    Names in `confirm`, `disabled` and `depends_on` are the server's own, without `prefix`.
    """

    model_config = ConfigDict(extra="ignore", frozen=True, hide_input_in_errors=True)

    command: str | None = None
    args: tuple[str, ...] = Field(default=(), repr=False)
    env: dict[str, SecretStr] = {}
    cwd: str | None = None
    url: str | None = Field(default=None, repr=False)
    headers: dict[str, SecretStr] = {}
    allow_private: bool = False
    prefix: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{0,32}$")] = "mcp_"
    timeout_s: Annotated[float, Field(gt=0, le=3600)] | None = None
    confirm: frozenset[str] = frozenset()
    disabled: frozenset[str] = frozenset()
    off: bool = False
    depends_on: dict[str, tuple[DependencyGroup, ...]] = {}

    @property
    def secrets(self) -> frozenset[str]:
        """Returns the values of `env` and `headers` that a tool's answer must not contain."""
        values = {**self.env, **self.headers}
        return frozenset(configured_secrets({name: value.get_secret_value() for name, value in values.items()}))

    @property
    def never_logged(self) -> frozenset[str]:
        """Returns what no log may contain: the secrets, and what looks like one in `args` and `url`."""
        parts = re.split(r"[/?&=:@#,\s]+", " ".join((*self.args, self.url or "")))
        return self.secrets | configured_secrets({str(place): part for place, part in enumerate(parts)})

    @model_validator(mode="before")
    @classmethod
    def _disabled_as_a_switch(cls, raw: object) -> object:
        if not isinstance(raw, dict):
            return raw
        switch = raw.get("disabled")
        return {**raw, "off": switch is True, "disabled": [] if isinstance(switch, bool) else raw.get("disabled", [])}

    @field_validator("url")
    @classmethod
    def _http_only(cls, url: str | None) -> str | None:
        if url is not None and not url.startswith(("http://", "https://", "${")):
            raise ValueError("must start with http:// or https://")
        return url

    @model_validator(mode="after")
    def _dependencies_can_be_met(self) -> Self:
        check_groups(self.depends_on)
        return self

    @model_validator(mode="after")
    def _one_way_in(self) -> Self:
        if (self.command is None) == (self.url is None):
            raise ValueError("give either command (a program to run) or url (a streamable HTTP server)")
        return self


class McpConfig(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, hide_input_in_errors=True)

    servers: dict[Annotated[str, Field(min_length=1, max_length=64)], McpServerConfig] = Field(alias="mcpServers")

    @property
    def never_logged(self) -> frozenset[str]:
        return frozenset[str]().union(*(server.never_logged for server in self.servers.values()))


def read_mcp_config(path: Path) -> McpConfig:
    """Returns the servers of `path` with variables filled in and paths made absolute; none if there is no file.

    Raises AppError `mcp_config_invalid` (500) that names the file and what to correct.
    """
    try:
        raw = json.loads(path.read_text("utf-8-sig"))
        config = McpConfig.model_validate(raw)
    except FileNotFoundError:
        return McpConfig(mcpServers={})
    except OSError as error:
        raise _invalid(path, f"cannot be read ({error.strerror}); make it readable or set MCP_CONFIG") from None
    except UnicodeDecodeError:
        raise _invalid(path, "is not UTF-8 text; save it as UTF-8") from None
    except json.JSONDecodeError as error:
        raise _invalid(path, f"is not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    except (RecursionError, ValueError) as error:
        raise _invalid(path, _what_is_wrong(error)) from None
    servers = {name: _resolved(server, f"mcpServers.{name}", path) for name, server in config.servers.items()}
    return McpConfig(mcpServers=servers)


def _invalid(path: Path, what: str) -> AppError:
    return AppError("mcp_config_invalid", status=500, title="The MCP configuration is invalid", detail=f"{path} {what}")


def _what_is_wrong(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return "holds a number too long or lists too deep to be read"
    problems = [
        f"{'.'.join(map(str, problem['loc'])) or 'the file'}: {problem['msg'].removeprefix('Value error, ')}"
        for problem in error.errors(include_url=False, include_context=False, include_input=False)
    ]
    more = f" (and {len(problems) - _SHOWN_ERRORS} more)" if len(problems) > _SHOWN_ERRORS else ""
    return f"must be corrected: {'; '.join(problems[:_SHOWN_ERRORS])}{more}"


def _resolved(server: McpServerConfig, where: str, path: Path) -> McpServerConfig:
    if server.off:
        return server

    def expand(text: str, field: str) -> str:
        return _expanded(text, f"{where}.{field}", path)

    def expand_all(secrets: dict[str, SecretStr], field: str) -> dict[str, SecretStr]:
        return {key: SecretStr(expand(secret.get_secret_value(), f"{field}.{key}")) for key, secret in secrets.items()}

    folder = path.absolute().parent
    changes = {
        "command": server.command and _program(server.command, folder),
        "args": tuple(expand(argument, "args") for argument in server.args),
        "env": expand_all(server.env, "env"),
        "cwd": str(folder / (server.cwd or "")),
        "url": server.url and expand(server.url, "url"),
        "headers": expand_all(server.headers, "headers"),
    }
    return server.model_copy(update=changes)


def _expanded(text: str, where: str, path: Path) -> str:
    def value_of(variable: re.Match[str]) -> str:
        value = os.environ.get(variable[1], variable[2])
        if value is None:
            raise _invalid(
                path, f"needs the environment variable {variable[1]} at {where}: set it, or correct the name"
            )
        return value

    return _VARIABLE.sub(value_of, text)


def _program(command: str, folder: Path) -> str:
    if command in {"python", "python3"}:
        return sys.executable
    return str(folder / command) if "/" in command else command
