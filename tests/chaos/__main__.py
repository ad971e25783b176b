"""`python -m tests.chaos chaos`: two instances under load and faults. `order`: the same with kills alone, and more
histories. `soak`: one under load, its tools restarted.

Prints a line a minute, and what is wrong. Exits with 1 if anything is.
"""

import argparse
import asyncio
import random
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from tests.chaos.run import BEHIND_SUPERVISORS, CHAOS, ORDER, SOAK, Run
from tests.support import fork_server
from tests.support.commands import forks

WEATHERS = {"chaos": CHAOS, "order": ORDER, "soak": SOAK}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("weather", choices=WEATHERS)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--talkers", type=int, default=6)
    parser.add_argument("--processes", type=int, default=1, help="of each instance, behind a supervisor if several")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    given = parser.parse_args()
    print(f"seed {given.seed}: SEED={given.seed} makes the same choices again", flush=True)
    end = fork_server.launch()
    try:
        with tempfile.TemporaryDirectory(prefix="segue-chaos-") as folder:
            weather = WEATHERS[given.weather]
            if given.processes > 1:
                faults = {**weather.faults, **BEHIND_SUPERVISORS}
                weather = replace(weather, faults=faults, processes=given.processes)
            run = Run(weather, seconds=given.seconds, seed=given.seed, talkers=given.talkers)
            return int(bool(asyncio.run(run.whole(Path(folder)))))
    finally:
        forks.close()
        end()


if __name__ == "__main__":
    sys.exit(main())
