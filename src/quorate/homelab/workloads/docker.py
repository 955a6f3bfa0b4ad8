"""Docker and Podman: through the Engine API, or through their own command if the socket cannot be reached."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote, urlencode

import msgspec

from quorate.documents import Unreadable, read_json
from quorate.hints import Advice, either
from quorate.homelab.machines import Machine
from quorate.homelab.workloads.engine import Engine
from quorate.homelab.workloads.unix_http import HttpResponse, UnixSocket
from quorate.homelab.workloads.workload import EngineName, Mount, Port, Power, Spec, Workload
from quorate.inside.transport import Command, Output
from quorate.problems import BadArgument, Conflict, GuestRefused, NotFound, Problem, ServerFailed
from quorate.pve.connection import Clock
from quorate.pve.tasks import Report

NANO = 1_000_000_000
RESTARTS_ON_FAILURE = 5
_STREAM_HEAD = 8
LONGEST_EVENT, MOST_LAYERS = 64 * 1024, 1000
"""Limits for the progress of a pull."""


def parse_list_row(engine: str, row: Mapping[str, Any]) -> Workload:
    """From a row of the container list."""
    names = row.get("Names") or []
    return Workload(
        name=str(names[0]).lstrip("/") if names else str(row.get("Id", ""))[:12],
        engine=engine,
        id=str(row.get("Id", "")),
        state=str(row.get("State", "")).lower(),
        image=str(row.get("Image", "")),
        status=str(row.get("Status", "")),
        ports=_unique(
            Port(
                int(binding["PrivatePort"]),
                binding.get("PublicPort") or None,
                binding.get("Type", "tcp"),
                _address(binding.get("IP")),
            )
            for binding in row.get("Ports") or ()
        ),
        labels=row.get("Labels") or {},
    )


def parse_container(engine: str, container: Mapping[str, Any], digest: str = "") -> Workload:
    """From the full description of a container, by the API or by `inspect`."""
    state, config, limits = (
        container.get("State") or {},
        container.get("Config") or {},
        container.get("HostConfig") or {},
    )
    networks = container.get("NetworkSettings") or {}
    health = (state.get("Health") or state.get("Healthcheck") or {}).get("Status", "")
    status = str(state.get("Status", "")).lower()
    return Workload(
        name=str(container.get("Name", "")).lstrip("/"),
        engine=engine,
        id=str(container.get("Id", "")),
        state=status,
        image=str(container.get("ImageName") or config.get("Image") or ""),
        health="" if health == "none" else str(health),
        ports=_parse_bindings(networks.get("Ports") or {}) or _parse_bindings(limits.get("PortBindings") or {}),
        mounts=tuple(
            Mount(mount.get("Name") or mount.get("Source", ""), mount.get("Destination", ""), not mount.get("RW", True))
            for mount in container.get("Mounts") or ()
        ),
        addresses={
            name: network["IPAddress"]
            for name, network in (networks.get("Networks") or {}).items()
            if network.get("IPAddress")
        },
        memory=limits.get("Memory") or None,
        cpus=_cpus(limits),
        restart=str((limits.get("RestartPolicy") or {}).get("Name") or "no"),
        restarts=int(container.get("RestartCount") or 0),
        exit_code=int(state.get("ExitCode") or 0) if status in ("exited", "stopped", "dead") else None,
        error=str(state.get("Error") or ("out of memory" if state.get("OOMKilled") else "")),
        digest=digest or str(container.get("Image", "")),
        created=str(container.get("Created", "")),
        started=_moment(state.get("StartedAt")),
        command=tuple(config.get("Cmd") or ()),
        env=tuple(variable.partition("=")[0] for variable in config.get("Env") or ()),
        labels=config.get("Labels") or {},
        fleeting=bool(limits.get("AutoRemove")),
    )


def create_request(spec: Spec) -> dict[str, Any]:
    """The request that creates the container."""
    if spec.exact is not None:
        return dict(spec.exact)
    limits: dict[str, Any] = {
        "RestartPolicy": restart_policy(spec),
        "PortBindings": {},
        **storage(spec.mounts),
    }
    for port in spec.ports:
        bound = {"HostIp": port.address, "HostPort": str(port.outside or "")}
        limits["PortBindings"].setdefault(f"{port.inside}/{port.protocol}", []).append(bound)
    if spec.memory:
        limits["Memory"] = spec.memory
    if spec.cpus:
        limits["NanoCpus"] = round(spec.cpus * NANO)
    if spec.network:
        limits["NetworkMode"] = spec.network
    return {
        "Image": spec.image,
        "Env": [f"{name}={value}" for name, value in spec.env.items()],
        "Labels": dict(spec.labels),
        "ExposedPorts": {f"{port.inside}/{port.protocol}": {} for port in spec.ports},
        "HostConfig": limits,
        **({"Cmd": list(spec.command)} if spec.command else {}),
    }


def build_copy_spec(workload: Workload, container: Mapping[str, Any]) -> Spec:
    """The request that recreates a container. A hostname that is the container's id is left out."""
    config = {name: value for name, value in (container.get("Config") or {}).items() if value is not None}
    if str(container.get("Id", "")).startswith(str(config.get("Hostname") or "-")):
        del config["Hostname"]
    networks = (container.get("NetworkSettings") or {}).get("Networks") or {}
    own = {
        name: {key: point[key] for key in ("IPAMConfig", "Links", "Aliases") if point.get(key)}
        for name, point in networks.items()
        if name not in ("bridge", "host", "none", "podman")
    }
    for point in own.values():  # the engine adds the id automatically
        aliases = [alias for alias in point.pop("Aliases", []) if not str(container.get("Id", "")).startswith(alias)]
        point |= {"Aliases": aliases} if aliases else {}
    connected = {"NetworkingConfig": {"EndpointsConfig": own}} if own else {}
    exact = {**config, "HostConfig": dict(container.get("HostConfig") or {}), **connected}
    restart: Any = workload.restart
    return Spec(
        workload.name,
        workload.image,
        workload.ports,
        workload.mounts,
        dict.fromkeys(workload.env, ""),
        workload.command,
        workload.memory,
        workload.cpus,
        restart,
        labels=dict(workload.labels),
        exact=exact,
    )


