"""The command line: what it refuses, and that it says how to go on."""

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import time
from functools import partial
from importlib.metadata import version
from pathlib import Path

import asyncpg
import httpx2
import psutil
import pytest
import typer
from typer.testing import CliRunner

from segue.around.cli import COMMANDS, app
from segue.around.terminal import new_file, settings_with
from segue.db.migrations import MIGRATION_LOCK
from segue.db.outages import REFUSED
from segue.db.postgres_server import newest
from segue.domain.agent import PROVIDERS
from tests.support.commands import ROOT, forked, segue, surroundings
from tests.support.logs import until
from tests.support.patience import PATIENCE_S
from tests.support.service import Process
from tests.support.stores import plain

# The last thing that a start said which waits for the lock: it asks, and lets go again.
WAITS = """SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
AND (query LIKE 'SELECT pg_try_advisory_xact_lock(%' OR query LIKE 'ROLLBACK%')"""
EMPTIED = "DROP SCHEMA public CASCADE; CREATE SCHEMA public"
KEY = "c2stY2FuYXJ5LXNrLWNhbmFyeS1zay1jYW5hcnktc2s="
JWT = {"AUTH": "jwt", "JWT_AUDIENCE": "segue", "JWT_ISSUER": "us"}


def refused(**environment: str) -> str:
    """What `segue serve` says of settings it does not even start with."""
    result = CliRunner().invoke(app, ["serve"], env={"OPENAI_API_KEY": "sk-canary", "PORT": "0", **environment})
    assert result.exit_code == 2
    assert "sk-canary" not in result.output
    assert result.output.count("\n") == 1, result.output
    return result.output


def contained(*command: str, **environment: str) -> subprocess.Popen[bytes]:
    """Starts a command as the first process of a namespace of its own, as a container's is."""
    as_user = ("--user", "--map-root-user") if os.geteuid() else ()
    arguments = ("unshare", *as_user, "--pid", "--fork", "--kill-child", *command)
    return subprocess.Popen(arguments, cwd=ROOT, env=surroundings(environment))


def test_serving_the_network_without_identity_is_refused_with_the_way_out() -> None:
    said = refused(AUTH="none", HOST="0.0.0.0")  # noqa: S104 (it is what is refused)
    for way in ("AUTH=api_key", "segue keys create --user", "HOST=127.0.0.1", "ALLOW_ANONYMOUS=true"):
        assert way in said
    assert "Value error" not in said


