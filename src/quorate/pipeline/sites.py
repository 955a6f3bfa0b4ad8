"""The clusters that this server manages, each with its policy; which of them a call goes to, and reads of several."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from quorate.config import Access, ConfigError, Settings
from quorate.config.policy import NO_LIMITS, NO_POLICY, Policy, Rule
from quorate.config.sources import suggest_setting
from quorate.hints import NAMED, Advice, CalledTool, Sentence, either, see, tools
from quorate.operations.backend import Backend
from quorate.operations.registry import (
    ALL,
    DEFAULT,
    EVERY,
    IllustratedFacts,
    Operation,
    Risk,
    Table,
    describe_unknown,
    expand,
    operations,
)
from quorate.pipeline.caller import Caller, Gate, wider_token
from quorate.pipeline.policy import NO_RULES, Meter, Rulebook, matches
from quorate.problems import BadArgument, GuestNotFound, NotConfigured, NotFound, Problem, answer_within
from quorate.pve.cluster import Cluster
from quorate.pve.inventory import Resource
from quorate.pve.lookup import guests_in, names_guests
from quorate.pve.tasks import Upid, read_state
from quorate.runs.store import RunStore
from quorate.state.limits import Reservation
from quorate.suggestions import suggest


@dataclass(slots=True)
class Site:
    """A cluster or the homelab with its policy, which can change while the server runs."""

    backend: Backend
    access: Access | None = None
    """Overrides the server's access level."""
    own: Policy = NO_POLICY
    """The policy of this cluster alone."""
    rules: Rulebook = NO_RULES
    """Its own rules and the general ones that apply here."""
    meters: tuple[Meter, ...] = ()

    @property
    def name(self) -> str:
        return self.backend.name

    @property
    def cluster(self) -> Cluster:
        return self.backend.api

    @property
    def guards(self) -> bool:
        """Its policy may be stricter than that of the homelab."""
        return self.rules.about_targets or self.access is not None

    def gate(self, general: Gate) -> Gate:
        access = general.access if self.access is None else self.access
        own_level = self.access is not None
        return replace(general, access=access, own_level=own_level, cluster=self.name, rules=self.rules)


def reservations(parts: Sequence[tuple[Site, int]], operation: Operation, risk: Risk) -> list[Reservation]:
    """What a plan uses of each limit. `parts` are the numbers of steps at each site; sites may share a meter.

    Destructive steps are counted even where nothing limits them: a limit that is set later applies to the whole hour.
    """
    meters = {id(meter): meter for site, _ in parts for meter in site.meters}
    return [
        meter.reservation(operation, risk, sum(count for site, count in parts if key in map(id, site.meters)))
        for key, meter in meters.items()
        if risk is Risk.DESTROY or meter.counts(risk)
    ]


class Sites:
    def __init__(self, sites: Sequence[Site] = (), *, home: Site | None = None, problem: str | None = None) -> None:
        self.general = Gate()
        """Applies where a cluster has no settings of its own."""
        self.refresh: Callable[[], None] = lambda: None
        """Called before every call and list; loads the settings again if they changed."""
        self.home = home
        """The homelab around the clusters."""
        self._sites = {site.name: site for site in sites}
        self._problem = problem

    def __iter__(self) -> Iterator[Site]:
        return iter(self._sites.values())

    @property
    def everywhere(self) -> list[Site]:
        return [*self, *([self.home] if self.home else [])]

    def site_of(self, cluster: Cluster) -> Site:
        """The site of one of our clusters or a filtered view of it."""
        return self._sites[cluster.name]

    def for_operation(self, operation: Operation, caller: Caller) -> list[Site]:
        """The sites where the caller's credentials allow the operation."""
        if not operation.about_homelab:
            return self.open_to(caller)
        return [self.home] if self.home else []

    @property
    def several(self) -> bool:
        return len(self._sites) > 1

    def open_to(self, caller: Caller) -> list[Site]:
        """The clusters in the scope of the caller's credentials."""
        clusters = caller.scope.clusters
        return [site for site in self if clusters is None or site.name in clusters]

    def reachable(self, caller: Caller) -> list[Site]:
        """Like `open_to`, but raises if there is none."""
        if not self._sites:
            raise NotConfigured(self._problem or "No Proxmox VE cluster is configured")
        if sites := self.open_to(caller):
            return sites
        raise BadArgument(
            f"No cluster is within the scope of {caller.subject or 'this token'}",
            next_step=wider_token("other --clusters"),
        )

    def find(self, name: object, caller: Caller) -> Site:
        """The requested cluster. One outside the caller's scope is as unknown as one that does not exist."""
        known = {site.name: site for site in self.reachable(caller)}
        text = str(name).strip()
        if text in known:
            return known[text]
        hint = suggest(text, known, f"The clusters are {', '.join(known)}")
        raise BadArgument(f"There is no cluster {text!r}", next_step=hint)