def restart_policy(spec: Spec) -> dict[str, Any]:
    tries = {"MaximumRetryCount": RESTARTS_ON_FAILURE} if spec.restart == "on-failure" else {}
    return {"Name": spec.restart, **tries}


def storage(mounts: Iterable[Mount]) -> dict[str, Any]:
    """Host paths become binds: for those, Docker creates a missing path, as `docker run -v` does."""
    volumes = list(mounts)
    return {
        "Binds": [str(volume) for volume in volumes if volume.is_path],
        "Mounts": [mount(volume) for volume in volumes if not volume.is_path],
    }


def mount(volume: Mount) -> dict[str, Any]:
    return {"Type": "volume", "Source": volume.source, "Target": volume.path, "ReadOnly": volume.read_only}


def log_text(data: bytes, *, tty: bool) -> str:
    """A container's output; without a terminal, each piece has a header with its length."""
    if tty:
        return data.decode("utf-8", "replace")
    text = bytearray()
    while len(data) >= _STREAM_HEAD:
        length = int.from_bytes(data[4:_STREAM_HEAD], "big")
        text += data[_STREAM_HEAD : _STREAM_HEAD + length]
        data = data[_STREAM_HEAD + length :]
    return text.decode("utf-8", "replace")


def digest_of(image: Mapping[str, Any]) -> str:
    digests = image.get("RepoDigests") or []
    return str(digests[0]).rpartition("@")[2] if digests else str(image.get("Id", ""))


class _Detail(msgspec.Struct):
    current: float = 0.0
    total: float = 0.0


class _Event(msgspec.Struct):
    status: str = ""
    id: str = ""
    error: str = ""
    progress: _Detail | None = msgspec.field(name="progressDetail", default=None)


def _pull_problem(image: str, why: str) -> ServerFailed:
    return ServerFailed(
        f"The image {image} could not be pulled",
        why=why,
        next_step=either(
            "Check its name and the host's access to the registry",
            Advice("use {pull} for a local image", pull="never"),
        ),
    )


