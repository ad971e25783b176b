"""What import contracts and ruff cannot check: where SQL stands, what is caught, whose private members are used.

Each exception is listed with its reason. An entry that is no longer needed fails the test, as a fault does.
"""

import ast
import asyncio
import importlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from segue.agent.prompts import TEXTS
from tests.support import garbage

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "backend" / "segue"
ROOMS = 16  # at the top level, at most
STEMS = {
    "__init__": "a room",
    "store": "the rows of its room",
    "service": "what its room does for the ones above",
    "schemas": "what its room says over HTTP",
}  # and a resource of `api` may be called as the file of a room that does it
PROGRAMS = ("chaos", "fuzz", "mutants")  # with parts of their own; their tests run them for a moment

STATEMENTS = {"select", "insert", "update", "delete", "text", "union_all"}
OWNERS_OF_TABLES = {
    "around/backup.py": "copies every table, by its metadata",
    "db/outages.py": "asks PostgreSQL who holds a lock",
    "db/engine.py": "has no table: asks whether pgvector is there",
    "db/migrations.py": "asks which migration the store is at, and waits for its lock",
    "db/models.py": "defines the tables",
    "db/user_data.py": "gives, reads or deletes the rows of a user in every table, by its metadata",
    "db/rows.py": "has no table: how rows with a seq are ordered, and those with a due time claimed",
    "db/postgres_server.py": "measures every table, by its metadata; asks for the time, and for the newest migration",
    "events/outbox.py": "webhook_events",
    "history/fork_and_import.py": "copies of a session's rows in all its tables, and turns held elsewhere",
    "history/operator_figures.py": "turns of all users; has no table: what each user has, over all of them",
    "history/operator_turns.py": "turns of all users, and their calls; what a turn did when, its calls and plan",
    "mcp/oauth/login_tokens.py": "mcp_logins, mcp_clients",
    "mcp/oauth/logins.py": "mcp_login_attempts",
    "mcp/oauth/personal_server.py": "mcp_tool_lists",
    "memory/fact_store.py": "memories",
    "memory/history.py": "messages",
    "memory/session_search.py": "has no table: sessions and messages of one user, by words",
    "memory/session_store.py": "feedback; sessions, client_sessions",
    "memory/summary.py": "sessions.summary",
    "plans/mandates.py": "mandates, and grants of the release before",
    "plans/store.py": "plans",
    "tools/attachment_store.py": "attachments, and the results that were read from one that is deleted",
    "tools/catalog.py": "tool_definitions",
    "tools/receipts.py": "receipts, receipt_contents",
    "tools/results.py": "tool_calls, tool_results",
    "tools/retention.py": "tool_results",
    "tools/tool_states.py": "tool_states, tool_state_changes; tool_holds",
    "turns/admission.py": "turns, as they are accepted or run again",
    "turns/approvals.py": "has no table: plans with what those who decide see of their session",
    "turns/branches.py": "branches of turns and messages, and what of their session is past the cut",
    "turns/call_starts.py": "has no table: a message, its calls and the fence in one statement",
    "turns/claims.py": "turns",
    "turns/jobs/learn_facts.py": "turns.facts_due_at",
    "turns/jobs/summaries_and_titles.py": "sessions.title_due_at",
    "turns/maintenance.py": "has no table: sessions that are idle",
    "turns/presence.py": "turns.lease_until, of processes that are gone",
    "turns/queries.py": "turns",
    "turns/run_record.py": "what turns did, dropped when that is old",
    "turns/schedules.py": "schedules",
    "turns/triggers.py": "triggers",
    "turns/terminations.py": "turns",
    "users/api_keys.py": "api_keys; stream_tokens",
    "users/audit.py": "audit",
    "users/limits.py": "user_limits, reservations",
    "users/usage.py": "usage, user_groups",
}
BROAD = {
    "around/process_supervisor.py": "a forked process prints its error and ends: the stack above is the supervisor's",
    "agent/stream_reply.py": "closes the stream of a reply, and raises again",
    "around/embedded/servers.py": "stops the servers that have started, and raises again",
    "around/tracing.py": "records what a span ended with, and raises again",
    "db/outages.py": "logs what fails in a loop that has to go on",
    "events/event_log.py": "logs it, and takes PostgreSQL for lost until the next look",
    "mcp/mcp_servers.py": "leaves the servers that were entered, and raises again",
    "mcp/server_connection.py": "tries the older transport of HTTP, and raises again",
    "mcp/supervisor.py": "a connection may end with any error of the SDK, and the next one is tried",
    "models/chat_model.py": "a provider's library has errors of its own, and any other is raised again",
    "plans/policy.py": "an operator's own rule may raise anything, and then the call is denied",
    "tools/attachment_texts.py": "a library fails in any way on a broken file, which is refused then",
    "tools/run.py": "where a tool fails",
    "turns/presence.py": "logs it, and takes the lock again",
    "turns/runner.py": "where a turn fails",
    "users/usage.py": "keeps what could not be booked, and raises again",
}
PRIVATE = {
    "models/providers/anthropic.py": "langchain-anthropic takes no HTTP client but through this",
}


