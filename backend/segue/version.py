"""The version of this release, from the metadata of the installed package."""

from importlib.metadata import version
from typing import Final

VERSION: Final = version("segue-agent")