class Pulling:
    """The progress of a pull: a stream of JSON events about its layers."""

    def __init__(self, image: str, report: Report | None) -> None:
        self._image = image
        self._report = report
        self._line = b""
        self._layers: dict[str, tuple[float, float]] = {}
        self.error = ""

    async def take(self, data: bytes) -> None:
        *lines, rest = (self._line + data).split(b"\n")
        self._line = rest if len(rest) < LONGEST_EVENT else b""
        for line in lines:
            await self._event(line)

    async def _event(self, line: bytes) -> None:
        try:
            event = read_json(line, _Event)
        except Unreadable:
            return
        self.error = event.error or self.error
        detail, layer = event.progress or _Detail(), event.id
        if (
            event.status == "Downloading"
            and detail.total
            and (layer in self._layers or len(self._layers) < MOST_LAYERS)
        ):
            self._layers[layer] = (detail.current, detail.total)
        elif event.status in ("Download complete", "Pull complete") and layer in self._layers:
            self._layers[layer] = (self._layers[layer][1], self._layers[layer][1])
        if self._report is not None:
            done, whole = (sum(layer[at] for layer in self._layers.values()) for at in (0, 1))
            words = f"{self._image}: {event.status} {layer}".strip()
            await self._report(100.0 * done / whole if whole else 0.0, 100.0, words)


def _parse_bindings(ports: Mapping[str, Any]) -> tuple[Port, ...]:
    parsed = []
    for name, bindings in ports.items():
        inside, _, protocol = name.partition("/")
        every: list[dict[str, str]] = bindings or [{}]
        for binding in every:
            outside = binding.get("HostPort") or None
            parsed.append(
                Port(int(inside), int(outside) if outside else None, protocol or "tcp", _address(binding.get("HostIp")))
            )
    return _unique(parsed)


def _unique(ports: Iterable[Port]) -> tuple[Port, ...]:
    return tuple(dict.fromkeys(ports))


def _address(address: str | None) -> str:
    return "" if address in (None, "", "0.0.0.0", "::") else str(address)  # noqa: S104 - it is read, not listened on


def _cpus(limits: Mapping[str, Any]) -> float | None:
    if limits.get("NanoCpus"):
        return float(limits["NanoCpus"]) / NANO
    if limits.get("CpuQuota") and limits.get("CpuPeriod"):
        return float(limits["CpuQuota"]) / float(limits["CpuPeriod"])
    return None


def _moment(time: Any) -> str:
    return "" if not time or str(time).startswith("0001-") else str(time)


VERSION = (1, 41)
"""The preferred version; an engine that supports only older or newer ones gets the nearest."""
PULL_SECONDS = 3600.0
STOP_SECONDS = 10
COPY_SECONDS = 600.0
LOG_BYTES = 256 * 1024


