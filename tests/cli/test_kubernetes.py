# SPDX-License-Identifier: Apache-2.0
"""The Kubernetes example: parsed as the API server parses it, and its container started with what a kubelet injects."""

import json
import re
import signal
import subprocess
import threading
import urllib.request

import pytest
import yaml

from conftest import ROOT

FOLDER = ROOT / "examples" / "kubernetes"


def documents() -> list[dict]:
    return [document for file in sorted(FOLDER.glob("*.yaml")) for document in yaml.safe_load_all(file.read_text()) if document]


def of_kind(kind: str, name: str = "quire") -> dict:
    found = [document for document in documents() if document["kind"] == kind and document["metadata"]["name"] == name]
    assert len(found) == 1, kind
    return found[0]


def service_links() -> dict[str, str]:
    """What the kubelet sets in every container of the namespace for the example's Service, unless that is switched
    off."""
    service = of_kind("Service")
    name = service["metadata"]["name"].replace("-", "_").upper()
    address = "10.96.12.34"
    variables = {f"{name}_SERVICE_HOST": address}
    for i, port in enumerate(service["spec"]["ports"]):
        number, protocol = str(port["port"]), port.get("protocol", "TCP")
        link = f"{protocol.lower()}://{address}:{number}"
        if i == 0:
            variables |= {f"{name}_SERVICE_PORT": number, f"{name}_PORT": link}
        if "name" in port:
            variables[f"{name}_SERVICE_PORT_{port['name'].replace('-', '_').upper()}"] = number
        prefix = f"{name}_PORT_{number}_{protocol}"
        variables |= {prefix: link, f"{prefix}_PROTO": protocol.lower(), f"{prefix}_PORT": number, f"{prefix}_ADDR": address}
    return variables


@pytest.fixture(scope="module")
def pod():
    return of_kind("Deployment")["spec"]["template"]["spec"]


@pytest.fixture(scope="module")
def container(pod):
    return pod["containers"][0]


def arguments_of(container: dict) -> list[str]:
    words = container["command"] + container["args"]
    assert words[0].endswith("/quire") and words[1] == "serve"
    return words[1:]


