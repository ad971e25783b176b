"""What deploy/kubernetes says is what the code does, and what Kubernetes takes. No cluster is asked."""

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # it ships no types
from dotenv import dotenv_values
from pydantic import SecretStr

from segue.api.metrics import shared_metrics
from segue.config import Settings
from segue.domain.telemetry import Backlog
from tests.support.commands import ROOT, python
from tests.support.images import image_environment, instructions, parses
from tests.support.stores import urls_of

FOLDER = ROOT / "deploy" / "kubernetes"
KUSTOMIZED = (FOLDER, FOLDER / "migrate")
VALIDATE = ROOT / ".venv" / "kubernetes" / "bin" / "kubernetes-validate"
OLDEST = "1.28"
needs_kubectl = pytest.mark.skipif(not shutil.which("kubectl"), reason="there is no kubectl")
needs_schemas = pytest.mark.skipif(not VALIDATE.exists(), reason="make kubernetes installs kubernetes-validate")


@pytest.fixture
def dockerfile() -> list[tuple[str, str]]:
    return instructions()


def kustomization(folder: Path) -> Any:
    return yaml.safe_load((folder / "kustomization.yaml").read_text("utf-8"))


def sources() -> list[Path]:
    return [folder / name for folder in KUSTOMIZED for name in kustomization(folder)["resources"]]


def rendered(base: Path = FOLDER) -> str:
    return "---\n".join(
        subprocess.run(["kubectl", "kustomize", folder], capture_output=True, text=True, check=True).stdout
        for folder in (base, base / "migrate")
    )


@pytest.fixture(scope="module")
def objects() -> list[Any]:
    return [each for path in sources() for each in yaml.safe_load_all(path.read_text("utf-8"))]


def templates(objects: list[Any]) -> Iterator[tuple[str, Any]]:
    """What pods are made of, by the name of the object."""
    for each in objects:
        spec = each.get("spec", {})
        spec = spec.get("jobTemplate", {}).get("spec", spec)
        if "template" in spec:
            yield each["metadata"]["name"], spec["template"]


@pytest.fixture
def pods(objects: list[Any]) -> dict[str, Any]:
    return {name: template["spec"] for name, template in templates(objects)}


def containers(pods: dict[str, Any]) -> dict[str, Any]:
    return {name: container for name, pod in pods.items() for container in pod["containers"]}


def told() -> dict[str, str]:
    return {name: value or "" for name, value in dotenv_values(FOLDER / "settings.env").items()}


def selectors(found: Any) -> Iterator[dict[str, str]]:
    """All that choose pods of ours, wherever they stand in an object."""
    for key, value in found.items() if isinstance(found, dict) else enumerate(found if isinstance(found, list) else ()):
        if key in ("selector", "podSelector", "labelSelector"):
            yield value.get("matchLabels", value)
        elif key != "namespaceSelector":
            yield from selectors(value)


def test_every_manifest_is_part_of_what_is_applied() -> None:
    beside = {folder / "kustomization.yaml" for folder in (*KUSTOMIZED, FOLDER / "image")}
    assert set(FOLDER.rglob("*.yaml")) == set(sources()) | beside
    assert (FOLDER / "mcp.json").read_text("utf-8") == (ROOT / "deploy" / "mcp.json").read_text("utf-8")


