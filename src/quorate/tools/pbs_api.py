"""The whole API of a Proxmox Backup Server: any call, judged like the other tools for it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Final, Literal

from msgspec import Meta

from pve_schema.pbs import NEWEST, BackupFacts, BackupMatch, pbs_facts
from quorate.hints import NAMED, Advice, ToolHint, see, tools
from quorate.homelab.homelab import Homelab
from quorate.operations.plan import Plan, Target
from quorate.operations.registry import InFull, Risk, Table, operation
from quorate.operations.risk import Reason
from quorate.pbs.server import BackupNamespace, BackupServer, Group, find_server
from quorate.problems import BadArgument, Conflict, ParameterRejected, Refused
from quorate.pve.stored_objects import hide_secrets
from quorate.pve.targets import DATASTORE
from quorate.pve.wire import Text, encode
from quorate.suggestions import suggest
from quorate.tools.api import bound_response, cut, objection
from quorate.tools.backup_servers import Server, server_action
from quorate.tools.pbs_jobs import content_of_job, find_removals
from quorate.tools.pbs_maintenance import CHANGED, targets_below

_REASONS: Final = (
    ("GET", r"/admin/datastore/{store}/catalog", Reason.SHOWS_FILES),
    ("GET", r"/config/remote/{name}/scan.*|/config/s3/{id}/list-buckets", Reason.ASKS_OUTSIDE),
    ("GET", r"/config/acme/(tos|directories)|/nodes/{node}/apt/changelog", Reason.ASKS_OUTSIDE),
    ("GET", r".*", Reason.READS),
    ("POST", r"/admin/datastore/{store}/(verify|gc|namespace)|/admin/verify/{id}/run", Reason.CHANGES),
    ("PUT", r"/admin/datastore/{store}/(group-)?notes", Reason.CHANGES),
    ("POST", r"/nodes/{node}/apt/update", Reason.CHANGES),
    ("DELETE", r"/admin/datastore/{store}/.*|/config/datastore/{name}", Reason.DELETES_DATA),
    ("DELETE", r"/access/users/.*|/access/tfa/.*", Reason.DELETES_LOGIN),
    ("POST PUT", r"/access/.*|/config/access/.*", Reason.GRANTS),
    ("POST PUT", r".*/(prune|prune-datastore)|/config/prune.*|/admin/prune/{id}/run", Reason.PRUNES),
    ("POST PUT", r"/push|/config/(remote|s3|metrics|notifications)(/.*)?", Reason.SENDS_OUT),
    ("PUT", r"/nodes/{node}/network", Reason.NETWORKS),
    ("POST", r"/nodes/{node}/status", Reason.STOPS_NODE),
)
"""The first that fits applies. What none fits is UNCLASSIFIED, so it needs access admin."""

_REFUSED: Final[tuple[tuple[str, str, str, ToolHint | None], ...]] = (
    ("GET POST", r".*/(download|download-decoded|pxar-file-download)", "it sends a file, not data", tools.backup_files),
    ("DELETE", r"/nodes/{node}/tasks/{upid}", "PBS finds a task by a part of its id only", tools.pbs_task_stop),
    ("POST", r".*/upload-backup-log", "it takes a file of a backup client", None),
    ("GET", r"/(backup|reader)(/.*)?", "only backup clients speak it", None),
    ("GET POST", r".*/(vncwebsocket|termproxy)|/access/vncticket", "it opens a console on the server", None),
    ("POST DELETE", r"/access/ticket|/access/openid/.*", "it is a login, and its answer a secret", None),
    ("POST PUT", r"/access/users/{userid}/token/{token-name}", "its answer can be a secret that is shown once", None),
    ("POST", r"/access/tfa/{userid}", "its answer can be a secret that is shown once", None),
)
_REMOVES: Final = re.compile(
    r"/admin/datastore/{store}/(?:prune|prune-datastore|snapshots|groups|namespace)|/config/datastore/{name}"
    r"|/admin/(?P<kind>prune|sync)/{id}/run|/pull"
)
"""Calls whose effect depends on the backups, and on the job, that there are when they are sent."""
ROWS: Final = 50
_OF_A_STORE: Final = re.compile(r"/admin/datastore/{store}(/.*)?|/config/datastore/{name}")


def reason_of(method: str, template: str) -> Reason:
    """Why a call has its risk."""
    for methods, pattern, reason in _REASONS:
        if method in methods.split() and re.fullmatch(pattern, template):
            return reason
    return Reason.UNCLASSIFIED


def _risk(arguments: Mapping[str, Any]) -> Risk:
    """The risk of this call; what cannot be parsed counts as the highest."""
    method, path = arguments["method"], arguments["path"]
    match = None if objection(path) else pbs_facts(NEWEST).find(method, path)
    if match is None:
        return Risk.READ if method == "GET" else Risk.DESTROY
    return reason_of(method, match.endpoint.template).risk


@operation(
    toolset="pbs",
    risk=Risk.DESTROY,
    risk_of=_risk,
    search_words="pbs raw api endpoint anything else remote acl tape",
    example="method=GET path=/config/remote",
)
async def pbs_api(
    homelab: Homelab,
    method: Literal["GET", "POST", "PUT", "DELETE"],
    path: str,
    params: dict[str, Any] | None = None,
    offset: Annotated[int, Meta(ge=0)] = 0,
    server: Server | None = None,
    *,
    in_full: InFull,
) -> Table | dict[str, Any] | Plan:
    """Call any endpoint of the PBS API. Prefer the other tools."""
    chosen = find_server(homelab.backup_servers, server)
    match = _find(pbs_facts(await chosen.version()), method, path)
    sent = _check(match, path, params or {})
    if method != "GET":
        return await _plan(homelab, chosen, match, path, sent)
    if homelab.hides is not None:
        raise Refused(
            "The raw API of a backup server is not read for this caller",
            why="Rules hide something from it, and raw answers would show it",
            next_step=see("Use the other tools, which leave it out", tools.pbs_status, tools.pbs_backup_list),
        )
    answer = hide_secrets(match.endpoint.template, await chosen.get(path, **sent))
    return {"data": answer} if in_full else bound_response(answer, limit=ROWS, offset=offset)


def _find(facts: BackupFacts, method: str, path: str) -> BackupMatch:
    """The endpoint at a path. Raises if the path is misspelled, there is none, or it is never called."""
    if problem := objection(path):
        raise problem
    match = facts.find(method, path)
    if match is None:
        others = [other for other in ("GET", "POST", "PUT", "DELETE") if facts.find(other, path)]
        if others:
            raise BadArgument(f"{path} has no {method} in PBS {facts.version}", next_step=f"It has {', '.join(others)}")
        known = {endpoint.template for endpoint in facts.endpoints()}
        next_step = suggest(
            path.lower(), known, "The server's own page /docs/api-viewer lists all paths", count=3, cutoff=0.5
        )
        raise BadArgument(f"PBS {facts.version} has no {path[:200]}", next_step=next_step)
    template = match.endpoint.template
    for methods, pattern, why, instead in _REFUSED:
        if method in methods.split() and re.fullmatch(pattern, template):
            raise Refused(
                f"{method} {template} is never called",
                why=why[:1].upper() + why[1:],
                next_step=Advice("Use the tool for it", instead) if instead else None,
            )
    return match


def _check(match: BackupMatch, path: str, params: Mapping[str, Any]) -> dict[str, Text]:
    """The parameters as texts, after PBS's own checks."""
    for name in params:
        if name in match.values:
            raise BadArgument(
                f"{name} is already in the path", next_step=Advice("Leave it out of {params}", params=NAMED)
            )
    if "download" in params:
        raise Refused("download is never used", why="It returns a file, not data")
    sent = encode(params)
    texts = {name: list(value) if isinstance(value, tuple) else value for name, value in sent.items()}
    if errors := match.endpoint.check({**match.values, **texts}):
        raise ParameterRejected(
            f"PBS would not accept {match.endpoint.method} {path}",
            why="; ".join(f"{name}: {why.rstrip('.')}" for name, why in errors.items()),
            next_step=f"It takes {', '.join(sorted(set(match.endpoint.parameters) - set(match.values))) or 'nothing'}",
            facts={"errors": errors},
        )
    return sent