def make_sites(settings: Settings, clusters: Sequence[Cluster], home: Backend | None = None) -> Sites:
    together = Meter(settings.policy.limits)

    def site(backend: Backend) -> Site:
        return Site(backend, meters=(together, Meter(NO_LIMITS, backend.name)))

    sites = Sites(list(map(site, clusters)), home=site(home) if home else None, problem=settings.problem)
    govern(sites, settings)
    return sites


def govern(sites: Sites, settings: Settings) -> None:
    """Apply the settings from now on, or raise ConfigError. Added or removed clusters need a restart."""
    chosen = chosen_toolsets(settings)
    general = Gate(settings.access, chosen, settings.look_inside, opt_ins=settings.applicable_opt_ins)
    refuse_mistakes([*settings.policy.rules, *(rule for cluster in settings.clusters for rule in cluster.policy.rules)])
    own = {cluster.name: cluster for cluster in settings.clusters}
    sites.general = general
    for site in sites.everywhere:
        if there := own.get(site.name):
            site.access, site.own = there.access, there.policy
        site.rules = Rulebook((*settings.policy.of_cluster(site.name), *site.own.rules))
        together, alone = site.meters
        together.limits, alone.limits = settings.policy.limits, site.own.limits


def chosen_toolsets(settings: Settings) -> frozenset[str]:
    chosen = settings.toolsets or (DEFAULT,)
    if settings.watch is not None and DEFAULT in chosen:
        chosen = (*chosen, "watch")
    if settings.backup_servers and {DEFAULT, ALL} & {*chosen}:
        chosen = (*chosen, "pbs")
    try:
        return expand(chosen)
    except KeyError as unknown:
        raise ConfigError(f"{describe_unknown(unknown.args[0])}.") from None


def refuse_mistakes(rules: Sequence[Rule]) -> None:
    """A rule about a tool that does not exist would silently do nothing."""
    names = list(operations()) if any(rule.tools for rule in rules) else []
    for rule in rules:
        for known, patterns, word in ((names, rule.tools, "tool"), (list(EVERY), rule.toolsets, "toolset")):
            for pattern in patterns:
                if not matches(known, pattern):
                    hint = suggest_setting(pattern, known, f"Known {word}s are {', '.join(known[:5])} …")
                    raise ConfigError(
                        f'The rule "{rule.name}" is about the {word} "{pattern}", which does not exist.{hint}'
                    )


CLUSTER = "cluster"
"""The argument that names the cluster, where there are several."""
SECONDS = 20.0
"""How long one cluster may delay the others."""
Data = dict[str, Any] | Table | IllustratedFacts
Ask = Callable[[Site, Mapping[str, Any]], Awaitable[Data]]

NO_ANSWER = "no_answer"


@dataclass(frozen=True, slots=True)
class Route:
    sites: Sequence[Site]
    """One, unless the call reads all clusters."""
    arguments: Mapping[str, Any]
    """The caller's arguments, except those that only name the cluster."""
    silent: Mapping[str, Problem] = field(default_factory=dict)
    """Clusters that did not answer during the lookup."""