class Started:
    """The container's program, once it serves."""

    def __init__(self, quire, arguments, environment):
        self.process = subprocess.Popen([quire.path, *arguments], cwd=quire.folder, env=quire.environment | environment,
                                        stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.log, self.url = "", ""
        self.ready = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()
        assert self.ready.wait(60) and self.url, self.log

    def _read(self):
        for line in self.process.stderr:
            self.log += line
            if found := re.search(r"Serving .* at (\S+)", line):
                self.url = found.group(1)
                self.ready.set()
        self.ready.set()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


def test_the_manifests_fit_together(pod, container):
    kustomization = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
    assert all((FOLDER / name).is_file() for name in kustomization["resources"])
    deployment, service = of_kind("Deployment"), of_kind("Service")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    for selector in (deployment["spec"]["selector"]["matchLabels"], service["spec"]["selector"]):
        assert selector.items() <= labels.items()
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert f"--port={ports[service['spec']['ports'][0]['targetPort']]}" in container["args"]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["port"] in ports
    mounts = {mount["name"] for mount in container["volumeMounts"]}
    assert mounts == {volume["name"] for volume in pod["volumes"]}


def test_no_service_links_are_injected(pod):
    assert pod["enableServiceLinks"] is False


def test_the_flags_and_variables_are_known(quire, container):
    # With --help every flag is parsed, and nothing is loaded.
    done = quire(*arguments_of(container), "--help", env=service_links())
    assert done.returncode == 0, done.errors
    for variable in container["env"]:
        assert f"(Env:{variable['name']})" in done.text


def test_it_starts_under_injected_variables(quire, container):
    """The bug: QUIRE_PORT=tcp://... of a Service named quire stopped the server, even with --port given."""
    changed = {"/models/smollm2": "tiny", "--host=0.0.0.0": "--host=127.0.0.1", "--port=8000": "--port=0", "--threads=8": "--threads=1",
               "--kv-cache-memory-bytes=4GiB": "--kv-cache-memory-bytes=64MiB"}
    arguments = [changed.pop(word, word) for word in arguments_of(container)]
    assert not changed, "the manifest changed; so must this test"
    assert service_links()["QUIRE_PORT"].startswith("tcp://")
    started = Started(quire, arguments, service_links() | {"QUIRE_API_KEY": "secret"})
    try:
        assert urllib.request.urlopen(started.url + "/health", timeout=30).status == 200
        request = urllib.request.Request(started.url + "/v1/models", headers={"Authorization": "Bearer secret"})
        assert json.load(urllib.request.urlopen(request, timeout=30))["data"][0]["id"] == "smollm2"
        warnings = [line for line in started.log.splitlines() if line.startswith("W ")]
        assert len(warnings) == 1 and "QUIRE_PORT=tcp://" in warnings[0] and "enableServiceLinks" in warnings[0]
    finally:
        assert started.stop() == 0


def test_an_injected_port_leaves_the_default(quire):
    """Without --port the service's address is ignored as well; if the default port is taken here, the message shows
    it."""
    done = quire("serve", "nowhere", env=service_links())
    assert done.returncode == 1 and "tcp://" in done.errors.splitlines()[0]
    assert "'nowhere'" in done.errors or "port 8000" in done.errors


# The group of pods for one model over several hosts (ranks.yaml).

@pytest.fixture(scope="module")
def group():
    return of_kind("LeaderWorkerSet", "quire-ranks")["spec"]["leaderWorkerTemplate"]


def test_the_group_fits_together(group):
    assert group["restartPolicy"] == "RecreateGroupOnPodRestart"
    service = of_kind("Service", "quire-ranks-http")
    leader, worker = group["leaderTemplate"], group["workerTemplate"]
    assert service["spec"]["selector"].items() <= leader["metadata"]["labels"].items()
    assert not service["spec"]["selector"].items() <= worker["metadata"]["labels"].items()
    for template in (leader, worker):
        pod = template["spec"]
        container = pod["containers"][0]
        assert pod["enableServiceLinks"] is False and pod["securityContext"]["runAsNonRoot"] is True
        assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    leading, working = (template["spec"]["containers"][0] for template in (leader, worker))
    assert leading["image"] == working["image"]  # ranks with different programs refuse each other
    ports = {port["name"]: port["containerPort"] for port in leading["ports"]}
    assert f"--port={ports[service['spec']['ports'][0]['targetPort']]}" in leading["args"]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert leading[probe]["httpGet"] == {"path": "/health", "port": "http"}
    assert f"--tensor-parallel-size={group['size']}" in leading["args"]
    assert f"-p {working['ports'][0]['containerPort']} " in working["args"][0]


def test_the_leader_starts_a_rank_in_every_pod(quire, group, tmp_path):
    """Its script runs with an ssh and an mpirun that only say how they were called."""
    (tmp_path / "ssh").write_text(f"#!/bin/sh\necho \"$@\" >> {tmp_path}/ssh.log\n")
    (tmp_path / "mpirun").write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    for program in ("ssh", "mpirun"):
        (tmp_path / program).chmod(0o755)
    container = group["leaderTemplate"]["spec"]["containers"][0]
    done = subprocess.run(container["command"] + container["args"], capture_output=True, text=True, check=True, timeout=60, env={
        "PATH": f"{tmp_path}:/usr/bin:/bin", "LWS_GROUP_SIZE": "3", "LWS_LEADER_ADDRESS": "quire-ranks-0.quire-ranks.space"})
    words = done.stdout.splitlines()
    assert words[words.index("-n") + 1] == "3"
    workers = [f"quire-ranks-0-{number}.quire-ranks.space" for number in (1, 2)]
    assert words[words.index("--host") + 1].split(",") == ["localhost", *workers]
    assert [line.split()[-2] for line in (tmp_path / "ssh.log").read_text().splitlines()] == workers
    # mpirun starts quire with flags that it knows: with --help they are parsed, and nothing is loaded.
    assert words[words.index("quire"):][1] == "serve"
    checked = quire(*words[words.index("quire") + 1:], "--help")
    assert checked.returncode == 0, checked.errors
