"""Breaks one promise after the other in a copy of the tree and runs the tests that keep it: `python -m tests.mutants`.

`breaks.toml` says what to break. Exits 1 if a break passes its tests or can no longer be made.
"""

import argparse
import multiprocessing
import os
import queue
import re
import shutil
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from compileall import compile_dir
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from py_compile import PycInvalidationMode

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]
BREAKS = Path(__file__).with_name("breaks.toml")
COPIED = (
    ".env.example",
    "alembic",
    "backend",
    "deploy",
    "docker-compose.yml",
    "docs",
    "examples",
    "tests",
    "README.md",
    "mcp.json",
    "pyproject.toml",
)
NODE_HOMES = ("tests/clients", "tests/clients/copilotkit", "tests/mcp/official")  # whose packages take a minute to copy
HANGS_AFTER_S = 300
WITHOUT = ("-p", "no:cacheprovider", "-p", "no:langsmith_plugin", "-p", "no:schemathesis")
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(  # imported once, since every run needs them: what is not of this tree
    [
        "asyncpg",
        "fastapi",
        "langchain_openai",
        "langgraph.graph",
        "mcp",
        "pytest",
        "redis.asyncio",
        "sqlalchemy",
        "uvicorn",
    ]
)
PASSED = re.compile(r"^\d+ passed|, \d+ passed", re.MULTILINE)
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Break:
    """In `file`, the one occurrence of `old` becomes `new`; one of `tests` has to fail then."""

    name: str
    promise: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def apply(self, source: str) -> str:
        """Returns the broken source. Raises ValueError if `old` does not stand there exactly once."""
        if (found := source.count(self.old)) != 1:
            raise ValueError(f"{self.file} has the old text {found} times")
        return source.replace(self.old, self.new)


@dataclass(frozen=True, slots=True)
class Outcome:
    name: str
    good: bool
    text: str
    seconds: float


def read_breaks() -> list[Break]:
    read = tomllib.loads(BREAKS.read_text("utf-8"))["break"]
    return [Break(**{**each, "tests": tuple(each["tests"])}) for each in read]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="only the breaks that have one of these in their name")
    parser.add_argument("--jobs", type=int, default=psutil.cpu_count(logical=True), help="how many run side by side")
    options = parser.parse_args(arguments)
    breaks = read_breaks()
    if options.names:
        breaks = [each for each in breaks if any(part in each.name for part in options.names)]
    outcomes = []
    for outcome in run_all(breaks, jobs=options.jobs):
        outcomes.append(outcome)
        print(
            f"{'ok  ' if outcome.good else 'FAIL'} {outcome.seconds:5.0f} s  {outcome.name}: {outcome.text}", flush=True
        )
    bad = [outcome for outcome in outcomes if not outcome.good]
    print(f"{len(breaks)} breaks; {len(bad)} not as they should be")
    return 1 if bad or not breaks else 0


def run_all(breaks: Sequence[Break], *, jobs: int) -> Iterator[Outcome]:
    """Yields the outcomes in order. The first is the tests' own on the tree as it is: they have to pass there."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        copies: queue.SimpleQueue[Path] = queue.SimpleQueue()
        for number in range(jobs):
            copies.put(copied_tree(Path(folder) / str(number)))

        def unbroken() -> Outcome:
            copy = copies.get()
            try:
                return run_unbroken(copy, sorted({test for each in breaks for test in each.tests}))
            finally:
                copies.put(copy)

        def broken(each: Break) -> Outcome:
            copy = copies.get()
            try:
                return run_broken(copy, each)
            finally:
                copies.put(copy)

        first = pool.submit(unbroken)
        rest = pool.map(broken, breaks)
        yield first.result()
        yield from rest


def copied_tree(target: Path) -> Path:
    target.mkdir()
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("__pycache__", "node_modules"))
        else:
            shutil.copy(source, target / name)
    for home in NODE_HOMES:
        if (ROOT / home / "node_modules").exists():
            (target / home / "node_modules").symlink_to(ROOT / home / "node_modules")
    # By what each file says: a file that is broken is compiled again, also within the same second, and no other is.
    compile_dir(target, quiet=2, invalidation_mode=PycInvalidationMode.CHECKED_HASH)
    return target


def run_unbroken(copy: Path, tests: Sequence[str]) -> Outcome:
    started = time.monotonic()
    code, output = run_tests(copy, tests, timeout_s=None)
    text = f"{len(tests)} tests pass" if code == 0 else output
    return Outcome("nothing broken", code == 0, text, time.monotonic() - started)


def run_broken(copy: Path, each: Break) -> Outcome:
    started = time.monotonic()
    try:
        with broken_in(copy, each):
            code, output = run_tests(copy, each.tests, timeout_s=HANGS_AFTER_S)
    except ValueError as error:
        return Outcome(each.name, good=False, text=f"no longer applies: {error}", seconds=0)
    failed = FAILED.search(output)
    match code:
        case 1 if failed:
            good, text = True, f"caught by {failed[1].rpartition('::')[2]}"
        case None:
            good, text = True, "caught: the tests hang"
        case 0 if not PASSED.search(output):
            good, text = True, "skipped here: its tests need what this machine has not"
        case 0:
            good, text = False, "SURVIVED"
        case _:
            good, text = False, f"the tests could not run:\n{output}"
    return Outcome(each.name, good, text, time.monotonic() - started)


@contextmanager
def broken_in(copy: Path, each: Break) -> Iterator[None]:
    file = copy / each.file
    source = file.read_text("utf-8")
    file.write_text(each.apply(source), "utf-8")
    try:
        yield
    finally:
        file.write_text(source, "utf-8")


def run_tests(copy: Path, tests: Sequence[str], *, timeout_s: float | None) -> tuple[int | None, str]:
    """Returns pytest's exit code, None if it had to be killed, and the end of what it printed."""
    printed = copy / "printed.txt"
    run = FORKS.Process(target=pytest_in, args=(copy, tests, printed))
    run.start()
    run.join(timeout_s)
    if run.is_alive():
        run.kill()
        run.join()
        return None, ""
    return run.exitcode, "\n".join(printed.read_text("utf-8", "replace").splitlines()[-15:])


def pytest_in(copy: Path, tests: Sequence[str], printed: Path) -> None:
    """In a process of its own, which must not know this tree's `tests`: runs pytest on the copy, then exits."""
    with printed.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]
    sys.path[:] = [str(copy / "backend"), str(copy), *(path for path in sys.path if path not in ("", str(ROOT)))]
    sys.dont_write_bytecode = True  # the same file changes within a second
    os.environ["PYTHONPATH"] = str(copy / "backend")
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    os.environ["SWEEP"] = "1"  # a row may name a file, of which CI runs a part
    os.chdir(copy)
    sys.exit(pytest.main(["-x", "-q", "--tb=line", "--assert=plain", *WITHOUT, *tests]))