async def _plan(
    homelab: Homelab, server: BackupServer, match: BackupMatch, path: str, params: Mapping[str, Text]
) -> Plan:
    endpoint = match.endpoint
    reason = reason_of(endpoint.method, endpoint.template)
    summary = f"{endpoint.method} {path} on {server.name}"
    store = next(iter(match.values.values()), "") if _OF_A_STORE.fullmatch(endpoint.template) else ""
    place = BackupNamespace(server.name, store or "*", str(params.get("ns", "")))
    removes = _REMOVES.fullmatch(endpoint.template) if reason.risk is Risk.DESTROY else None
    group = _group_in(params)

    async def read_state() -> list[str]:
        if removes is None:
            return []
        job = (removes["kind"], match.values["id"]) if removes["kind"] else None
        return await _read_state(server, store, group, job)

    planned = await read_state()

    async def check() -> None:
        if await read_state() != planned:
            raise Conflict(CHANGED, next_step="Nothing was done; call again to see what there is now")

    action = await server_action(
        homelab,
        server,
        place,
        summary,
        (endpoint.method, path, params),
        group=group,
        based_on=planned,
        check=check,
        risk=reason.risk,
        because=reason.words,
        result=lambda answer: {} if answer is None else {"answer": cut(hide_secrets(endpoint.template, answer))},
    )
    concerned = await _everything_in(server, store, params)
    return Plan(summary, (replace(action, concerns=concerned),))


