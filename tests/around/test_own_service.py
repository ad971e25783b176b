"""The service that `segue chat` and `segue replay` start for themselves."""

import socket
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from segue.around.service_client import OwnService


def test_its_port_is_its_own_before_it_listens_and_free_after_it_was_stopped(tmp_path: Path) -> None:
    service = OwnService(tmp_path / "service.log", {})
    address = ("127.0.0.1", urlsplit(service.url).port)
    with pytest.raises(OSError, match="in use"):
        socket.create_server(address)
    service.stop()
    with socket.create_server(address):
        pass
