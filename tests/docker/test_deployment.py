"""What operators copy: dashboard and alerts ask for metrics that exist; manifests and units are what tools take."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import kubernetes_validate
import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from e2e.running import Server

ROOT = Path(__file__).resolve().parents[2]
DOCKER = ROOT / "docker"
BIN = Path(sys.executable).parent
KUBERNETES = "1.34"
FROM_PROMETHEUS = {"up"}
"""Series that Prometheus makes of a scrape itself."""
MONITOR = {"port", "path", "interval", "authorization"}


def dashboard() -> dict[str, Any]:
    """Return the dashboard."""
    found: dict[str, Any] = json.loads((DOCKER / "grafana" / "kvyield.json").read_text())
    return found


def queries() -> list[str]:
    """Return all queries of the dashboard, Grafana's own variables filled in, and of the alerts."""
    shown = [target["expr"] for panel in dashboard()["panels"] for target in panel["targets"]]
    filled = [query.replace("$__rate_interval", "5m").replace("$job", "kvyield") for query in shown]
    groups = yaml.safe_load((DOCKER / "prometheus" / "alerts.yml").read_text())["groups"]
    return filled + [rule["expr"] for group in groups for rule in group["rules"]]


def selectors(node: Any) -> Iterator[Any]:
    """Walk a parsed query down to the series that it selects."""
    if isinstance(node, promql_parser.VectorSelector):
        yield node
    for name in ("expr", "lhs", "rhs", "vector_selector", "args"):
        below = getattr(node, name, None)
        for each in below if isinstance(below, list) else [below]:
            if each is not None:
                yield from selectors(each)


