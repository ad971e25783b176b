"""The HTTP API as `segue chat` speaks it. What is refused becomes one line that says what to do.

Knows no terminal; nothing of Segue but its contract.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx

from segue.domain.identity import is_loopback

CONNECT_S = 5.0
READ_S = 30.0  # a stream has a heartbeat every ten seconds
PAGE = 200

_WHAT_TO_DO = {
    401: "Make a key with `segue keys create --user YOU` and give it as SEGUE_API_KEY or --api-key.",
    404: "/new begins another conversation, /sessions lists yours.",
}


class Refused(Exception):
    """The service said no, or nothing that can be read. The message is one line for a person."""

    def __init__(self, line: str, *, status: int = 0, code: str = "") -> None:
        super().__init__(line)
        self.status = status
        self.code = code

    @property
    def may_pass(self) -> bool:
        """Whether the same request may well succeed in a moment."""
        return self.status >= httpx.codes.INTERNAL_SERVER_ERROR


class Api:
    def __init__(self, url: str, api_key: str | None = None) -> None:
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        timeout = httpx.Timeout(READ_S, connect=CONNECT_S)
        proxied = not is_loopback(urlsplit(url).hostname or "")
        self.url = url
        self._http = httpx.Client(base_url=url, headers=headers, timeout=timeout, trust_env=proxied)

    def get(self, path: str, **params: Any) -> Any:
        return self._ask("GET", path, params=params)

    def post(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        return self._ask("POST", path, json=body)

    def all_of(self, path: str) -> list[Any]:
        """A whole list, page by page."""
        items: list[Any] = []
        cursor = None
        while True:
            found = self.get(path, limit=PAGE, **({"cursor": cursor} if cursor else {}))
            items += found["items"]
            cursor = found["next_cursor"]
            if cursor is None:
                return items

    @contextmanager
    def stream(self, method: str, path: str, **request: Any) -> Iterator[httpx.Response]:
        """Raises Refused, and httpx.TransportError also while it is read."""
        with self._http.stream(method, path, **request) as response:
            if response.is_error:
                response.read()
                raise refused(response)
            yield response

    def close(self) -> None:
        self._http.close()

    def _ask(self, method: str, path: str, **request: Any) -> Any:
        try:
            response = self._http.request(method, path, **request)
            if response.is_error:
                raise refused(response)
            return response.json()
        except httpx.TransportError as error:
            raise unreachable(self.url, error) from error
        except ValueError as error:
            raise Refused(f"What answers at {self.url} is not Segue. Is the URL right?") from error


def refused(response: httpx.Response) -> Refused:
    status = response.status_code
    try:
        problem = response.json()
        title, detail, code = str(problem["title"]), str(problem["detail"]), str(problem["code"])
    except (ValueError, KeyError, TypeError):
        return Refused(f"The service answered {status} and did not say why. Is the URL right?", status=status)
    return Refused(problem_line(title, detail, status=status), status=status, code=code)


def problem_line(title: str, detail: str, *, status: int) -> str:
    said = detail if detail.startswith(title) else f"{title}: {detail}"
    return " ".join(filter(None, (said, _WHAT_TO_DO.get(status))))


def unreachable(url: str, error: httpx.TransportError) -> Refused:
    return Refused(f"{url} cannot be reached ({type(error).__name__}). Does `segue serve` run there?")
