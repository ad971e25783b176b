"""The processes that the tests fork look to those who start them as fresh ones would."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import fork_server
from tests.support.commands import python

WAITS = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
print("ready", flush=True)
signal.pause()
"""


@pytest.fixture
def waits(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    script = tmp_path / "waits.py"
    script.write_text(WAITS)
    command = [*python(), str(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def test_a_shell_sees_the_streams_the_folder_the_environment_and_the_exit_code(tmp_path: Path) -> None:
    script = tmp_path / "tells.py"
    script.write_text(
        "import os, sys\nprint(os.getcwd(), os.environ['WORD'], sys.argv[1:], sys.stdin.seekable(), sys.stdin.read())\n"
        "print('segue' in sys.modules, file=sys.stderr)\nsys.exit(3)"
    )
    command = [*python(), str(script), "a b"]
    environment = {**os.environ, "WORD": "zitrone"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, input="given", capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (3, f"{tmp_path} zitrone ['a b'] False given\n", "True\n")


def test_a_signal_is_passed_on_and_what_ends_the_process_ends_the_one_that_stands_for_it(
    waits: subprocess.Popen[str],
) -> None:
    waits.terminate()
    assert waits.wait(10) == 7


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP])
def test_a_process_that_a_signal_ends_ends_the_one_that_stands_for_it_alike(
    waits: subprocess.Popen[str], number: signal.Signals
) -> None:
    waits.send_signal(number)
    assert waits.wait(10) == -number
    assert waits.stdout is not None
    assert waits.stdout.read() == ""  # no process holds its other end


def test_what_a_forked_process_starts_as_the_commands_start_the_service_is_forked_with_what_it_was_given(
    tmp_path: Path,
) -> None:
    (tmp_path / "tells.py").write_text(
        "import os, sys\nprint(os.read(int(sys.argv[1]), 9).decode(), 'segue.main' in sys.modules, flush=True)"
    )
    script = tmp_path / "starts.py"
    script.write_text(
        "import os, subprocess, sys\n"
        "for options in (['-P', '-m', 'tells'], ['tells.py'], ['-u', 'tells.py']):\n"
        "    reads, writes = os.pipe()\n"
        "    os.write(writes, b'given')\n"
        "    subprocess.run([sys.executable, *options, str(reads)], pass_fds=[reads], check=True)\n"
    )
    done = subprocess.run([*python(), script], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert (done.stderr, done.stdout.splitlines()) == ("", ["given True", "given True", "given False"])


def test_a_server_ends_with_its_last_connection_and_leaves_nothing(tmp_path: Path) -> None:
    script = tmp_path / "run.py"
    script.write_text(
        "import os, sys\nfrom tests.support.fork_server import launch\nlaunch()\n"
        "print(os.environ['SEGUE_FORK_SERVER'], flush=True)\nsys.stdin.read()"
    )
    environment = {**os.environ, "PYTHONPATH": str(fork_server.ROOT), "TMPDIR": str(tmp_path)}
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, script], env=environment, stdin=pipe, stdout=pipe, text=True) as run:
        assert run.stdout is not None
        path = Path(run.stdout.readline().strip())
        with socket.socket(socket.AF_UNIX) as worker:
            worker.connect(str(path))
            run.kill()
            assert run.wait(10) == -signal.SIGKILL
            assert path.exists()
            assert path.parent.parent == tmp_path
        assert run.stdout.read() == ""  # the server has held the other end until it ended
    assert list(tmp_path.iterdir()) == [script]


def test_a_worker_finds_imported_what_can_be_and_says_itself_of_the_other_modules_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "from tests.support import forked_workers\n"
        "def pytest_configure(config):\n    if config.getoption('numprocesses'): forked_workers.launch(config)"
    )
    (tmp_path / "test_skipped.py").write_text("import pytest\npytest.skip('not here', allow_module_level=True)")
    (tmp_path / "test_well.py").write_text("import os\nHERE = os.getpid()\ndef test_it(): assert HERE == os.getpid()")
    environment = {**os.environ, "PYTHONPATH": str(fork_server.ROOT), "PYTEST_ADDOPTS": "", "TMPDIR": str(tmp_path)}
    options = [
        "-n1",
        "-rA",
        "--import-mode=importlib",
        "-pno:cacheprovider",
        "--disable-plugin-autoload",
        "-pxdist.plugin",
    ]

    def run() -> str:
        command = [sys.executable, "-m", "pytest", *options]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=60
        ).stdout

    output = run()
    assert "test_skipped.py:2: not here" in output
    assert "1 failed, 1 skipped" in output  # imported in the process that the worker was forked from
    (tmp_path / "test_broken.py").write_text("import no_such_module")
    assert "No module named 'no_such_module'" in run()
    assert not [*tmp_path.glob("forks-*")]
