"""Workloads on hosts: deploy, start, stop, remove."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

from msgspec import Meta

from quorate.command_rules import CommandRules
from quorate.hints import Advice, either, see, tools
from quorate.homelab.homelab import Homelab
from quorate.homelab.machines import Machine
from quorate.homelab.services.installations import machine_ref
from quorate.homelab.workloads.engine import Engine
from quorate.homelab.workloads.engines import find_workload, select_engine
from quorate.homelab.workloads.workload import (
    Deployment,
    EngineName,
    Power,
    Pull,
    Restart,
    Spec,
    Workload,
    environment,
    has_sockets,
    parse_image,
    parse_labels,
    parse_mounts,
    parse_name,
    parse_ports,
    warnings,
)
from quorate.inside.posix_files import shell_script
from quorate.operations.plan import ActionResult, Plan, StepContext
from quorate.operations.registry import Risk, operation
from quorate.problems import BadArgument, Conflict, NotFound
from quorate.secret import without_secrets
from quorate.tools.hosts import HostRefs
from quorate.tools.machines import machine_action
from quorate.tools.several_hosts import plan_each
from quorate.tools.workloads import COMPOSE, EngineChoice, Name, describe_workload
from quorate.units import parse_size, size

LEAST_MEMORY = 6 * 1024**2
"""Docker's minimum."""


def _deploy_risk(arguments: Mapping[str, Any]) -> Risk:
    return Risk.DESTROY if arguments["replace"] else Risk.CHANGE


@operation(
    toolset="workloads",
    risk=Risk.DESTROY,
    risk_of=_deploy_risk,
    least=Risk.CHANGE,
    idempotent=False,
    unrecorded=("env",),
    shown_by=("workload_get", "host", "name", "engine"),
    search_words=(
        "run deploy launch docker container on raspberry pi nas with podman lxd incus image pull ports volumes upgrade"
    ),
    example="host=docker01 name=whoami image=traefik/whoami:v1.10 ports=8088:80 memory=64M",
)
async def workload_deploy(
    homelab: Homelab,
    host: HostRefs,
    name: Name,
    image: Annotated[str, Meta(description="nginx:1.27; for LXD and Incus an alias there, or images:debian/12")],
    engine: EngineChoice | None = None,
    ports: Annotated[list[str], Meta(description="8080:80, 127.0.0.1:8080:80, 53:53/udp")] | None = None,
    volumes: Annotated[list[str], Meta(description="data:/data, /srv/media:/media:ro")] | None = None,
    env: Annotated[dict[str, str], Meta(description="Never recorded")] | None = None,
    command: Annotated[list[str], Meta(description="Instead of the image's own")] | None = None,
    memory: Annotated[str, Meta(description="512M, 2G")] | None = None,
    cpus: Annotated[float, Meta(gt=0, le=1024)] | None = None,
    restart: Restart = "unless-stopped",
    network: str | None = None,
    labels: dict[str, str] | None = None,
    pull: Annotated[Pull, Meta(description="When to fetch the image")] = "missing",
    replace: Annotated[
        bool, Meta(description="Replace one of that name (needs access admin); data outside volumes is lost")
    ] = False,
) -> Plan:
    """Run a container on hosts: pull the image, start it, check that it stays up. If not, the former state returns."""
    spec = Spec(
        parse_name(name),
        parse_image(image),
        parse_ports(ports or ()),
        parse_mounts(volumes or ()),
        environment(env or {}),
        tuple(command or ()),
        _memory(memory),
        cpus,
        restart,
        parse_name(network) if network else None,
        parse_labels(labels or {}),
        pull,
    )
    named = require_workload_allowed(homelab.command_rules, spec)
    prepare = partial(_deployment, homelab, spec=spec, engine=engine, replace=replace, named=named)
    return await plan_each(homelab, host, f"Deploy {image} as {name} on", prepare, ("replaced", "engine_warns"))


