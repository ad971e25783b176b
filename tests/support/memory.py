"""Keeps the temporary files of tests in memory: PostgreSQL makes a thousand files for a cluster and hundreds for a
database, and a file system on a disk takes seconds to do what takes a tenth of one in memory.
"""

import os
import shutil
from pathlib import Path

FOLDER = Path("/dev/shm")  # noqa: S108 (pytest makes a private folder in it)
ROOM_BYTES = 4 * 1024**3  # a container has 64 MB by default


def keep_temporary_files() -> None:
    """For all folders that pytest makes from now on, unless there is little room or no program may run there."""
    if FOLDER.is_dir() and shutil.disk_usage(FOLDER).free >= ROOM_BYTES and _may_run_programs():
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(FOLDER))


def _may_run_programs() -> bool:
    return not os.statvfs(FOLDER).f_flag & os.ST_NOEXEC