class DockerApi(Engine):
    def __init__(self, name: EngineName, socket: UnixSocket, version: str, clock: Clock) -> None:
        super().__init__(name, f"API {version} on {socket.path} by {socket.by}", clock)
        self._socket = socket
        self._prefix = f"/v{version}"

    @classmethod
    async def connect(cls, name: EngineName, socket: UnixSocket, clock: Clock) -> DockerApi:
        """The engine behind the socket. Raises a Problem if none answers."""
        version = _require_success(await socket.call("GET", "/version")).json()
        if not isinstance(version, dict):
            raise ServerFailed(f"What answers on {socket.path} is not {name}")
        return cls(name, socket, _negotiate_version(version), clock)

    async def list(self) -> list[Workload]:
        rows = await self._get("/containers/json?all=true")
        return sorted((parse_list_row(self.name, row) for row in rows), key=lambda workload: workload.name)

    async def find(self, name: str) -> Workload | None:
        container = await self._inspect(name)
        if container is None:
            return None
        try:
            digest = digest_of(await self._get(f"/images/{quote(str(container['Image']), safe='')}/json"))
        except Problem:  # its image may be gone
            digest = ""
        return parse_container(self.name, container, digest)

    async def logs(self, name: str, lines: int, since: float | None = None) -> str:
        container = await self._inspect(name)
        if container is None:
            raise NotFound(f"{self.name} has no workload {name!r}")
        asked = {"stdout": "true", "stderr": "true", "tail": str(lines)}
        asked |= {} if since is None else {"since": f"{since:.3f}"}
        path = f"/containers/{quote(name)}/logs"
        answer = await self._call("GET", f"{path}?{urlencode(asked)}", max_body=LOG_BYTES)
        while answer.cut and lines > 1:  # the beginning of an answer is kept, and the newest lines are at its end
            lines //= 2
            answer = await self._call("GET", f"{path}?{urlencode({**asked, 'tail': lines})}", max_body=LOG_BYTES)
        return log_text(answer.body, tty=bool((container.get("Config") or {}).get("Tty")))

    async def has_image(self, image: str) -> bool:
        try:
            await self._get(f"/images/{quote(image, safe='')}/json")
        except NotFound:
            return False
        return True

    async def pull(self, image: str, report: Report | None) -> None:
        name, _, tag = image.partition("@") if "@" in image else _split_tag(image)
        pulling = Pulling(image, report)
        asked = urlencode({"fromImage": name, "tag": tag})
        try:
            await self._call("POST", f"/images/create?{asked}", seconds=PULL_SECONDS, on_part=pulling.take)
        except (GuestRefused, NotFound, ServerFailed) as problem:
            raise _pull_problem(image, str(problem)) from None
        if pulling.error or not await self.has_image(image):
            raise _pull_problem(image, pulling.error or "It does not exist after the pull")

    async def create(self, spec: Spec, report: Report | None) -> tuple[str, ...]:
        del report
        for volume in spec.mounts:
            if not volume.is_path:  # Podman's API does not create volumes automatically
                await self._call("POST", "/volumes/create", {"Name": volume.source})
        created = await self._call("POST", f"/containers/create?{urlencode({'name': spec.name})}", create_request(spec))
        return tuple(map(str, (created.json() or {}).get("Warnings") or ()))

    async def power(self, name: str, action: Power) -> None:
        grace = "" if action == "start" else f"?t={STOP_SECONDS}"
        await self._call("POST", f"/containers/{quote(name)}/{action}{grace}", seconds=STOP_SECONDS + 30.0)

    async def rename(self, name: str, new: str) -> None:
        await self._call("POST", f"/containers/{quote(name)}/rename?{urlencode({'name': new})}")

    async def remove(self, name: str, *, volumes: bool = False) -> None:
        asked = urlencode({"force": "true", "v": "true" if volumes else "false"})
        await self._call("DELETE", f"/containers/{quote(name)}?{asked}", seconds=STOP_SECONDS + 30.0)

    async def spec_of(self, name: str) -> Spec:
        container = await self._inspect(name)
        if container is None:
            raise NotFound(f"{self.name} has no workload {name!r}")
        return build_copy_spec(parse_container(self.name, container), container)

    async def save_image(self, image: str, limit: int) -> bytes:
        answer = await self._call("GET", f"/images/{quote(image, safe='')}/get", seconds=COPY_SECONDS, max_body=limit)
        if answer.cut:
            raise Conflict(f"The image {image} is too large to copy", why=f"The limit is {limit >> 20} MiB")
        return answer.body

    async def load_image(self, archive: bytes) -> None:
        answer = await self._call("POST", "/images/load?quiet=true", archive, seconds=COPY_SECONDS)
        reply = answer.body.decode("utf-8", "replace")
        if '"error"' in reply:
            raise ServerFailed("The image could not be loaded", why=reply[:500])

    async def read_folder(self, name: str, path: str, limit: int) -> bytes:
        asked = urlencode({"path": path})
        answer = await self._call(
            "GET", f"/containers/{quote(name)}/archive?{asked}", seconds=COPY_SECONDS, max_body=limit
        )
        if answer.cut:
            raise Conflict(f"{path} of {name} is too large to copy", why=f"The limit is {limit >> 20} MiB")
        return answer.body

    async def write_folder(self, name: str, path: str, tar: bytes) -> None:
        asked = urlencode({"path": posixpath.dirname(path.rstrip("/")) or "/"})
        await self._call("PUT", f"/containers/{quote(name)}/archive?{asked}", tar, seconds=COPY_SECONDS)

    async def _inspect(self, name: str) -> dict[str, Any] | None:
        try:
            container: dict[str, Any] = await self._get(f"/containers/{quote(name)}/json")
        except NotFound:
            return None
        # The API also accepts the beginning of an id; only a name counts here.
        return container if str(container.get("Name", "")).lstrip("/") == name else None

    async def _get(self, path: str) -> Any:
        return (await self._call("GET", path)).json()

    async def _call(self, method: str, path: str, body: Any = None, **options: Any) -> HttpResponse:
        return _require_success(await self._socket.call(method, f"{self._prefix}{path}", body, **options))


