"""The CycloneDX bill of materials of the wheel and the image: what requirements.lock pins, licences, dependencies.

`python .ci/sbom.py` writes deploy/sbom.cdx.json from the lock and the metadata of the installed packages.
"""

import json
import re
import tomllib
from importlib.metadata import PackageNotFoundError, metadata, requires
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "requirements.lock"
SBOM = ROOT / "deploy" / "sbom.cdx.json"


def pins() -> set[tuple[str, str]]:
    """Names and versions. A package may have a version for old and one for new Pythons."""
    return set(re.findall(r"^([\w.-]+)==([\w.!+]+)", LOCK.read_text("utf-8"), re.MULTILINE))


def faults() -> list[str]:
    """Differences between the pins and the file. Licences may differ: other platforms have others."""
    listed = {(each["name"], each["version"]) for each in json.loads(SBOM.read_text("utf-8"))["components"]}
    if listed == pins():
        return []
    return ["deploy/sbom.cdx.json is not what requirements.lock pins; run `python .ci/sbom.py` after `make install`"]


def sbom() -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    root = _component(project["name"], project["version"], [project["license"]], ComponentType.APPLICATION)
    components = [_component(name, version, _licences(name)) for name, version in sorted(pins())]
    bom = Bom(components=components)
    bom.metadata.component = root
    extras = project["optional-dependencies"]
    needed = [*project["dependencies"], *(line for extra in extras if extra != "dev" for line in extras[extra])]
    for component in (root, *components):
        lines = needed if component is root else _requires(component.name)
        names = {canonicalize_name(Requirement(line).name) for line in lines}
        bom.register_dependency(component, [each for each in components if each.name in names])
    written = json.loads(JsonV1Dot6(bom).output_as_string())
    # What changes with every run says nothing about the materials.
    written.pop("serialNumber")
    written["metadata"].pop("timestamp")
    return json.dumps(written, indent=1, sort_keys=True) + "\n"


def _component(name: str, version: str, licences: list[str], kind: ComponentType = ComponentType.LIBRARY) -> Component:
    purl = PackageURL("pypi", name=name, version=version)
    made = [LicenseFactory().make_from_string(licence) for licence in licences]
    return Component(name=name, version=version, type=kind, purl=purl, bom_ref=str(purl), licenses=made)


def _licences(name: str) -> list[str]:
    """The licence that an installed package states, in one line; none for a package of another platform."""
    try:
        stated = metadata(name)
    except PackageNotFoundError:
        return []
    classifiers = [
        line.rpartition(" :: ")[2] for line in stated.get_all("Classifier", []) if line.startswith("License")
    ]
    licence = (
        stated.get("License-Expression")
        or stated.get("License", "").partition("\n")[0]
        or "".join(line.rpartition(" :: ")[2] for line in classifiers[:1])
    )
    return [licence] if licence else []


def _requires(name: str) -> list[str]:
    try:
        return [line for line in requires(name) or [] if "extra ==" not in line]
    except PackageNotFoundError:
        return []


if __name__ == "__main__":
    SBOM.write_text(sbom(), "utf-8")
