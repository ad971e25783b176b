"""Every error a caller of Segue can see, as one type.

Writes no HTTP: `api/problems.py` makes it RFC 9457, `turn/store.py` keeps it in the turn's row. Errors that a tool
addresses to the model stand in `domain/tool.py`.
"""

from collections.abc import Mapping


class AppError(Exception):
    """An outcome the caller must hear of: a stable `code`, the HTTP `status` it maps to, a sentence what to do next."""

    def __init__(
        self,
        code: str,
        *,
        status: int,
        title: str,
        detail: str = "",
        retryable: bool = False,
        extra: Mapping[str, str | int] | None = None,
    ) -> None:
        super().__init__(f"{code}: {detail or title}")
        self.code = code
        self.status = status
        self.title = title
        self.detail = detail or title
        self.retryable = retryable
        self.extra = dict(extra or {})

    def with_extra(self, **extra: str | int) -> "AppError":
        """The same error, saying more."""
        self.extra.update(extra)
        return self


class NotFound(AppError):
    """A missing id and a foreign one alike. `thing` is the noun in the code: `session` gives `session_not_found`."""

    def __init__(self, thing: str) -> None:
        noun = thing.replace("_", " ")
        super().__init__(
            f"{thing}_not_found", status=404, title=f"No such {noun}", detail=f"There is no {noun} with this id."
        )
