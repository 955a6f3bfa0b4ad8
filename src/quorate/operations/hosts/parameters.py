"""Parameters that the operations on hosts have in common."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from quorate.homelab.machines import Login
from quorate.operations.registry import NAMES
from quorate.secret import Secret

_MACHINES = {NAMES: ("host", "node", "guest")}
HostRef = Annotated[
    str, Meta(description="Registered host, node, guest (CLUSTER/web01), or user@address:port", extra=_MACHINES)
]
HostRefs = Annotated[str | list[str], Meta(description="One host or several, a label, or all", extra=_MACHINES)]
HostNames = Annotated[
    str | list[str], Meta(description="One registered host or several, a label, or all", extra={NAMES: ("host",)})
]
HostName = Annotated[str, Meta(extra={NAMES: ("host",)})]
User = Annotated[str, Meta(description="Instead of the registered one")]
Key = Annotated[str, Meta(description="Path of a private key on the server")]
Password = Annotated[str, Meta(description="For this call only; never stored")]
Sudo = Annotated[bool, Meta(description="As root, where the login is not")]
Port = Annotated[int, Meta(ge=1, le=65535)]
Reference = Annotated[str, Meta(description="vault:NAME, keyring:NAME, env:NAME or file:PATH")]


def given_login(
    user: str | None = None, key: str | None = None, password: str | None = None, port: int | None = None
) -> Login:
    return Login(user, key, Secret(password) if password else None, port)
