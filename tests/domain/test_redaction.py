"""What counts as a secret, by its key or by its form, and what only looks like one."""

from typing import Any

import pytest

from segue.domain.redaction import secrets_in, without, without_secret_texts, without_secrets


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer abc.def-123456789",
        "use Basic dXNlcjpjYW5hcnk1Mg== then",
        "sk-proj-abcdefghijklmnop1234",
        "sk_live_abcdefghijklmnop1234",
        "ghp_abcdefghijklmnopqrstuvwxyz0123456789",
        "github_pat_11ABCDEFG0abcdefghijkl",
        "glpat-abcdefghij1234567890",
        "xoxb-1234567890-abcdefghij",
        "AKIAIOSFODNN7EXAMPLE",
        "AIzaSyA1234567890abcdefghijklmnopqrstuv",
        "hf_abcdefghijklmnopqrst1234",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl",
        "postgresql://segue:canary@db/segue",
        'the file says {"password": "canary"}',
        "API_KEY=canary&page=2",
        "my password is canary5",
        "-----BEGIN RSA PRIVATE KEY-----\ncanary\n-----END RSA PRIVATE KEY-----",
    ],
)
def test_a_text_that_holds_a_secret_keeps_everything_but_it(text: str) -> None:
    [cleaned] = without_secrets([f"before {text} after"])
    assert "[redacted]" in cleaned
    assert cleaned.startswith("before ")
    assert not any(part in cleaned for part in ("canary", "1234", "EXAMPLE", "dXNl"))


def test_a_private_key_that_is_cut_off_goes_to_the_end() -> None:
    assert without_secrets("It is -----BEGIN PRIVATE KEY-----\ncanary") == "It is [redacted]"


@pytest.mark.parametrize(
    "text",
    [
        "The bearer instruments and basic understanding of tokens",
        "Is the password reset? The token is required.",
        "See https://example.com:8080/a@b and task-force-of-the-century",
        "turn_01m7wfdase0b0htkk9k7f71jp0 and call_01m7wfdase0b0htkk9k7f71jp0",
    ],
)
def test_a_text_that_only_sounds_like_one_stays(text: str) -> None:
    assert without_secrets(text) == text


def test_what_stands_under_a_secret_key_goes_with_everything_in_it_and_keeps_its_type() -> None:
    value: dict[str, Any] = {
        "apiKey": "canary",
        "accessToken": "canary",
        "login": {"password": {"old": "canary", "tries": 3, "set": True, "hints": ["canary", None]}},
        "input_tokens": 7,
    }
    assert without_secrets(value) == {
        "apiKey": "[redacted]",
        "accessToken": "[redacted]",
        "login": {"password": {"old": "[redacted]", "tries": 0, "set": True, "hints": ["[redacted]", None]}},
        "input_tokens": 7,
    }


def test_a_schema_that_describes_a_password_stays_a_schema() -> None:
    schema = {"properties": {"password": {"type": "string", "default": "sk-proj-abcdefghijklmnop"}}}
    assert without_secret_texts(schema) == {"properties": {"password": {"type": "string", "default": "[redacted]"}}}


def test_a_secret_is_found_again_where_no_key_gives_it_away_unless_it_may_be_a_word() -> None:
    value = {"token": ["abc123xyz"], "secret": "completed", "said": "Use abc123xyz; the task is completed."}
    assert secrets_in(value) == {"abc123xyz"}
    assert without(value, secrets_in(value))["said"] == "Use [redacted]; the task is completed."
