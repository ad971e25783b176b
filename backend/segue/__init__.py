"""Segue, an agent web service that picks up where it left off.

    from segue import Settings, create_app

    app = create_app(Settings())  # an ASGI application: `uvicorn --factory`, or mounted into another one

`Settings` reads the environment and `.env`, and takes the same names as arguments. `create_app(settings)` returns the
FastAPI application; it connects to nothing before its lifespan starts. `@tool` makes a tool of a function, which may
take a `ToolContext` and raise `ToolRetry`, `ToolFailed` and, with a `UserRequest`, `ToolAsks`. Each is imported at
first use.
"""

from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from segue.config import Settings as Settings
    from segue.domain.agent import Agent as Agent
    from segue.domain.tool import DependencyGroup as DependencyGroup
    from segue.domain.tool import ToolContext as ToolContext
    from segue.domain.tool import ToolFailed as ToolFailed
    from segue.domain.tool import ToolRetry as ToolRetry
    from segue.domain.user_request import ToolAsks as ToolAsks
    from segue.domain.user_request import UserRequest as UserRequest
    from segue.main import create_app as create_app
    from segue.plans.policy import Deny as Deny
    from segue.plans.policy import ProposedCall as ProposedCall
    from segue.tools.native import tool as tool

_NAMES = {
    "segue.config": ("Settings",), "segue.domain.agent": ("Agent",), "segue.main": ("create_app",),
    "segue.domain.tool": ("DependencyGroup", "ToolContext", "ToolFailed", "ToolRetry"),
    "segue.domain.user_request": ("ToolAsks", "UserRequest"), "segue.plans.policy": ("Deny", "ProposedCall"),
    "segue.tools.native": ("tool",),
}  # fmt: skip
_MODULES = {name: module for module, names in _NAMES.items() for name in names}
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return metadata.version("segue-agent")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