@cache
def sources() -> tuple[tuple[str, ast.Module], ...]:
    """Their trees stay, and are half a million objects: to look through them for garbage took longer than all else."""
    with garbage.left_alone():
        paths = sorted(PACKAGE.rglob("*.py"))
        read = tuple((path.relative_to(PACKAGE).as_posix(), ast.parse(path.read_text("utf-8"))) for path in paths)
    garbage.collect_again()
    return read


@cache
def nodes(module: ast.Module) -> tuple[ast.AST, ...]:
    """All there are: to walk a tree takes as long as to parse it."""
    return tuple(ast.walk(module))


def makes_statements(module: ast.Module) -> bool:
    """Whether it imports one of the functions that make a SQL statement, or uses one of `sa`."""
    imports = (node for node in nodes(module) if isinstance(node, ast.ImportFrom))
    attributes = (node for node in nodes(module) if isinstance(node, ast.Attribute))
    used = {node.attr for node in attributes if isinstance(node.value, ast.Name) and node.value.id == "sa"}
    return not used.isdisjoint(STATEMENTS) or any(
        (node.module or "").startswith("sqlalchemy") and not STATEMENTS.isdisjoint(name.name for name in node.names)
        for node in imports
    )


def catches_everything(module: ast.Module) -> bool:
    handlers = (node for node in nodes(module) if isinstance(node, ast.ExceptHandler))
    caught = (handler.type for handler in handlers)
    return any(
        kind is None
        or any(isinstance(name, ast.Name) and name.id in ("Exception", "BaseException") for name in ast.walk(kind))
        for kind in caught
    )


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_"


def imports_something_private(module: ast.Module) -> bool:
    """Of another library: `from library._module import …` or `from library import _name`."""
    for node in nodes(module):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("segue"):
            names = [*(node.module or "").split("."), *(each.name for each in node.names)]
        elif isinstance(node, ast.Import):
            names = [part for each in node.names for part in each.name.split(".")]
        if any(is_private(name) for name in names):
            return True
    return False


@cache
def defined_in(kind: ast.ClassDef) -> set[str]:
    """The private names that the body of a class, or an assignment to one of `self`, gives it."""
    found: set[str] = set()
    for node in ast.walk(kind):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.id if isinstance(node, ast.Name) else node.attr)
    return {name for name in found if is_private(name)}


def uses_something_inherited(module: ast.Module, ours: dict[str, ast.ClassDef]) -> bool:
    """Whether a method uses a private member of `self` that neither its class nor one of `ours` above it defines."""
    for kind in (node for node in nodes(module) if isinstance(node, ast.ClassDef)):
        known, above = set[str](), [kind]
        while above:
            known |= defined_in(each := above.pop())
            names = (base.value if isinstance(base, ast.Subscript) else base for base in each.bases)
            above += [ours[name.id] for name in names if isinstance(name, ast.Name) and name.id in ours]
        attributes = (node for node in ast.walk(kind) if isinstance(node, ast.Attribute) and is_private(node.attr))
        on_self = {node.attr for node in attributes if isinstance(node.value, ast.Name) and node.value.id == "self"}
        if on_self - known:
            return True
    return False


def overrides(kind: type, names: set[str]) -> set[str]:
    """Those of the names that a class of another library, above this one, has too."""
    others = [base for base in kind.__mro__[1:] if base.__module__.partition(".")[0] not in {"segue", "builtins"}]
    return {name for name in names for base in others if name in vars(base)}


def overrides_something(name: str, module: ast.Module) -> bool:
    """Imports the module, if it has a class with a private member and a class above it."""
    kinds = {kind.name: defined_in(kind) for kind in module.body if isinstance(kind, ast.ClassDef) and kind.bases}
    if not any(kinds.values()):
        return False
    dotted = ".".join(("segue", *Path(name).with_suffix("").parts))
    imported = importlib.import_module(dotted)
    return any(overrides(getattr(imported, kind), names) for kind, names in kinds.items())


def test_sql_stands_in_the_modules_that_own_a_table() -> None:
    assert {name for name, module in sources() if makes_statements(module)} == OWNERS_OF_TABLES.keys()


def test_everything_is_caught_only_where_a_turn_or_a_tool_fails_or_the_error_goes_on() -> None:
    assert {name for name, module in sources() if catches_everything(module)} == BROAD.keys()


def test_no_private_member_of_a_library_is_used_or_overridden() -> None:
    modules = dict(sources())
    classes = (node for module in modules.values() for node in nodes(module) if isinstance(node, ast.ClassDef))
    ours = {kind.name: kind for kind in classes}
    faults = {
        name
        for name, module in modules.items()
        if imports_something_private(module)
        or uses_something_inherited(module, ours)
        or overrides_something(name, module)
    }
    assert faults == PRIVATE.keys()


