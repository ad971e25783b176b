"""What `make check` verifies beside style and types: migrations, settings, contract and bill of materials are current.

`python .ci/check.py --write` brings docs/openapi.json up to date.
"""

import json
import sys
import tempfile
from pathlib import Path

import sbom
from alembic.util import CommandError
from dotenv import dotenv_values

from alembic import command
from segue.around.embedded.servers import embedded_servers
from segue.config import Settings
from segue.db.migrations import config, upgrade
from segue.main import create_app

ROOT = Path(__file__).resolve().parents[1]
SNAPSHOT = ROOT / "docs" / "openapi.json"


def openapi() -> str:
    app = create_app(Settings(_env_file=None))
    return json.dumps(app.openapi(), indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def snapshot_faults() -> list[str]:
    if SNAPSHOT.read_text("utf-8") == openapi():
        return []
    return ["docs/openapi.json is not what the app serves; run `python .ci/check.py --write` and read the difference"]


def settings_faults() -> list[str]:
    """Differences between .env.example and the defaults of Settings, names and values."""
    shown = {name.lower(): value or None for name, value in dotenv_values(ROOT / ".env.example").items()}
    missing = [f".env.example lacks {name.upper()}" for name in Settings.model_fields if name not in shown]
    unknown = [
        f".env.example has {name.upper()}, which is no setting" for name in shown if name not in Settings.model_fields
    ]
    example = Settings(_env_file=ROOT / ".env.example")
    defaults = Settings(_env_file=None)
    other = [
        f".env.example says {shown[name]} for {name.upper()}, the default is {getattr(defaults, name)}"
        for name in Settings.model_fields
        if getattr(example, name) != getattr(defaults, name)
    ]
    return [*missing, *unknown, *other]


def migration_faults() -> list[str]:
    with tempfile.TemporaryDirectory() as folder, embedded_servers(Path(folder), fast=True) as servers:
        upgrade(servers.database_url)
        try:
            command.check(config(servers.database_url))
        except CommandError as error:
            return [f"the migrations do not lead to the models: {error}"]
    return []


def main() -> int:
    if "--write" in sys.argv:
        SNAPSHOT.write_text(openapi(), "utf-8")
        return 0
    faults = [*settings_faults(), *snapshot_faults(), *migration_faults(), *sbom.faults()]
    for fault in faults:
        print(f"check: {fault}", file=sys.stderr)
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
