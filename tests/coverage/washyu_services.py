"""washyu's rows about services and community scripts."""

from __future__ import annotations

import json
from typing import Any

from quorate.homelab.scripts.index import packaged as scripts
from quorate.homelab.services.catalogue import packaged as services
from tests.coverage import homes
from tests.coverage.homes import Home
from tests.coverage.rows import Done, native, row
from tests.coverage.washyu_hosts import BY_REFERENCE

FROM_REGISTRY = dict.fromkeys(("username", "password", "port"), BY_REFERENCE)

# -- services ----------------------------------------------------------------------------------------------------------

PAGE = {"service_name": "page", "hostname": "box"}
RECORDS = {"service_name": "records", "hostname": "box"}
MARK = {"service_name": "mark", "hostname": "box"}
OF_HOST = {"service": "service_name", "host": "hostname"}


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
    compose = done.home.compose
    assert compose.version == "1.0"
    assert f"WEB_PORT='{done.home.page}'" in (compose.services / "page" / ".env").read_text()


async def install_page(home: Home) -> None:
    settings = {"web_port": home.page}
    await home.quorate.facts("service_install", service="page", host="box", settings=settings)


def service_is_well(done: Done) -> None:
    text = json.dumps(done.facts)
    assert '"state": "running"' in text
    assert '"health": "ok"' in text


def plan_is_told(done: Done) -> None:
    assert "terraform_data.record" in json.dumps(done.facts)
    assert not resources(done.home)


def resources(home: Home) -> list[Any]:
    """What the state of Terraform has."""
    states = (home.folder / "work").rglob("terraform.tfstate")
    return [one for state in states for one in json.loads(state.read_text())["resources"]]


async def make_records(home: Home) -> None:
    await home.quorate.facts("service_install", service="records", host="box")
    assert resources(home)


def nothing_has_drifted(done: Done) -> None:
    assert '"drifted": false' in json.dumps(done.facts)


def records_are_gone(done: Done) -> None:
    assert not resources(done.home)


def mark(home: Home, name: str = "mark") -> str | None:
    assert home.box is not None
    file = home.box.folder / "home" / name
    return file.read_text() if file.exists() else None


def play_was_tried(done: Done) -> None:
    assert "The mark is there" in json.dumps(done.facts)
    assert mark(done.home) is None


def play_has_run(done: Done) -> None:
    assert (mark(done.home), mark(done.home, "other")) == ("blue", None)


SERVICES = [
    row("list_available_services", {}, native("service_list"), services_are_listed, home=homes.composed),
    row(
        "get_service_info",
        {"service_name": "pihole"},
        native("service_info", {"service": "service_name"}),
        service_is_explained,
        home=homes.composed,
    ),
    row("check_service_requirements", PAGE, native("service_check", OF_HOST), host_fits, without=FROM_REGISTRY,
        home=homes.composed),
    row(
        "install_service",
        {**PAGE, "config_override": lambda home: {"web_port": home.page}},
        native("service_install", {**OF_HOST, "settings": "config_override"}),
        service_runs,
        without=FROM_REGISTRY,
        home=homes.composed,
    ),
    row("get_service_status", PAGE, native("service_status", OF_HOST), service_is_well, without=FROM_REGISTRY,
        prepare=install_page, home=homes.composed),
    row(
        "plan_terraform_service",
        {**RECORDS, "config_override": {"colour": "blue"}},
        native("terraform_plan", {**OF_HOST, "settings": "config_override"}),
        plan_is_told,
        without=FROM_REGISTRY,
        home=homes.with_terraform,
    ),
    row("destroy_terraform_service", RECORDS, native("terraform_destroy", OF_HOST), records_are_gone,
        without=FROM_REGISTRY, prepare=make_records, home=homes.with_terraform),
    row("refresh_terraform_service", RECORDS, native("terraform_refresh", OF_HOST), nothing_has_drifted,
        without=FROM_REGISTRY, prepare=make_records, home=homes.with_terraform),
    row("check_ansible_service", MARK, native("ansible_check", OF_HOST), play_was_tried, without=FROM_REGISTRY,
        home=homes.with_ansible),
    row(
        "run_ansible_playbook",
        {**MARK, "tags": ["mark"], "extra_vars": {"word": "blue"}, "check_mode": False},
        native("ansible_run", {**OF_HOST, "tags": "tags", "extra_vars": "extra_vars"}),
        play_has_run,
        without={**FROM_REGISTRY, "check_mode": "ansible_check tries it"},
        home=homes.with_ansible,
    ),
]  # fmt: skip

# -- scripts -----------------------------------------------------------------------------------------------------------


def script_is_found(done: Done) -> None:
    assert "jellyfin" in json.dumps(done.facts)
    assert str(_jellyfin().ram) in json.dumps(done.facts)


def script_is_told(done: Done) -> None:
    text = json.dumps(done.facts)
    assert str(_jellyfin().disk) in text
    assert "ct/jellyfin.sh" in text


def _jellyfin() -> Any:
    return scripts().named("jellyfin", "ct")


SCRIPTS = [
    row(
        "search_proxmox_scripts",
        {"query": "jellyfin", "category": "ct", "include_metadata": True},
        native("script_search", {"words": "query", "category": "category"}),
        script_is_found,
        without={"include_metadata": "they are there in any case"},
        home=homes.online,
    ),
    row(
        "get_proxmox_script_info",
        {"script_name": "jellyfin", "category": "ct"},
        native("script_info", {"script": "script_name", "category": "category"}),
        script_is_told,
        home=homes.online,
    ),
]

ROWS = [*SERVICES, *SCRIPTS]