@pytest.mark.in_turns(20)
@pytest.mark.parametrize(
    ("environment", "named"),
    [
        ({"PORT": "many"}, "PORT"),
        ({"LLM_TIMEOUT_S": "-1"}, "LLM_TIMEOUT_S"),
        ({"TIME_ZONE": "Rome"}, "TIME_ZONE: This time zone is unknown."),
        ({"LLM_TIMEOUT_S": "inf"}, "LLM_TIMEOUT_S should be a finite number"),
        ({"LLM_API": "completions"}, "LLM_API should be 'auto', 'chat' or 'responses'"),
        *(({each.base_url: "api.example.com/v1"}, f"{each.base_url} has to be a URL") for each in PROVIDERS.values()),
        ({"PRICES_FILE": "/nowhere.toml"}, "PRICES_FILE=/nowhere.toml cannot be read"),
        ({"LLM_EXTRA_BODY": "{top_k: 3}"}, "LLM_EXTRA_BODY has to be a JSON object"),
        ({"LLM_EXTRA_BODY": '{"messages": [], "tools": []}'}, "LLM_EXTRA_BODY cannot set messages, tools"),
        ({"LLM_EXTRA_HEADERS": '["sk-canary"]'}, "LLM_EXTRA_HEADERS has to be a JSON object"),
        (
            {"LLM_EXTRA_HEADERS": '{"X-Key": "sk-canary\\nX-Other: 1"}'},
            "LLM_EXTRA_HEADERS has a header that cannot be sent, 'X-Key'",
        ),
        ({"WEB_SEARCH_PROVIDER": "tavily"}, "TAVILY_API_KEY"),
        ({"WEB_SEARCH_PROVIDER": "searxng"}, "SEARXNG_URL"),
        ({"PLANNING": "perhaps"}, "PLANNING"),
        ({"CONFIRM_WORDS": "all"}, "CONFIRM_WORDS should be 'shown' or 'never'"),
        ({"MAX_ROUNDS": "0"}, "MAX_ROUNDS should be greater than or equal to 1"),
        ({"MAX_TOOL_CALLS": "10001"}, "MAX_TOOL_CALLS should be less than or equal to 10000"),
        ({"MAX_PARALLEL_CALLS": "many"}, "MAX_PARALLEL_CALLS should be a valid integer"),
        ({"LLM_MODEL": "anthropic:claude-sonnet-5"}, "needs ANTHROPIC_API_KEY"),
        ({"LLM_MODEL": "google_genai:gemini-3-flash"}, "needs GOOGLE_API_KEY"),
        (
            {"LLM_MODEL": "anthropic:x", "ANTHROPIC_API_KEY": "k", "OPENAI_API_KEY": "", "LLM_FALLBACK_MODEL": "gpt-5"},
            "LLM_FALLBACK_MODEL=gpt-5 needs OPENAI_API_KEY",
        ),
        ({"AUTH": "perhaps"}, "AUTH"),
        ({"OPENWEBUI_JWT_SECRET": "short"}, "OPENWEBUI_JWT_SECRET should have at least 32 characters, not 5"),
        ({"JWT_ROLES": '{"leads": "approver"}'}, "JWT_ROLES.leads should be a valid list"),
        ({"LIMIT_GROUPS": '{"finance": -1}'}, "LIMIT_GROUPS.finance should be greater than or equal to 0"),
        ({"LIMIT_TURNS_PER_MINUTE": "-1"}, "LIMIT_TURNS_PER_MINUTE"),
        ({"AUTH": "jwt", "JWT_KEY": "x", "JWT_AUDIENCE": "segue"}, "JWT_ISSUER"),
        ({"AUTH": "jwt", "JWT_KEY": "x", "JWT_ISSUER": "us"}, "JWT_AUDIENCE"),
        ({"AUTH": "jwt", "JWT_AUDIENCE": "segue", "JWT_ISSUER": "us"}, "JWT_JWKS_URL or JWT_KEY"),
        ({**JWT, "JWT_JWKS_URL": "https://id.example/keys", "JWT_KEY": "x"}, "JWT_JWKS_URL and JWT_KEY"),
        ({**JWT, "JWT_JWKS_URL": "file:///etc/passwd"}, "JWT_JWKS_URL"),
        ({**JWT, "JWT_JWKS_URL": "https://id.example:keys/"}, "JWT_JWKS_URL has to be a URL"),
        ({"OPENAI_BASE_URL": "http://[::1/v1"}, "OPENAI_BASE_URL has to be a URL"),
        ({"WEB_SEARCH_PROVIDER": "searxng", "SEARXNG_URL": "searx"}, "SEARXNG_URL has to be a URL"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "127.0.0.1:4318"}, "OTEL_EXPORTER_OTLP_ENDPOINT has to be a URL"),
        ({"WEBHOOK_URL": "file:///sk-canary"}, "WEBHOOK_URL has to be a URL"),
        ({"WEBHOOK_URL": "https://a.example"}, "WEBHOOK_URL needs WEBHOOK_SECRET"),
        ({"WEBHOOK_URL": "https://a.example", "WEBHOOK_SECRET": "whsec_sk-canary"}, "WEBHOOK_SECRET is none"),
        ({"CORS_ORIGINS": "https://a.example,https://b.example/"}, "CORS_ORIGINS has to be origins"),
        ({"DATABASE_URL": "sk-canary"}, "DATABASE_URL has to be a URL, such as postgresql://"),
        ({"DATABASE_URL": "mysql://me:sk-canary@db/segue"}, "DATABASE_URL has to be a URL"),
        ({"DATABASE_URL": "postgresql+psycopg://me:sk-canary@db/segue"}, "DATABASE_URL has to be a URL"),
        ({"DATABASE_URL": "postgresql://me:sk-canary@db:54321x/segue"}, "DATABASE_URL has to be a URL"),
        ({"DATABASE_URL": "postgresql://me:sk-canary@db:99999/segue"}, "DATABASE_URL has to be a URL"),
        ({"DATABASE_URL": "postgresql://me:sk-canary@db/segue?sslmod=require"}, "cannot be used: sslmod. There are "),
        ({"DATABASE_URL": "postgresql://me:sk-canary@db/segue?ssl=true"}, "DATABASE_URL has an ssl that there is not"),
        ({"DATABASE_URL": "postgresql://me:sk-canary@db/segue?sslmode=on"}, "has an sslmode that there is not"),
        ({"DATABASE_URL": "postgresql://db/segue?sslrootcert=/nowhere.pem"}, "names a file as sslrootcert that cannot"),
        ({"DATABASE_URL": "postgresql://me:sk-canary@.db/segue"}, "DATABASE_URL has to be a URL"),
        ({"REDIS_URL": "sk-canary"}, "REDIS_URL has to be a URL, such as redis://"),
        ({"REDIS_URL": "http://:sk-canary@redis"}, "REDIS_URL has to be a URL"),
        ({"REDIS_URL": "redis://:sk-canary@redis:6379x/0"}, "REDIS_URL has to be a URL"),
        ({"REDIS_URL": "redis://:sk-canary@[::1/0"}, "REDIS_URL has to be a URL"),
        ({"REDIS_URL": "redis://:sk-canary@redis/first"}, "REDIS_URL has to be a URL"),
        ({"REDIS_URL": "redis://:sk-canary@redis?db=first"}, "REDIS_URL has to be a URL"),
        ({"REDIS_URL": "redis://:sk-canary@redis?decode_responses=1"}, "cannot be used: decode_responses"),
        ({"DATA_DIR": __file__}, "DATA_DIR has to be a folder"),
        ({"DATA_DIR": f"{__file__}/data"}, "DATA_DIR has to be a folder"),
        ({"MCP_CONFIG": "/nowhere.json"}, "MCP_CONFIG=/nowhere.json cannot be read"),
        ({"MCP_CONFIG": "x" * 300}, "cannot be read"),
        ({"AGENTS_CONFIG": "x" * 300}, "cannot be read"),
        ({"LANGUAGE_DIR": "x" * 300}, "is no folder"),
        ({"SECRETS_DIR": "x" * 300}, "SECRETS_DIR has to be a folder"),
        ({"MCP_CONFIG": __file__}, "is not JSON"),
        ({"MCP_CONFIG": "/"}, "cannot be read"),
        ({"LANGUAGE_DIR": "/nowhere"}, "LANGUAGE_DIR=/nowhere is no folder"),
        ({"BEFORE_CALL": "nowhere:rule"}, "No module named 'nowhere': install its package, or set PYTHONPATH"),
        ({"BEFORE_CALL": "os:sep"}, "BEFORE_CALL should be callable"),
        ({"PRICES_FILE": __file__}, "PRICES_FILE"),
        ({"PRICES_FILE": "/"}, "PRICES_FILE"),
        ({"HOST": "\udcff"}, "HOST should be a valid string"),
        ({"TURN_LEASE_S": "1e308"}, "TURN_LEASE_S should be less"),
        ({"SESSION_TTL_DAYS": "9" * 30}, "SESSION_TTL_DAYS should be less"),
        ({"TOOL_RESULT_MAX_BYTES": "9" * 30}, "TOOL_RESULT_MAX_BYTES should be less"),
        ({"WORKER_CONCURRENCY": "9" * 5000}, "WORKER_CONCURRENCY"),
        ({"LIMIT_COST_PER_DAY": "sk-canary"}, "LIMIT_COST_PER_DAY"),
    ],
)
def test_a_setting_that_cannot_be_is_named(environment: dict[str, str], named: str) -> None:
    assert named in refused(**environment)