@pytest.fixture(scope="module")
def series(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Serve, ask a little, and return the names of all series with their labels."""
    server = Server(tmp_path_factory.mktemp("served"))
    try:
        start = {
            "hardware": {"gpu": "H100", "gpu_count": 8},
            "model": {"name": "org/model"},
            "engine": {"name": "sglang"},
            "flags": {"mem_fraction_static": 0.9},
            "outcome": "ready",
            "measurements": {"pool_tokens": 520_000},
        }
        with httpx.Client(base_url=server.url) as client:
            assert client.post("/observations", json=start).status_code == 201
            asked = {"gpu": "H100", "gpu_count": 8, "model": "org/model", "engine": "sglang", "target_tokens": 1000}
            assert client.get("/recommend", params=asked).status_code == 200
            text = client.get("/metrics").text
    finally:
        server.stop()
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def test_each_query_asks_for_what_the_service_tells(series: dict[str, set[str]]) -> None:
    """Every name and every label in the dashboard and the alerts is one of a running service's."""
    for query in queries():
        asked = list(selectors(promql_parser.parse(query)))
        assert asked, query
        for one in asked:
            assert one.name in FROM_PROMETHEUS | series.keys(), query
            labels = {matcher.name for matcher in one.matchers.matchers} - {"job", "instance"}
            assert labels <= series.get(one.name, set()), (query, labels)
        grouped = re.findall(r"by \(([^)]*)\)", query)
        labels = {label.strip() for group in grouped for label in group.split(",")} - {"job", "instance"}
        assert labels <= set().union(*(series.get(one.name, set()) for one in asked)), query


def test_a_query_for_a_metric_that_is_not_there_is_found(series: dict[str, set[str]]) -> None:
    """The walk reaches the series inside functions, aggregations and comparisons."""
    query = "histogram_quantile(0.9, sum by (le) (rate(kvyield_gone_bucket[5m]))) > 0.5 or vector(0)"
    (found,) = selectors(promql_parser.parse(query))
    assert found.name == "kvyield_gone_bucket"
    assert found.name not in series


def test_the_dashboard_has_distinct_panels() -> None:
    """Each panel has an id, a title and a place that no other panel covers."""
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    covered: set[tuple[int, int]] = set()
    for panel in panels:
        assert panel["title"]
        at = panel["gridPos"]
        squares = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not squares & covered, panel["title"]
        assert max(x for x, _ in squares) < 24
        covered |= squares


def test_each_alert_says_what_is_wrong() -> None:
    """A name, a wait, a severity, one sentence and what it means."""
    groups = yaml.safe_load((DOCKER / "prometheus" / "alerts.yml").read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules)
    for rule in rules:
        assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
        assert re.fullmatch(r"\d+[mh]", rule["for"])
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        assert set(rule["annotations"]) == {"summary", "description"}


def manifests() -> list[tuple[str, dict[str, Any]]]:
    """Return all Kubernetes objects with the file of each."""
    files = sorted((DOCKER / "kubernetes").glob("*.yaml"))
    return [(file.name, document) for file in files for document in yaml.safe_load_all(file.read_text())]


@pytest.mark.parametrize(
    ("file", "manifest"), [pytest.param(*one, id=f"{one[0]}-{one[1]['kind']}") for one in manifests()]
)
def test_kubernetes_takes_each_manifest(file: str, manifest: dict[str, Any]) -> None:
    """Against the schemas of Kubernetes itself, unknown fields refused."""
    if manifest["kind"] == "ServiceMonitor":  # of the Prometheus Operator: no schema of it is packaged
        assert manifest["apiVersion"] == "monitoring.coreos.com/v1"
        (endpoint,) = manifest["spec"]["endpoints"]
        assert set(endpoint) == MONITOR
        assert manifest["spec"]["selector"]["matchLabels"] == {"app": "kvyield"}
        return
    kubernetes_validate.validate(manifest, KUBERNETES, strict=True)


@pytest.mark.parametrize(("file", "manifest"), [one for one in manifests() if "template" in one[1].get("spec", {})])
def test_pods_have_no_more_rights_than_they_need(file: str, manifest: dict[str, Any]) -> None:
    """No account token; kvyield's containers cannot write to their image, gain rights or grow without bound."""
    pod = manifest["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    own = [container for container in pod["containers"] if container["name"] == "kvyield"]
    assert own
    for container in own:
        assert container["securityContext"] == {
            "readOnlyRootFilesystem": True,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        }
        assert "memory" in container["resources"]["limits"]


@pytest.mark.parametrize(
    "manifest", [one for _, one in manifests() if one["metadata"]["name"] in {"engine", "kvyield-watch"}]
)
def test_the_clients_of_manifests_are_commands_that_there_are(manifest: dict[str, Any]) -> None:
    """The arguments of the sidecar and of the DaemonSet are options of kvyield watch."""
    (container,) = [one for one in manifest["spec"]["template"]["spec"]["containers"] if one["name"] == "kvyield"]
    command, *arguments = container["args"]
    told = subprocess.run([BIN / "kvyield", command, "--help"], capture_output=True, text=True, check=True).stdout
    for option in arguments[::2]:
        assert f"{option} " in told


def test_the_client_image_is_clean() -> None:
    """hadolint finds nothing, and the client does not run as root."""
    file = DOCKER / "client.Dockerfile"
    found = subprocess.run(
        [str(BIN / "hadolint"), "--format", "json", str(file)], capture_output=True, check=False, text=True
    )
    assert json.loads(found.stdout) == []
    text = file.read_text()
    assert "\nUSER 10001:10001\n" in text[text.rindex("FROM ") :]


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    """systemd's own check finds no fault, once the program that the unit names is one that is there."""
    text = (DOCKER / "systemd" / "kvyield-server.service").read_text()
    assert "ExecStart=/opt/kvyield/bin/kvyield-server serve\n" in text
    unit = tmp_path / "kvyield-server.service"
    unit.write_text(text.replace("/opt/kvyield/bin", str(BIN)))
    if not shutil.which("systemd-analyze"):
        pytest.skip("SKIPPED: systemd-analyze is not installed, so the unit was not checked")
    found = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False
    )
    assert (found.returncode, found.stderr) == (0, "")
