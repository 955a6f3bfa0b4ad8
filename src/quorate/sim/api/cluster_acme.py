"""ACME: directories, plugins and (no) accounts; and Ceph, which is not installed."""

from __future__ import annotations

from typing import Any

from quorate.sim.config_files import split_list
from quorate.sim.datacenter import Datacenter
from quorate.sim.refusals import bad_parameters, failure
from quorate.sim.routing import Call, route
from quorate.sim.sections import Section, SectionFile, options_of

_DIRECTORIES = {
    "Let's Encrypt V2": "https://acme-v02.api.letsencrypt.org/directory",
    "Let's Encrypt V2 Staging": "https://acme-staging-v02.api.letsencrypt.org/directory",
}
_TERMS = "https://letsencrypt.org/documents/LE-SA-v1.5-February-24-2025.pdf"
_PLUGIN = "/cluster/acme/plugins/{id}"


@route("GET /cluster/acme/directories")
def directories(_call: Call) -> list[dict[str, str]]:
    return [{"name": name, "url": url} for name, url in _DIRECTORIES.items()]


@route("GET /cluster/acme/tos")
def terms_of_service(_call: Call) -> str:
    return _TERMS


@route("GET /cluster/acme/meta")
def meta(_call: Call) -> dict[str, Any]:
    website = "https://letsencrypt.org"
    return {"termsOfService": _TERMS, "website": website, "caaIdentities": ["letsencrypt.org"]}


@route("GET /cluster/acme/account", "GET /cluster/acme/challenge-schema")
def nothing(_call: Call) -> list[Any]:
    return []


@route("GET /cluster/acme/account/{name}")
def one_account(call: Call) -> None:
    name = call.values["name"]
    raise bad_parameters({"name": f"ACME account config file '{name}' does not exist."})


def _file(call: Call) -> SectionFile:
    return call.world.part(Datacenter).acme_plugins


def _plugins(call: Call) -> dict[str, Section]:
    """The one that comes with PVE is there even if the file does not name it."""
    return {"standalone": {"type": "standalone"}} | _file(call).sections


@route("GET /cluster/acme/plugins")
def list_plugins(call: Call) -> list[Section]:
    wanted = call.params.get("type")
    return [
        {"plugin": name, **plugin, "digest": _file(call).digest()}
        for name, plugin in sorted(_plugins(call).items())
        if wanted in (None, plugin["type"])
    ]


@route(f"GET {_PLUGIN}")
def one_plugin(call: Call) -> Section:
    name = call.values["id"]
    return {"plugin": name, **_existing(call), "digest": _file(call).digest()}


@route("POST /cluster/acme/plugins")
def create_plugin(call: Call) -> None:
    name, file = call.params["id"], _file(call)
    if name in _plugins(call):
        raise failure(f"ACME plugin ID '{name}' already exists!")
    _check_nodes(call)
    file.sections[name] = file.new_section(call.params["type"], options_of(call.params, "id", "type"))


@route(f"PUT {_PLUGIN}")
def update_plugin(call: Call) -> None:
    file = _file(call)
    file.check_digest(call.params.get("digest"))
    plugin = _existing(call)
    _check_nodes(call)
    file.change(plugin, options_of(call.params, "id", "digest", "delete"), call.params.get("delete"))
    file.sections[call.values["id"]] = plugin


@route(f"DELETE {_PLUGIN}")
def delete_plugin(call: Call) -> None:
    _existing(call)
    _file(call).sections.pop(call.values["id"], None)


def _existing(call: Call) -> Section:
    name = call.values["id"]
    plugin = _plugins(call).get(name)
    if plugin is None:
        raise failure(f"ACME plugin '{name}' not defined")
    return plugin


def _check_nodes(call: Call) -> None:
    for node in split_list(call.params.get("nodes")):
        if node not in call.world.nodes:
            raise failure(f"node '{node}' does not exist")


@route(
    "GET /cluster/ceph/status",
    "GET /cluster/ceph/metadata",
    "GET /cluster/ceph/flags",
    "GET /cluster/ceph/flags/{flag}",
    "PUT /cluster/ceph/flags",
    "PUT /cluster/ceph/flags/{flag}",
)
def ceph(_call: Call) -> None:
    raise failure("binary not installed: /usr/bin/ceph-mon")