async def _read_state(server: BackupServer, store: str, group: Group | None, job: tuple[str, str] | None) -> list[str]:
    """The backups that a call may remove, in one datastore or all; of a job that it runs, its content and removals."""
    texts: list[str] = []
    if job is not None:
        kind, name = job
        every = {"sync-direction": "all"} if kind == "sync" else {}
        rows = {str(row["id"]): row for row in await server.get(f"/admin/{kind}", **every) or ()}
        if (row := rows.get(name)) is not None:
            texts, store = [*content_of_job(row), *(await find_removals(server, kind, row)).names], str(row["store"])
    stores = await server.datastores()
    for each in [store] if store in stores else stores:
        for backup in await server.backups(each):
            if group is None or backup.group.name == group.name:
                texts.append(f"{backup}{' protected' if backup.protected else ''}")
    return sorted(texts)


def _group_in(params: Mapping[str, Text]) -> Group | None:
    kind, name, time = (str(params.get(f"backup-{part}", "")) for part in ("type", "id", "time"))
    return Group(kind, name, int(time) if time else None) if kind and name else None


async def _everything_in(server: BackupServer, store: str, params: Mapping[str, Text]) -> tuple[Target, ...]:
    """The datastores and guests that a raw call may concern: all, unless it names a datastore, or a guest in one.

    Names of datastores in parameters widen that again: a group can be moved to another datastore.
    """
    stores = await server.datastores()
    named = {
        part
        for value in params.values()
        for text in ([value] if isinstance(value, str) else value)
        for part in text.split(",")
    }
    chosen = {store, *named} & {*stores} if store in stores else {*stores}
    group = _group_in(params)
    concerned = [Target(DATASTORE, f"{server.name}/{name}") for name in sorted(chosen)]
    for name in sorted(chosen):
        if group is not None and chosen == {store}:
            continue
        concerned += await targets_below(server, BackupNamespace(server.name, name), await server.namespaces(name))
    return tuple(dict.fromkeys(concerned))
