"""Small changes by cosmic-ray to the pure rules, a seeded sample of them: `python -m tests.mutants.sample`.

cosmic-ray lives in an environment of its own (`--cosmic-ray`), the tests run in this one, on a copy. Prints each change
that no test noticed, and exits 1 if fewer than nine of ten were noticed.
"""

import argparse
import random
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.mutants.run import WITHOUT, copied_tree

COSMIC_RAY = "8.7.0"
NEEDED = 0.9
RULES = {
    "domain/plan.py": "tests/domain/test_plan.py tests/plans/test_plan_parser.py",
    "tools/tool_health.py": "tests/tools/test_dependencies.py tests/tools/test_health.py",
    "plans/acknowledgement.py": "tests/plans/test_acknowledgement.py",
    "plans/policy.py": "tests/plans/test_policy.py",
}
CONFIG = """
[cosmic-ray]
module-path = "backend/segue/{module}"
timeout = {timeout_s}
excluded-modules = []
test-command = "{command}"
[cosmic-ray.distributor]
name = "local"
"""
OUTCOMES = """
SELECT r.test_outcome, m.module_path, m.operator_name, m.start_pos_row, r.diff
FROM work_results r JOIN mutation_specs m USING (job_id)
"""


def _absolute(path: str) -> Path:
    """The programs run in the copy's folder."""
    return Path(path).absolute()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.sample", description=__doc__)
    parser.add_argument("--cosmic-ray", type=_absolute, required=True, help="the folder with its programs")
    parser.add_argument("--at-most", type=int, default=400, help="how many changes")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=11)
    options = parser.parse_args(arguments)
    ends_at = time.monotonic() + 60 * options.minutes
    noticed, unnoticed = 0, list[str]()
    with tempfile.TemporaryDirectory() as folder:
        copy = copied_tree(Path(folder) / "tree")
        for module, tests in RULES.items():
            share = options.at_most // len(RULES)
            database = sampled(copy, module, tests, options.cosmic_ray, at_most=share, seed=options.seed)
            left_s = (ends_at - time.monotonic()) / (len(RULES) - list(RULES).index(module))
            execute(copy, module, options.cosmic_ray, timeout_s=left_s)
            killed, survived = outcomes(database)
            print(f"{module}: {killed} of {killed + len(survived)} noticed", flush=True)
            noticed, unnoticed = noticed + killed, unnoticed + survived
    for survivor in unnoticed:
        print(survivor)
    rate = noticed / max(noticed + len(unnoticed), 1)
    print(f"{rate:.0%} of {noticed + len(unnoticed)} changes noticed")
    return 0 if rate >= NEEDED else 1


def sampled(copy: Path, module: str, tests: str, programs: Path, *, at_most: int, seed: int) -> Path:
    """Lists every change to the module, and keeps some."""
    command = f"{sys.executable} -B -m pytest -x -q --assert=plain --tb=no --noconftest {' '.join(WITHOUT)} {tests}"
    config, database = copy / "cosmic-ray.toml", copy / f"{module.replace('/', '-')}.sqlite"
    config.write_text(CONFIG.format(module=module, command=command, timeout_s=120), "utf-8")
    subprocess.run([programs / "cosmic-ray", "init", config.name, database.name], cwd=copy, check=True)
    with sqlite3.connect(database) as connection:
        listed = "SELECT job_id FROM mutation_specs ORDER BY operator_name, occurrence, operator_args"
        jobs = [job for (job,) in connection.execute(listed)]
        kept = set(random.Random(seed).sample(jobs, min(at_most, len(jobs))))  # noqa: S311 (not for secrets)
        dropped = [(job,) for job in jobs if job not in kept]
        connection.executemany("DELETE FROM mutation_specs WHERE job_id = ?", dropped)
        connection.executemany("DELETE FROM work_items WHERE job_id = ?", dropped)
    connection.close()
    return database


def execute(copy: Path, module: str, programs: Path, *, timeout_s: float) -> None:
    """Runs the tests on each change; what is not done in time stays out of the sample."""
    database = f"{module.replace('/', '-')}.sqlite"
    source = copy / "backend" / "segue" / module
    unchanged = source.read_bytes()
    try:
        subprocess.run(
            [programs / "cosmic-ray", "exec", "cosmic-ray.toml", database], cwd=copy, check=True, timeout=timeout_s
        )
    except subprocess.TimeoutExpired:
        print(f"{module}: time is up", flush=True)
    source.write_bytes(unchanged)


def outcomes(database: Path) -> tuple[int, list[str]]:
    """Returns how many changes a test noticed, and the others as diffs."""
    with sqlite3.connect(database) as connection:
        rows = connection.execute(OUTCOMES).fetchall()
    connection.close()
    survived = [
        f"{path}:{row} {operator}\n{diff}" for outcome, path, operator, row, diff in rows if outcome == "SURVIVED"
    ]
    return len(rows) - len(survived), survived


if __name__ == "__main__":
    sys.exit(main())
