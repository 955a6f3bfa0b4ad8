"""Privileges of users and tokens: those held, those missing for a tool or an access level, and how to grant them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from quorate.hints import NAMED, Advice, either
from quorate.operations.arguments import with_known_names
from quorate.operations.plan import Plan
from quorate.operations.privileges import NeededCall, calls_of_level, missing_privileges, paths_of, root_only_calls
from quorate.operations.registry import (
    PIPELINE_ARGUMENTS,
    SUPPLIED,
    TOOLSETS,
    GuestRefs,
    Operation,
    Risk,
    operation,
    operations,
)
from quorate.problems import BadArgument, PermissionMissing, Problem
from quorate.pve.cluster import Cluster, ReadOnlyCluster
from quorate.pve.tasks import gather_bounded
from quorate.suggestions import did_you_mean, similar
from quorate.tools.acl import checked_path
from quorate.tools.directory import PLAIN_ID, acl, holder, roles

READS_AT_ONCE = 8
PATHS_AT_ONCE = 50
GUESTS_AT_ONCE = 20
TOOLS_NAMED = 5
ROOT = "root@pam"
READS_LOCAL_FILES = frozenset({"image_upload"})

PrivilegeMap = dict[str, dict[str, int]]
"""Path -> privilege -> whether it also holds below."""


@operation(
    toolset="access",
    risk=Risk.READ,
    search_words="someone user token allowed to may rights missing privilege denied refused cannot 403",
)
async def permission_audit(
    pve: Cluster,
    who: Annotated[str, Meta(description="user@realm or user@realm!token; default: Quorate's own")] | None = None,
    paths: Annotated[list[str], Meta(description="/vms/100, /storage/local …")] | None = None,
    guests: GuestRefs | None = None,
    privileges: Annotated[list[str], Meta(description="Are these held on the paths?")] | None = None,
    tool: Annotated[str, Meta(description="What would this tool need?")] | None = None,
    arguments: Annotated[dict[str, Any], Meta(description="The tool's arguments")] | None = None,
    level: Annotated[Literal["read", "operate", "admin"], Meta(description="What would this access level need?")]
    | None = None,
    toolsets: Annotated[list[str], Meta(description="For level; default: all but api")] | None = None,
) -> dict[str, Any]:
    """What a user or token may do on paths and guests; what it lacks for a tool call (planned, not run) or an
    access level, with the pveum commands that grant it."""
    identity = who or pve.client.identity
    if tool and level:
        raise BadArgument("tool and level cannot be combined", next_step="Ask for one at a time")
    asked = await _paths(pve, paths or [], guests)
    effective = await _EffectivePrivileges.of(pve, identity)
    answer: dict[str, Any] = {"who": identity}
    if tool:
        return answer | await _for_tool(pve, effective, tool, arguments or {})
    if level:
        return answer | await _for_level(pve, effective, level, toolsets, asked)
    if arguments or toolsets:
        raise BadArgument("arguments requires tool, and toolsets requires level")
    held = await effective.on(asked) if asked else await effective.everywhere()
    answer |= {"rights": await _describe(pve, held)}
    if privileges:
        answer |= await _for_privileges(pve, effective, privileges, asked)
    return answer


async def _paths(pve: Cluster, paths: list[str], guests: Any) -> list[str]:
    refs = guests if isinstance(guests, list) else [] if guests is None else [guests]
    if len(paths) > PATHS_AT_ONCE or len(refs) > GUESTS_AT_ONCE:
        raise BadArgument(
            "Too many at once", next_step=f"Give at most {PATHS_AT_ONCE} paths and {GUESTS_AT_ONCE} guests"
        )
    checked = [checked_path(path) for path in paths]
    checked += [f"/vms/{(await pve.guest(ref)).vmid}" for ref in refs]
    return list(dict.fromkeys(checked))


@dataclass(slots=True)
class _EffectivePrivileges:
    """Effective privileges of one user or token, read when needed."""

    pve: Cluster
    who: str
    known: PrivilegeMap = field(default_factory=dict)

    @classmethod
    async def of(cls, pve: Cluster, who: str) -> _EffectivePrivileges:
        effective = cls(pve, who)
        held = await effective.on(["/"])
        if not held["/"] and who != pve.client.identity:
            await effective._refuse_unknown()
        return effective

    async def _refuse_unknown(self) -> None:
        """Raise if the user or token does not exist: PVE reports no privileges for it, and refuses to show it."""
        user, _, token = self.who.partition("!")
        with contextlib.suppress(PermissionMissing):
            await self.pve.get(f"/access/users/{user}" + (f"/token/{token}" if token else ""))

    async def on(self, paths: Iterable[str]) -> PrivilegeMap:
        requested = list(dict.fromkeys(paths))
        fresh = [path for path in requested if path not in self.known]
        answers = await gather_bounded(READS_AT_ONCE, [partial(self._read, path=path) for path in fresh])
        self.known |= {path: answer.get(path, {}) for path, answer in zip(fresh, answers, strict=True)}
        return {path: self.known[path] for path in requested}

    async def everywhere(self) -> PrivilegeMap:
        privileges = await self._read()
        return dict(sorted(privileges.items())[:PATHS_AT_ONCE])

    async def _read(self, **params: str) -> PrivilegeMap:
        if self.who != self.pve.client.identity:
            params["userid"] = self.who
        privileges: PrivilegeMap = await self.pve.get("/access/permissions", **params)
        return privileges

    def has(self, path: str, privilege: str) -> bool:
        """Held on the path, and below it where the path represents all objects below."""
        held = self.known.get(path, {}).get(privilege)
        return held is not None and (bool(held) or path.count("/") > 1)


async def _describe(pve: Cluster, held: PrivilegeMap) -> list[dict[str, Any]]:
    """Group paths with the same privileges; a set of privileges that equals a role is shown as that role."""
    by_set = {
        frozenset(filter(None, role.get("privs", "").split(","))): name for name, role in (await roles(pve)).items()
    }
    together: dict[frozenset[str], list[str]] = {}
    for path, privileges in held.items():
        together.setdefault(frozenset(privileges), []).append(path)
    return [
        {
            "paths": paths,
            "may": f"all of role {by_set[privileges]}"
            if privileges and privileges in by_set
            else ", ".join(sorted(privileges)) or "nothing",
        }
        for privileges, paths in together.items()
    ]


# -- missing privileges ------------------------------------------------------------------------------------------------


async def _for_privileges(
    pve: Cluster, effective: _EffectivePrivileges, requested: list[str], paths: list[str]
) -> dict[str, Any]:
    known = (await pve.facts()).privileges
    for name in requested:
        if name not in known:
            raise BadArgument(f"There is no privilege {name!r}", next_step=f"Available: {', '.join(known)}")
    on = paths or ["/"]
    await effective.on(on)
    missing: dict[str, dict[str, list[str]]] = {
        path: {name: [] for name in requested if not effective.has(path, name)}
        for path in on
        if any(not effective.has(path, name) for name in requested)
    }
    return await _verdict(pve, effective, missing, "custom")


async def _for_level(
    pve: Cluster, effective: _EffectivePrivileges, level: str, toolsets: list[str] | None, paths: list[str]
) -> dict[str, Any]:
    for name in toolsets or []:
        if name not in TOOLSETS:
            raise BadArgument(f"There is no toolset {name!r}", next_step=f"Available: {', '.join(TOOLSETS)}")
    places = [_path_values(path) for path in paths] or [{}]
    calls = calls_of_level(level, toolsets or [name for name in TOOLSETS if name != "api"], places)
    facts = await pve.facts()
    await effective.on(paths_of(facts, calls, effective.who))
    missing = missing_privileges(facts, calls, effective.who, effective.has)
    return await _verdict(
        pve, effective, {path: missing[path] for path in missing if path in (paths or missing)}, level
    )


def _path_values(path: str) -> dict[str, str]:
    """The values that a path gives for the paths of calls."""
    kind, _, name = path.strip("/").partition("/")
    key = {"vms": "vmid", "nodes": "node", "storage": "storage", "pool": "poolid"}.get(kind)
    if key is None or not name:
        raise BadArgument(
            f"{path} does not narrow an access level",
            next_step=either(
                Advice("Give {guests}", guests=NAMED), Advice("{paths} as /vms/100, /nodes/pve1", paths=NAMED)
            ),
        )
    return {key: name}


async def _for_tool(
    pve: Cluster, effective: _EffectivePrivileges, tool: str, arguments: dict[str, Any]
) -> dict[str, Any]:
    chosen = operations(TOOLSETS).get(tool)
    if chosen is None or chosen.name == "permission_audit":
        raise BadArgument(f"There is no tool {tool!r} to look at", next_step=_suggest_tools(tool))
    values = _decode_arguments(chosen, arguments)
    _refuse_to_try(chosen, values)
    observed = ReadOnlyCluster(pve)
    facts = await pve.facts()
    stopped: PermissionMissing | None = None
    plan: Plan | None = None
    try:
        result = await chosen.run(observed, **values)
        plan = result if isinstance(result, Plan) else None
    except PermissionMissing as problem:
        stopped = problem  # these credentials cannot see more; return what is known so far
    calls = [("GET", path, params) for path, params in observed.reads]
    calls += [(call.method, call.path, dict(call.params)) for call in plan.api_calls] if plan else []
    needed = []
    for method, path, params in calls:
        match = facts.find(method, path)
        if match is not None:
            needed.append(NeededCall(method, match.endpoint.template, {**match.values, **params}))
    await effective.on(paths_of(facts, needed, effective.who))
    answer = await _verdict(pve, effective, missing_privileges(facts, needed, effective.who, effective.has), tool)
    if root := root_only_calls(facts, needed):
        answer["only_root"] = root
    if stopped is not None:
        answer["note"] = f"Quorate's own privileges are not sufficient to determine the whole call: {stopped.what}"
    return {"plan": plan.summary if plan else "", **answer}


def _suggest_tools(tool: str) -> str:
    """Tools with a similar name, or with the same noun: names are noun_verb."""
    known = [name for name in operations(TOOLSETS) if name != "permission_audit"]
    near = similar(tool, known, 3)
    noun = tool.partition("_")[0]
    near += [name for name in known if name.startswith(f"{noun}_") and name not in near][: TOOLS_NAMED - len(near)]
    return did_you_mean(near) if near else "Give the name of a tool"


def _refuse_to_try(chosen: Operation, values: Mapping[str, Any]) -> None:
    """Anyone may call this, so it must not do more than read the cluster, not even to plan."""
    risk = chosen.risk if chosen.risk_of is None else chosen.risk_of(values)
    if risk is Risk.LOOK_INSIDE:
        reason = "looking inside a guest"
    elif chosen.name in READS_LOCAL_FILES:
        reason = "reading a file"
    elif chosen.wants_other_cluster:
        reason = "reading another cluster"
    else:
        return
    raise BadArgument(
        f"{chosen.name} cannot be tried without {reason}",
        next_step=Advice("Ask for {level} {toolsets}", level="operate", toolsets=chosen.toolset),
    )


def _decode_arguments(chosen: Operation, arguments: Mapping[str, Any]) -> dict[str, Any]:
    known = chosen.arguments.__struct_fields__
    arguments = with_known_names(chosen, arguments)
    for name in arguments:
        if name not in known:
            raise BadArgument(f"{chosen.name} has no argument {name!r}", next_step=f"It takes {', '.join(known)}")
    try:
        decoded = msgspec.convert(dict(arguments), chosen.arguments, strict=False)
    except msgspec.ValidationError as error:
        raise BadArgument(
            f"With these arguments {chosen.name} cannot be planned",
            why=str(error),
            next_step=Advice("Give them as for the tool itself, in {arguments}", arguments=NAMED),
        ) from None
    values = {name: getattr(decoded, name) for name in known if name not in PIPELINE_ARGUMENTS}
    return values | {name: SUPPLIED[kind] for name, kind in chosen.supplied.items()}


async def _verdict(
    pve: Cluster, effective: _EffectivePrivileges, missing: Mapping[str, Mapping[str, list[str]]], label: str
) -> dict[str, Any]:
    if not missing:
        return {"allowed": True}
    listed = [
        {
            "path": path,
            "privileges": sorted(lacking),
            "for": sorted({call for calls in lacking.values() for call in calls})[:5],
        }
        for path, lacking in sorted(missing.items())
    ]
    return {
        "allowed": False,
        "missing": [{key: value for key, value in entry.items() if value} for entry in listed],
        **await _commands(pve, effective, {path: set(lacking) for path, lacking in missing.items()}, label),
    }


# -- grants ------------------------------------------------------------------------------------------------------------


async def _commands(
    pve: Cluster, effective: _EffectivePrivileges, missing: Mapping[str, set[str]], label: str
) -> dict[str, Any]:
    """A token with privilege separation is limited by its user: both may need more."""
    user, _, token = effective.who.partition("!")
    notes: list[str] = []
    holders = [effective]
    if token:
        separate = await _is_separate(pve, user, token)
        if separate is None:
            notes.append(f"If the token was created with privsep=0, the grants to {user} are enough")
        if separate is False:
            holders = []
        if user != ROOT:
            try:
                owner = await _EffectivePrivileges.of(pve, user)
                await owner.on(missing)
                holders.insert(0, owner)
            except Problem:
                # The user holds at least what the token holds, and must hold what the token will get.
                holders.insert(0, _EffectivePrivileges(pve, user, dict(effective.known)))
                notes.append(f"What {user} holds beyond the token is not known: if it is more, keep it in the roles")
    commands: list[str] = []
    known_roles = {
        name: set(filter(None, role.get("privs", "").split(","))) for name, role in (await roles(pve)).items()
    }
    entries = await acl(pve)
    for grantee in holders:
        commands += _grants(grantee, missing, f"Quorate-{label}", known_roles, entries)
    notes.append("An entry replaces what its path inherits, so the roles repeat what is held there now")
    return {"commands": commands, "notes": notes}


async def _is_separate(pve: Cluster, user: str, token: str) -> bool | None:
    """The token has privilege separation; None if these credentials cannot see it."""
    try:
        return bool(int((await pve.get(f"/access/users/{user}/token/{token}")).get("privsep", 1)))
    except Problem:
        return None


def _grants(
    effective: _EffectivePrivileges,
    missing: Mapping[str, set[str]],
    name: str,
    known_roles: dict[str, set[str]],
    entries: list[dict[str, Any]],
) -> list[str]:
    """Commands for a shell on a node. What is held now and would be replaced goes into the role as well."""
    option = "--tokens" if "!" in effective.who else "--users"
    commands: list[str] = []
    for path, lacking in sorted(missing.items()):
        held = effective.known.get(path, {})
        if not lacking - held.keys():
            continue
        needed = lacking | {privilege for privilege, below in held.items() if below}
        role, fresh = _role_for(needed, name if PLAIN_ID.fullmatch(name) else "Quorate", known_roles)
        if fresh:
            commands.append(f"pveum role add {role} --privs '{','.join(sorted(needed))}'")
        denied = any(
            entry["path"] == path and holder(entry) == effective.who and entry["roleid"] == "NoAccess"
            for entry in entries
        )
        if denied:
            commands.append(f"pveum acl delete {path} --roles NoAccess {option} '{effective.who}'")
        commands.append(f"pveum acl modify {path} --roles {role} {option} '{effective.who}'")
    return commands


def _role_for(privileges: set[str], name: str, known_roles: dict[str, set[str]]) -> tuple[str, bool]:
    """A role with exactly these privileges: an existing one of Quorate's, else a new one under a free name."""
    for role, held in known_roles.items():
        if role.startswith("Quorate-") and held == privileges:
            return role, False
    number = 1
    while (free := name if number == 1 else f"{name}-{number}") in known_roles:
        number += 1
    known_roles[free] = set(privileges)
    return free, True
