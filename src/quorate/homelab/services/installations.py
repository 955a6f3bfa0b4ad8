"""The stored records of installed services."""

from __future__ import annotations

import re
import secrets
import string
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from quorate.hints import Advice, tools
from quorate.homelab.homelab import Homelab
from quorate.homelab.machines import Machine
from quorate.homelab.secrets import Secrets, secrets_in
from quorate.homelab.services.catalogue import VERSION, Method, Parameter, Template
from quorate.problems import BadArgument, Conflict, Problem
from quorate.state.store import Records, Store

KIND = "service"
_CLAIM = "work on a service"
RENEW_SECONDS = 60
STALE_SECONDS = 5 * RENEW_SECONDS
"""A claim that was not renewed for this long belongs to a server that died."""
State = Literal["installing", "installed", "upgrading", "failed", "removed"]


class Installation(msgspec.Struct, frozen=True, omit_defaults=True):
    service: str
    host: str
    """The name that `machine` accepts: a registered host, or cluster/guest."""
    method: Method
    state: State
    version: str = ""
    settings: dict[str, str] = {}
    """Without secrets."""
    why: str = ""
    """What went wrong, if anything."""
    at: str = ""
    """The SSH address at installation time: the record does not apply to a later machine of the same name."""


def machine_ref(machine: Machine) -> str:
    return (
        f"{machine.where.name}/{machine.guest.vmid if machine.guest else machine.name}"
        if machine.where
        else machine.name
    )


def machine_address(machine: Machine) -> str:
    return machine.target.address if machine.target is not None and machine.where is None else ""


