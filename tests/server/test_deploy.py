"""What `server/deploy` says agrees with the server: settings, ports, times, memory, files. With PyYAML and the schemas where they are."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from disc_tf_server.config import ENVIRONMENT, FIELDS, ServerConfig, build_parser, check, read_environment, read_file, size

yaml = pytest.importorskip("yaml", reason="PyYAML is not here")
ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "server" / "deploy"
KUBERNETES = sorted(p for p in (DEPLOY / "kubernetes").glob("*.yaml") if p.name != "kustomization.yaml")
#: what a front end takes besides its compiles
FRONT_END = 2 << 30


def manifests() -> dict[str, Any]:
    """By kind."""
    found = [m for p in KUBERNETES for m in yaml.safe_load_all(p.read_text())]
    assert len({m["kind"] for m in found}) == len(found)
    return {m["kind"]: m for m in found}


def pod() -> Any:
    return manifests()["Deployment"]["spec"]["template"]["spec"]


def container() -> Any:
    (one,) = pod()["containers"]
    return one


def quantity(text: Any) -> float:
    match = re.fullmatch(r"([\d.]+)(m|[KMGT]i)?", str(text))
    assert match, text
    return float(match[1]) * {None: 1, "m": 1e-3, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}[match[2]]


def settings(text: str, tmp_path: Path) -> ServerConfig:
    """Of a configuration file, read as the server does."""
    file = tmp_path / "server.toml"
    file.write_text(text)
    config = ServerConfig(**read_file(str(file)))
    check(config)
    return config


def kubernetes_settings(tmp_path: Path) -> ServerConfig:
    return settings(manifests()["ConfigMap"]["data"]["server.toml"], tmp_path)


def compose_settings(tmp_path: Path) -> ServerConfig:
    return settings((DEPLOY / "compose" / "server.toml").read_text(), tmp_path)


def compose() -> Any:
    return yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())


def front_ends() -> dict[str, Any]:
    return {name: s for name, s in compose()["services"].items() if s["image"] == "disc-tf-server"}


def test_the_settings_are_the_servers(tmp_path: Path) -> None:
    for config in (kubernetes_settings(tmp_path), compose_settings(tmp_path)):
        assert config.require_sandbox and config.tls_cert and config.tokens and config.signing_key
        assert config.operations.startswith("postgresql://") and config.blobs.startswith("s3://")
        assert config.children > 0, "a container sees its machine's processors, not those that it gets"
        assert "@" in config.operations and ":" not in config.operations.removeprefix("postgresql://"), "no password in a setting"
    flags = [a for a in (*container()["args"], *(f for s in front_ends().values() for f in s["command"])) if a.startswith("--")]
    known = {f for action in build_parser()._actions for f in action.option_strings}
    assert flags and set(flags) <= known


def test_the_image(tmp_path: Path) -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    variables = dict(re.findall(rf"({ENVIRONMENT}\w+)=(\S+)", text))
    config = ServerConfig(**read_environment(variables))
    assert config.health_address in text.partition("HEALTHCHECK")[2], "the probe asks where the server answers"
    assert f"--mode 0700 {config.data_dir}" in text and f"VOLUME {config.data_dir}" in text
    assert re.search(r"^USER 10001:10001$", text, re.M) and text.count("\nFROM ") == 2
    ports = {p for line in re.findall(r"^EXPOSE (.*)$", text, re.M) for p in line.split()}
    kubernetes = kubernetes_settings(tmp_path)
    assert ports == {a.rpartition(":")[2] for a in (*kubernetes.address, kubernetes.metrics_address)}
    copied = {source for line in re.findall(r"^COPY (?!--from)(.*)$", text, re.M) for source in line.split()[:-1]}
    assert all((ROOT / source).exists() for source in copied)
    ignore = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    assert {line[1:] for line in ignore if line.startswith("!")} == copied
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = re.search(r"\$\{wheel\}\[([\w,]+)\]", text)
    assert extras and set(extras[1].split(",")) <= project["optional-dependencies"].keys()
    assert "disc-tf-server" in project["scripts"]


def test_the_pod_is_shut_in() -> None:
    spec, one = pod(), container()
    assert spec["securityContext"]["runAsNonRoot"] and spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert one["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}
    }  # fmt: skip
    assert spec["automountServiceAccountToken"] is False
    # DISC_TF_SERVER_PORT=tcp://... of the Service would be settings that there are not
    assert manifests()["Service"]["metadata"]["name"].upper().replace("-", "_") + "_" == ENVIRONMENT and spec["enableServiceLinks"] is False
    for service in front_ends().values():
        assert service["read_only"] and service["cap_drop"] == ["ALL"] and "no-new-privileges:true" in service["security_opt"]


def test_ports_probes_and_times(tmp_path: Path) -> None:
    config, one = kubernetes_settings(tmp_path), container()
    ports = {p["name"]: p["containerPort"] for p in one["ports"]}
    of = {"grpc": config.address[0], "health": config.health_address, "metrics": config.metrics_address}
    assert ports == {name: int(address.rpartition(":")[2]) for name, address in of.items()}
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert one[probe]["grpc"] == {"port": ports["health"]}, "a probe of kubelet's has no TLS"
    pause = one["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod()["terminationGracePeriodSeconds"] >= pause + config.drain + 15
    assert one["startupProbe"]["periodSeconds"] * one["startupProbe"]["failureThreshold"] >= 60
    own = compose_settings(tmp_path)
    for service in front_ends().values():
        assert int(service["stop_grace_period"].rstrip("s")) >= own.drain + 15
    allowed = {p["port"] for rule in manifests()["NetworkPolicy"]["spec"]["ingress"] for p in rule["ports"]}
    assert allowed == {ports["grpc"], ports["metrics"]}


def test_memory_and_processors(tmp_path: Path) -> None:
    """The server ends a compile that wants too much before the kernel ends the container."""
    config, limits = kubernetes_settings(tmp_path), container()["resources"]["limits"]
    assert quantity(limits["memory"]) >= config.children * config.child_memory + FRONT_END
    assert quantity(limits["memory"]) == quantity(container()["resources"]["requests"]["memory"])
    assert quantity(limits["cpu"]) >= config.children + 1 and quantity(container()["resources"]["requests"]["cpu"]) >= config.children
    own = compose_settings(tmp_path)
    for service in front_ends().values():
        assert size(service["mem_limit"]) >= own.children * own.child_memory + FRONT_END and service["cpus"] >= own.children
    (metric,) = manifests()["HorizontalPodAutoscaler"]["spec"]["metrics"]
    assert 0.5 <= quantity(metric["external"]["target"]["averageValue"]) / config.children <= 0.8


def test_the_autoscalers_metrics_exist() -> None:
    from disc_tf_server.metrics import Metrics

    rule = (DEPLOY / "kubernetes" / "autoscaler.yaml").read_text()
    names = set(re.findall(r"disc_server_queue_\w+", rule))
    assert names and all(f"\n{name} ".encode() in b"\n" + Metrics().text() for name in names)


def paths(config: ServerConfig) -> Iterator[str]:
    for name in ("tls_cert", "tls_key", "tls_client_ca", "tokens", "signing_key", "data_dir"):
        assert name in FIELDS
        if value := getattr(config, name):
            yield value


def test_every_file_is_mounted(tmp_path: Path) -> None:
    mounts = {m["mountPath"]: m["name"] for m in container()["volumeMounts"]}
    volumes = {v["name"] for v in pod()["volumes"]}
    assert set(mounts.values()) == volumes
    for path in paths(kubernetes_settings(tmp_path)):
        assert any(path == at or path.startswith(f"{at}/") for at in mounts), path
    assert container()["args"][1] in mounts
    file = compose()
    for service in file["services"].values():
        assert set(service.get("secrets", [])) <= file["secrets"].keys()
        assert {c["source"] for c in service.get("configs", [])} <= file["configs"].keys()
    for path in paths(compose_settings(tmp_path)):
        assert path.removeprefix("/run/secrets/") in front_ends()["server-1"]["secrets"], path
    for given in file["configs"].values():
        assert (DEPLOY / "compose" / given["file"]).is_file()
    told = (DEPLOY / "README.md").read_text()
    assert not [s["file"] for s in file["secrets"].values() if Path(s["file"]).name not in told], "say what belongs into it"


@pytest.mark.parametrize("path", KUBERNETES, ids=lambda p: p.name)
def test_kubernetes_schemas(path: Path) -> None:
    schemas = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not here: schemas are not checked")
    for manifest in yaml.safe_load_all(path.read_text()):
        schemas.validate(manifest, "1.31", strict=True)


def test_compose_schema() -> None:
    module = pytest.importorskip("compose_spec", reason="compose-spec is not here: the schema is not checked")
    file = module.PyCompose.from_yaml((DEPLOY / "compose" / "compose.yaml").read_text())
    file.validate()
    for what in ("configs", "networks", "secrets", "volumes"):
        getattr(file, f"validate_{what}")()
    file.to_spec()


def test_dockerfile_lint() -> None:
    program = Path(sys.executable).with_name("hadolint")
    if not program.exists():
        pytest.skip("hadolint is not here")
    done = subprocess.run([program, "--format", "json", DEPLOY / "Dockerfile"], capture_output=True, text=True, check=False)
    assert json.loads(done.stdout) == [] and done.returncode == 0
