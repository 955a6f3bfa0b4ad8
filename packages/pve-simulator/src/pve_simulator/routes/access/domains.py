"""Realms (domains in the API): reading, changing and syncing them. The simulated ones have no directory server."""

from __future__ import annotations

from typing import Any

from pve_simulator.access.directory import Realm
from pve_simulator.cluster.config_files import (
    EMPTY_DIGEST,
    UNDEFINED_TYPE,
    SectionFile,
    changing,
    check_digest,
    digest_of,
    options_of,
    section_type,
)
from pve_simulator.http.parameters import split_list, split_pairs
from pve_simulator.http.refusals import Refusal, bad_parameters, existing, failure
from pve_simulator.http.routing import Call, route
from pve_simulator.nodes.tasks import TaskContext, TaskError

_COMMON = "comment default tfa"
_LDAP = (
    "server2 port mode secure sslversion verify capath cert certkey bind_dn password filter user_classes group_dn"
    " group_name_attr group_filter group_classes sync_attributes sync-defaults-options case-sensitive"
    " check-connection"
)
_TYPES = {
    "pam": section_type(optional=_COMMON),
    "pve": section_type(optional=_COMMON),
    "ldap": section_type("server1 base_dn user_attr", f"{_COMMON} {_LDAP}"),
    "ad": section_type("server1 domain", f"{_COMMON} {_LDAP} base_dn user_attr"),
    "openid": section_type(
        "issuer-url client-id",
        f"{_COMMON} client-key autocreate prompt scopes acr-values audiences query-userinfo groups-claim"
        " groups-autocreate groups-overwrite",
        fixed="username-claim",
    ),
}
_FILE = SectionFile(_TYPES)
_BUILTIN = ("pam", "pve")
_SYNC_DEFAULTS = {"enable-new": "1", "remove-vanished": "none", "scope": None}
# Never shown: PVE keeps it in a separate file, or uses it once.
_NOT_KEPT = ("password", "check-connection")


@route("GET /access/domains")
def domains(call: Call) -> list[dict[str, Any]]:
    return [_realm_row(realm) for realm in call.world.access.realms.values()]


def _realm_row(realm: Realm) -> dict[str, Any]:
    row: dict[str, Any] = {"realm": realm.name, "type": realm.type}
    if realm.comment:
        row["comment"] = realm.comment
    if realm.options.get("default"):
        row["default"] = 1
    if "tfa" in realm.options:
        row["tfa"] = str(realm.options["tfa"]).partition("type=")[2].split(",")[0]
    return row


@route("GET /access/domains/{realm}")
def one_realm(call: Call) -> dict[str, Any]:
    realm = _existing(call, "domain")
    shown = {"type": realm.type, **realm.options, "digest": _digest(call)}
    return shown | ({"comment": realm.comment} if realm.comment else {})


@route("POST /access/domains")
def create_realm(call: Call) -> None:
    realms, name, kind = call.world.access.realms, call.params["realm"], call.params["type"]
    with changing("add auth server failed"):
        if name in realms:
            raise failure(f"domain '{name}' already exists")
        if kind in _BUILTIN:
            raise failure(f"unable to create builtin type '{kind}'")
        section = _FILE.new_section(kind, options_of(call.params, "realm", "type"))
    section.pop("type")
    realm = Realm(name, kind, section.pop("comment", ""))
    realm.options = options_of(section, *_NOT_KEPT)
    realms[name] = realm
    _keep_one_default(call, realm)


@route("PUT /access/domains/{realm}")
def update_realm(call: Call) -> None:
    with changing("update auth server failed"):
        check_digest(_digest(call), call.params.get("digest"))
        if call.values["realm"] not in call.world.access.realms:
            raise failure(UNDEFINED_TYPE)
        realm = _existing(call, "domain")
        options = options_of(call.params, "realm", "digest", "delete")
        if not options and not call.params.get("delete"):
            raise failure("no options specified")
        section = {"type": realm.type, "comment": realm.comment, **realm.options}
        deleted = split_list(call.params.get("delete"))
        for name in sorted(_TYPES[realm.type].required.intersection(deleted)):
            raise failure(f"section '{realm.name}' - missing value for required option '{name}'")
        _FILE.change(section, options)
        section = {name: value for name, value in section.items() if name not in deleted}
    realm.comment = section.pop("comment", "")
    realm.options = options_of(section, "type", *_NOT_KEPT)
    _keep_one_default(call, realm)


@route("DELETE /access/domains/{realm}")
def delete_realm(call: Call) -> None:
    with changing("delete auth server failed"):
        realm = _existing(call, "authentication domain")
    if realm.name not in _BUILTIN:  # PVE adds these two again when it next reads the file
        del call.world.access.realms[realm.name]


@route("POST /access/domains/{realm}/sync")
def sync_realm(call: Call) -> str:
    realm = call.world.access.realms.get(call.values["realm"])
    if realm is None:
        raise bad_parameters({"realm": "Realm does not exist."})
    if realm.type not in ("ldap", "ad"):
        raise failure(f"Cannot sync realm type '{realm.type}'! Only LDAP/AD realms can be synced.")
    configured = split_pairs(realm.options.get("sync-defaults-options", ""))
    for name, default in sorted(_SYNC_DEFAULTS.items()):
        if call.params.get(name, configured.get(name, default)) is None:
            text = "Not passed as parameter and not defined in realm default sync options."
            raise bad_parameters({name: text})
    dry_run = bool(call.params.get("dry-run"))

    async def work(context: TaskContext) -> None:
        context.log(f"{'(dry test run) ' if dry_run else ''}starting sync for realm {realm.name}")
        await context.sleep(1.0)
        raise TaskError(f"unable to connect to {realm.options['server1']}: Connection refused")

    kind = "auth-realm-sync-test" if dry_run else "auth-realm-sync"
    return call.start_local_task(kind, realm.name, work)


@route("POST /access/openid/auth-url")
def openid_url(call: Call) -> None:
    name = call.params["realm"]
    realm = existing(call.world.access.realms.get(name), f"authentication domain '{name}' does not exist")
    if realm.type != "openid":
        raise failure(f"wrong realm type ({realm.type} != openid)")
    raise failure("Request failed")


@route("POST /access/openid/login")
def openid_login(_call: Call) -> None:
    """No login was ever redirected to a provider, so no state is valid."""
    raise Refusal(401, "authentication failure\n")


def _existing(call: Call, word: str) -> Realm:
    name = call.values["realm"]
    return existing(call.world.access.realms.get(name), f"{word} '{name}' does not exist")


def _digest(call: Call) -> str:
    added = [realm for realm in call.world.access.realms.values() if realm.name not in _BUILTIN]
    rows = [{"realm": realm.name, "comment": realm.comment, **realm.options} for realm in added]
    return digest_of(rows) if rows else EMPTY_DIGEST


def _keep_one_default(call: Call, changed: Realm) -> None:
    if changed.options.get("default"):
        for realm in call.world.access.realms.values():
            if realm is not changed:
                realm.options.pop("default", None)
