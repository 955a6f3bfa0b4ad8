"""The machine that a stored secret belongs to: a person approves each new pair of reference and address.

A reference says where a secret is, and a caller may combine any reference with any host: the password of one machine
could be sent to another. Once a pair is approved, the registered host itself binds it; any other address is asked about
again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from quorate.homelab.host import Host

BOUND = ("vault:", "keyring:")


def new_pairs(host: Host, registered: Iterable[Host]) -> list[str]:
    """The references of the host that no registered host has at the same address, by the same way."""
    known = {
        reference
        for one in registered
        if (one.address, one.port, one.jump) == (host.address, host.port, host.jump)
        for reference in _references(one)
    }
    return [one for one in _references(host) if one not in known]


def secrets_in(settings: Mapping[str, Any]) -> list[str]:
    """The references among the settings of a service, or the variables of a workload."""
    return [value for value in settings.values() if isinstance(value, str) and value.startswith(BOUND)]


def question_about(references: Iterable[str], destination: str) -> str:
    """By the names of the secrets: the references themselves are arguments of a call, and those are not shown."""
    named = (one.partition(":") for one in references)
    return f"{', '.join(f'the secret {name} of the {kind}' for kind, _, name in named)} would be sent to {destination}"


def _references(host: Host) -> list[str]:
    given = (host.password, host.sudo_password)
    return list(dict.fromkeys(one for one in given if one is not None and one.startswith(BOUND)))
