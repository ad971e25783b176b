"""What docker-compose.yml, backend/Dockerfile and the wheel say is what the code does. No engine is asked."""

import asyncio
import json
import os
import re
import subprocess
import sys
import zipfile
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml  # type: ignore[import-untyped]  # it ships no types
from packaging.requirements import Requirement

from segue.api.pages import FOLDER
from segue.config import Settings
from tests.support.commands import ROOT, fresh, python
from tests.support.images import image_environment, instructions, parses
from tests.support.pages import needs_pages
from tests.support.service import Process
from tests.support.stores import urls_of

VARIABLE = re.compile(r"(?<!\$)\$\{(\w+)(?::([-?])([^}]*))?\}")
ASKED_PATH = re.compile(r"https?://127\.0\.0\.1:[^/]+(/[a-z/]+)")
SECRETS = {"POSTGRES_PASSWORD", "REDIS_PASSWORD"}
OURS = ("migrate", "api", "worker")
INSTALLED = """
import hashlib, json
from pathlib import Path
from alembic.script import ScriptDirectory
import segue
from segue.db.migrations import config
home = Path(segue.__file__).parent
files = [file for file in home.rglob("*.toml") if "examples" not in file.parts]  # what `segue init` writes
words = {str(file.relative_to(home)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
revisions = sorted(found.revision for found in ScriptDirectory.from_config(config("")).walk_revisions())
print(json.dumps({"home": str(home), "words": words, "revisions": revisions}))
"""


class Missing(Exception):
    """A variable without a value that has to have one."""


def compose(**environment: str) -> Any:
    """The services as Compose would start them with these variables."""

    def value(found: re.Match[str]) -> str:
        name, kind, otherwise = found.groups()
        if kind == "?" and not environment.get(name):
            raise Missing(f"{name}: {otherwise}")
        return environment.get(name) or otherwise or ""

    text = VARIABLE.sub(value, (ROOT / "docker-compose.yml").read_text("utf-8"))
    return yaml.safe_load(text)["services"]


@pytest.fixture
def services() -> Any:
    return compose(**dict.fromkeys(SECRETS, "made"))


@pytest.fixture
def dockerfile() -> list[tuple[str, str]]:
    return instructions()


@pytest.mark.parametrize("missing", sorted(SECRETS))
def test_without_a_secret_nothing_starts_and_it_is_said_how_to_make_one(missing: str) -> None:
    with pytest.raises(Missing, match=f"{missing}: .*openssl rand"):
        compose(**dict.fromkeys(SECRETS - {missing}, "made"))


def test_no_secret_has_a_value_that_works_where_nobody_set_one() -> None:
    uses = VARIABLE.findall((ROOT / "docker-compose.yml").read_text("utf-8"))
    assert {name for name, kind, _ in uses if kind == "?"} == SECRETS
    assert not [use for use in uses if use[0] in SECRETS and use[1] != "?"]


