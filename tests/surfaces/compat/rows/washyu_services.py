"""washyu's rows about services and community scripts."""

from __future__ import annotations

import json
from typing import Any

from quorate.homelab.scripts import load_packaged_index as scripts
from quorate.homelab.services.catalogue import load_packaged as services
from tests.rigs.compat_session import Done, Row
from tests.surfaces.compat.rows import homelabs
from tests.surfaces.compat.rows.homelabs import HomelabRig

# -- services ----------------------------------------------------------------------------------------------------------

PAGE = {"service_name": "page", "hostname": "box"}
RECORDS = {"service_name": "records", "hostname": "box"}
MARK = {"service_name": "mark", "hostname": "box"}


def services_are_listed(done: Done) -> None:
    text = json.dumps(done.facts)
    assert all(f'"{name}"' in text for name in (*services(), "page", "records"))


def service_is_explained(done: Done) -> None:
    text = json.dumps(done.facts)
    assert "53/udp" in text
    assert "etc-pihole" in text


def host_fits(done: Done) -> None:
    assert '"fits": "yes"' in json.dumps(done.facts)


def service_runs(done: Done) -> None:
    compose = done.homelab.compose
    assert compose.version == "1.0"
    assert f"WEB_PORT='{done.homelab.page}'" in (compose.services / "page" / ".env").read_text()


async def install_page(homelab: HomelabRig) -> None:
    settings = {"web_port": homelab.page}
    await homelab.quorate.facts("service_install", service="page", host="box", settings=settings)


def service_is_well(done: Done) -> None:
    text = json.dumps(done.facts)
    assert '"state": "running"' in text
    assert '"health": "ok"' in text


def plan_is_told(done: Done) -> None:
    assert "terraform_data.record" in json.dumps(done.facts)
    assert not resources(done.homelab)


def resources(homelab: HomelabRig) -> list[Any]:
    """What the state of Terraform has."""
    states = (homelab.folder / "work").rglob("terraform.tfstate")
    return [load for state in states for load in json.loads(state.read_text())["resources"]]


async def make_records(homelab: HomelabRig) -> None:
    await homelab.quorate.facts("service_install", service="records", host="box")
    assert resources(homelab)


def nothing_has_drifted(done: Done) -> None:
    assert '"drifted": false' in json.dumps(done.facts)


def records_are_gone(done: Done) -> None:
    assert not resources(done.homelab)


def mark(homelab: HomelabRig, name: str = "mark") -> str | None:
    assert homelab.box is not None
    file = homelab.box.folder / "home" / name
    return file.read_text() if file.exists() else None


def play_was_tried(done: Done) -> None:
    assert "The mark is there" in json.dumps(done.facts)
    assert mark(done.homelab) is None


def play_has_run(done: Done) -> None:
    assert (mark(done.homelab), mark(done.homelab, "other")) == ("blue", None)


SERVICES = [
    Row("list_available_services", {}, services_are_listed, homelab=homelabs.with_compose),
    Row("get_service_info", {"service_name": "pihole"}, service_is_explained, homelab=homelabs.with_compose),
    Row("check_service_requirements", PAGE, host_fits, homelab=homelabs.with_compose),
    Row(
        "install_service",
        {**PAGE, "config_override": lambda homelab: {"web_port": homelab.page}},
        service_runs,
        homelab=homelabs.with_compose,
    ),
    Row("get_service_status", PAGE, service_is_well, prepare=install_page, homelab=homelabs.with_compose),
    Row(
        "plan_terraform_service",
        {**RECORDS, "config_override": {"colour": "blue"}},
        plan_is_told,
        homelab=homelabs.with_terraform,
    ),
    Row("destroy_terraform_service", RECORDS, records_are_gone, prepare=make_records, homelab=homelabs.with_terraform),
    Row(
        "refresh_terraform_service", RECORDS, nothing_has_drifted, prepare=make_records, homelab=homelabs.with_terraform
    ),
    Row("check_ansible_service", MARK, play_was_tried, homelab=homelabs.with_ansible),
    Row(
        "run_ansible_playbook",
        {**MARK, "tags": ["mark"], "extra_vars": {"word": "blue"}, "check_mode": False},
        play_has_run,
        homelab=homelabs.with_ansible,
    ),
]

# -- scripts -----------------------------------------------------------------------------------------------------------


def script_is_found(done: Done) -> None:
    assert "jellyfin" in json.dumps(done.facts)
    assert str(_jellyfin().ram) in json.dumps(done.facts)


def script_is_told(done: Done) -> None:
    text = json.dumps(done.facts)
    assert str(_jellyfin().disk) in text
    assert "ct/jellyfin.sh" in text


def _jellyfin() -> Any:
    return scripts().get("jellyfin", "ct")


SCRIPTS = [
    Row(
        "search_proxmox_scripts",
        {"query": "jellyfin", "category": "ct", "include_metadata": True},
        script_is_found,
        homelab=homelabs.online,
    ),
    Row(
        "get_proxmox_script_info",
        {"script_name": "jellyfin", "category": "ct"},
        script_is_told,
        homelab=homelabs.online,
    ),
]

ROWS = [*SERVICES, *SCRIPTS]