def names_of_types(module: ast.Module) -> Iterator[str]:
    """The classes of a module, and its public aliases, type variables and annotated types."""
    yield from (node.name for node in nodes(module) if isinstance(node, ast.ClassDef))
    assigned = (node for node in module.body if isinstance(node, ast.Assign | ast.AnnAssign))
    targets = (node.targets[0] if isinstance(node, ast.Assign) else node.target for node in assigned)
    yield from (
        each.id for each in targets if isinstance(each, ast.Name) and re.fullmatch(r"[A-Z]\w*[a-z]\w*", each.id)
    )


def test_no_two_types_have_one_name() -> None:
    names = Counter(name for _, module in sources() for name in names_of_types(module))
    assert [name for name, times in names.items() if times > 1] == []


def shared_stems(names: Iterable[str]) -> dict[str, list[str]]:
    """The files with one stem, by stem, but for the patterns of `STEMS` and a resource beside a file of a room."""
    files: dict[str, list[str]] = {}
    for name in names:
        files.setdefault(Path(name).stem, []).append(name)
    beside = {stem: [name for name in found if Path(name).parts[0] != "api"] for stem, found in files.items()}
    return {
        stem: found
        for stem, found in files.items()
        if stem not in STEMS and (len(beside[stem]) > 1 or len(found) - len(beside[stem]) > 1)
    }


def helpers_elsewhere(name: str, text: str) -> list[str]:
    """The modules of `tests` that a test, by its path there, imports from outside `support`."""
    folder = Path(name).parts[0]
    rooms = "support|" + folder if folder in PROGRAMS else "support"
    imported = re.findall(r"^ *(?:from|import) (tests\.[\w.]+)", text, re.MULTILINE)
    return [each for each in imported if not re.match(rf"tests\.({rooms})(?!.*\.test_)\b", each)]


def test_no_two_files_share_a_stem_but_those_that_mean_the_same_in_each_room() -> None:
    assert shared_stems(name for name, _ in sources()) == {}


def test_each_text_for_the_model_is_used_and_each_that_is_used_is_there() -> None:
    strings, used = set[object](), set[object]()
    for node in (node for _, module in sources() for node in nodes(module)):
        if isinstance(node, ast.Constant):
            strings.add(node.value)
        elif isinstance(node, ast.Subscript) and ast.unparse(node.value).split(".")[-1] == "TEXTS":
            used |= {node.slice.value} if isinstance(node.slice, ast.Constant) else set()
    assert (set(TEXTS) - strings, used - set(TEXTS)) == (set(), set())


def test_the_house_has_sixteen_rooms_at_most() -> None:
    assert len(list(PACKAGE.glob("*/__init__.py"))) <= ROOMS


def test_helpers_are_imported_from_support_only() -> None:
    found = {
        path: elsewhere
        for path in TESTS.rglob("*.py")
        if (elsewhere := helpers_elsewhere(path.relative_to(TESTS).as_posix(), path.read_text("utf-8")))
    }
    assert found == {}


def test_each_of_these_can_fail() -> None:
    def written(text: str) -> ast.Module:
        return ast.parse(text)

    assert makes_statements(written("from sqlalchemy import Row, select"))
    assert not makes_statements(written("from sqlalchemy import Row"))
    for clause in ("except:", "except Exception:", "except (OSError, BaseException) as error:"):
        assert catches_everything(written(f"try:\n    run()\n{clause}\n    pass"))
    assert not catches_everything(written("try:\n    run()\nexcept (OSError, ExceptionGroup):\n    pass"))
    for line in ("from redis._client import Client", "from redis import _client", "import redis._client"):
        assert imports_something_private(written(line))
    assert not imports_something_private(written("from segue.db.redis_keys import _Client\nimport redis.client"))
    mine = written("class Mine(Theirs):\n    def look(self):\n        return self._found")
    assert uses_something_inherited(mine, {})
    theirs = written("class Theirs:\n    def __init__(self):\n        self._found = 1").body[0]
    assert isinstance(theirs, ast.ClassDef)
    assert not uses_something_inherited(mine, {"Theirs": theirs})

    assert overrides(type("Deaf", (asyncio.Queue,), {}), {"_get", "_listen"}) == {"_get"}

    assert shared_stems(["plans/store.py", "facts/store.py", "api/plans.py", "agent/plans.py"]) == {}
    assert shared_stems(["agent/plans.py", "turns/plans.py"]) == {"plans": ["agent/plans.py", "turns/plans.py"]}
    assert shared_stems(["api/plans.py", "api/doors/plans.py"]).keys() == {"plans"}
    for line in (
        "from tests.db.test_rows import rows",
        "import tests.db.conftest",
        "from tests.chaos.site import Site",
    ):
        assert helpers_elsewhere("db/test_rows.py", line)
    for line in (
        "from tests.support.site import Site",
        "from tests.chaos.site import Site",
        "from tests import support",
    ):
        assert not helpers_elsewhere("chaos/test_chaos.py", line)