async def route(
    sites: Sites, operation: Operation, raw_arguments: Mapping[str, Any], caller: Caller, *, changes: bool
) -> Route:
    """Find the cluster for a call. With only one cluster this costs no request."""
    if operation.about_homelab:
        assert sites.home is not None
        return Route([sites.home], raw_arguments)
    open_sites = sites.reachable(caller)
    if not sites.several:
        return Route(open_sites, raw_arguments)
    arguments = dict(raw_arguments)
    named = arguments.pop(CLUSTER, None)
    arguments, prefixes = _without_prefixes(arguments, [site.name for site in sites])
    clusters = list(dict.fromkeys([*([str(named).strip()] if named is not None else []), *prefixes]))
    if len(clusters) > 1:
        raise BadArgument(
            f"A call acts on one cluster, not on {' and '.join(clusters)}", next_step="Make a call for each of them"
        )
    if clusters:
        return Route([sites.find(clusters[0], caller)], arguments)
    if len(open_sites) == 1:
        return Route(open_sites, arguments)
    if refs := guests_in(arguments):
        return await _route_by_guests(open_sites, refs, arguments, changes=changes)
    if isinstance(task := arguments.get("task"), str) and "task" in operation.arguments.__struct_fields__:
        return await _route_by_task(open_sites, Upid.parse(task), arguments)
    if isinstance(run := arguments.get("run"), str) and "run" in operation.arguments.__struct_fields__:
        runs = open_sites[0].cluster.attachment(RunStore)
        return Route([sites.find(await runs.cluster_of(run), caller)], arguments)
    if isinstance(change := arguments.get("change"), str) and operation.name == "change_undo":
        entry = await open_sites[0].cluster.attachment(RunStore).find_change(change.strip())
        # A change of a cluster that the caller must not know about is as unknown as one that does not exist.
        own = [site for site in open_sites if entry is not None and site.name == entry.get("cluster")]
        return Route((own or open_sites)[:1], arguments)
    if operation.spans == "any":
        return Route(open_sites[:1], arguments)
    if changes or operation.spans == "one":
        raise BadArgument(
            Sentence("{tool} needs to know on which cluster", tool=CalledTool(operation.name)),
            next_step=Advice(f"Give {{cluster}}: {', '.join(site.name for site in open_sites)}", cluster=NAMED),
        )
    return Route(open_sites, arguments)


# -- references --------------------------------------------------------------------------------------------------------


def _without_prefixes(arguments: Mapping[str, Any], names: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """`prod/web01` as `web01`, and the clusters named this way."""
    prefixes: list[str] = []

    def plain(ref: Any) -> Any:
        if isinstance(ref, list):
            return [plain(item) for item in ref]
        first, slash, rest = str(ref).strip().partition("/")
        if not slash or first.strip() not in names:
            return ref
        prefixes.append(first.strip())
        return rest

    bare = {name: plain(value) if names_guests(name, arguments) else value for name, value in arguments.items()}
    return bare, list(dict.fromkeys(prefixes))


# -- looking in all of them --------------------------------------------------------------------------------------------


async def _route_by_guests(
    sites: Sequence[Site], refs: Sequence[int | str], arguments: Mapping[str, Any], *, changes: bool
) -> Route:
    """The one cluster that has all the guests."""
    homes: dict[int | str, list[str]] = {}
    silent: dict[str, Problem] = {}
    reads_before = {site.name: site.cluster.inventory.latest_read for site in sites}
    for second_look in (False, True):  # a guest created seconds ago appears only there
        missing = [ref for ref in refs if not homes.get(ref)]
        newer_than = reads_before if second_look else {}
        matches, silent = await _ask_each(sites, partial(_having, refs=missing, newer_than=newer_than))
        for ref in missing:
            homes[ref] = [name for name, having in matches.items() for _ in having[ref]]
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


async def _having(
    site: Site, refs: Sequence[int | str], newer_than: Mapping[str, int]
) -> dict[int | str, list[Resource]]:
    inventory = site.cluster.inventory
    return {ref: await inventory.matching(ref, newer_than=newer_than.get(site.name)) for ref in refs}


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
            next_step=see("See the guests of all clusters", tools.guest_list),
        )
    if changes and silent:
        raise BadArgument(
            f"It is not certain that {names[0]}/{ref} is the right guest",
            why=f"{away} did not answer, and may also have a guest of that name",
            next_step=f"If it is, call again with {names[0]}/{ref}",
        )


async def _route_by_task(sites: Sequence[Site], task: Upid, arguments: Mapping[str, Any]) -> Route:
    """The cluster that has the task's node; if several do, the one that knows the task."""
    having, silent = await _ask_each(sites, lambda site: _has_node(site, task.node))
    chosen = [site for site in sites if having.get(site.name)]
    if len(chosen) > 1:
        own = [site for site in chosen if task.text in site.cluster.own_tasks]
        knowing, _ = await _ask_each(() if own else chosen, lambda site: read_state(site.cluster.client, task))
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


