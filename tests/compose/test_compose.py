"""What deploys cannot be started everywhere, so it is held against schemas, itself and what the tests run."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jsonschema
import pytest
import yaml

from crew_service import cli, image
from crew_service.engine import outbox, runner
from crew_service.http.server import ANSWERING
from crew_service.options import MAX_MEMORY
from crew_service.settings import Settings
from scripts.stack import CrewService, ProcessGroup
from scripts.stack.settings import CLUSTER_FILE, Deployment, cluster

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = json.loads(Path(__file__).with_name("compose-spec.json").read_text())
TEXT = (ROOT / "docker-compose.yaml").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
AIRFLOW = {name: service for name, service in SERVICES.items() if "AIRFLOW__CORE__EXECUTOR" in service["environment"]}
LASTING = {name: service for name, service in SERVICES.items() if service["restart"] != "no"}
OWN_TEXT = (ROOT / "deploy" / "own-crews.yaml").read_text()
OWN: dict[str, Any] = yaml.safe_load(OWN_TEXT)
OWN_CREWS = ("report", "briefing")
MANIFEST = {each["kind"]: each for each in yaml.safe_load_all((ROOT / "deploy" / "crew-service.yaml").read_text())}
# From github.com/kedacore/keda at 8b4f083c, config/crd/bases (Apache-2.0), without descriptions.
KEDA: dict[str, Any] = json.loads(Path(__file__).with_name("keda-crds.json").read_text())
JOBS = {each["kind"]: each for each in yaml.safe_load_all((ROOT / "deploy" / "crew-jobs.yaml").read_text())}
VARIABLE = re.compile(r"(?<!\$)\$\{(\w+)(:[?-][^}]*)?\}")


def fill_in(text: str) -> str:
    """Put the variables' defaults, or a word, where docker compose would put their values."""
    return VARIABLE.sub(lambda found: (found[2] or "").removeprefix(":-").partition("?")[0].strip(":") or "word", text)


def test_the_file_is_valid_by_the_published_schema() -> None:
    jsonschema.Draft202012Validator(SCHEMA).validate(COMPOSE)
    jsonschema.Draft202012Validator(SCHEMA).validate(yaml.safe_load(fill_in(TEXT)))


def test_the_schema_would_notice_an_unknown_key() -> None:
    wrong = {**COMPOSE, "services": {"worker": {**SERVICES["worker"], "heathcheck": {}}}}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(SCHEMA).validate(wrong)


def test_every_component_of_airflow_and_its_neighbours_is_there() -> None:
    assert set(SERVICES) == {
        *("postgres", "redis", "crew-service", "init"),
        *("api-server", "scheduler", "dag-processor", "worker", "triggerer"),
    }
    replicas = {name: each["deploy"]["replicas"] for name, each in SERVICES.items() if "deploy" in each}
    assert replicas == {"scheduler": 2, "worker": 2, "triggerer": 2, "crew-service": 3}


def test_compose_and_the_cluster_test_read_the_same_settings() -> None:
    assert {service["env_file"] for service in AIRFLOW.values()} == {"deploy/cluster.env"}
    assert ROOT / "deploy" / "cluster.env" == CLUSTER_FILE


def test_the_values_of_the_helm_chart_hold_the_same_settings() -> None:
    values = yaml.safe_load((ROOT / "deploy" / "helm-values.yaml").read_text())
    assert {each["name"]: each["value"] for each in values["env"]} == cluster()


@pytest.mark.parametrize("name", sorted(LASTING))
def test_a_lasting_service_is_checked_restarted_and_not_root(name: str) -> None:
    service = SERVICES[name]
    assert service["healthcheck"]["test"][0] in ("CMD", "CMD-SHELL")
    assert service["restart"] == "unless-stopped"
    assert str(service["user"]).split(":")[0] not in ("0", "root")
    assert "no-new-privileges:true" in service["security_opt"]


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_a_published_port_is_on_loopback_only(name: str) -> None:
    assert all(port.startswith("127.0.0.1:") for port in SERVICES[name].get("ports", []))


def test_what_is_mounted_by_name_is_declared() -> None:
    mounted = {volume.split(":")[0] for service in SERVICES.values() for volume in service.get("volumes", [])}
    assert {name for name in mounted if not name.startswith(".")} == set(COMPOSE["volumes"])


def test_who_is_waited_for_exists_and_can_be_waited_for() -> None:
    for service in SERVICES.values():
        for other, rule in service.get("depends_on", {}).items():
            needed = "healthcheck" if rule["condition"] == "service_healthy" else "command"
            assert needed in SERVICES[other]


