"""Which errors open the circuit at once, and which only look like it."""

import pytest

from segue.tools.run import credentials_refused


@pytest.mark.parametrize(
    "error",
    [
        "401 Unauthorized",
        "HTTP 401",
        "Unauthorized",
        "Unauthorized: the key was revoked",
        "HTTP/1.1 401 Unauthorized",
        "mcp_find failed: HTTPStatusError: Client error '401 Unauthorized' for url 'https://api.example/v1'",
        "401 Client Error: Unauthorized for url: https://api.example/v1",
        "Request failed with status code 401",
        '{"status":401,"title":"Unauthorized"}',
        "Error code: 401 - {'error': {'message': 'Incorrect API key provided'}}",
        "UNAUTHENTICATED: Request had invalid authentication credentials.",
        "API key not valid. Please pass a valid API key.",
        "The access token has expired.",
        "The access token has been revoked",
        "invalid_token: the token is malformed",
        "Bad credentials",
        "authentication_error: invalid x-api-key",
        "535 5.7.8 Authentication failed: bad user or password",
    ],
)
def test_a_refused_credential_is_recognised_in_the_words_of_http_and_the_usual_apis(error: str) -> None:
    assert credentials_refused(error)


@pytest.mark.parametrize(
    "error",
    [
        "There is no mail with the id 'eml-401'.",
        "401 mails match; narrow the search.",
        "Only 401 of 500 rows could be imported: error 17",
        "Invalid token '}' at line 3 of the expression",
        "Unexpected token < in JSON at position 0",
        "The context is over 8192 tokens (error 401 of 900 lines)",
        "order code 401 is unknown",
        "missing token in the query: give one word at least",
        "You are unauthorized to see the mails of Ada; ask her to share the folder.",
        "HTTP 403 Forbidden",
        "HTTP 404: /reports/401",
        "Port 4010 refused the connection; HTTP 4013 is no status",
        "The document about authentication was not found",
        "the server did not answer within 401 s",
        "",
    ],
)
def test_ordinary_words_do_not_open_the_circuit(error: str) -> None:
    assert not credentials_refused(error)
