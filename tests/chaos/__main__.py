"""`python -m tests.chaos chaos`: two instances under load and faults. `order`: the same with kills alone, and more
histories. `soak`: one under load, its tools restarted.

Prints a line a minute, and what is wrong. Exits with 1 if anything is.
"""

import argparse
import asyncio
import random
import sys
import tempfile
from pathlib import Path

from tests.chaos.run import CHAOS, ORDER, SOAK, Run
from tests.support import fork_server
from tests.support.commands import forks

WEATHERS = {"chaos": CHAOS, "order": ORDER, "soak": SOAK}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("weather", choices=WEATHERS)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--talkers", type=int, default=6)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    given = parser.parse_args()
    print(f"seed {given.seed}: SEED={given.seed} makes the same choices again", flush=True)
    end = fork_server.launch()
    try:
        with tempfile.TemporaryDirectory(prefix="segue-chaos-") as folder:
            run = Run(WEATHERS[given.weather], seconds=given.seconds, seed=given.seed, talkers=given.talkers)
            return int(bool(asyncio.run(run.whole(Path(folder)))))
    finally:
        forks.close()
        end()


if __name__ == "__main__":
    sys.exit(main())
