"""Fuzzes every target for its share of the time, guided by what code an input reaches: `python -m tests.fuzz`.

Needs atheris, which `make fuzz` installs. Keeps the inputs that reached something new in `.venv/fuzz`. Goes on after a
finding, prints each kind of it once with its input, and exits 1 if there was any.
"""

import argparse
import hashlib
import os
import re
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

import atheris
import structlog

with atheris.instrument_imports(include=["segue"]):
    from tests.fuzz.targets import TARGETS, Target

KEPT = Path(__file__).resolve().parents[2] / ".venv" / "fuzz"
HANGS_AFTER_S = 20
MEMORY_MB = 4000
RUNS = re.compile(r"Done (\d+) runs in (\d+) second")
COVERED = re.compile(r"cov: (\d+)")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="for all targets together")
    parser.add_argument("targets", nargs="*", metavar="target", help="all if none is named")
    options = parser.parse_args(arguments)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    names = options.targets or list(TARGETS)
    share_s = max(options.seconds // len(names), 1)
    return int(sum(_fuzzed(name, TARGETS[name], share_s) for name in names) > 0)


def _fuzzed(name: str, target: Target, seconds: int) -> bool:
    """Fuzzes a target in a process of its own, which a fuzzer ends. Returns whether anything was found."""
    corpus, findings, log = KEPT / "corpus" / name, KEPT / "findings" / name, KEPT / f"{name}.log"
    for folder in (corpus, findings):
        folder.mkdir(parents=True, exist_ok=True)
    for seed in target.seeds:
        (corpus / hashlib.sha1(seed, usedforsecurity=False).hexdigest()).write_bytes(seed)
    before = set(findings.iterdir())
    if not (child := os.fork()):
        with log.open("wb") as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        _fuzz(target, corpus, findings, seconds)
    _, status = os.waitpid(child, 0)
    said = log.read_text("utf-8", "replace")
    found = sorted(set(findings.iterdir()) - before)
    runs, covered = RUNS.search(said), COVERED.findall(said)
    rate = f"{runs[1]} runs, {int(runs[1]) // max(int(runs[2]), 1)} a second" if runs else f"ended with {status}"
    print(f"{name}: {rate}, coverage {(covered or ['0'])[-1]}, {len(list(corpus.iterdir()))} inputs kept", flush=True)
    for path in found:
        print(f"  {path}\n{path.read_bytes()!r}")
    if found or not runs:
        print(said[-6000:] if not runs else "\n".join(re.findall(r"(?s)^Traceback.*?^\w.*?$", said, re.MULTILINE)))
    return bool(found) or not runs


def _fuzz(target: Target, corpus: Path, findings: Path, seconds: int) -> None:
    seen: set[str] = set()

    def check(data: bytes) -> None:
        try:
            target.check(data)
        except Exception as error:  # noqa: BLE001 (any is a finding)
            at = "".join(f"{frame.filename}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)[-3:])
            kind = hashlib.sha1(f"{type(error)}{at}".encode(), usedforsecurity=False).hexdigest()[:12]
            if kind not in seen:
                seen.add(kind)
                (findings / kind).write_bytes(data)
                traceback.print_exc()

    options = (f"-max_total_time={seconds}", f"-max_len={target.longest}", f"-timeout={HANGS_AFTER_S}")
    more = (f"-rss_limit_mb={MEMORY_MB}", f"-artifact_prefix={findings}/", "-print_final_stats=1")
    atheris.Setup([sys.argv[0], *options, *more, str(corpus)], check)
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