def test_the_composed_services_start_with_these_settings(
    services: Any, dockerfile: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in Settings.model_fields:
        monkeypatch.delenv(name.upper(), raising=False)
    for given in (*(services[name]["environment"] for name in OURS), image_environment(dockerfile)):
        assert not [name for name in given if name.lower() not in Settings.model_fields]
        settings = Settings(_env_file=None, **{name.lower(): value for name, value in given.items()})
        assert (settings.auth, settings.migrate_on_start) == ("api_key", False)
        assert settings.hosts is None


def test_what_is_started_are_commands_of_segue(services: Any, dockerfile: list[tuple[str, str]]) -> None:
    said = dict(dockerfile)
    assert json.loads(said["ENTRYPOINT"]) == ["segue"]
    for command in (json.loads(said["CMD"]), *(services[name]["command"] for name in OURS)):
        parses(command)


def test_nothing_of_ours_starts_before_the_database_is_migrated(services: Any) -> None:
    for name in ("api", "worker"):
        assert services[name]["depends_on"]["migrate"]["condition"] == "service_completed_successfully"
        assert services[name]["depends_on"]["redis"]["condition"] == "service_healthy"
    assert services["migrate"]["depends_on"]["postgres"]["condition"] == "service_healthy"
    assert services["migrate"]["restart"] == "no"
    assert all("test" in services[name]["healthcheck"] for name in ("postgres", "redis"))


def test_a_process_has_the_time_to_stop_that_it_takes(services: Any) -> None:
    default = Settings.model_fields["shutdown_grace_s"].default
    for name in ("api", "worker"):
        grace = float(services[name]["stop_grace_period"].removesuffix("s"))
        assert grace > float(services[name]["environment"]["SHUTDOWN_GRACE_S"])
        assert grace > default


def test_there_may_be_any_number_of_workers(services: Any) -> None:
    assert not {"container_name", "ports", "hostname"} & services["worker"].keys()
    assert services["worker"]["restart"] == "unless-stopped"


def test_only_the_api_is_reachable_and_only_from_this_machine(services: Any) -> None:
    assert [name for name, service in services.items() if "ports" in service] == ["api"]
    assert services["api"]["ports"] == ["127.0.0.1:8000:8000"]
    assert services["postgres"]["networks"] == services["redis"]["networks"] == ["stores"]


def test_redis_forgets_nothing_to_make_room(services: Any) -> None:
    assert "--maxmemory-policy noeviction" in services["redis"]["command"][-1]


def test_health_is_asked_where_it_is_told(services: Any, dockerfile: list[tuple[str, str]]) -> None:
    routes = json.loads((ROOT / "docs" / "openapi.json").read_text("utf-8"))["paths"]
    asked = ASKED_PATH.findall(dict(dockerfile)["HEALTHCHECK"] + str(services["api"]["healthcheck"]["test"]))
    assert asked == ["/health/live", "/health/ready"]
    assert set(asked) <= routes.keys()
    port = services["worker"]["environment"]["WORKER_METRICS_PORT"]
    assert f"http://127.0.0.1:{port}/health/live" in str(services["worker"]["healthcheck"]["test"])


def test_a_proxy_waits_as_long_and_takes_as_much_as_the_service() -> None:
    told = re.findall(r"^ *(\w+) (\S+);", (ROOT / "deploy" / "nginx.conf").read_text("utf-8"), re.MULTILINE)
    times = {name: float(value[:-1]) for name, value in told if re.fullmatch(r"\d+[sm]", value)}
    default = {name: field.default for name, field in Settings.model_fields.items()}
    assert times["proxy_read_timeout"] > default["turn_timeout_s"]
    assert times["keepalive_timeout"] < default["keep_alive_s"]
    assert times["client_body_timeout"] <= default["request_read_timeout_s"]
    assert times["client_max_body_size"] * 2**20 > default["attachment_max_bytes"] + 65_536  # the form around it
    assert {"ssl_certificate", "ssl_certificate_key"} <= dict(told).keys()  # nginx does not start without them


def test_what_is_mounted_from_the_checkout_is_there(services: Any) -> None:
    mounts = [mount for service in services.values() for mount in service.get("volumes", ())]
    sources = [mount["source"] if isinstance(mount, dict) else mount.partition(":")[0] for mount in mounts]
    assert {Path(source).name for source in sources if source.startswith("./")} == {"mcp.json", "postgres.sh"}
    assert all((ROOT / source).is_file() for source in sources if source.startswith("./"))


def test_the_image_is_made_of_files_that_are_there_and_sent(dockerfile: list[tuple[str, str]]) -> None:
    copied = [
        name for word, rest in dockerfile if word == "COPY" and "--from" not in rest for name in rest.split()[:-1]
    ]
    ignore = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    assert set(copied) == {line.removeprefix("!") for line in ignore if line.startswith("!")}
    assert not [name for name in copied if not (ROOT / name).exists()]


def test_the_image_runs_as_nobody_special_and_hears_sigterm(dockerfile: list[tuple[str, str]]) -> None:
    said = dict(dockerfile)
    assert int(said["USER"].split(":")[0]) >= 10_000
    assert said["STOPSIGNAL"] == "SIGTERM"


def test_what_builds_the_image_is_locked_to_the_last_package(dockerfile: list[tuple[str, str]]) -> None:
    [listed] = [
        re.findall(r"\^\(([^)]*)\)==", rest) for word, rest in dockerfile if "build.lock" in rest and word == "RUN"
    ]
    wanted, found = ["hatchling"], set[str]()
    while wanted:
        name = wanted.pop()
        found.add(name)
        needed = [Requirement(line) for line in requires(name) or ()]
        wanted += [one.name for one in needed if one.marker is None or one.marker.evaluate({"extra": ""})]
    assert set(listed[0].split("|")) >= found


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the wheel installs."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    built = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    [wheel] = folder.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(folder / "site")
    return folder / "site"


def installation(cwd: Path, **environment: str) -> Any:
    """What a Segue that is imported in this folder finds beside its code."""
    told = subprocess.run(
        [sys.executable, "-c", INSTALLED],
        cwd=cwd,
        env={"PATH": os.environ["PATH"], **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    return json.loads(told.stdout)


@pytest.mark.sweep
def test_an_installed_segue_has_the_migrations_and_the_words_of_a_checkout(installed: Path, tmp_path: Path) -> None:
    wheel = installation(tmp_path, PYTHONPATH=str(installed))
    checkout = installation(tmp_path)
    assert (wheel.pop("home"), checkout.pop("home")) == (str(installed / "segue"), str(ROOT / "backend" / "segue"))
    assert wheel == checkout
    assert wheel["revisions"]
    assert len(wheel["words"]) > 4


def test_the_wheel_has_every_table_that_stands_beside_the_code(installed: Path) -> None:
    tables = [path.relative_to(ROOT / "backend") for path in (ROOT / "backend" / "segue").rglob("*.toml")]
    assert len(tables) > 20
    assert [str(path) for path in tables if not (installed / path).is_file()] == []


@needs_pages
def test_the_wheel_has_the_pages_that_a_checkout_serves(installed: Path) -> None:
    served = {file.name: file.read_bytes() for file in FOLDER.iterdir()}
    assert {file.name: file.read_bytes() for file in (installed / "segue" / "api" / "pages").iterdir()} == served
    assert {"index.html.gz", "docs.html.gz"} <= served.keys()


@pytest.mark.sweep
def test_an_installed_segue_writes_the_files_of_a_checkout(installed: Path, tmp_path: Path) -> None:
    written: list[dict[str, str]] = []
    for start, environment in (((sys.executable,), {"PYTHONPATH": str(installed)}), (python(), {})):
        folder = tmp_path / str(len(written))
        folder.mkdir()
        environment |= {"PATH": os.environ["PATH"]}
        subprocess.run([*start, "-m", "segue", "init"], cwd=folder, env=environment, check=True, capture_output=True)
        written.append({file.name: file.read_text("utf-8") for file in folder.iterdir()})
    assert written[0] == written[1]
    assert written[0][".env"] == (ROOT / ".env.example").read_text("utf-8")


@pytest.mark.sweep
async def test_an_installed_segue_serves_beside_a_backend_of_somebody_elses(
    installed: Path, tmp_path: Path, settings: Settings
) -> None:
    backend = tmp_path / "backend"
    backend.mkdir()
    for name in ("__init__", "cli", "main", "config"):
        (backend / f"{name}.py").write_text("raise SystemExit('this is the backend of somebody else')")
    environment = {"PYTHONPATH": str(installed), **urls_of(settings)}
    service = Process(environment, cwd=tmp_path, start=fresh)
    url = await asyncio.to_thread(service.start)
    try:
        async with httpx2.AsyncClient(base_url=url) as client:
            assert (await client.get("/health/ready")).status_code == 200
    finally:
        assert await asyncio.to_thread(service.stop) == 0


def test_the_wheel_says_what_it_is_made_with(installed: Path) -> None:
    [written] = installed.glob("*.dist-info/sboms/*.cdx.json")
    listed = json.loads(written.read_text("utf-8"))
    lock = (ROOT / "requirements.lock").read_text("utf-8")
    pinned = set(re.findall(r"^([\w.-]+)==([\w.!+]+)", lock, re.MULTILINE))
    assert {(each["name"], each["version"]) for each in listed["components"]} == pinned
    [root] = [each for each in listed["dependencies"] if each["ref"] == listed["metadata"]["component"]["bom-ref"]]
    assert "fastapi" in {ref.removeprefix("pkg:pypi/").partition("@")[0] for ref in root["dependsOn"]}