@pytest.mark.parametrize("name", sorted(AIRFLOW))
def test_airflow_gets_every_setting_of_the_tests(name: str) -> None:
    tested = Deployment(
        api_url="http://here", database="db", executor="CeleryExecutor", broker="redis://"
    ).environment()
    given = AIRFLOW[name]["environment"]
    assert tested.keys() <= given.keys()
    for agreed in ("AIRFLOW__CORE__EXECUTOR", "AIRFLOW__CORE__LOAD_EXAMPLES", "AIRFLOW__CORE__TEST_CONNECTION"):
        assert given[agreed] == tested[agreed]


def test_all_parts_of_airflow_share_one_environment() -> None:
    shared = AIRFLOW["scheduler"]["environment"]
    for service in AIRFLOW.values():
        assert shared.items() <= service["environment"].items()


def test_the_connection_is_the_one_that_the_tests_use() -> None:
    given = json.loads(fill_in(AIRFLOW["scheduler"]["environment"]["AIRFLOW_CONN_CREW_DEFAULT"]))
    with ProcessGroup() as group:
        tested = CrewService(group=group).connection
    assert tested.keys() <= given.keys()
    assert given["conn_type"] == tested["conn_type"]
    assert given["host"] == "http://crew-service:8300"


@pytest.mark.since_airflow("3.0")  # which the compose file is for
def test_every_setting_is_one_that_airflow_knows() -> None:
    from airflow.configuration import conf
    from airflow.providers.celery.get_provider_info import get_provider_info
    from kombu.transport.redis import Channel

    known = {**conf.configuration_description, **get_provider_info()["config"]}
    options = {section: set(described["options"]) for section, described in known.items()}
    # The throttle is of kombu 5.7; one before it ignores what it does not know, and looks at every tenth time.
    options["celery_broker_transport_options"] = {*Channel.from_transport_options, "unacked_restore_throttle"}
    options["scheduler"].add("num_stuck_in_queued_retries")  # read by the scheduler, described nowhere
    for variable in (*AIRFLOW["scheduler"]["environment"], *cluster()):
        if variable.startswith("AIRFLOW__"):
            _, section, option = variable.lower().split("__")
            assert option in options[section], variable


def test_a_secret_comes_from_the_environment_and_has_no_default() -> None:
    for found in (*VARIABLE.finditer(TEXT), *VARIABLE.finditer(OWN_TEXT)):
        name, rule = found.groups()
        assert (rule or "").startswith(":-" if name.endswith(("_PORT", "_PORTS")) else ":?"), name


def test_the_example_env_file_names_exactly_the_variables_asked_for() -> None:
    example = (ROOT / ".env.example").read_text()
    asked = {found[1] for text in (TEXT, OWN_TEXT) for found in VARIABLE.finditer(text)}
    assert set(re.findall(r"^#?(\w+)=", example, re.MULTILINE)) == asked
    assert not re.findall(r"^(?!#)\w+=[^\s#]+", example, re.MULTILINE), "the example must hold no secret"


def test_the_compose_file_for_own_crews_satisfies_the_published_schema() -> None:
    jsonschema.Draft202012Validator(SCHEMA).validate(OWN)
    jsonschema.Draft202012Validator(SCHEMA).validate(yaml.safe_load(fill_in(OWN_TEXT)))
    assert set(OWN["services"]) == {*OWN_CREWS, *AIRFLOW, "postgres"}
    assert {name for name in OWN["services"] if name not in OWN_CREWS} <= set(SERVICES), "they change what is there"


@pytest.mark.parametrize("name", OWN_CREWS)
def test_an_own_crew_has_its_own_resources_and_airflow_connection(name: str) -> None:
    service, demo = OWN["services"][name], SERVICES["crew-service"]
    assert service["build"] == f"./{name}"
    assert service["env_file"] == [{"path": f"./{name}/.env", "required": False}], "crewai writes none without a key"
    for shared in ("restart", "cap_drop", "security_opt", "user", "healthcheck"):
        assert service[shared] == demo[shared]
    database = urlsplit(fill_in(service["environment"]["CREW_SERVICE_DB"])).path.strip("/")
    assert f"CREATE DATABASE {database} OWNER airflow;" in (ROOT / "deploy" / "own-databases.sql").read_text()
    (volume,) = service["volumes"]
    assert volume.split(":")[0] in OWN["volumes"]
    assert f"CREWAI_STORAGE_DIR={volume.split(':')[1]}/" in image.DOCKERFILE
    (port,) = service["ports"]
    assert port.startswith("127.0.0.1:")
    assert port.endswith(":8300")
    for each in AIRFLOW:
        connection = json.loads(fill_in(OWN["services"][each]["environment"][f"AIRFLOW_CONN_CREW_{name.upper()}"]))
        assert connection["host"] == f"http://{name}:8300"
        assert connection["extra"]["browser_url"] == f"http://localhost:{port.split(':')[1]}"


