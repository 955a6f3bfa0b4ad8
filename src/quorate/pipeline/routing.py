"""Which cluster a call goes to: the one that it names, the one that has its guest or task, or all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from quorate.hints import GUEST_LIST, NAMED, Advice, CalledTool, Sentence, either, see
from quorate.operations.registry import Operation
from quorate.pipeline.caller import Caller
from quorate.pipeline.sites import Site, Sites
from quorate.problems import BadArgument, GuestNotFound, NotFound, Problem, TimedOut
from quorate.pve.inventory import Resource
from quorate.pve.lookup import guests_in, names_guests
from quorate.pve.tasks import Upid, read_state
from quorate.state.runs import RunStore

CLUSTER = "cluster"
"""The argument that names the cluster, where there are several."""
SECONDS = 20.0
"""How long one cluster may delay the others."""


@dataclass(frozen=True, slots=True)
class Route:
    sites: Sequence[Site]
    """One, unless the call reads all clusters."""
    arguments: Mapping[str, Any]
    """The caller's arguments, except those that only name the cluster."""
    silent: Mapping[str, Problem] = field(default_factory=dict)
    """Clusters that did not answer during the lookup."""


async def route(
    sites: Sites, operation: Operation, given: Mapping[str, Any], caller: Caller, *, changes: bool
) -> Route:
    """Find the cluster for a call. With only one cluster this costs no request."""
    if operation.about_homelab:
        assert sites.home is not None
        return Route([sites.home], given)
    open_sites = sites.reachable(caller)
    if not sites.several:
        return Route(open_sites, given)
    arguments = dict(given)
    named = arguments.pop(CLUSTER, None)
    arguments, prefixes = _without_prefixes(arguments, [site.name for site in sites])
    wanted = list(dict.fromkeys([*([str(named).strip()] if named is not None else []), *prefixes]))
    if len(wanted) > 1:
        raise BadArgument(
            f"A call acts on one cluster, not on {' and '.join(wanted)}", next_step="Make a call for each of them"
        )
    if wanted:
        return Route([sites.find(wanted[0], caller)], arguments)
    if len(open_sites) == 1:
        return Route(open_sites, arguments)
    if refs := guests_in(arguments):
        return await _route_by_guests(open_sites, refs, arguments, changes=changes)
    if isinstance(task := arguments.get("task"), str) and "task" in operation.arguments.__struct_fields__:
        return await _route_by_task(open_sites, Upid.parse(task), arguments)
    if isinstance(run := arguments.get("run"), str) and "run" in operation.arguments.__struct_fields__:
        runs = open_sites[0].cluster.attachment(RunStore)
        return Route([sites.find(await runs.cluster_of(run), caller)], arguments)
    if operation.spans == "any":
        return Route(open_sites[:1], arguments)
    if changes or operation.spans == "one":
        raise BadArgument(
            Sentence("{tool} needs to know on which cluster", tool=CalledTool(operation.name)),
            next_step=Advice(f"Give {{cluster}}: {', '.join(site.name for site in open_sites)}", cluster=NAMED),
        )
    return Route(open_sites, arguments)


# -- references --------------------------------------------------------------------------------------------------------