def _require_success(answer: HttpResponse) -> HttpResponse:
    """304 means that a container is already running, or stopped."""
    if answer.status < 400:
        return answer
    try:
        reason = str(read_json(answer.body)["message"])
    except (Unreadable, KeyError, TypeError):
        reason = answer.body[:500].decode("utf-8", "replace").strip()
    kind = {400: BadArgument, 404: NotFound, 409: Conflict}.get(answer.status, ServerFailed)
    raise kind("The engine refused it", why=f"It said: {reason}")


def _negotiate_version(version: dict[str, Any]) -> str:
    least, most = _version(version.get("MinAPIVersion")) or VERSION, _version(version.get("ApiVersion")) or VERSION
    major, minor = min(max(VERSION, least), most)
    return f"{major}.{minor}"


def _version(text: Any) -> tuple[int, int] | None:
    major, _, minor = str(text or "").partition(".")
    return (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else None


def _split_tag(image: str) -> tuple[str, str, str]:
    """Name and tag; a colon before the last slash belongs to the registry's port."""
    name, colon, tag = image.rpartition(":")
    return (name, colon, tag) if colon and "/" not in tag else (image, "", "latest")


# -- through the command -----------------------------------------------------------------------------------------------


MOST_OUTPUT = 1024 * 1024
_ABSENT = ("No such container", "no such container", "No such object", "no such object", "No such image",
           "image not known", "no container with name or ID")  # fmt: skip
_TAKEN = ("is already in use", "already exists")


class DockerCli(Engine):
    def __init__(self, name: EngineName, machine: Machine, clock: Clock, *, root: bool) -> None:
        super().__init__(name, f"the command {name} by {machine.transport.description}", clock)
        self._machine = machine
        self._root = root

    def objection(self, spec: Spec) -> str | None:
        if any("\n" in value for value in spec.env.values()):
            return "Its command does not accept line breaks in the environment"
        if any(set(mount.source + mount.path) & set(',"\n') for mount in spec.mounts):
            return "Its command does not accept commas or quotes in volume paths"
        return None

    async def check(self) -> None:
        """Raises a Problem if it does not answer: the daemon is missing, or access is denied."""
        await self._run("ps", "--quiet", "--last", "1")

    async def list(self) -> list[Workload]:
        ids = (await self._text("ps", "--all", "--quiet", "--no-trunc")).split()
        return sorted(
            (parse_container(self.name, container) for container in await self._inspect(*ids)),
            key=lambda workload: workload.name,
        )

    async def find(self, name: str) -> Workload | None:
        try:
            containers = await self._inspect(name)
        except NotFound:
            return None
        if not containers or str(containers[0].get("Name", "")).lstrip("/") != name:
            return None
        try:
            images = await self._query("image", "inspect", str(containers[0]["Image"]))
        except Problem:
            images = ({},)
        return parse_container(self.name, containers[0], digest_of(images[0]))

    async def logs(self, name: str, lines: int, since: float | None = None) -> str:
        some = () if since is None else ("--since", str(int(since)))
        output = await self._run("logs", "--tail", str(lines), *some, name, keep=LOG_BYTES)
        while (output.stdout_cut or output.stderr_cut) and lines > 1:  # what is cut off is the end, which is the newest
            lines //= 2
            output = await self._run("logs", "--tail", str(lines), *some, name, keep=LOG_BYTES)
        return (output.stdout + output.stderr).decode("utf-8", "replace")

    async def has_image(self, image: str) -> bool:
        try:
            await self._run("image", "inspect", image)
        except NotFound:
            return False
        return True

    async def pull(self, image: str, report: Report | None) -> None:
        if report is not None:
            await report(0.0, 100.0, f"{image}: pulling")
        try:
            await self._run("pull", "--quiet", image, seconds=PULL_SECONDS)
        except (GuestRefused, NotFound, ServerFailed) as problem:
            raise _pull_problem(image, str(problem)) from None

    async def create(self, spec: Spec, report: Report | None) -> tuple[str, ...]:
        del report
        restart = f"on-failure:{RESTARTS_ON_FAILURE}" if spec.restart == "on-failure" else spec.restart
        argv = ["create", "--name", spec.name, "--restart", restart, "--pull", "never"]
        for port in spec.ports:
            argv += ["--publish", str(port)]
        for mount in spec.mounts:
            argv += ["--mount", _mount(mount)]
        for name, value in spec.labels.items():
            argv += ["--label", f"{name}={value}"]
        argv += ["--memory", f"{spec.memory}b"] if spec.memory else []
        argv += ["--cpus", f"{spec.cpus:g}"] if spec.cpus else []
        argv += ["--network", spec.network] if spec.network else []
        # On standard input: a command line would be visible to every user there.
        argv += ["--env-file", "/dev/stdin"] if spec.env else []
        environment = "".join(f"{name}={value}\n" for name, value in spec.env.items()).encode()
        output = await self._run(*argv, spec.image, *spec.command, stdin=environment)
        return tuple(output.complaint.splitlines())

    async def power(self, name: str, action: Power) -> None:
        grace = () if action == "start" else ("--time", str(STOP_SECONDS))
        await self._run(action, *grace, name, seconds=STOP_SECONDS + 30.0)

    async def rename(self, name: str, new: str) -> None:
        await self._run("rename", name, new)

    async def remove(self, name: str, *, volumes: bool = False) -> None:
        await self._run("rm", "--force", *(("--volumes",) if volumes else ()), name, seconds=STOP_SECONDS + 30.0)

    async def _inspect(self, *names: str) -> tuple[dict[str, Any], ...]:
        return await self._query("container", "inspect", *names) if names else ()

    async def _query(self, *argv: str) -> tuple[dict[str, Any], ...]:
        try:
            objects: tuple[dict[str, Any], ...] = read_json(await self._text(*argv), tuple[dict[str, Any], ...])
        except Unreadable as fault:
            raise ServerFailed(f"The output of {self.name} {argv[0]} inspect {fault}") from None
        return objects

    async def _text(self, *argv: str) -> str:
        output = await self._run(*argv)
        if output.stdout_cut:
            raise ServerFailed(f"The output of {self.name} is too long", why=f"It exceeds {MOST_OUTPUT} bytes")
        return output.text

    async def _run(self, *argv: str, stdin: bytes = b"", seconds: float = 30.0, keep: int = MOST_OUTPUT) -> Output:
        command = Command((self.name, *argv), stdin=stdin)
        output = await self._machine.transport.run(
            self._machine.as_root(command) if self._root else command, seconds=seconds, keep=keep
        )
        if output.exit_code == 0:
            return output
        complaint = output.complaint[-500:]
        kind = (
            NotFound if any(phrase in complaint for phrase in _ABSENT)
            else Conflict if any(phrase in complaint for phrase in _TAKEN)
            else ServerFailed
        )  # fmt: skip
        raise kind(f"{self.name} {argv[0]} failed", why=f"It said: {complaint}")


def _mount(mount: Mount) -> str:
    kind = "bind" if mount.is_path else "volume"
    return f"type={kind},source={mount.source},target={mount.path}" + (",readonly" if mount.read_only else "")
