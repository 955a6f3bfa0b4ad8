"""Writes are granted one by one: what nobody has classified is a destruction."""

import re
import tomllib
from typing import Any

import pytest

from pve_schema.schema import NEWEST, OLDEST, Endpoint, Match, facts
from quorate.config import Access
from quorate.config.policy import read_policy
from quorate.config.sources import Rank, Source
from quorate.operations.grants import ANY, GRANTS, OPTION_LISTS
from quorate.operations.registry import Risk
from quorate.operations.risk import Reason, effects, effects_of
from quorate.pve.wire import Request
from tests.pipeline.test_safety_table import tries
from tests.rigs.mcp_session import in_one_order, rig, second_server

pytestmark = pytest.mark.anyio

VERSIONS = (OLDEST, NEWEST)

UNCLASSIFIED: frozenset[tuple[str, str, str]] = frozenset()
"""Method, template and option that no table is about yet. This list may only shrink."""


def own_options(endpoint: Endpoint) -> list[str]:
    """The parameters that are not part of the path."""
    return [name for name in endpoint.parameters if f"{{{name}}}" not in endpoint.template]


def is_unclassified(endpoint: Endpoint, params: dict[str, Any]) -> bool:
    return any(effect.reason is Reason.UNCLASSIFIED for effect in effects_of(endpoint, params))


@pytest.mark.parametrize("version", VERSIONS)
def test_every_write_and_every_option_of_it_is_classified(version):
    unclassified = set()
    for endpoint in facts(version).endpoints():
        if endpoint.method in ("POST", "PUT"):
            if is_unclassified(endpoint, {}):
                unclassified.add((endpoint.method, endpoint.template, ""))
            for name in own_options(endpoint):
                if name not in OPTION_LISTS and is_unclassified(endpoint, {name.replace("[n]", "0"): "1"}):
                    unclassified.add((endpoint.method, endpoint.template, name))
    assert unclassified <= UNCLASSIFIED


def test_no_row_grants_what_pve_does_not_have():
    endpoints = [endpoint for version in VERSIONS for endpoint in facts(version).endpoints()]
    for grant in GRANTS:
        granted = [endpoint for endpoint in endpoints if grant.fits(endpoint.method, endpoint.template)]
        assert granted, grant.where
        assert {endpoint.method for endpoint in granted} == {*grant.methods.split()}, grant.where
        options = {name for endpoint in granted for name in own_options(endpoint)}
        assert {*grant.options.split()} - {ANY} <= options, grant.where


def test_no_row_grants_what_its_path_alone_forbids():
    """Such a row would look as if the call were harmless."""
    for version in VERSIONS:
        for endpoint in facts(version).endpoints():
            if any(grant.fits(endpoint.method, endpoint.template) for grant in GRANTS):
                own = [effect for effect in effects_of(endpoint) if not effect.about]
                assert all(effect.risk is Risk.CHANGE for effect in own), endpoint


def later_endpoint(method: str, template: str, **parameters: Any) -> Endpoint:
    """An endpoint of a PVE that is newer than the tables."""
    return Endpoint(method, template, {"name": "turbo", "params": parameters}, facts(NEWEST))


@pytest.mark.parametrize("method", ["POST", "PUT"])
def test_an_endpoint_of_a_later_pve_is_a_destruction(method):
    endpoint = later_endpoint(method, "/nodes/{node}/turbo")
    assert [effect.reason for effect in effects(Request(Match(endpoint, {}), {}))] == [Reason.UNCLASSIFIED]


@pytest.mark.parametrize("listed", [None, *OPTION_LISTS])
def test_an_option_of_a_later_pve_is_a_destruction(listed):
    text = {"type": "string", "optional": 1}
    names = {"cores": text, "turbo": text, "net[n]": text} | {
        name: {"type": "string", "format": "pve-configid-list", "optional": 1} for name in OPTION_LISTS
    }
    endpoint = later_endpoint("PUT", "/nodes/{node}/qemu/{vmid}/config", **names)

    def reasons(*options: str) -> set[Reason]:
        params = {listed: ",".join(options)} if listed else dict.fromkeys(options, "1")
        return {effect.reason for effect in effects(Request(Match(endpoint, {}), params))}

    assert reasons("cores") == {Reason.CHANGES}
    assert Reason.UNCLASSIFIED in reasons("cores", "turbo")


