"""Files as a client attaches them to a session."""

from typing import Any

import httpx2

from tests.support.service import Client


async def upload(client: Client, session: str, content: bytes, name: str = "file.bin", **parts: Any) -> httpx2.Response:
    return await client.http.post(f"/sessions/{session}/attachments", files={"file": (name, content), **parts})


async def uploaded(client: Client, session: str, content: bytes, name: str = "file.bin") -> str:
    response = await upload(client, session, content, name)
    assert response.status_code == 201, response.text
    return str(response.json()["id"])