def test_no_port_of_the_two_files_is_published_twice() -> None:
    services = (*SERVICES.values(), *OWN["services"].values())
    ports = [fill_in(port).split(":")[1] for each in services for port in each.get("ports", ())]
    assert len(ports) == len(set(ports))


def test_the_manifest_runs_the_own_image_with_secrets_and_probes() -> None:
    spec = MANIFEST["Deployment"]["spec"]
    assert spec["strategy"] == {"type": "Recreate"}
    (container,) = spec["template"]["spec"]["containers"]
    assert [each["secretRef"]["name"] for each in container["envFrom"]] == ["crew-service", "crew-models"]
    assert "command" not in container, "the image has it"
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": 8300}
    assert container["livenessProbe"]["httpGet"] == {"path": "/livez", "port": 8300}
    assert spec["template"]["spec"]["securityContext"]["runAsUser"] == 50000
    assert "--uid 50000" in image.DOCKERFILE


def test_a_stop_has_the_time_that_it_may_take() -> None:
    takes = ANSWERING + runner.GRACE + Settings.webhook_timeout + outbox.GRACE
    unit = re.search(r"^TimeoutStopSec=(\d+)$", (ROOT / "docs" / "crew-service.service").read_text(), re.MULTILINE)
    assert unit
    assert int(unit[1]) > takes
    for service in (SERVICES["crew-service"], *(OWN["services"][name] for name in OWN_CREWS)):
        assert int(service["stop_grace_period"].removesuffix("s")) > takes
    pod = MANIFEST["Deployment"]["spec"]["template"]["spec"]
    (pause,) = pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][1:]
    assert pod["terminationGracePeriodSeconds"] - int(pause) > takes
    job = JOBS["ScaledJob"]["spec"]["jobTargetRef"]["template"]["spec"]
    assert job["terminationGracePeriodSeconds"] > takes


def test_guarding_objects_select_the_services_pods_and_its_port() -> None:
    labels = MANIFEST["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert MANIFEST["Service"]["spec"]["selector"] == labels
    assert MANIFEST["PodDisruptionBudget"]["spec"]["selector"] == {"matchLabels": labels}
    assert MANIFEST["NetworkPolicy"]["spec"]["podSelector"] == {"matchLabels": labels}
    assert MANIFEST["NetworkPolicy"]["spec"]["policyTypes"] == ["Ingress", "Egress"]
    (allowed,) = MANIFEST["NetworkPolicy"]["spec"]["ingress"]
    assert allowed["ports"] == [{"port": 8300}]
    assert len(allowed["from"]) == 2
    ingress = MANIFEST["Ingress"]["spec"]
    (rule,), (tls,) = ingress["rules"], ingress["tls"]
    assert tls["hosts"] == [rule["host"]]
    (path,) = rule["http"]["paths"]
    assert path["backend"]["service"] == {"name": MANIFEST["Service"]["metadata"]["name"], "port": {"number": 8300}}


def test_no_manifest_holds_a_secret() -> None:
    assert set(MANIFEST) == {"Deployment", "Service", "PodDisruptionBudget", "NetworkPolicy", "Ingress"}
    given = MANIFEST["Deployment"]["spec"]["template"]["spec"]["containers"][0]["env"]
    assert [each["name"] for each in given] == [MAX_MEMORY]


def closed(schema: Any) -> Any:
    """Return the schema such that it refuses a field that it does not know, which Kubernetes would drop."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {name: closed(value) for name, value in schema.items()}
    is_open = schema.get("x-kubernetes-preserve-unknown-fields") or "properties" not in schema
    return inner if is_open or not isinstance(schema["properties"], dict) else {"additionalProperties": False, **inner}


@pytest.mark.parametrize("kind", ["ScaledJob", "ScaledObject"])
def test_kedas_schemas_accept_the_manifests_and_notice_an_unknown_field(kind: str) -> None:
    validator = jsonschema.Draft202012Validator(closed(KEDA[kind]))
    validator.validate(JOBS[kind])
    with pytest.raises(jsonschema.ValidationError):
        validator.validate({**JOBS[kind], "spec": {**JOBS[kind]["spec"], "maxReplicas": 3}})


def test_a_job_takes_one_execution_of_its_crew_without_retries() -> None:
    job = JOBS["ScaledJob"]["spec"]["jobTargetRef"]
    (container,) = job["template"]["spec"]["containers"]
    arguments = cli._parser().parse_args(container["command"][1:])
    assert (arguments.crew, arguments.max_executions, arguments.workers) == (["report=."], 1, 1)
    assert arguments.idle_exit
    assert job["backoffLimit"] == 0
    assert JOBS["ServiceAccount"]["metadata"]["name"] == job["template"]["spec"]["serviceAccountName"]
