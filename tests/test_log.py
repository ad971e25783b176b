"""Logs: event names and fields, secrets blanked by the name of their key."""

import pytest

from backend.log import redact


@pytest.mark.parametrize(
    "key",
    ["authorization", "Authorization", "api_key", "openai_api_key", "password", "client_secret", "token", "cookie"],
)
def test_a_field_whose_name_says_secret_is_blanked(key: str) -> None:
    assert redact(None, "info", {"event": "x", key: "canary"}) == {"event": "x", key: "[redacted]"}


@pytest.mark.parametrize("key", ["event", "input_tokens", "output_tokens", "turn_id", "session_id"])
def test_a_field_that_only_sounds_like_one_is_kept(key: str) -> None:
    assert redact(None, "info", {key: "kept"}) == {key: "kept"}


def test_a_secret_is_blanked_by_its_form_too_however_deep_it_stands() -> None:
    event = {"event": "x", "url": "redis://u:canary@host", "headers": {"Authorization": "canary"}}
    assert redact(None, "info", event) == {
        "event": "x",
        "url": "redis://u:[redacted]@host",
        "headers": {"Authorization": "[redacted]"},
    }