def test_every_setting_is_one_of_segue_and_no_secret_stands_among_them(
    pods: dict[str, Any], dockerfile: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in Settings.model_fields:
        monkeypatch.delenv(name.upper(), raising=False)
    for name, container in containers(pods).items():
        own = {each["name"]: each["value"] for each in container["env"]}
        given = {**image_environment(dockerfile), **(told() if "envFrom" in container else {}), **own}
        assert not [each for each in given if each.lower() not in Settings.model_fields], name
        secrets = given.pop("SECRETS_DIR")  # no folder here
        settings = Settings(_env_file=None, **{each.lower(): value for each, value in given.items()})
        assert (settings.auth, settings.migrate_on_start, settings.log_format) == ("api_key", False, "json")
        assert str(settings.mcp_config.parent) == "/etc/segue"
        assert not [each for each in given if isinstance(getattr(settings, each.lower()), SecretStr)]
        mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
        assert mounts["secrets"] == secrets


def test_every_container_is_the_image_as_nobody_special_on_a_root_that_cannot_be_written(
    pods: dict[str, Any], dockerfile: list[tuple[str, str]]
) -> None:
    user, group = map(int, dict(dockerfile)["USER"].split(":"))
    for name, pod in pods.items():
        who = pod["securityContext"]
        assert (who["runAsNonRoot"], who["runAsUser"], who["runAsGroup"], who["fsGroup"]) == (True, user, group, group)
        assert who["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert pod["automountServiceAccountToken"] is False
        assert {"name": "tmp", "mountPath": "/tmp"} in pod["containers"][0]["volumeMounts"]  # noqa: S108 (in the image)
        assert {each["name"] for each in pod["containers"][0]["volumeMounts"]} == {
            each["name"] for each in pod["volumes"]
        }
    for name, container in containers(pods).items():
        assert container["image"] == "segue", name
        may = container["securityContext"]
        assert (may["readOnlyRootFilesystem"], may["allowPrivilegeEscalation"]) == (True, False)
        assert may["capabilities"] == {"drop": ["ALL"]}
        assert {"cpu", "memory"} <= container["resources"]["requests"].keys()
        assert "memory" in container["resources"]["limits"]


def test_what_is_started_are_commands_of_segue(pods: dict[str, Any]) -> None:
    given = {name: container["args"] for name, container in containers(pods).items() if "command" not in container}
    assert given.keys() == {"segue-api", "segue-worker", "segue-migrate"}
    for command in given.values():
        parses(command)
    assert "--no-worker" in given["segue-api"]


def test_health_is_asked_where_it_is_told(pods: dict[str, Any], dockerfile: list[tuple[str, str]]) -> None:
    routes = json.loads((ROOT / "docs" / "openapi.json").read_text("utf-8"))["paths"]
    served = {"segue-api": int(dict(dockerfile)["EXPOSE"]), "segue-worker": int(told()["WORKER_METRICS_PORT"])}
    probes = {
        "segue-api": {"startupProbe", "livenessProbe", "readinessProbe"},
        "segue-worker": {"startupProbe", "livenessProbe"},
    }
    for name, port in served.items():
        container = containers(pods)[name]
        [named] = container["ports"]
        assert named["containerPort"] == port
        asked = {key: container[key]["httpGet"] for key in container if key.endswith("Probe")}
        assert asked.keys() == probes[name]
        assert {each["port"] for each in asked.values()} == {named["name"]}
        assert {each["path"] for each in asked.values()} <= routes.keys()
        assert asked["livenessProbe"]["path"] == "/health/live"  # a restart does not help while PostgreSQL is away
    assert containers(pods)["segue-api"]["readinessProbe"]["httpGet"]["path"] == "/health/ready"


def test_a_process_has_the_time_to_stop_that_it_takes(pods: dict[str, Any]) -> None:
    for name in ("segue-api", "segue-worker"):
        before = containers(pods)[name].get("lifecycle", {}).get("preStop", {"exec": {"command": ["sleep", "0"]}})
        taken = Decimal(told()["SHUTDOWN_GRACE_S"]) + int(before["exec"]["command"][-1])
        assert pods[name]["terminationGracePeriodSeconds"] >= taken + 5


def test_every_selector_finds_pods_and_every_port_is_one_of_theirs(objects: list[Any]) -> None:
    labels = {name: template["metadata"]["labels"] for name, template in templates(objects)}
    ports = {
        name: {port["name"] for port in template["spec"]["containers"][0].get("ports", ())}
        for name, template in templates(objects)
    }
    for each in objects:
        for wanted in selectors(each.get("spec", {})):
            chosen = [name for name, own in labels.items() if wanted.items() <= own.items()]
            assert chosen, (each["metadata"]["name"], wanted)
            if each["kind"] == "Service":
                [port] = each["spec"]["ports"]
                assert all(port["targetPort"] in ports[name] for name in chosen)
            if each["kind"] == "NetworkPolicy":
                named = {port["port"] for rule in each["spec"].get("ingress", ()) for port in rule["ports"]}
                assert all(named <= ports[name] for name in chosen if named)
    guarded = {each["metadata"]["name"] for each in objects if each["kind"] == "PodDisruptionBudget"}
    assert guarded == {each["metadata"]["name"] for each in objects if each["kind"] == "Deployment"}
    everyone = next(each for each in objects if each["kind"] == "NetworkPolicy" and each["metadata"]["name"] == "segue")
    assert all(everyone["spec"]["podSelector"]["matchLabels"].items() <= own.items() for own in labels.values())
    assert (everyone["spec"]["policyTypes"], "ingress" in everyone["spec"]) == (["Ingress", "Egress"], False)


def test_workers_are_added_by_a_metric_that_is_exported_and_described(objects: list[Any]) -> None:
    [scaler] = [each["spec"] for each in objects if each["kind"] == "HorizontalPodAutoscaler"]
    deployments = {each["metadata"]["name"]: each["spec"] for each in objects if each["kind"] == "Deployment"}
    assert "replicas" not in deployments[scaler["scaleTargetRef"]["name"]]  # or each rollout would undo what it did
    [metric] = [each["external"]["metric"]["name"] for each in scaler["metrics"] if each["type"] == "External"]
    exported = shared_metrics(backlog=Backlog(1, 1, 0, 3.0), jobs=None, tools_failed=None, outbox=None)
    assert metric in {each.name for each in exported}
    assert metric in (ROOT / "docs" / "deployment.md").read_text("utf-8")


def test_the_backup_reads_its_secrets_from_files_and_keeps_the_newest_fourteen(
    pods: dict[str, Any], settings: Settings, tmp_path: Path
) -> None:
    secrets, backups, programs = (tmp_path / name for name in ("secrets", "backups", "bin"))
    for folder in (secrets, backups, programs):
        folder.mkdir()
    for name, url in urls_of(settings).items():
        (secrets / name).write_text(url)
    (programs / "segue").write_text(f'#!/bin/sh\nexec {shlex.join(python())} -m segue "$@"\n')
    (programs / "segue").chmod(0o755)
    for day in range(10, 25):
        (backups / f"segue-2020-01-{day}T021700Z.backup").touch()
    container = containers(pods)["segue-backup"]
    script = container["args"][0].replace("/backups", str(backups))
    environment = {
        "PATH": f"{programs}:/usr/bin:/bin",
        "SECRETS_DIR": str(secrets),
    }
    done = subprocess.run(
        [*container["command"], script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    kept = sorted(path.name for path in backups.iterdir())
    assert kept[:13] == [f"segue-2020-01-{day}T021700Z.backup" for day in range(12, 25)]
    assert len(kept) == 14
    assert (backups / kept[-1]).stat().st_size > 0


@needs_kubectl
def test_kustomize_gives_every_container_the_one_image_and_the_settings_of_the_file() -> None:
    [image] = kustomization(FOLDER / "image")["images"]
    found = list(yaml.safe_load_all(rendered()))
    pods = {name: template["spec"] for name, template in templates(found)}
    assert len(pods) == 4
    assert {each["image"] for each in containers(pods).values()} == {f"{image['newName']}:{image['newTag']}"}
    maps = {each["metadata"]["name"]: each["data"] for each in found if each["kind"] == "ConfigMap"}
    for name in ("segue-api", "segue-worker"):
        [given] = containers(pods)[name]["envFrom"]
        assert maps[given["configMapRef"]["name"]] == told()
        [mounted] = [each["configMap"]["name"] for each in pods[name]["volumes"] if "configMap" in each]
        assert json.loads(maps[mounted]["mcp.json"]) == {"mcpServers": {}}
    assert {each["metadata"].get("namespace", "segue") for each in found} == {"segue"}


@pytest.mark.sweep
@needs_kubectl
def test_a_digest_in_the_one_place_pins_every_container(tmp_path: Path) -> None:
    base = shutil.copytree(FOLDER, tmp_path / "kubernetes")
    place = base / "image" / "kustomization.yaml"
    digest = f"sha256:{'0' * 64}"
    place.write_text(re.sub("newTag: .*", f"digest: {digest}", place.read_text("utf-8")), "utf-8")
    found = list(yaml.safe_load_all(rendered(base)))
    images = {each["image"] for each in containers({name: each["spec"] for name, each in templates(found)}).values()}
    assert images == {f"registry.example.com/segue@{digest}"}


@pytest.mark.in_turns(1)
@needs_schemas
@pytest.mark.parametrize("version", [OLDEST, ""])
def test_kubernetes_takes_the_manifests(version: str, tmp_path: Path) -> None:
    paths = sources()
    if shutil.which("kubectl"):
        paths.append(tmp_path / "rendered.yaml")
        paths[-1].write_text(rendered())
    asked = ["-k", version] if version else []
    done = subprocess.run([VALIDATE, "--strict", *asked, *paths], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (done.stdout + done.stderr).count("passed for resource") >= 15


def test_every_image_has_a_place_for_its_digest(dockerfile: list[tuple[str, str]]) -> None:
    text = (ROOT / "docker-compose.yml").read_text("utf-8")
    images = dict(re.findall(r"\$\{(\w+_IMAGE):-([^}]+)\}", text))
    assert images.keys() == {"SEGUE_IMAGE", "POSTGRES_IMAGE", "REDIS_IMAGE", "PYTHON_IMAGE"}
    assert all(line.strip().startswith("image: ${") for line in text.splitlines() if line.strip().startswith("image:"))
    said = [rest for word, rest in dockerfile if word in ("FROM", "ARG")]
    assert said == ["PYTHON=3.11", "PYTHON_IMAGE=python:${PYTHON}-slim", "${PYTHON_IMAGE} AS build", "${PYTHON_IMAGE}"]
    pinned = (ROOT / "docs" / "deployment.md").read_text("utf-8")
    assert all(f"digest {images[name]}" in pinned for name in images if name != "SEGUE_IMAGE")


def test_the_hosted_forge_runs_what_everyone_runs_and_may_only_read() -> None:
    said = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8"))
    assert said["permissions"] == {"contents": "read"}
    [job] = said["jobs"].values()
    assert [step["run"] for step in job["steps"] if "run" in step] == [".ci/run"]
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", step["uses"]) for step in job["steps"] if "uses" in step)
