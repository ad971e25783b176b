"""`make bench-machines`: the processor time of a plain turn by part, on one to eight processes that share stores.

Prints figures of docs/scaling.md. All share this machine's cores, so their turns a second say little: the processor
time of a part says how many turns a core of it carries.
"""

import argparse
import asyncio
import sys
import tempfile
from collections import Counter
from pathlib import Path

import uvloop

from bench.client import conversations, turns_of
from bench.meter import COMMANDS, meter_of, processor_ms
from bench.processes import Setup, serving, setup
from segue.around.embedded.servers import embedded_servers

SESSIONS = 16
TIMEOUT_S = 180
GROUPS = {
    "1 × serve": ("serve",),
    "2 × serve": ("serve",) * 2,
    "4 × serve": ("serve",) * 4,
    "8 × serve": ("serve",) * 8,
    "serve --processes 2": ("serve --processes 2",),
    "serve --processes 4": ("serve --processes 4",),
    "1 API + 1 worker": ("serve --no-worker", "worker"),
    "2 API + 2 workers": ("serve --no-worker",) * 2 + ("worker",) * 2,
    "2 API + 6 workers": ("serve --no-worker",) * 2 + ("worker",) * 6,
}


async def measure(within: Setup, name: str, *, seconds: float) -> str:
    """Returns a row of the table."""
    used: Counter[str] = Counter()
    async with (
        serving(within, str(Path(sys.executable).with_name("segue")), name, *GROUPS[name]) as group,
        meter_of(group.stores, {"Segue": group.pids}) as meter,
        conversations(group.ports, SESSIONS) as sessions,
        meter.adding_to(used),
    ):
        _, latencies = await turns_of(sessions, seconds=seconds)
    turns = len(latencies)
    parts = processor_ms(used, turns)
    ours, postgres, redis = (parts[part] for part in ("Segue", "PostgreSQL", "Redis"))
    carried = f"{1000 / ours:.0f} | {1000 / postgres:.0f} | {1000 / redis:.0f}"
    return f"| {name} | {ours:.1f} | {postgres:.2f} | {redis:.2f} | {used[COMMANDS] / turns:.1f} | {carried} |"


async def run(folder: Path, *, seconds: float) -> None:
    print("| ms a turn | Segue | PostgreSQL | Redis | Redis commands | turns/s a core of Segue | PostgreSQL | Redis |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|", flush=True)
    with embedded_servers(folder / "data") as servers:
        async with setup(servers, folder) as within:
            for name in GROUPS:
                async with asyncio.timeout(TIMEOUT_S):
                    print(await measure(within, name, seconds=seconds), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.machines", description=__doc__)
    parser.add_argument("--seconds", type=float, default=10, help="for which each group has turns")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="segue-bench-") as made:
        folder = Path(made)
        folder.chmod(0o711)  # PostgreSQL cannot run as root, and its own user must get through
        uvloop.run(run(folder, seconds=options.seconds))


if __name__ == "__main__":
    main()
