"""Privileges of users and tokens: those held, those missing for a tool or an access level, and how to grant them."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any, Literal

from msgspec import Meta

from pve_schema.schema import Facts
from quorate.hints import NAMED, Advice, Sentence, either, see, tools
from quorate.operations.arguments import WrongArguments, decode, with_known_names
from quorate.operations.option_privileges import joined_pool
from quorate.operations.plan import Call, Plan
from quorate.operations.privileges import (
    ROOT,
    NeededCall,
    calls_of_level,
    closed_calls,
    including_privileges,
    is_decided,
    missing_privileges,
    paths_of,
)
from quorate.operations.registry import (
    PIPELINE_ARGUMENTS,
    SUPPLIED,
    TOOLSETS,
    GuestRefs,
    Operation,
    Risk,
    find_operation,
    operation,
    operations,
)
from quorate.problems import BadArgument, Conflict, PermissionMissing, Problem
from quorate.pve.cluster import Cluster, Rehearsal
from quorate.pve.tasks import gather_bounded
from quorate.pve.values import DISKS, bus_of
from quorate.suggestions import did_you_mean, similar
from quorate.tools.acl import checked_path
from quorate.tools.directory import PLAIN_ID, TOKEN_ID, USER_ID, acl, holder, roles
from quorate.tools.token_trial import TokenTrial, as_token

READS_AT_ONCE = 8
PATHS_AT_ONCE = 50
GUESTS_AT_ONCE = 20
TOOLS_NAMED = 5
ATTEMPTS = 20
GUEST_KINDS = {"vm": "qemu", "ct": "lxc"}
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
    secret: Annotated[str, Meta(description="Where the token's secret is, vault:CLUSTER-NAME: asks PVE as the token")]
    | None = None,
) -> dict[str, Any]:
    """What a user or token may do on paths and guests; what it lacks for a tool call (planned, not run) or an
    access level, with the pveum commands that grant it."""
    identity = who or pve.client.identity
    if not (USER_ID.fullmatch(identity) or TOKEN_ID.fullmatch(identity)):
        raise BadArgument(
            f"{identity!r} is neither a user nor a token",
            next_step=see("Write user@realm or user@realm!token, as in the list", tools.access_list(kind="users")),
        )
    if tool and level:
        raise BadArgument("tool and level cannot be combined", next_step="Ask for one at a time")
    asked = await _paths(pve, paths or [], guests)
    if arguments and not tool:
        raise BadArgument(_needs("arguments", "tool"), next_step=Advice("Give {tool}", tool=NAMED))
    if toolsets and not level:
        raise BadArgument(_needs("toolsets", "level"), next_step=Advice("Give {level}", level=NAMED))
    question = partial(_answer, pve, asked, privileges, tool, arguments, level, toolsets)
    if secret is None:
        return {"who": identity, **await question(await _EffectivePrivileges.of(pve, identity))}
    async with as_token(pve, identity, secret) as trial:
        answer = await question(await _EffectivePrivileges.of(pve, identity, trial))
        return {"who": identity, **answer, "exercised": f"PVE answered {trial.reads} reads as {identity}"}


def _needs(given: str, other: str) -> Sentence:
    return Sentence(f"{{{given}}} needs {{{other}}}", **{given: NAMED, other: NAMED})


async def _answer(
    pve: Cluster,
    asked: list[str],
    privileges: list[str] | None,
    tool: str | None,
    arguments: dict[str, Any] | None,
    level: str | None,
    toolsets: list[str] | None,
    effective: _EffectivePrivileges,
) -> dict[str, Any]:
    if tool:
        return await _for_tool(pve, effective, tool, arguments or {})
    if level:
        return await _for_level(pve, effective, level, toolsets, asked)
    held = await effective.on(asked) if asked else await effective.everywhere()
    answer: dict[str, Any] = {"rights": await _describe(pve, held)}
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
    trial: TokenTrial | None = None
    """A connection as this token, which PVE itself answers."""

    @classmethod
    async def of(cls, pve: Cluster, who: str, trial: TokenTrial | None = None) -> _EffectivePrivileges:
        effective = cls(pve, who, trial=trial)
        held = await effective.on(["/"])
        if not held["/"] and who != pve.client.identity and trial is None:
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
        if self.trial is not None:
            own: PrivilegeMap = await self.trial.privileges(**params)
            blank = await self.pve.blanker()  # the token may see guests that the rules hide from the caller
            return {path: held for path, held in own.items() if blank(path) == path}
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
    facts = await pve.facts()
    included = {name: including_privileges(facts, name) for name in requested}
    missing: dict[str, dict[str, list[str]]] = {}
    covered: list[str] = []
    for path, name in itertools.product(on, requested):
        if effective.has(path, name):
            continue
        if wider := sorted(other for other in included[name] if effective.has(path, other)):
            covered.append(f"{path}: {wider[0]} is held, and PVE takes it wherever it asks for {name}")
        else:
            missing.setdefault(path, {})[name] = []
    answer = await _verdict(pve, effective, missing, "custom")
    return {**answer, "included": covered} if covered else answer


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
    if chosen is None and find_operation(tool) is not None:
        raise BadArgument(
            f"What {tool} needs is not a question of PVE's privileges alone",
            why="Hosts and backup servers have logins of their own",
            next_step="Name a tool that is about a cluster",
        )
    if chosen is None:
        raise BadArgument(f"There is no tool {tool!r}", next_step=_suggest_tools(tool))
    if chosen.name == "permission_audit":
        raise BadArgument(f"{tool} cannot look at itself", next_step="Name another tool")
    values = _decode_arguments(chosen, arguments)
    _refuse_to_try(chosen, values)
    facts = await pve.facts()
    rehearsed = await _rehearse(pve, facts, effective, chosen, values)
    plan, needed = rehearsed.plan, [*rehearsed.refused_reads]
    calls = [await _complete_call(pve, facts, call) for call in (plan.api_calls if plan else ())]
    needed += [call for call in calls if call is not None] + _reads_of_targets(plan)
    pools: dict[str, str] = {}
    for call in calls:
        pools |= joined_pool(call.values) if call is not None else {}
    await effective.on([*paths_of(facts, needed, effective.who), *pools.values()])

    def has(path: str, privilege: str) -> bool:
        return effective.has(path, privilege) or (path in pools and effective.has(pools[path], privilege))

    answer = await _verdict(pve, effective, missing_privileges(facts, needed, effective.who, has), tool)
    if root := closed_calls(facts, needed, effective.who):
        answer |= {"allowed": False, "only_root": root}
    notes = []
    if rehearsed.stopped is not None:
        answer["allowed"] = False
        notes.append(
            f"Quorate's own privileges are not sufficient to determine the whole call: {rehearsed.stopped.what}"
        )
    elif rehearsed.unplanned is not None:
        if answer["allowed"]:
            answer["allowed"] = "unknown"
        notes.append(f"The call cannot be planned as things are: {rehearsed.unplanned.what}")
    if undecided := sorted({call.name for call in calls if call is not None and not is_decided(facts, call)}):
        notes.append(f"PVE also decides in its code, by what is there: {', '.join(undecided)}")
    notes += [f"It would be refused now, whatever the privileges: {obstacle}" for obstacle in rehearsed.obstacles]
    notes += answer.pop("notes", [])
    return {"plan": plan.summary if plan else "", **answer, **({"notes": notes} if notes else {})}


async def _complete_call(pve: Cluster, facts: Facts, call: Call) -> NeededCall | None:
    """A call with what PVE looks at besides: for a clone, the cards and disks of the original."""
    needed = _needed_call(facts, call.method, call.path, call.params)
    if needed is None or not call.path.endswith("/clone"):
        return needed
    config = await pve.get(f"{call.path.removesuffix('/clone')}/config")
    devices = {option: value for option, value in config.items() if bus_of(option) in (*DISKS, "net")}
    return replace(needed, values={**devices, **needed.values})


def _reads_of_targets(plan: Plan | None) -> list[NeededCall]:
    """Quorate looks at what a change is about before and after it, and tools create the pool that they do not see."""
    targets = {call.target for call in plan.api_calls if call.target} if plan else set()
    reads = []
    for target in sorted(targets, key=str):
        if target.kind in GUEST_KINDS:
            where = {"node": target.node, "vmid": target.id}
            reads.append(NeededCall("GET", f"/nodes/{{node}}/{GUEST_KINDS[target.kind]}/{{vmid}}/config", where))
        elif target.kind == "pool":
            reads.append(NeededCall("GET", "/pools", {"poolid": target.id}))
    return reads


@dataclass(slots=True)
class _Rehearsed:
    """What planning a call for someone has shown."""

    plan: Plan | None = None
    refused_reads: list[NeededCall] = field(default_factory=list)
    """Those without which it could not be planned."""
    obstacles: list[str] = field(default_factory=list)
    stopped: PermissionMissing | None = None
    unplanned: Conflict | None = None


async def _rehearse(
    pve: Cluster, facts: Facts, effective: _EffectivePrivileges, chosen: Operation, values: Mapping[str, Any]
) -> _Rehearsed:
    """Plan the call as PVE would let `effective.who` do it: a read that PVE would refuse to them is refused here.

    Tools do without some reads. One that the plan cannot do without is noted and allowed in the next attempt.
    """
    rehearsed, is_self = _Rehearsed(), effective.who == pve.client.identity
    refused: dict[str, NeededCall] = {}

    async def check(path: str, params: Mapping[str, Any]) -> None:
        call = None if is_self else _needed_call(facts, "GET", path, params)
        if call is None or call in rehearsed.refused_reads:
            return
        if effective.trial is not None:
            is_refused = await effective.trial.refusal(path, params) is not None
        else:
            await effective.on(paths_of(facts, [call], effective.who))
            is_refused = bool(missing_privileges(facts, [call], effective.who, effective.has))
        if is_refused:
            refused[f"GET {path}"] = call
            raise PermissionMissing(f"{effective.who} may not read {path}", facts={"request": f"GET {path}"})

    for _ in range(ATTEMPTS):
        view = Rehearsal(pve, check)
        try:
            result = await chosen.run(view, **values)
        except PermissionMissing as problem:
            request = str(problem.facts.get("request", ""))
            call = refused.get(request) or _needed_call(facts, *request.partition(" ")[::2], {})
            known = call is None or call in rehearsed.refused_reads
            rehearsed.refused_reads += [] if call is None or known else [call]
            if known or is_self:
                rehearsed.stopped = problem
                return rehearsed
        except Conflict as problem:
            rehearsed.unplanned = problem
            return rehearsed
        else:
            rehearsed.plan = result if isinstance(result, Plan) else None
            rehearsed.obstacles = view.obstacles
            return rehearsed
    return rehearsed


def _needed_call(facts: Facts, method: str, path: str, params: Mapping[str, Any]) -> NeededCall | None:
    match = facts.find(method, path)
    return None if match is None else NeededCall(method, match.endpoint.template, {**match.values, **params})


def _suggest_tools(tool: str) -> str:
    """Tools with a similar name, or with the same noun: names are noun_verb."""
    known = [name for name in operations(TOOLSETS) if name != "permission_audit"]
    noun = tool.partition("_")[0]
    near = similar(tool, known, 3) or [name for name in known if name.startswith(f"{noun}_")][:TOOLS_NAMED]
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
    try:
        decoded = decode(chosen, with_known_names(chosen, arguments))
    except WrongArguments as problem:
        where = Advice("What is given to it goes into {arguments}", arguments=NAMED)
        problem.advice = problem.advice.then(where) if problem.advice else where
        raise
    values = {name: value for name, value in decoded.items() if name not in PIPELINE_ARGUMENTS}
    return values | {name: SUPPLIED[kind] for name, kind in chosen.supplied.items()}


async def _verdict(
    pve: Cluster, effective: _EffectivePrivileges, missing: Mapping[str, Mapping[str, list[str]]], label: str
) -> dict[str, Any]:
    if not missing:
        return {"allowed": True}
    facts = await pve.facts()
    listed = [
        {
            "path": path,
            "privileges": sorted(lacking),
            "or": [
                f"{other} instead of {name}"
                for name in sorted(lacking)
                for other in sorted(including_privileges(facts, name))
            ],
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
