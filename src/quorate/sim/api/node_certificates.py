"""Certificates of a node: shown, replaced by one's own, and ACME's refusals without a domain."""

from __future__ import annotations

from typing import Any

from quorate.sim.node_certificates import Certificates, check_key, describe, read_certificate
from quorate.sim.node_settings import Settings
from quorate.sim.refusals import Refusal, failure
from quorate.sim.routing import Call, route

_BASE = "/nodes/{node}/certificates"


@route(f"GET {_BASE}")
def index(_call: Call) -> list[dict[str, str]]:
    return [{"name": name} for name in ("acme", "custom", "info")]


@route(f"GET {_BASE}/acme")
def acme_index(_call: Call) -> list[dict[str, str]]:
    return [{"name": "certificate"}]


@route(f"GET {_BASE}/info")
def info(call: Call) -> list[dict[str, Any]]:
    return call.world.part(Certificates).rows(call.world.part(Settings).of(call.node).custom_certificate)


@route(f"POST {_BASE}/custom")
def upload(call: Call) -> dict[str, Any]:
    settings = call.world.part(Settings).of(call.node)
    certificate = read_certificate(call.params["certificates"])
    if "key" in call.params:
        check_key(certificate, call.params["key"])
    elif settings.custom_certificate is None:
        raise failure("Attempted to upload custom certificate without (existing) key.")
    if settings.custom_certificate is not None and not call.params.get("force"):
        raise failure("Custom certificate file exists but force flag is not set.")
    settings.custom_certificate = call.params["certificates"]
    return describe("pveproxy-ssl.pem", call.params["certificates"])


@route(f"DELETE {_BASE}/custom")
def remove(call: Call) -> None:
    call.world.part(Settings).of(call.node).custom_certificate = None


@route(f"POST {_BASE}/acme/certificate", f"PUT {_BASE}/acme/certificate", f"DELETE {_BASE}/acme/certificate")
def acme(call: Call) -> None:
    """No certificate can be ordered: nothing here is reachable by an ACME authority."""
    options = call.world.part(Settings).of(call.node).options
    if not any(key.startswith("acme") for key in options):
        raise Refusal(400, "ACME domain list in node configuration is missing!\n")
    raise failure("ACME account config file 'default' does not exist.")
