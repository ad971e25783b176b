"""Segue, an agent web service that picks up where it left off.

    from segue import Settings, create_app

    app = create_app(Settings())  # an ASGI application: `uvicorn --factory`, or mounted into another one

`Settings` reads the environment and `.env`, and takes the same names as arguments. `create_app(settings)` returns the
FastAPI application; it connects to nothing before its lifespan starts. Both are imported at first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from segue.config import Settings
    from segue.main import create_app

__all__ = ["Settings", "create_app"]

_MODULES = {"Settings": "segue.config", "create_app": "segue.main"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
