"""ACME: directories, plugins and accounts."""

from __future__ import annotations

from typing import Any

from pve_simulator.cluster.config_files import Section, SectionFile, Sections, always, options_of
from pve_simulator.cluster.datacenter import Datacenter
from pve_simulator.http.parameters import split_list
from pve_simulator.http.refusals import bad_parameters, existing, failure
from pve_simulator.http.routing import Call, route
from pve_simulator.nodes.tasks import TaskContext, TaskError

_DIRECTORIES = {
    "Let's Encrypt V2": "https://acme-v02.api.letsencrypt.org/directory",
    "Let's Encrypt V2 Staging": "https://acme-staging-v02.api.letsencrypt.org/directory",
}
_TERMS = "https://letsencrypt.org/documents/LE-SA-v1.5-February-24-2025.pdf"


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


@route("GET /cluster/acme/challenge-schema")
def nothing(_call: Call) -> list[Any]:
    return []


def _accounts(call: Call) -> dict[str, dict[str, Any]]:
    return call.world.part(Datacenter).acme_accounts


@route("GET /cluster/acme/account")
def list_accounts(call: Call) -> list[dict[str, str]]:
    return [{"name": name} for name in _accounts(call)]


@route("GET /cluster/acme/account/{name}")
def one_account(call: Call) -> dict[str, Any]:
    return _account(call)


def _account(call: Call) -> dict[str, Any]:
    name = call.values["name"]
    missing = f"ACME account config file '{name}' does not exist."
    return existing(_accounts(call).get(name), bad_parameters({"name": missing}))


@route("POST /cluster/acme/account")
def register_account(call: Call) -> str:
    name, accounts = call.params.get("name", "default"), _accounts(call)
    if name in accounts:
        raise bad_parameters({"name": f"ACME account config file '{name}' already exists."})
    directory = call.params.get("directory", next(iter(_DIRECTORIES.values())))

    async def work(context: TaskContext) -> None:
        context.log("Fetching ACME nonce from server")
        await context.sleep(1.0)
        if directory not in _DIRECTORIES.values():
            raise TaskError(f"Registering ACME account failed: GET to {directory} failed")
        if call.params.get("tos_url") is None:
            raise TaskError("Registering ACME account failed: must agree to terms of service")
        location = f"{directory.rpartition('/')[0]}/acme/acct/{1000 + len(accounts)}"
        mails = [f"mailto:{mail}" for mail in split_list(call.params["contact"])]
        account = {"status": "valid", "contact": mails, "createdAt": "2026-01-15T08:00:00Z"}
        accounts[name] = {"account": account, "directory": directory, "location": location, "tos": _TERMS}
        context.log(f"Registration successful, account URL: '{location}'")

    return call.start_local_task("acmeregister", name, work)


@route("PUT /cluster/acme/account/{name}")
def update_account(call: Call) -> str:
    account = _account(call)["account"]

    async def work(context: TaskContext) -> None:
        await context.sleep(1.0)
        if "contact" in call.params:
            account["contact"] = [f"mailto:{mail}" for mail in split_list(call.params["contact"])]

    return call.start_local_task("acmeupdate", call.values["name"], work)


@route("DELETE /cluster/acme/account/{name}")
def deactivate_account(call: Call) -> str:
    _account(call)

    async def work(context: TaskContext) -> None:
        await context.sleep(1.0)
        _accounts(call).pop(call.values["name"], None)
        context.log("Disabling ACME account succeeded.")

    return call.start_local_task("acmedeactivate", call.values["name"], work)


class _Plugins(Sections):
    path = "/cluster/acme/plugins"
    locks_early = True
    duplicate = "ACME plugin ID '{name}' already exists!"
    missing = always("ACME plugin '{name}' not defined")

    def file(self, call: Call) -> SectionFile:
        return call.world.part(Datacenter).acme_plugins

    def all(self, call: Call) -> dict[str, Section]:
        """The built-in one exists even if the file does not name it."""
        return {"standalone": {"type": "standalone"}} | self.file(call).sections

    def select_sections(self, call: Call) -> dict[str, Section]:
        return dict(sorted(self.all(call).items()))

    def row(self, call: Call, name: str, section: Section) -> Section:
        return {"plugin": name, **options_of(super().row(call, name, section), "id")}

    def check(self, call: Call, _name: str, _section: Section, _before: Section | None) -> None:
        for node in split_list(call.params.get("nodes")):
            if node not in call.world.nodes:
                raise failure(f"node '{node}' does not exist")


_Plugins()