async def _ask_each(
    sites: Sequence[Site], ask: Callable[[Site], Awaitable[Any]]
) -> tuple[dict[str, Any], dict[str, Problem]]:
    """The answers of the clusters, and the problems of those that failed or timed out."""
    answers = await asyncio.gather(*(answer_within(SECONDS, site.name, ask(site)) for site in sites))
    by_site = {site.name: answer for site, answer in zip(sites, answers, strict=True)}
    problems = {name: answer for name, answer in by_site.items() if isinstance(answer, Problem)}
    return {name: answer for name, answer in by_site.items() if name not in problems}, problems


# -- reading all of them -----------------------------------------------------------------------------------------------


async def ask_all(sites: Sequence[Site], arguments: Mapping[str, Any], ask: Ask) -> Data:
    """Ask all of them in parallel. The result names the ones that do not answer in time."""
    limit, offset = arguments.get("limit"), arguments.get("offset", 0)
    # The first rows of every cluster contain the requested page, wherever it begins.
    wide = {**arguments, "limit": offset + limit} if limit else dict(arguments)
    if "offset" in arguments:
        wide["offset"] = 0
    parts, problems = await _ask_each(sites, lambda site: ask(site, wide))
    if not parts:
        raise _explain_silence(problems)
    # A cluster without such a node or storage is not mentioned if another one has it.
    silent = {
        name: str(problem) for name, problem in problems.items() if not isinstance(problem, (NotFound, BadArgument))
    }
    if all(isinstance(part, Table) for part in parts.values()):
        return _one_table(parts, silent, limit, offset if "offset" in arguments else None)
    pictures = [picture for part in parts.values() if isinstance(part, IllustratedFacts) for picture in part.pictures]
    facts = {name: _facts(part) for name, part in parts.items()} | {
        name: {NO_ANSWER: why} for name, why in silent.items()
    }
    return IllustratedFacts(facts, tuple(pictures)) if pictures else facts


def _explain_silence(problems: Mapping[str, Problem]) -> Problem:
    """Every cluster failed: one reason if it is the same everywhere, otherwise all of them."""
    first = next(iter(problems.values()))
    if len({str(problem) for problem in problems.values()}) > 1:
        first.what = " ".join(f"{name}: {problem.what}" for name, problem in problems.items())
        first.why = None
    return first


def _facts(part: Data) -> dict[str, Any]:
    if isinstance(part, IllustratedFacts):
        return part.facts
    if isinstance(part, Table):
        return {"columns": list(part.columns), "rows": part.rows, **part.facts}
    return part


def _one_table(parts: Mapping[str, Table], silent: Mapping[str, str], limit: int | None, offset: int | None) -> Table:
    """`offset` is None where there are no pages, only a number of rows."""
    columns = list(dict.fromkeys(column for part in parts.values() for column in part.columns))
    rows = _merge_rows({name: (part, _wide_rows(name, part, columns)) for name, part in parts.items()})
    begin = offset or 0
    shown = rows[begin : begin + limit] if limit else rows
    facts = {name: part.facts for name, part in parts.items() if part.facts}
    return Table(
        columns=("cluster", *columns),
        rows=shown,
        total=len(shown) if offset is None else sum(part.total for part in parts.values()),
        offset=begin,
        note=next((part.note for part in parts.values() if part.note), None),
        facts={**facts, **({NO_ANSWER: dict(silent)} if silent else {})},
    )


def _wide_rows(name: str, part: Table, columns: Sequence[str]) -> list[list[Any]]:
    place = {column: index for index, column in enumerate(part.columns)}
    return [[name, *(row[place[column]] if column in place else "" for column in columns)] for row in part.rows]


def _merge_rows(parts: Mapping[str, tuple[Table, list[list[Any]]]]) -> list[list[Any]]:
    """Merge the rows in order if the tables have sort keys, otherwise cluster by cluster."""
    if all(len(table.keys) == len(rows) for table, rows in parts.values()):
        keyed = (
            zip(table.keys, itertools.repeat(number), rows, strict=False)
            for number, (table, rows) in enumerate(parts.values())
        )
        return [row for _, _, row in heapq.merge(*keyed, key=lambda keyed_row: keyed_row[:2])]
    return [row for _, rows in parts.values() for row in rows]
