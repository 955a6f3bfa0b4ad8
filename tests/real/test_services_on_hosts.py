"""Services on a real host: Compose with a real Docker, and Ansible over a real OpenSSH."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from quorate.config.homelab import HomelabSettings
from quorate.homelab.secrets import Secrets
from quorate.homelab.services.catalogue import load_packaged
from quorate.homelab.services.compose import environment_text
from quorate.homelab.services.installations import choose
from tests.real.engine_host import EngineHost, engine_host, serving
from tests.real.network import run
from tests.rigs.mcp_session import Rig

pytestmark = pytest.mark.anyio
PAGE = "127.0.0.1:5000/page"
SERVES = "trap 'exit 0' TERM; echo hello > /tmp/index.html; httpd -f -p 80 -h /tmp & wait"
TEMPLATES = {
    "page": f"""
title: The page
about: A web page
version: "1"
needs: {{memory: 16M, disk: 16M, architectures: [amd64], ports: [web_port]}}
parameters:
  web_port: {{type: port, default: 8099, about: Port}}
  word: {{type: secret, generate: 20, about: Word}}
compose: |
  version: "3"
  services:
    page:
      image: {PAGE}:${{VERSION}}
      restart: unless-stopped
      environment: {{WORD: "${{WORD}}"}}
      ports: ["${{WEB_PORT}}:80"]
      volumes: ["./data:/data"]
health: {{http: /index.html, port: web_port, seconds: 20}}
backup: [data]
""",
    "note": """
title: Note
about: A note on the host
parameters:
  text: {default: hello, about: Text}
ansible:
  playbook: |
    - hosts: all
      tasks:
        - name: The folder is there
          ansible.builtin.file: {path: /run/lab/notes, state: directory, mode: "0755"}
          tags: [folder]
        - name: The note is written
          ansible.builtin.copy: {dest: /run/lab/notes/note, content: "{{ text }}\\n", mode: "0644"}
  uninstall: |
    - hosts: all
      tasks:
        - name: The folder goes
          ansible.builtin.file: {path: /run/lab/notes, state: absent}
""",
}


@pytest.fixture(scope="module")
def host() -> Iterator[EngineHost]:
    with engine_host("services") as built:
        for version, command in {"1": SERVES, "2": SERVES, "broken": "echo no disk; exit 3"}.items():
            change = f"CMD {json.dumps(['sh', '-c', command])}"
            built.docker("import", "--change", change, str(built.folder / "tiny.tar"), f"{PAGE}:{version}")
            built.docker("push", f"{PAGE}:{version}")
            built.docker("rmi", f"{PAGE}:{version}")
        yield built


def installing(host: EngineHost, folder: Path) -> AbstractAsyncContextManager[Rig]:
    templates = folder / "templates"
    templates.mkdir()
    for name, text in TEMPLATES.items():
        (templates / f"{name}.yaml").write_text(text)
    own = {"catalogue": templates, "work": folder / "work", "services_folder": str(host.folder / "opt")}
    return serving(host, folder, "services", **own)


async def test_a_compose_service_is_installed_healthy_upgraded_taken_back_and_removed(host: EngineHost, tmp_path: Path):
    async with installing(host, tmp_path) as quorate:
        page = {"service": "page", "host": "box"}
        assert (await quorate.facts("service_check", **page))["fits"] == "yes"
        done = await quorate.facts("service_install", **page, wait=50)
        assert "running" in json.dumps(done)
        name = host.docker("ps", "--format", "{{.Names}}").strip()
        assert "page" in name
        told = await quorate.facts("service_status", **page)
        assert (told["state"], told["health"], told["version"], told["drift"]) == ("running", "ok", "1", "none")
        word = host.docker("exec", name, "sh", "-c", "echo $WORD").strip()
        assert len(word) == 20
        assert word not in f"{done}{told}{quorate.audit()}"
        host.docker("exec", name, "sh", "-c", "echo kept > /data/file")

        refusal = await quorate.refusal("service_upgrade", **page, to="broken", wait=50)
        assert "does not become healthy" in refusal
        assert "no disk" in refusal
        assert "runs again" in refusal
        assert host.docker("ps", "--format", "{{.Image}}").strip() == f"{PAGE}:1"

        await quorate.facts("service_upgrade", **page, to="2", wait=50)
        assert host.docker("ps", "--format", "{{.Image}}").strip() == f"{PAGE}:2"

        host.docker("rm", "--force", host.docker("ps", "--quiet").strip())
        assert (await quorate.facts("service_status", **page))["drift"] == ["page has no container"]

        await quorate.facts("service_uninstall", **page, wait=50)
        data = host.folder / "opt/page/data/file"
        assert data.read_text() == "kept\n"
        await quorate.facts("service_uninstall", **page, data=True, wait=50)
        assert not (host.folder / "opt/page").exists()
        assert host.docker("ps", "--all", "--quiet").strip() == ""


async def test_a_port_that_is_taken_is_seen_before(host: EngineHost, tmp_path: Path):
    async with installing(host, tmp_path) as quorate:
        settings = {"web_port": 5000}  # the registry's
        assert "port 5000/tcp: used" in await quorate.refusal(
            "service_install", service="page", host="box", settings=settings
        )


def note() -> str | None:
    file = Path("/run/lab/notes/note")
    return file.read_text() if file.exists() else None


@pytest.mark.skipif(not importlib.util.find_spec("ansible_runner"), reason="pip install ansible-core ansible-runner")
async def test_a_playbook_is_tried_run_and_taken_back_over_openssh(host: EngineHost, tmp_path: Path):
    async with installing(host, tmp_path) as quorate:
        playbook = {"service": "note", "host": "box"}
        tried = await quorate.facts("ansible_check", **playbook, tags=["folder"])
        assert tried["would_change"] == ["The folder is there"]
        assert note() is None
        done = await quorate.facts("ansible_run", **playbook, wait=50)
        assert note() == "hello\n"
        assert done["changed"] == ["The folder is there", "The note is written"]
        assert "The note is written" in [line for _, _, line in quorate.progress]
        again = await quorate.facts("ansible_run", **playbook, wait=50)
        assert again.get("changed", []) == []
        await quorate.facts("service_uninstall", **playbook, wait=50)
        assert note() is None


@pytest.mark.parametrize("name", [name for name, template in load_packaged().items() if template.compose])
async def test_compose_understands_every_file_of_the_catalogue(host: EngineHost, tmp_path: Path, name: str):
    template = load_packaged()[name]
    chosen = await choose(template, {}, {}, Secrets(HomelabSettings()))
    (tmp_path / "compose.yaml").write_text(template.compose)
    (tmp_path / ".env").write_text(environment_text(chosen))
    told = run("docker-compose", "-f", tmp_path / "compose.yaml", "config")
    assert "${" not in told
    assert all(value in told for value in chosen.values.values())
