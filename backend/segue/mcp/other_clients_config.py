"""The keys of other clients in `mcp.json`: each is one of Segue's or named as ignored (`other_clients_config.toml`)."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any, Final

from segue.domain.tool import DependencyGroup
from segue.language.lexicon import load_toml

MAX_SHOWN_CHARS: Final = 64
MAX_NEAREST: Final = 10
MOST_SECONDS: Final = 3600  # no client takes a longer timeout in seconds
LEAST_MILLISECONDS: Final = 1000  # nor a shorter one in milliseconds
TRANSPORTS: Final = frozenset({"stdio", "http", "streamable-http", "streamableHttp", "streamable_http", "sse"})

_OWN_OF_LOGIN: Final = frozenset({"client_id", "client_secret", "issuer", "scopes"})


@dataclass(frozen=True, slots=True)
class ForeignKey:
    """`said` is its text in docs/mcp.md, or in the log if it is ignored."""

    name: str
    clients: str
    becomes: str
    said: str


def _listed(of: str) -> dict[str, ForeignKey]:
    shared = _TABLE["reasons"]
    rows = _TABLE[of].items()
    return {name: ForeignKey(name, clients, becomes, shared.get(said, said)) for name, (clients, becomes, said) in rows}


_TABLE: Final = load_toml("other_clients_config.toml", package="segue.mcp")
FILE_KEYS, SERVER_KEYS, LOGIN_KEYS = map(_listed, ("file", "server", "login"))
_OF_GROUP: Final = frozenset(each.name for each in fields(DependencyGroup))


class Faults(Exception):
    """The faults of the file: the arguments are texts, one for each."""


class Translation:
    """A file in Segue's own keys. Raises Faults for keys that are no known client's, and values that mean nothing.
    `ignored` are keys, each with the reason; `inputs` are the values that `${input:…}` falls back to.
    """

    def __init__(self, raw: object, own: Collection[str]) -> None:
        self.ignored: list[str] = []
        self.inputs: dict[str, str] = {}
        self._own = own
        self._faults: list[str] = []
        self.raw = self._file(raw)
        if self._faults:
            raise Faults(*self._faults)

    def _file(self, raw: object) -> object:
        if not isinstance(raw, dict):
            return raw
        result: dict[str, Any] = {}
        for key, value in raw.items():
            row = None if key == "mcpServers" else self._row(_shown(key), key, FILE_KEYS, ["mcpServers"])
            if row is not None and row.becomes == "inputs":
                self.inputs = dict(self._inputs(value))
            elif key == "mcpServers" or (row is not None and row.becomes == "mcpServers"):
                if result:
                    self._faults.append("servers stand beside mcpServers: put all of them under mcpServers")
                servers = value.items() if isinstance(value, dict) else ()
                translated = {name: self._server(f"mcpServers.{_shown(name)}", server) for name, server in servers}
                result["mcpServers"] = translated if isinstance(value, dict) else value
        return result

    def _server(self, where: str, raw: object) -> object:
        if not isinstance(raw, dict):
            return raw
        result = {key: value for key, value in raw.items() if key in self._own}
        switch = result.get("disabled")
        if isinstance(switch, bool):
            result |= {"disabled": [], "off": switch}
        if isinstance(env := result.get("env"), dict):
            numbers = {name: str(value) for name, value in env.items() if type(value) in (int, float)}
            result["env"] = {name: value for name, value in (env | numbers).items() if value is not None}
        if isinstance(login := result.get("oauth"), dict):
            result["oauth"] = self._login(f"{where}.oauth", login)
        for key, value in raw.items():
            if key not in self._own and (row := self._row(f"{where}.{_shown(key)}", key, SERVER_KEYS, self._own)):
                self._take(result, f"{where}.{key}", row, value)
        self._check_groups(f"{where}.depends_on", result.get("depends_on"))
        return result

    def _login(self, where: str, raw: dict[str, Any]) -> object:
        result = {key: value for key, value in raw.items() if key in _OWN_OF_LOGIN}
        for key, value in raw.items():
            row = None if key in result else self._row(f"{where}.{_shown(key)}", key, LOGIN_KEYS, _OWN_OF_LOGIN)
            if row is not None and row.becomes in _OWN_OF_LOGIN:
                result[row.becomes] = value
        return False if raw.get("enabled") is False else result

    def _row(self, where: str, key: str, known: dict[str, ForeignKey], own: Collection[str]) -> ForeignKey | None:
        row = known.get(key)
        if row is None:
            self._add_unknown(where, key, [*own, *known])
        elif row.becomes == "ignored":
            self.ignored.append(f"{where}: {row.said}")
        return row

    def _take(self, result: dict[str, Any], where: str, row: ForeignKey, value: object) -> None:
        """Sets the own key that a foreign key of a server becomes."""
        try:
            match row.becomes:
                case "disabled":
                    result["disabled"] = [*_names(result.get("disabled", [])), *_names(value)]
                case "only" if value != ["*"]:
                    _set_once(result, "only", _names(value))
                case "off":
                    result["off"] = result.get("off", False) or not _switch(value)
                case "transport":
                    result["transport"] = _transport(value)
                case "timeout_s":
                    _set_once(result, "timeout_s", _seconds(value))
                case "url" | "env_file":
                    _set_once(result, row.becomes, value)
                case "refused" if _switch(value):
                    self._faults.append(f"{where} is {row.said}")
        except (ValueError, TypeError) as unfit:  # a value that the key cannot have
            self._faults.append(f"{where} {unfit}")

    def _add_unknown(self, where: str, key: str, known: Collection[str]) -> None:
        """Looks for the intended keys of the first ones only: of ten thousand keys that would take seconds."""
        self._faults.append(f"{where} {nearest(key, known) if len(self._faults) < MAX_NEAREST else 'is unknown'}")

    def _check_groups(self, where: str, raw: object) -> None:
        for tool, groups in raw.items() if isinstance(raw, dict) else ():
            for group in groups if isinstance(groups, list) else ():
                for key in group.keys() - _OF_GROUP if isinstance(group, dict) else ():
                    self._add_unknown(f"{where}.{_shown(tool)}: {_shown(key)}", key, _OF_GROUP)

    def _inputs(self, raw: object) -> Iterator[tuple[str, str]]:
        for each in raw if isinstance(raw, list) else [raw]:
            if not isinstance(each, dict) or not isinstance(each.get("id"), str):
                self._faults.append("inputs must be a list of objects with an id")
            elif isinstance(each.get("default"), str):
                yield each["id"], each["default"]


def nearest(key: str, known: Collection[str]) -> str:
    """Returns the remark on an unknown key: which of the known ones was meant, the first of those that fold alike."""
    folded = {_folded(name): name for name in reversed(list(known))}
    found = get_close_matches(_folded(_shown(key)), folded, n=1)
    return f"is unknown: did you mean {folded[found[0]]}?" if found else "is unknown: docs/mcp.md lists what is known"


def _folded(key: str) -> str:
    return key.lower().replace("_", "").replace("-", "")


def _shown(key: str) -> str:
    return key[:MAX_SHOWN_CHARS].encode("unicode_escape").decode()


def _names(value: object) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise ValueError("must be a list of names of tools")
    return value


def _switch(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError("must be true or false")
    return value


def _transport(value: object) -> str:
    if not isinstance(value, str) or value not in TRANSPORTS:
        raise ValueError("must be stdio, http, streamable-http or sse: Segue speaks no other")
    return value if value in ("stdio", "sse") else "http"


def _seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError("must be a number")
    if value < LEAST_MILLISECONDS:
        return value
    if value > MOST_SECONDS:
        return value / 1000
    either = "seconds (Cline, Roo Code) or milliseconds (Claude Code, Gemini CLI, LibreChat)"
    raise ValueError(f"may be {either}: write timeout_s")


def _set_once(result: dict[str, Any], key: str, value: object) -> None:
    if key in result:
        raise ValueError(f"says the same as {key}: give one of them")
    result[key] = value