def _without_prefixes(given: Mapping[str, Any], names: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """`prod/web01` as `web01`, and the clusters named this way."""
    found: list[str] = []

    def plain(ref: Any) -> Any:
        if isinstance(ref, list):
            return [plain(one) for one in ref]
        first, slash, rest = str(ref).strip().partition("/")
        if not slash or first.strip() not in names:
            return ref
        found.append(first.strip())
        return rest

    arguments = {name: plain(value) if names_guests(name, given) else value for name, value in given.items()}
    return arguments, list(dict.fromkeys(found))


# -- looking in all of them --------------------------------------------------------------------------------------------


async def _route_by_guests(
    sites: Sequence[Site], refs: Sequence[int | str], arguments: Mapping[str, Any], *, changes: bool
) -> Route:
    """The one cluster that has all the guests."""
    homes: dict[int | str, list[str]] = {}
    silent: dict[str, Problem] = {}
    for closer in (False, True):  # a guest created seconds ago appears only at a second look
        missing = [ref for ref in refs if not homes.get(ref)]
        found, silent = await _ask_all(sites, partial(_having, refs=missing, closer=closer))
        for ref in missing:
            homes[ref] = [name for name, having in found.items() for _ in having[ref]]
        if all(homes.values()):
            break
    for ref, names in homes.items():
        _refuse_unclear(ref, names, silent, changes=changes)
    chosen = {names[0] for names in homes.values()}
    if len(chosen) > 1:
        where = "; ".join(f"{names[0]}/{ref}" for ref, names in homes.items())
        raise BadArgument(
            "The guests are in several clusters", why=f"They are {where}", next_step="Make a call for each cluster"
        )
    return Route([site for site in sites if site.name in chosen], arguments, silent)


async def _having(site: Site, refs: Sequence[int | str], *, closer: bool) -> dict[int | str, list[Resource]]:
    return {ref: await site.cluster.inventory.matching(ref, closer=closer) for ref in refs}


def _refuse_unclear(ref: int | str, names: Sequence[str], silent: Mapping[str, Problem], *, changes: bool) -> None:
    if len(set(names)) > 1:
        raise BadArgument(
            f"Several clusters have a guest {str(ref)!r}",
            why=f"They are {', '.join(f'{name}/{ref}' for name in dict.fromkeys(names))}",
            next_step=either("Choose one of these", Advice("give {cluster}", cluster=NAMED)),
        )
    away = ", ".join(silent)
    if not names:
        raise GuestNotFound(
            f"No cluster has a guest {str(ref)!r}",
            why=f"{away} did not answer: {next(iter(silent.values())).what}" if silent else None,
            next_step=see("See the guests of all clusters", GUEST_LIST),
        )
    if changes and silent:
        raise BadArgument(
            f"It is not certain that {names[0]}/{ref} is the right guest",
            why=f"{away} did not answer, and may also have a guest of that name",
            next_step=f"If it is, call again with {names[0]}/{ref}",
        )


async def _route_by_task(sites: Sequence[Site], task: Upid, arguments: Mapping[str, Any]) -> Route:
    """The cluster that has the task's node; if several do, the one that knows the task."""
    having, silent = await _ask_all(sites, lambda site: _has_node(site, task.node))
    chosen = [site for site in sites if having.get(site.name)]
    if len(chosen) > 1:
        own = [site for site in chosen if task.text in site.cluster.own_tasks]
        knowing, _ = await _ask_all(chosen, lambda site: read_state(site.cluster.client, task)) if not own else ({}, {})
        chosen = own or [site for site in chosen if site.name in knowing]
    if len(chosen) == 1:
        return Route(chosen, arguments, silent)
    names = ", ".join(site.name for site in chosen or sites)
    what = (
        f"Several clusters know the task {task.text}" if chosen else f"No cluster that answers has a task {task.text}"
    )
    raise BadArgument(what, next_step=Advice(f"Give {{cluster}}: {names}", cluster=NAMED))


async def _has_node(site: Site, name: str) -> bool:
    try:
        return bool(await site.cluster.inventory.node(name))
    except NotFound:
        return False


async def _ask_all(
    sites: Sequence[Site], ask: Callable[[Site], Awaitable[Any]]
) -> tuple[dict[str, Any], dict[str, Problem]]:
    """The answers of the clusters, and the problems of those that failed or timed out."""
    answers = await asyncio.gather(*(ask_within_limit(site, ask) for site in sites))
    by_site = {site.name: answer for site, answer in zip(sites, answers, strict=True)}
    problems = {name: answer for name, answer in by_site.items() if isinstance(answer, Problem)}
    return {name: answer for name, answer in by_site.items() if name not in problems}, problems


async def ask_within_limit(site: Site, ask: Callable[[Site], Awaitable[Any]]) -> Any:
    """The answer or the problem of one cluster, within the time limit."""
    try:
        async with asyncio.timeout(SECONDS):
            return await ask(site)
    except Problem as problem:
        return problem
    except TimeoutError:
        return TimedOut(f"{site.name} did not answer within {SECONDS:g} s")