async def _deployment(
    homelab: Homelab, machine: Machine, spec: Spec, engine: EngineName | None, *, replace: bool, named: bool
) -> Plan:
    name, image = spec.name, spec.image
    chosen_engine = await select_engine(machine, homelab.clock, engine)
    if objection := chosen_engine.objection(spec):
        raise BadArgument(f"{chosen_engine.name} cannot do that", why=objection)
    old = await chosen_engine.find(name)
    if old is not None and not replace:
        raise Conflict(
            f"{old} already exists on {machine}",
            next_step=either(Advice("Give {replace}", replace=True), "choose another name"),
        )
    await _ensure_free_ports(chosen_engine, spec)
    fetches = await _fetches(chosen_engine, spec)
    created_paths = await _paths_to_make(machine, spec) if chosen_engine.name == "docker" else []

    async def perform(context: StepContext) -> ActionResult:
        await _ensure_same(chosen_engine, name, old)
        done = await Deployment(homelab.store, machine_ref(machine), name, spec.env.values()).follow(
            lambda tell: chosen_engine.deploy(spec, tell, replace=replace),
            context.wait,
            context.report,
            homelab.ssh.pool,
        )
        if done is None:
            shown = tools.workload_get(host=machine.ref, name=name)
            return ActionResult(running=True, next_step=see("See its progress", shown))
        replaced = {"replaced": done.replaced.image} if done.replaced else {}
        warned = {"engine_warns": list(done.warnings)} if done.warnings else {}
        return ActionResult({"workload": describe_workload(done.workload), **replaced, **warned})

    does = f"Replace {old} on {machine} with {image}" if old else f"Deploy {image} as {name} on {machine}"
    line = _line(chosen_engine, spec) + (f" in place of {_id(old)}" if old else "")
    return Plan(
        does,
        (machine_action(machine, does, line, perform, opens=not named),),
        facts={
            "host": machine.name,
            "engine": chosen_engine.how,
            "image": "is fetched" if fetches else "is there",
            **({"paths_made": created_paths} if created_paths else {}),
        },
        warnings=(
            *warnings(spec.mounts),
            *(f"{path} does not exist: Docker creates it as an empty folder owned by root" for path in created_paths),
            *_of_compose(old),
        ),
    )


async def _paths_to_make(machine: Machine, spec: Spec) -> list[str]:
    """Paths of the host that are not there yet, as far as the login can see."""
    paths = [mount.source for mount in spec.mounts if mount.is_path]
    if not paths:
        return []
    output = await machine.transport.run(
        shell_script('for path; do [ -e "$path" ] || printf "%s\\n" "$path"; done', *paths)
    )
    return [path for path in output.stdout.decode("utf-8", "replace").splitlines() if path in paths]


@operation(
    toolset="workloads",
    risk=Risk.CHANGE,
    shown_by=("workload_get", "host", "name", "engine"),
    search_words="start stop restart container on host docker podman lxd incus",
    example="host=docker01 name=whoami action=restart",
)
async def workload_power(
    homelab: Homelab, host: HostRefs, name: Name, action: Power, engine: EngineChoice | None = None
) -> Plan:
    """Start, stop or restart a workload."""

    async def prepare(machine: Machine) -> Plan:
        chosen_engine, old = await find_workload(machine, homelab.clock, name, engine)
        does = f"{action.capitalize()} {old} on {machine}"
        if action != "restart" and old.running == (action == "start") and old.state not in ("paused", "restarting"):
            return Plan(does, unchanged=(f"{old} is already {old.state}",))

        async def perform(_: StepContext) -> ActionResult:
            await _ensure_same(chosen_engine, name, old)
            await chosen_engine.power(name, action)
            after = await chosen_engine.get(name)
            return ActionResult(
                {"before": old.state, "now": after.state, **({"health": after.health} if after.health else {})}
            )

        return Plan(does, (machine_action(machine, does, f"{chosen_engine.name} {action} {name} {_id(old)}", perform),))

    return await plan_each(homelab, host, f"{action.capitalize()} {name} on", prepare, ("before", "now", "health"))


