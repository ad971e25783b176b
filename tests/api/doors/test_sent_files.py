"""Files in the messages of clients of the doors: each is a file of the session, stored once however often it comes."""

from base64 import b64encode
from typing import Any

from tests.support.files import PNG
from tests.support.provider import Provider, says
from tests.support.service import Client

PICTURE = b64encode(PNG).decode()
URL = f"data:image/png;base64,{PICTURE}"
NOTE = "data:text/plain,a%20note"


def text(kind: str = "text") -> dict[str, Any]:
    return {"type": kind, "text": "What is this?"}


def completion(*parts: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    messages = [{"role": "user", "content": [text(), *parts]}]
    return "/v1/chat/completions", {"model": "segue", "messages": messages, "conversation": "chat"}


def response(*parts: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    said = [{"role": "user", "content": [text("input_text"), *parts]}]
    return "/v1/responses", {"model": "segue", "input": said, "conversation": "response"}


def run(*parts: dict[str, Any], thread: str = "thread") -> tuple[str, dict[str, Any]]:
    said = {"id": "m1", "role": "user", "content": [text(), *parts]}
    empty: dict[str, Any] = {"state": {}, "tools": [], "context": [], "forwardedProps": {}}
    return "/agui", {"threadId": thread, "runId": "run 1", "messages": [said], **empty}


def ui(*parts: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return "/api/chat", {"id": "page", "messages": [{"id": "m1", "role": "user", "parts": [text(), *parts]}]}


def source(value: str, kind: str = "data") -> dict[str, Any]:
    return {"type": "image", "source": {"type": kind, "value": value, "mimeType": "image/png"}}


SENT = {
    "image_url and file": (
        completion(
            {"type": "image_url", "image_url": {"url": URL}},
            {"type": "file", "file": {"filename": "note.txt", "file_data": NOTE}},
        ),
        [("file", "image/png"), ("note.txt", "text/plain")],
    ),
    "input_image and input_file": (
        response(
            {"type": "input_image", "image_url": URL},
            {"type": "input_file", "filename": "note.txt", "file_data": NOTE},
        ),
        [("file", "image/png"), ("note.txt", "text/plain")],
    ),
    "binary": (
        run({"type": "binary", "mimeType": "image/png", "data": PICTURE, "filename": "photo.png"}),
        [("photo.png", "image/png")],
    ),
    "image": (run(source(PICTURE), thread="other"), [("file", "image/png")]),
    "a file of useChat": (
        ui({"type": "file", "mediaType": "image/png", "filename": "photo.png", "url": URL}),
        [("photo.png", "image/png")],
    ),
}


async def test_a_file_in_a_message_is_stored_once_and_shown_to_the_model(client: Client, provider: Provider) -> None:
    for name, ((path, body), expected) in SENT.items():
        provider.will(says("Seen."))
        for _ in range(2):
            answer = await client.http.post(path, json=body)
            assert "Seen." in answer.text, name
        session = answer.headers["x-session-id"]
        stored = (await client.get(f"/sessions/{session}/attachments"))["items"][::-1]
        assert [(each["name"], each["media_type"]) for each in stored] == expected, name
        [said, *_] = await client.messages(session)
        assert (said["content"], [each["id"] for each in said["metadata"]["attachments"]]) == (
            "What is this?",
            [each["id"] for each in stored],
        )
        assert f'"name":"{expected[0][0]}"' in provider.notes()
    provider.will(says("Again."))
    next_message = {**body, "messages": [{**body["messages"][0], "id": "m2"}]}
    assert "Again." in (await client.http.post(path, json=next_message)).text
    assert (await client.get(f"/sessions/{session}/attachments"))["items"] == stored


REMOTE = "https://pictures.example/1.png"
REFUSED = (
    (completion({"type": "image_url", "image_url": {"url": REMOTE}}), 422, "parts_unsupported"),
    (completion({"type": "file", "file": {"file_id": "file-1"}}), 422, "parts_unsupported"),
    (completion({"type": "image_url", "image_url": {"url": "data:image/png;base64,*"}}), 422, "invalid_request"),
    (completion(*[{"type": "image_url", "image_url": {"url": URL}}] * 11), 422, "invalid_request"),
    (response({"type": "input_file", "file_url": REMOTE}), 422, "parts_unsupported"),
    (run(source(REMOTE, "url")), 422, "parts_unsupported"),
    (run({"type": "binary", "mimeType": "image/png", "url": REMOTE}), 422, "parts_unsupported"),
    (ui({"type": "file", "mediaType": "image/png", "url": REMOTE}), 422, "parts_unsupported"),
)
UNTAKEN = (
    (completion({"type": "image_url", "image_url": {"url": "data:image/png,%23!/bin/sh"}}), 415),
    (run({"type": "binary", "mimeType": "image/png", "data": b64encode(b"#!/bin/sh").decode()}), 415),
    (ui({"type": "file", "mediaType": "image/png", "url": "data:image/png;base64,"}), 422),
)


async def test_a_file_that_is_elsewhere_or_not_taken_is_refused_in_the_shape_of_the_door(client: Client) -> None:
    for (path, body), status, code in REFUSED:
        answer = await client.http.post(path, json=body)
        found = answer.json()
        assert (answer.status_code, found.get("error", found)["code"]) == (status, code), body
    assert (await client.get("/sessions"))["items"] == []
    for (path, body), status in UNTAKEN:
        answer = await client.http.post(path, json=body)
        found = answer.json()
        code = "unsupported_attachment" if status == 415 else "unreadable_attachment"
        assert (answer.status_code, found.get("error", found)["code"]) == (status, code), body
    for session in (await client.get("/sessions"))["items"]:
        assert await client.messages(session["id"]) == []
