"""Fills in the variables of `mcp.json`, those of other clients too. Reads the environment and files of variables."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

MAX_ENV_FILE_BYTES: Final = 65_536

_VARIABLE: Final = re.compile(
    r"\$\{(?:(?P<kind>env|input|config|command|file):(?!-)(?P<of>[^}]*)"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?|(?P<slash>/))\}"
)
_LINE: Final = re.compile(r"\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(.*?)\s*")
_EDITOR_FOLDERS: Final = frozenset({".cursor", ".roo", ".vscode"})


class NoValue(Exception):
    """What is missing, and what to do about it."""

    def __init__(self, missing: str, do: str) -> None:
        self.missing = missing
        self.do = do


class Variables:
    """What `${…}` stands for: the environment, else the `secrets`, whose names are in upper case, else a default.

    `inputs` are the defaults of `${input:…}`. Folders are those of the file at `path`. `files` were read.
    """

    def __init__(self, path: Path, secrets: Mapping[str, str], inputs: Mapping[str, str]) -> None:
        self.path = path
        self.files: list[Path] = []
        self.folder = path.absolute().parent
        self._secrets = secrets
        self._inputs = inputs
        workspace = self.folder.parent if self.folder.name in _EDITOR_FOLDERS else self.folder
        self._places = {
            "workspaceFolder": str(workspace),
            "workspaceFolderBasename": workspace.name,
            "userHome": str(Path("~").expanduser()),
            "pathSeparator": os.sep,
        }

    def fill(self, text: str) -> str:
        """Raises NoValue."""
        return _VARIABLE.sub(self._value, text)

    def env_file(self, name: str) -> dict[str, str]:
        """Returns the variables of a file of `NAME=value` lines. Raises NoValue, also if it cannot be read."""
        path = self.folder / self.fill(name)
        self.files.append(path)
        try:
            with path.open("rb") as file:
                text = file.read(MAX_ENV_FILE_BYTES + 1)
            if len(text) > MAX_ENV_FILE_BYTES:
                raise NoValue(str(path), f"make it smaller than {MAX_ENV_FILE_BYTES} bytes")
            lines = text.decode("utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError):
            raise NoValue(str(path), "it cannot be read as UTF-8 text") from None
        found = [_LINE.fullmatch(line) for line in lines]
        return {match[1]: _unquoted(match[2]) for match in found if match}

    def _value(self, variable: re.Match[str]) -> str:
        match variable["kind"]:
            case "config" | "command" | "file":
                raise NoValue(variable[0][:64], "only its editor knows it; write ${NAME} and set that variable")
            case "input":
                name = re.sub(r"\W", "_", variable["of"]).upper()
                return self._of_environment(name, self._inputs.get(variable["of"]))
            case "env":
                return self._of_environment(variable["of"], None)
        if variable["slash"]:
            return os.sep
        place = self._places.get(variable["name"])
        return place if place is not None else self._of_environment(variable["name"], variable["default"])

    def _of_environment(self, name: str, default: str | None) -> str:
        value = os.environ.get(name, self._secrets.get(name.upper(), default))
        if value is None:
            raise NoValue(f"the environment variable {name[:64]}", "set it, or correct the name")
        return value


def _unquoted(value: str) -> str:
    """A `#` after a space begins a comment, but not within quotes."""
    if value[:1] in {"'", '"'} and (end := value.find(value[0], 1)) > 0:
        return value[1:end]
    return re.split(r"\s#", value, maxsplit=1)[0].rstrip()
