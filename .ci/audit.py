"""Known vulnerabilities of what requirements.lock pins. Where advisories cannot be had it says so and lets pass."""

import json
import re
import subprocess
import sys
import urllib.request
from http.client import HTTPException
from pathlib import Path

LOCK = Path(__file__).resolve().parents[1] / "requirements.lock"
SOURCE = "https://pypi.org/pypi/{}/{}/json"  # what pip-audit asks for each package
PROBE_TIMEOUT_S = 4
AUDIT_TIMEOUT_S = 240


class NoAdvisories(Exception):
    """There is nothing to judge by; the message says why."""


def probe(lock: Path) -> None:
    """Asks for the first pinned package, so that a source that is away or knows nothing is noticed at once."""
    pin = re.search(r"^([\w.-]+)==([\w.!+]+)", lock.read_text("utf-8"), re.MULTILINE)
    if pin is None:
        raise NoAdvisories(f"{lock.name} pins nothing")
    try:
        with urllib.request.urlopen(SOURCE.format(*pin.groups()), timeout=PROBE_TIMEOUT_S) as answer:  # noqa: S310 (https)
            json.load(answer)["vulnerabilities"]
    except (OSError, HTTPException, ValueError, KeyError) as error:
        raise NoAdvisories(f"{SOURCE.format(*pin.groups())} gives none ({error})") from error


def audit(lock: Path) -> str:
    """pip-audit's report, as JSON. Its exit code does not tell a vulnerability from a lost connection."""
    command = [sys.executable, "-m", "pip_audit", "--requirement", str(lock), "--require-hashes", "--disable-pip"]
    options = ["--format", "json", "--progress-spinner", "off"]
    try:
        done = subprocess.run(  # noqa: S603 (nothing of it is anybody else's)
            [*command, *options], capture_output=True, text=True, timeout=AUDIT_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as late:
        raise NoAdvisories(f"pip-audit took over {AUDIT_TIMEOUT_S} s") from late
    if not done.stdout:
        raise NoAdvisories(f"pip-audit gave up: {done.stderr.strip().rpartition(chr(10))[2]}")
    return done.stdout


def judge(report: str) -> tuple[list[str], list[str]]:
    """A line for each known vulnerability, and the packages nothing is known of."""
    packages = json.loads(report)["dependencies"]
    unknown = [package["name"] for package in packages if "skip_reason" in package]
    if len(unknown) == len(packages):
        raise NoAdvisories("the source knows none of the packages")
    faults = [
        f"{package['name']} {package['version']}: {fault['id']}, fixed in {', '.join(fault['fix_versions']) or 'none'}"
        for package in packages
        for fault in package.get("vulns", ())
    ]
    return faults, unknown


def main(lock: Path = LOCK) -> int:
    try:
        probe(lock)
        faults, unknown = judge(audit(lock))
    except NoAdvisories as reason:
        print(f"audit: SKIPPED, no advisories: {reason}")
        return 0
    for fault in faults:
        print(f"audit: {fault}", file=sys.stderr)
    beside = f"; nothing is known of {', '.join(unknown)}" if unknown else ""
    print(f"audit: {len(faults)} known vulnerabilities in {lock.name}{beside}")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