@operation(
    toolset="workloads",
    risk=Risk.DESTROY,
    shown_by=("workload_get", "host", "name", "engine"),
    search_words="delete remove container on host docker rm podman lxc delete",
    example="host=docker01 name=whoami",
)
async def workload_remove(
    homelab: Homelab,
    host: HostRefs,
    name: Name,
    volumes: Annotated[bool, Meta(description="Also its anonymous volumes")] = False,
    engine: EngineChoice | None = None,
) -> Plan:
    """Stop and remove a workload with all data outside volumes. Named volumes and paths of the host stay."""

    async def prepare(machine: Machine) -> Plan:
        chosen_engine, old = await find_workload(machine, homelab.clock, name, engine)

        async def perform(_: StepContext) -> ActionResult:
            await _ensure_same(chosen_engine, name, old)
            await chosen_engine.remove(name, volumes=volumes)
            if await chosen_engine.find(name) is not None:
                shown = tools.workload_get(host=machine.ref, name=name)
                raise Conflict(f"{old} is still there", next_step=see("See its state", shown))
            return ActionResult({"removed": name})

        does = f"Remove {old} ({old.state}, {old.image}) from {machine}"
        line = f"{chosen_engine.name} remove {name} {_id(old)}" + (" with its volumes" if volumes else "")
        mounted = {"volumes": [str(mount) for mount in old.mounts]} if old.mounts else {}
        action = machine_action(machine, does, line, perform)
        return Plan(does, (action,), facts={"host": machine.name, **mounted}, warnings=_of_compose(old))

    return await plan_each(homelab, host, f"Remove {name} from", prepare, ("removed",))


def require_workload_allowed(rules: CommandRules, spec: Spec) -> bool:
    """Check the requested command against the operator's patterns; returns True if they name exactly this command.

    Without a command the image decides, which no pattern can match. What the container can write of the host counts
    as written.
    """
    refused = rules.objection(spec.command, env=spec.env) if spec.command else rules.environment_objection(spec.env)
    handed_over = [
        mount.source for mount in spec.mounts if mount.is_path and (not mount.read_only or has_sockets(mount))
    ]
    written = (rules.write_objection(f"{source.rstrip('/')}/*") for source in handed_over)
    if objection := refused or next(filter(None, written), None):
        raise objection
    return bool(spec.command) and rules.allows(spec.command)


# -- shared ------------------------------------------------------------------------------------------------------------


def _memory(text: str | None) -> int | None:
    if text is None:
        return None
    count = parse_size(text, unit="M")
    if count < LEAST_MEMORY:
        raise BadArgument(f"{size(count)} is too little memory", next_step="Give at least 6M")
    return count


def _id(old: Workload) -> str:
    """The id, because an approval is for this workload, not for another one of the same name."""
    return f"({old.id[:12]})"


def _of_compose(old: Workload | None) -> tuple[str, ...]:
    project = old.labels.get(COMPOSE) if old else None
    return (f"It belongs to the Compose project {project}, which will not know about this change",) if project else ()


async def _ensure_same(engine: Engine, name: str, old: Workload | None) -> None:
    """Raise if someone has replaced it since the plan was made."""
    now = await engine.find(name)
    if (now.id if now else None) != (old.id if old else None):
        raise Conflict(
            f"{name} has changed since it was planned", next_step="Nothing was done; look again, then decide"
        )


async def _ensure_free_ports(engine: Engine, spec: Spec) -> None:
    requested = {(port.outside, port.protocol): port for port in spec.ports if port.outside}
    for workload in await engine.list() if requested else ():
        for port in workload.ports if workload.running and workload.name != spec.name else ():
            mine = requested.get((port.outside or 0, port.protocol))
            if mine and (mine.address == port.address or not mine.address or not port.address):
                raise Conflict(
                    f"Port {mine.outside}/{mine.protocol} of the host belongs to {workload}", next_step="Choose another"
                )


async def _fetches(engine: Engine, spec: Spec) -> bool:
    if spec.pull == "always":
        return True
    present = await engine.has_image(spec.image)
    if not present and spec.pull == "never":
        raise NotFound(
            f"{engine.name} has no image {spec.image!r} there", next_step=Advice("{pull} fetches it", pull="missing")
        )
    return not present


def _line(engine: Engine, spec: Spec) -> str:
    """The step as a command line, with only the names of environment variables."""
    parts = [engine.name, "run", "--name", spec.name, "--restart", spec.restart]
    for flag, values in (("--publish", spec.ports), ("--volume", spec.mounts), ("--env", spec.env)):
        parts += [part for value in values for part in (flag, str(value))]
    for name, value in spec.labels.items():
        parts += ["--label", f"{name}={value}"]
    parts += ["--memory", size(spec.memory)] if spec.memory else []
    parts += ["--cpus", f"{spec.cpus:g}"] if spec.cpus else []
    parts += ["--network", spec.network] if spec.network else []
    return without_secrets(shlex.join([*parts, spec.image, *spec.command]))