def test_a_numbered_option_is_granted_under_every_number_and_its_name_alone_is_not():
    (row,) = [grant for grant in GRANTS if "ipconfig[n]" in grant.options.split()]
    assert "ipconfig" not in row.options.split()
    endpoint = facts(NEWEST).endpoint("PUT", "/nodes/{node}/qemu/{vmid}/config")
    assert not is_unclassified(endpoint, {"ipconfig31": "ip=dhcp"})
    assert is_unclassified(endpoint, {"delete": "ipconfig"})


FORMERLY_HARMLESS: list[tuple[str, str, str, dict[str, Any]]] = [
    ("POST", "/cluster/metrics/server/mine", "", {"type": "graphite", "server": "192.0.2.1", "port": 2003}),
    ("POST", "/cluster/notifications/endpoints/webhook", "", {"name": "x", "url": "http://192.0.2.1", "method": "put"}),
    ("POST", "/cluster/notifications/endpoints/gotify", "", {"name": "x", "server": "http://192.0.2.1", "token": "t"}),
    ("PUT", "/nodes/pve1/apt/repositories", "/nodes/pve1/apt/repositories", {"handle": "test"}),
    ("PUT", "/storage/local", "", {"shared": 1}),
    ("PUT", "/storage/pbs", "", {"username": "other@pbs"}),
    ("PUT", "/cluster/options", "", {"notify": "fencing=never"}),
    ("POST", "/cluster/acme/plugins", "", {"id": "x", "type": "dns", "api": "cf", "data": "QkFTSF9FTlY9L3RtcC94"}),
    ("PUT", "/nodes/pve1/qemu/108/config", "", {"hugepages": "any"}),
    ("POST", "/nodes/pve1/qemu/108/status/start", "/nodes/pve1/qemu/108/config", {"stateuri": "/tmp/x"}),
    ("POST", "/nodes/pve1/qemu/108/status/start", "/nodes/pve1/qemu/108/config", {"force-cpu": "host"}),
]  # fmt: skip


@tries("an endpoint or option that nobody thought about")
@pytest.mark.parametrize(("method", "path", "shown", "params"), FORMERLY_HARMLESS)
async def test_what_only_looked_harmless_needs_admin(tmp_path, method, path, shown, params):
    policy = read_policy(tomllib.loads('[[rules]]\nname = "kept"\ndeny = "destroy"\n'), Source(Rank.TOML))
    where = shown or (path.removesuffix("/mine") if method == "POST" else path)
    async with rig(tmp_path) as admin:
        before = in_one_order(await admin.facts("api_call", method="GET", path=where))
        async with (
            second_server(admin, tmp_path / "operate.jsonl", access=Access.OPERATE) as operate,
            second_server(admin, tmp_path / "ruled.jsonl", policy=policy) as ruled,
        ):
            arguments = {"method": method, "path": path, "params": params}
            assert "access level operate" in await operate.refusal("api_call", **arguments)
            assert "'kept'" in await ruled.refusal("api_call", **arguments)
        assert in_one_order(await admin.facts("api_call", method="GET", path=where)) == before
        assert not [request for request in admin.sim.requests if request[0] != "GET"]


async def test_the_reason_is_shown_where_the_api_is_explained(tmp_path):
    async with rig(tmp_path, access=Access.OPERATE) as quorate:
        described = await quorate.facts("api_search", path="/nodes/{node}/apt/repositories", method="PUT")
        assert re.match("destroy: it decides where the node gets its packages", described["risk"])
        granted = await quorate.facts("api_search", path="/nodes/{node}/time", method="PUT")
        assert granted["risk"].startswith("change")