@pytest.mark.parametrize(
    ("model", "package", "extra"),
    [
        ("anthropic:claude-sonnet-5", "langchain_anthropic", "anthropic"),
        ("google_genai:gemini-3-flash", "langchain_google_genai", "google"),
    ],
)
def test_a_provider_whose_package_is_missing_says_which_to_install(
    monkeypatch: pytest.MonkeyPatch, model: str, package: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    assert f"pip install 'segue-agent[{extra}]'" in refused(LLM_MODEL=model).replace("\n", " ")


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        *(
            ("ALLOWED_HOSTS", f"::1,a.example,{host}", "has to be names of hosts, such as segue.example.com")
            for host in ("b.example:80", "cafe:80", "[::1]", "https://b.example", "*", "*.b.example", "b.example.")
        ),
        *(("RECEIPT_KEY", KEY + between + KEY, "has to be 32 bytes in Base64") for between in ("", " ", ",")),
        ("MCP_TOKEN_KEY", KEY + KEY, "has to be 32 bytes in Base64"),
    ],
)
def test_a_setting_of_which_a_part_would_not_count_is_refused(
    name: str, given: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(name, given)
    with pytest.raises(typer.Exit):
        settings_with()
    assert f"{name} {said}" in capsys.readouterr().err


def test_blanks_around_a_value_are_no_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    file = {"LLM_MODEL": "m", "DATABASE_URL": "postgresql://me@db/segue", "HOST": "127.0.0.1", "OPENAI_API_KEY": "k"}
    for name, value in file.items():
        monkeypatch.setenv(name, f" {value} \r")  # as Docker reads a line of a file that Windows wrote
    found = settings_with()
    assert (found.llm_model, found.host) == ("m", "127.0.0.1")
    assert [each and each.get_secret_value() for each in (found.database_url, found.openai_api_key)] == [
        file["DATABASE_URL"],
        "k",
    ]


@pytest.mark.parametrize("query", ["host=/run&port=x", "host=/run&host=/tmp"])
def test_every_command_refuses_a_port_that_is_none_in_one_line(query: str) -> None:
    code, said = segue(
        "keys", "list", DATABASE_URL=f"postgresql://u:canary@/x?{query}", REDIS_URL="redis://127.0.0.1:1"
    )
    assert (code, said.count("\n"), said.partition(",")[0]) == (2, 1, "DATABASE_URL has to be a URL")


@pytest.mark.parametrize("command", [("serve",), ("worker",), ("migrate",), ("doctor",), ("keys", "list")])
def test_every_command_refuses_a_url_that_is_none_in_one_line_without_its_password(command: tuple[str, ...]) -> None:
    code, said = segue(*command, DATABASE_URL="postgresql://u:canary@[::1/x", REDIS_URL="redis://:canary@127.0.0.1:1")
    assert (code, said.count("\n")) == (2, 1)
    assert said.startswith("DATABASE_URL has to be a URL")
    assert "canary" not in said


@pytest.mark.parametrize("command", [("serve", "--port", "0"), ("migrate",)])
def test_a_data_folder_that_cannot_be_written_is_a_sentence_that_says_what_to_do(command: tuple[str, ...]) -> None:
    code, said = segue(*command, DATA_DIR="/proc/nowhere")
    assert code != 0
    assert "Set DATA_DIR" in said
    assert "Traceback" not in said


@pytest.mark.parametrize(("command", "setting"), [("serve", "MCP_CONFIG"), ("worker", "AGENTS_CONFIG")])
def test_a_file_that_cannot_be_used_is_refused_before_servers_are_made(
    command: str, setting: str, tmp_path: Path
) -> None:
    code, said = segue(command, DATA_DIR=str(tmp_path / "data"), **{setting: __file__})
    assert (code, " is not " in said, [*tmp_path.iterdir()]) == (2, True, [])


@pytest.mark.sweep
def test_a_key_that_cannot_check_tokens_is_a_sentence_without_the_key(tmp_path: Path) -> None:
    code, said = segue("serve", "--port", "0", **JWT, JWT_KEY="canary", DATA_DIR=str(tmp_path / "data"))
    assert code != 0
    assert "JWT_KEY is neither a public key in PEM nor a secret" in said
    assert "canary" not in said
    assert "Traceback" not in said


@pytest.mark.sweep
def test_a_database_that_is_not_there_is_a_sentence_without_its_password() -> None:
    nowhere = {"DATABASE_URL": "postgresql://u:canary@127.0.0.1:1/x", "REDIS_URL": "redis://127.0.0.1:1"}
    code, said = segue("serve", "--port", "0", **nowhere)
    assert code != 0
    assert "cannot be reached" in said
    assert "canary" not in said


def test_a_file_that_has_no_receipts_is_a_sentence_without_what_is_in_it(tmp_path: Path) -> None:
    (file := tmp_path / "segue.log").write_text("canary\n")
    (endless := tmp_path / "endless").touch()
    os.truncate(endless, 1 << 43)  # more than fits into memory
    for given, why in (
        (endless, "it is not what GET /sessions/{id}/receipts answers."),
        (file, "it is not what GET /sessions/{id}/receipts answers."),
        (tmp_path / "none", "No such file"),
    ):
        code, said = segue("receipts", "verify", str(given))
        assert (code, said.count("\n")) == (2, 1)
        assert "This is no page of receipts: " in said
        assert why in said
        assert "canary" not in said


def test_the_version_is_that_of_the_package() -> None:
    code, said = segue("--version")
    assert (code, said) == (0, f"segue {version('segue-agent')}\n")


def test_the_list_of_commands_imports_none_of_them(tmp_path: Path) -> None:
    script = tmp_path / "help.py"
    script.write_text(
        "import sys\nfrom typer.testing import CliRunner\nfrom segue.around.cli import COMMANDS, app\n"
        "print(CliRunner().invoke(app, ['--help']).output)\n"
        "print([name for name in sys.modules if name.startswith(('segue.', 'pydantic', 'fastapi', 'asyncio'))])"
    )
    done = subprocess.run([sys.executable, script], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert all(f" {name} " in done.stdout for name in COMMANDS)
    assert done.stdout.splitlines()[-1] == "['segue.around', 'segue.around.cli']"


@pytest.mark.parametrize(
    ("misspelt", "meant"),
    [
        (("serv",), "'serve'"),
        (("migrat",), "'migrate'"),
        (("keys", "creat"), "'create'"),
        (("serve", "--prot", "1"), "--port"),
        (("keys", "create", "--usr", "ada"), "--user"),
        (("--verson",), "--version"),
    ],
)
def test_a_misspelt_command_or_option_is_told_what_is_near(misspelt: tuple[str, ...], meant: str) -> None:
    result = CliRunner().invoke(app, misspelt)
    assert result.exit_code == 2
    assert re.search(rf"(?:Did you mean|Possible options:).*{meant}", result.output), result.output


@pytest.mark.parametrize(
    ("given", "code", "told"),
    [
        ("--version > /dev/full", 1, "The output cannot be written: No space left on device.\n"),
        ("--version >&-", 1, "The output cannot be written: Bad file descriptor.\n"),
        ("--version >&- 2>&-", 1, ""),
        ("doctor --help > /dev/full", 1, "The output cannot be written: No space left on device.\n"),
        ("erase --user ada <&-", 2, "Nothing was removed. Look with --dry-run"),
        ("doctor $(printf '\\377')", 2, "Invalid value: An argument is not UTF-8 text."),
    ],
)
def test_a_stream_that_cannot_be_used_and_an_argument_that_is_no_text_are_a_sentence(
    given: str, code: int, told: str
) -> None:
    script = f"{sys.executable} -m segue {given}"
    done = subprocess.run(["sh", "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (code, "")
    assert told in done.stderr
    assert not re.search("Traceback|Exception ignored", done.stderr)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_its_help(name: str) -> None:
    result = CliRunner().invoke(app, [name, "--help"])
    assert result.exit_code == 0
    assert COMMANDS[name]["help"].split(".")[0] in " ".join(result.output.split())
    assert "completion" not in result.output  # it is of `segue` alone


def test_a_port_that_is_taken_is_a_sentence_that_names_the_setting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        result = CliRunner().invoke(app, ["serve", "--port", str(taken.getsockname()[1])])
    assert result.exit_code == 3
    assert "is taken. Stop what uses it, or give another one with --port or PORT." in result.output


def test_a_port_of_an_mcp_server_that_is_taken_is_a_sentence_too() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = CliRunner().invoke(app, ["mcp", "serve", "--url", "http://127.0.0.1:1", "--port", str(port)])
    said = f"Port {port} on 127.0.0.1 is taken. Stop what uses it, or give another one with --port.\n"
    assert (result.exit_code, result.output) == (3, said)


def test_a_descriptor_that_is_no_tcp_socket_is_a_sentence_that_names_the_flag(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as file, socket.socket(socket.AF_UNIX) as local:
        for fd in (file.fileno(), local.fileno(), 4095):
            result = CliRunner().invoke(app, ["serve", "--fd", str(fd)])
            said = f"--fd {fd} is no TCP socket that this process was given.\n"
            assert (result.exit_code, result.output) == (2, said)


def test_a_given_socket_of_the_network_needs_identity_as_an_address_does() -> None:
    with socket.create_server(("0.0.0.0", 0)) as public:  # noqa: S104 (it is what is refused)
        result = CliRunner().invoke(app, ["serve", "--fd", str(public.fileno())], env={"AUTH": "none"})
    assert result.exit_code == 2
    assert "AUTH=api_key" in result.output


@pytest.mark.parametrize("host", ["192.0.2.1", "nowhere.invalid", ".segue"])
def test_an_address_that_the_machine_does_not_have_is_a_sentence_that_names_the_setting(host: str) -> None:
    result = CliRunner().invoke(app, ["serve", "--host", host, "--port", "0"], env={"ALLOW_ANONYMOUS": "true"})
    assert result.exit_code == 3
    assert f"This machine has no address {host}. Give one that it has with --host or HOST." in result.output


def test_a_name_that_is_nearly_a_setting_is_told_and_those_of_other_programs_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".env").write_text("OPENAI_API_KEYS=sk-canary\nPOSTGRES_PASSWORD=canary\nLLM_MODEL=m\n")
    monkeypatch.setenv("LLM_TIMEOUT", "5")
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", "sk-canary")
    settings_with()
    told = capsys.readouterr().err
    found = re.findall(r"setting_unknown +did_you_mean=(\w+) name=(\w+)", told)
    assert found == [("LLM_TIMEOUT_S", "LLM_TIMEOUT"), ("OPENAI_API_KEY", "OPENAI_API_KEYS")]
    assert (told.count("\n"), "canary" in told) == (2, False)


@pytest.mark.sweep
def test_migrate_brings_the_embedded_database_up_and_leaves_nothing_running(tmp_path: Path) -> None:
    code, said = segue("migrate", DATA_DIR=str(tmp_path / "data"))
    assert (code, "newest revision" in said) == (0, True)
    running = subprocess.run(["pgrep", "-f", str(tmp_path)], capture_output=True, text=True, check=False, timeout=10)
    assert running.stdout == ""


@pytest.mark.in_turns(1)
@pytest.mark.parametrize("command", [("serve", "--port", "0"), ("worker",), ("keys", "list")])
async def test_a_database_that_was_to_be_migrated_first_is_a_sentence_that_says_so(
    own_database_url: str, redis_url: str, command: tuple[str, ...]
) -> None:
    stores = {"DATABASE_URL": own_database_url, "REDIS_URL": redis_url, "MIGRATE_ON_START": "false"}
    admin = await asyncpg.connect(plain(own_database_url))
    for change, found in (("UPDATE alembic_version SET version_num = '0040'", "0040"), (EMPTIED, "none")):
        await admin.execute(change)
        code, said = await asyncio.to_thread(segue, *command, **stores)
        assert code != 0
        assert f"The database has revision {found}, and this release needs {newest()}." in said
        assert "run `segue migrate` first" in said
        assert "Traceback" not in said
    await admin.close()


@pytest.mark.parametrize("command", [("serve", "--port", "0"), ("worker",)])
async def test_a_start_that_waits_for_another_migration_outlives_a_reload_and_ends_at_once_when_it_is_to(
    own_database_url: str, redis_url: str, command: tuple[str, ...]
) -> None:
    stores = {"DATABASE_URL": own_database_url, "REDIS_URL": redis_url}
    admin = await asyncpg.connect(plain(own_database_url))
    await admin.execute("UPDATE alembic_version SET version_num = '0040'")
    await admin.execute("SELECT pg_advisory_lock($1)", MIGRATION_LOCK)
    process = forked(command, ROOT, surroundings(stores), (0, 1, 2))
    try:
        await until(partial(admin.fetchval, WAITS))
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, PATIENCE_S) == -signal.SIGTERM
    finally:
        await admin.close()
        process.send_signal(signal.SIGKILL)


@pytest.mark.sweep
@pytest.mark.parametrize("command", [("serve", "--port", "0"), ("worker",)])
async def test_the_first_process_of_a_container_that_is_told_to_end_while_it_starts_ends_once_it_has_started(
    own_database_url: str, redis_url: str, command: tuple[str, ...]
) -> None:
    if contained("true").wait(PATIENCE_S):
        pytest.skip("this machine lets nobody make a namespace of processes")
    admin = await asyncpg.connect(plain(own_database_url))
    await admin.execute("UPDATE alembic_version SET version_num = '0040'")
    await admin.execute("SELECT pg_advisory_lock($1)", MIGRATION_LOCK)
    stores = {"DATABASE_URL": own_database_url, "REDIS_URL": redis_url}
    container = contained(sys.executable, "-m", "segue", *command, **stores)
    try:
        await until(partial(admin.fetchval, WAITS))
        [first] = psutil.Process(container.pid).children()
        first.send_signal(signal.SIGTERM)
        await admin.execute("UPDATE alembic_version SET version_num = $1", newest())
        await admin.close()
        assert await asyncio.to_thread(container.wait, PATIENCE_S) == 0
    finally:
        container.kill()


@pytest.mark.sweep
def test_keys_are_made_before_the_service_starts_used_listed_and_revoked_while_it_runs(tmp_path: Path) -> None:
    stores = {"DATA_DIR": str(tmp_path / "data"), "AUTH": "api_key"}
    groups = ("--group", "staff", "--group", "night shift", "--role", "approver")
    code, said = segue("keys", "create", "--user", "ada", "--scope", "ops", "--name", "my\nlaptop", *groups, **stores)
    assert code == 0, said
    key = said.split()[-1]
    (tmp_path / "none.json").write_text('{"mcpServers": {}}')
    service = Process({**stores, "MCP_CONFIG": str(tmp_path / "none.json")})
    url = service.start()
    try:
        with httpx2.Client(base_url=url, headers={"X-API-Key": key}) as ada:
            assert ada.get("/tool-states").status_code == 200
        code, listed = segue("keys", "list", **stores)
        [line] = listed.splitlines()
        assert code == 0
        assert {"ada", "ops", "laptop"} < set(line.split())
        assert line.endswith("in night shift,staff  as approver")
        assert key not in listed
        key_id = line.split()[0]
        code, rotated = segue("keys", "rotate", key_id, "--hours", "1", **stores)
        assert (code, key in rotated) == (0, False)
        for each in (key, rotated.split()[-1]):
            assert httpx2.get(f"{url}/tool-states", headers={"X-API-Key": each}).status_code == 200
            me = httpx2.get(f"{url}/me", headers={"X-API-Key": each}).json()
            assert (me["groups"], me["roles"]) == (["night shift", "staff"], ["approver"])
        code, again = segue("keys", "rotate", key_id, **stores)
        assert (code, "has been rotated" in again, "segue_" in again) == (2, True, False)
        assert segue("keys", "revoke", key_id, **stores)[0] == 0
        assert "revoked" in segue("keys", "list", "--user", "ada", **stores)[1]
        assert segue("keys", "list", "--user", "bob", **stores) == (0, "bob has no keys.\n")
        code, again = segue("keys", "revoke", key_id, **stores)
        assert (code, "no key with this id" in again.lower()) == (2, True)
        with httpx2.Client(base_url=url, headers={"X-API-Key": key}) as ada:
            while ada.get("/sessions").status_code == 200:
                time.sleep(0.1)  # the two would keep both cores busy for seconds
    finally:
        service.stop()
    assert key not in "".join(service.log)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("keys", "create", "--user", " "), "--user"),
        (("keys", "create", "--user", "a\nb"), "--user"),
        (("keys", "create", "--user", "ada", "--scope", "root"), "ops"),
        (("erase", "--user", ""), "--user"),
    ],
)
def test_a_name_or_scope_that_cannot_be_is_refused(arguments: tuple[str, ...], named: str) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert named in result.output


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "http://[", "http://", "http://localhost:99999", "http://é..com"])
@pytest.mark.parametrize("command", [("chat", "--new"), ("approvals", "list"), ("replay", __file__)])
def test_a_url_at_which_nothing_can_be_is_refused_in_a_sentence(command: tuple[str, ...], url: str) -> None:
    result = CliRunner().invoke(app, [*command, "--url", url])
    assert (result.exit_code, result.output.count("\n")) == (2, 1)
    assert "SEGUE_URL is no address of a service" in result.output