class Installations:
    """Every service on every host."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._records = Records(store, KIND, Installation)

    async def find(self, host: str, service: str) -> Installation | None:
        return await self._records.find(f"{host}/{service}")

    async def everything(self) -> list[Installation]:
        return [installation for _, installation in sorted((await self._records.all()).items())]

    async def on(self, host: str) -> list[Installation]:
        return [installation for installation in await self.everything() if installation.host == host]

    async def keep(self, installation: Installation) -> None:
        await self._records.keep(f"{installation.host}/{installation.service}", installation)

    async def begin_work(self, host: str, service: str) -> str:
        """Claim a service of a host across all replicas. Renew the claim, and end it."""
        now, key, claim = self._store.clock.time(), f"{host}/{service}", f'"{secrets.token_hex(8)}"'
        claimed = await self._store.execute(
            "INSERT INTO quorate_records (kind, id, entry, created, changed) VALUES ($1, $2, $5, $3, $3) "
            "ON CONFLICT (kind, id) DO UPDATE SET entry = excluded.entry, changed = excluded.changed "
            "WHERE quorate_records.changed < $4",
            _CLAIM, key, now, now - STALE_SECONDS, claim,
        )  # fmt: skip
        if not claimed:
            raise Conflict(
                f"{service} on {host} is being changed at this moment",
                next_step=Advice(
                    f"Wait until that has ended. If its server died, try again after {STALE_SECONDS // 60} minutes",
                    tools.service_status,
                ),
            )
        return claim

    async def is_worked_on(self, host: str, service: str) -> bool:
        rows = await self._store.fetch(
            "SELECT id FROM quorate_records WHERE kind = $1 AND id = $2 AND changed >= $3",
            _CLAIM, f"{host}/{service}", self._store.clock.time() - STALE_SECONDS,
        )  # fmt: skip
        return bool(rows)

    async def renew_work(self, claim: str) -> None:
        await self._store.execute(
            "UPDATE quorate_records SET changed = $3 WHERE kind = $1 AND entry = $2",
            _CLAIM, claim, self._store.clock.time(),
        )  # fmt: skip

    async def end_work(self, claim: str) -> None:
        await self._store.execute("DELETE FROM quorate_records WHERE kind = $1 AND entry = $2", _CLAIM, claim)

    async def forget(self, host: str, service: str) -> None:
        await self._records.forget(f"{host}/{service}")


# -- whether the machines that records name still exist ----------------------------------------------------------------

HOST_GONE, GUEST_GONE, CLUSTER_GONE = "its host is no longer registered", "its guest is gone", "its cluster is gone"
MOVED = "its host is another machine now"


async def find_stale_hosts(homelab: Homelab, records: Iterable[Installation]) -> dict[str, str]:
    """Host of a record -> why the record can no longer be trusted. A cluster that does not answer proves nothing."""
    hosts = {host.name: host for host in await homelab.hosts.everyone()}
    stale: dict[str, str] = {}
    for record in records:
        cluster, slash, inner = record.host.partition("/")
        if slash:
            if why := await _gone_in(homelab, cluster, inner):
                stale[record.host] = why
        elif record.host not in hosts:
            if not (record.at or record.host).startswith(record.host) or not set(record.host) & set(".:"):
                stale[record.host] = HOST_GONE  # a bare address was never registered
        elif record.at and hosts[record.host].at != record.at:
            stale[record.host] = MOVED
    return stale


async def _gone_in(homelab: Homelab, name: str, inner: str) -> str:
    cluster = next((cluster for cluster in homelab.clusters if cluster.name == name), None)
    if cluster is None:
        return CLUSTER_GONE if all(cluster.name != name for cluster in homelab.guarded) else ""
    if not inner.isdecimal():
        return ""
    try:
        rows = await cluster.inventory.guests()
    except Problem:
        return ""
    return "" if any(row.vmid == int(inner) for row in rows) else GUEST_GONE


LONGEST = 1000
_PLAIN = re.compile(r"[^\x00-\x1f\x7f'\\\u2028\u2029]*")
"""Safe between single quotes in an environment file, for every program that reads it."""
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_ALPHABET = string.ascii_letters + string.digits


@dataclass(frozen=True, slots=True)
class ChosenSettings:
    values: Mapping[str, str]
    """Every parameter as text, including secrets."""
    secret: frozenset[str]
    generated: tuple[str, ...] = ()
    references: tuple[str, ...] = ()
    """References to the stored secrets among the values."""

    @property
    def without_secrets(self) -> dict[str, str]:
        return {name: value for name, value in self.values.items() if name not in self.secret}

    @property
    def version(self) -> str:
        return self.values.get(VERSION, "")


async def choose(
    template: Template, settings: Mapping[str, Any], former: Mapping[str, str], vault: Secrets
) -> ChosenSettings:
    """Given values win over former ones, which win over defaults. Former values of unknown parameters are ignored."""
    known = require_known(template, settings)
    values: dict[str, str] = {}
    generated = []
    for name, parameter in known.items():
        if name in settings:
            values[name] = await _resolve(name, parameter, settings[name], vault)
        elif name in former and (former[name] or parameter.default is not None):
            values[name] = _plain(name, former[name])
        elif parameter.generate:
            values[name] = "".join(secrets.choice(_ALPHABET) for _ in range(parameter.generate))
            generated.append(name)
        elif parameter.required:
            raise BadArgument(f"The setting {name!r} is missing", why=parameter.about, next_step="Give it in settings")
        else:
            values[name] = _text(parameter.default)
    hidden = frozenset(name for name, parameter in known.items() if parameter.type == "secret")
    vault.revealed.update(values[name] for name in hidden)
    references = secrets_in({name: settings[name] for name in sorted(hidden & settings.keys())})
    return ChosenSettings(values, hidden, tuple(generated), tuple(references))


def require_known(template: Template, settings: Mapping[str, Any]) -> dict[str, Parameter]:
    """All parameters. Raises BadArgument if an unknown one is given."""
    known = dict(template.parameters)
    if template.version:
        known[VERSION] = Parameter("Version", default=template.version)
    if unknown := [name for name in settings if name not in known]:
        raise BadArgument(
            f"{template.title} has no setting {unknown[0]!r}",
            next_step=f"Use {', '.join(known)}" if known else "It has no settings",
        )
    return known


async def _resolve(name: str, parameter: Parameter, value: Any, vault: Secrets) -> str:
    if parameter.type == "secret":
        if not isinstance(value, str):
            raise BadArgument(f"{name} is a secret", next_step="Use a reference such as env:NAME or vault:NAME")
        return _plain(name, (await vault.fetch(value)).reveal())
    text = _text(value)
    fits = {
        "text": True,
        "number": re.fullmatch(r"-?[0-9]{1,15}", text),
        "port": text.isascii() and text.isdecimal() and 0 < int(text) < 65536,
        "flag": text in ("true", "false"),
        "choice": text in parameter.choices,
    }[parameter.type]
    if not fits or (name == VERSION and not _VERSION.fullmatch(text)):
        expected = f"one of {', '.join(parameter.choices)}" if parameter.choices else f"a {parameter.type}"
        raise BadArgument(f"{text!r} is not valid for the setting {name!r}", next_step=f"Use {expected}")
    return _plain(name, text)


def _plain(name: str, text: str) -> str:
    if len(text) > LONGEST or not _PLAIN.fullmatch(text):
        raise BadArgument(
            f"The setting {name!r} cannot be stored",
            why=f"It contains a line break, a quote ' or a backslash, or more than {LONGEST} characters",
        )
    return text


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
