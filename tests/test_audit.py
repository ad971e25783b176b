"""`make check` asks for known vulnerabilities, fails where there are any, and says so where it could not ask."""

import importlib.util
import json
import os
import subprocess
import sys
from types import ModuleType

import pytest

from tests.support.commands import ROOT

SCRIPT = ROOT / ".ci" / "audit.py"
FINE = {"name": "anyio", "version": "4.16.0", "vulns": []}
FAULTY = {"name": "old", "version": "1.0", "vulns": [{"id": "PYSEC-1", "fix_versions": ["1.1"], "description": "bad"}]}
UNKNOWN = {"name": "own", "skip_reason": "Dependency not found"}


@pytest.fixture(scope="module")
def audit() -> ModuleType:
    spec = importlib.util.spec_from_file_location("audit", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_without_a_way_out_it_is_skipped_aloud() -> None:
    away = dict.fromkeys(("http_proxy", "https_proxy", "HTTPS_PROXY", "ALL_PROXY"), "http://127.0.0.1:9")
    done = subprocess.run(
        [sys.executable, str(SCRIPT)],
        env={**os.environ, **away, "no_proxy": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("audit: SKIPPED, no advisories: https://")


def test_a_known_vulnerability_is_named_and_so_is_what_nothing_is_known_of(audit: ModuleType) -> None:
    report = json.dumps({"dependencies": [FINE, FAULTY, UNKNOWN]})
    assert audit.judge(report) == (["old 1.0: PYSEC-1, fixed in 1.1"], ["own"])
    assert audit.judge(json.dumps({"dependencies": [FINE]})) == ([], [])


def test_a_source_that_knows_nothing_is_no_all_clear(audit: ModuleType) -> None:
    with pytest.raises(audit.NoAdvisories):
        audit.judge(json.dumps({"dependencies": [UNKNOWN]}))
