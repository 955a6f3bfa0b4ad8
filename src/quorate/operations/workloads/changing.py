"""Workloads on hosts: deploy, switch on and off, remove."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta

from quorate.command_secrets import without_secrets
from quorate.homelab.home import Homelab
from quorate.homelab.machines import machine
from quorate.homelab.services.installed import place_of
from quorate.homelab.workloads import asking
from quorate.homelab.workloads.docker_shapes import shown_command
from quorate.homelab.workloads.engine import Engine
from quorate.homelab.workloads.engines import the_engine, with_workload
from quorate.homelab.workloads.model import Power, Pull, Restart, Spec, Workload
from quorate.homelab.workloads.underway import Underway
from quorate.operations.hosts.parameters import HostRef, machine_action
from quorate.operations.plan import Performed, Plan
from quorate.operations.registry import Risk, operation
from quorate.operations.units import parse_size, size
from quorate.operations.workloads.parameters import EngineChoice, Name
from quorate.operations.workloads.reading import described
from quorate.problems import BadArgument, Conflict, NotFound
from quorate.pve.tasks import Report

COMPOSE = "com.docker.compose.project"
LEAST_MEMORY = 6 * 1024**2
"""Docker takes no less."""


def _deploy_risk(arguments: Mapping[str, Any]) -> Risk:
    return Risk.DESTROY if arguments["replace"] else Risk.CHANGE


@operation(risk=Risk.DESTROY, risk_of=_deploy_risk, least=Risk.CHANGE, idempotent=False, unrecorded=("env",))
async def workload_deploy(
    home: Homelab,
    host: HostRef,
    name: Name,
    image: Annotated[str, Meta(description="nginx:1.27; for LXD and Incus an alias there, or images:debian/12")],
    engine: EngineChoice | None = None,
    ports: Annotated[list[str], Meta(description="8080:80, 127.0.0.1:8080:80, 53:53/udp")] | None = None,
    volumes: Annotated[list[str], Meta(description="data:/data, /srv/media:/media:ro")] | None = None,
    env: Annotated[dict[str, str], Meta(description="Recorded nowhere")] | None = None,
    command: Annotated[list[str], Meta(description="Instead of the image's own")] | None = None,
    memory: Annotated[str, Meta(description="512M, 2G")] | None = None,
    cpus: Annotated[float, Meta(gt=0, le=1024)] | None = None,
    restart: Restart = "unless-stopped",
    network: str | None = None,
    labels: dict[str, str] | None = None,
    pull: Annotated[Pull, Meta(description="When to fetch the image")] = "missing",
    replace: Annotated[
        bool, Meta(description="Take the place of one of that name; what is in no volume is lost")
    ] = False,
) -> Plan:
    """Run a container on a host: fetch the image, start it, see that it stays up. If it does not, all is as before."""
    place = await machine(home, host)
    found = await the_engine(place, home.clock, engine)
    spec = Spec(
        asking.name(name),
        asking.image(image),
        asking.ports(ports or ()),
        asking.mounts(volumes or ()),
        asking.environment(env or {}),
        tuple(command or ()),
        _memory(memory),
        cpus,
        restart,
        asking.name(network) if network else None,
        asking.labels(labels or {}),
        pull,
    )
    if objection := found.objection(spec):
        raise BadArgument(f"{found.name} cannot do that", why=objection)
    old = await found.find(name)
    if old is not None and not replace:
        raise Conflict(
            f"There is a {old} on {place} already",
            next_step="replace=true puts this in its place, or choose another name",
        )
    await _ensure_free_ports(found, spec)
    fetches = await _fetches(found, spec)

    async def perform(wait: float, report: Report | None) -> Performed:
        await _ensure_same(found, name, old)
        done = await Underway(home.store, place_of(place), name, spec.env.values()).followed(
            lambda tell: found.deploy(spec, tell, replace=replace), wait, report, home.ssh.pool
        )
        if done is None:
            return Performed(running=True, next_step=f"workload_get host={host} name={name} tells how it goes on")
        replaced = {"replaced": done.replaced.image} if done.replaced else {}
        warned = {"engine_warns": list(done.warnings)} if done.warnings else {}
        return Performed({"workload": described(done.workload), **replaced, **warned})

    does = f"Replace {old} on {place} by {image}" if old else f"Deploy {image} as {name} on {place}"
    return Plan(
        does,
        (machine_action(place, does, _line(found, spec) + (f" in place of {_id(old)}" if old else ""), perform),),
        facts={"host": place.name, "engine": found.how, "image": "is fetched" if fetches else "is there"},
        warnings=(*asking.warnings(spec.mounts), *_of_compose(old)),
    )


@operation(risk=Risk.CHANGE)
async def workload_power(
    home: Homelab, host: HostRef, name: Name, action: Power, engine: EngineChoice | None = None
) -> Plan:
    """Start, stop or restart a workload."""
    place = await machine(home, host)
    found, old = await with_workload(place, home.clock, name, engine)
    does = f"{action.capitalize()} {old} on {place}"
    if action != "restart" and old.running == (action == "start") and old.state not in ("paused", "restarting"):
        return Plan(does, unchanged=(f"{old} is {old.state} already",))

    async def perform(wait: float, report: Report | None) -> Performed:
        del wait, report
        await _ensure_same(found, name, old)
        await found.power(name, action)
        now = await found.get(name)
        return Performed({"before": old.state, "now": now.state, **({"health": now.health} if now.health else {})})

    return Plan(does, (machine_action(place, does, f"{found.name} {action} {name} {_id(old)}", perform),))


@operation(risk=Risk.DESTROY)
async def workload_remove(
    home: Homelab,
    host: HostRef,
    name: Name,
    volumes: Annotated[bool, Meta(description="The nameless volumes that were made for it alone, too")] = False,
    engine: EngineChoice | None = None,
) -> Plan:
    """Stop a workload and take it away with all that is in no volume. Named volumes and paths of the host stay."""
    place = await machine(home, host)
    found, old = await with_workload(place, home.clock, name, engine)

    async def perform(wait: float, report: Report | None) -> Performed:
        del wait, report
        await _ensure_same(found, name, old)
        await found.remove(name, volumes=volumes)
        if await found.find(name) is not None:
            raise Conflict(f"{old} is still there", next_step=f"workload_get host={host} name={name} tells its state")
        return Performed({"removed": name})

    does = f"Remove {old} ({old.state}, {old.image}) from {place}"
    line = f"{found.name} remove {name} {_id(old)}" + (" with its volumes" if volumes else "")
    volumes_told = {"volumes": [str(one) for one in old.mounts]} if old.mounts else {}
    action = machine_action(place, does, line, perform)
    return Plan(does, (action,), facts={"host": place.name, **volumes_told}, warnings=_of_compose(old))


# -- shared ------------------------------------------------------------------------------------------------------------


def _memory(text: str | None) -> int | None:
    if text is None:
        return None
    count = parse_size(text, unit="M")
    if count < LEAST_MEMORY:
        raise BadArgument(f"{size(count)} is too little memory", next_step="Give at least 6M")
    return count


def _id(old: Workload) -> str:
    """Which one of that name: an approval is for this one, not for another that comes in its place."""
    return f"({old.id[:12]})"


def _of_compose(old: Workload | None) -> tuple[str, ...]:
    project = old.labels.get(COMPOSE) if old else None
    return (f"It belongs to the Compose project {project}, which knows nothing of this",) if project else ()


async def _ensure_same(engine: Engine, name: str, old: Workload | None) -> None:
    """Between the plan and now, somebody may have put another one in its place."""
    now = await engine.find(name)
    if (now.id if now else None) != (old.id if old else None):
        raise Conflict(f"{name} is not what it was meanwhile", next_step="Nothing was done; look again and decide anew")


async def _ensure_free_ports(engine: Engine, spec: Spec) -> None:
    wanted = {(port.outside, port.protocol): port for port in spec.ports if port.outside}
    for one in await engine.list() if wanted else ():
        for port in one.ports if one.running and one.name != spec.name else ():
            mine = wanted.get((port.outside or 0, port.protocol))
            if mine and (mine.address == port.address or not mine.address or not port.address):
                raise Conflict(
                    f"Port {mine.outside}/{mine.protocol} of the host belongs to {one}", next_step="Choose another"
                )


async def _fetches(engine: Engine, spec: Spec) -> bool:
    if spec.pull == "always":
        return True
    there = await engine.has_image(spec.image)
    if not there and spec.pull == "never":
        raise NotFound(f"{engine.name} has no image {spec.image!r} there", next_step="pull=missing fetches it")
    return not there


def _line(engine: Engine, spec: Spec) -> str:
    """What is done, in the way of a command line; of the environment only the names."""
    parts = [engine.name, "run", "--name", spec.name, "--restart", spec.restart]
    for flag, values in (("--publish", spec.ports), ("--volume", spec.mounts), ("--env", spec.env)):
        parts += [part for one in values for part in (flag, str(one))]
    for name, value in spec.labels.items():
        parts += ["--label", f"{name}={value}"]
    parts += ["--memory", size(spec.memory)] if spec.memory else []
    parts += ["--cpus", f"{spec.cpus:g}"] if spec.cpus else []
    parts += ["--network", spec.network] if spec.network else []
    return without_secrets(shown_command([*parts, spec.image, *spec.command]))
