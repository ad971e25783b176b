"""The pages of the service, which are not there where no npm or no registry is."""

import pytest

from segue.api.pages import FOLDER

needs_pages = pytest.mark.skipif(
    not (FOLDER / "index.html.gz").exists(), reason="the pages are not built: python console/build.py"
)