@pytest.mark.parametrize("command", [("approvals",), ("chat", "--new"), ("mcp", "logout", "mail")])
def test_a_key_that_no_header_can_have_is_refused_in_a_sentence(command: tuple[str, ...]) -> None:
    given = {"SEGUE_API_KEY": "“segue_1”", "SEGUE_URL": "http://127.0.0.1:1"}
    result = CliRunner().invoke(app, command, env=given)
    assert (result.exit_code, result.output.count("\n")) == (2, 1)
    assert result.output.startswith("--api-key or SEGUE_API_KEY is no key: ")


def test_a_command_on_a_store_that_is_gone_tells_the_operator_what_to_do(tmp_path: Path) -> None:
    nowhere = {"DATABASE_URL": "postgresql://u:canary@127.0.0.1:1/x", "REDIS_URL": "redis://127.0.0.1:1"}
    code, said = segue("backup", str(tmp_path / "segue.backup"), **nowhere)
    assert (code, said.splitlines()[-1]) == (2, f"The database cannot be used: {REFUSED.why}. {REFUSED.mend}")


@pytest.mark.parametrize("folder", [".", "/"])
def test_a_folder_is_no_name_of_a_new_file(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit), new_file(Path(folder)):
        pass
    assert capsys.readouterr().err == f"{folder} cannot be written: File exists. Give the name of a new file.\n"
