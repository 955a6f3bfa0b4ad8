"""The order of checks of a request, and the form of answers."""

from __future__ import annotations

import asyncio

import pytest

from pve_schema.schema import NEWEST, Endpoint, facts
from pve_simulator.api_client import Api
from pve_simulator.http.routing import all_routes


async def test_success_has_the_headers_of_pve(api: Api) -> None:
    reply = await api.get("/version")
    assert (reply.status, reply.reason) == (200, "OK")
    assert reply.data["version"] == "9.1.8"
    assert reply.data["release"] == "9.1"
    assert reply.headers["Server"] == "pve-api-daemon/3.0"
    assert reply.headers["Content-Type"] == "application/json;charset=UTF-8"
    assert reply.headers["Connection"] == "Keep-Alive"
    assert reply.headers["Expires"] == reply.headers["Date"]


async def test_verbs_that_pve_does_not_know_are_refused_before_anything_else(api: Api) -> None:
    for method in ("HEAD", "OPTIONS", "PATCH"):
        reply = await api.as_nobody().request(method, "/version")
        assert (reply.status, reply.reason, reply.text) == (501, f"method '{method}' not available", "")


async def test_errors_of_the_http_server_are_plain_text_without_a_type(api: Api) -> None:
    reply = await api.request("GET", "/version", fmt="xml")
    assert (reply.status, reply.text) == (501, "no formatter for uri /version, xml")
    assert reply.reason == reply.text
    assert "Content-Type" not in reply.headers
    outside = await api.request("GET", "/nothing/here", fmt="")
    assert (outside.status, outside.reason) == (500, "no such file '/nothing/here'")
    bare = await api.request("GET", "/api2", fmt="")
    assert (bare.status, bare.reason) == (501, "no such uri")


async def test_login_comes_before_routing(api: Api) -> None:
    assert (await api.as_nobody().get("/nope")).status == 401
    reply = await api.get("/nope")
    assert (reply.status, reply.reason) == (501, "Method 'GET /nope' not implemented")
    assert reply.body == {"data": None, "message": "Method 'GET /nope' not implemented"}


def _unimplemented_endpoint() -> Endpoint:
    """An endpoint without required parameters that the simulator does not implement."""
    for endpoint in facts(NEWEST).endpoints():
        open_to_all = endpoint.permission is not None and "{" not in endpoint.template
        if open_to_all and (endpoint.method, endpoint.template) not in all_routes() and not endpoint.check({}):
            return endpoint
    raise AssertionError("everything is simulated; this test has nothing to do any more")


async def test_a_wrong_verb_and_a_part_of_the_api_that_is_not_simulated_are_both_not_implemented(api: Api) -> None:
    wrong = await api.delete("/version")
    assert wrong.reason == "Method 'DELETE /version' not implemented"
    absent = _unimplemented_endpoint()
    reply = await api.request(absent.method, absent.template)
    assert reply.reason == f"Method '{absent.method} {absent.template}' not implemented"


async def test_permission_is_checked_before_parameters_and_before_the_guest_is_looked_for(api: Api) -> None:
    bob = api.as_token("bob@pve!monitor")
    reply = await bob.post("/nodes/pve1/qemu/999/status/start", nonsense="x")
    assert reply.status == 403
    assert reply.reason == "Permission check failed (/vms/999, VM.PowerMgmt)"
    assert reply.body == {"data": None, "message": "Permission check failed (/vms/999, VM.PowerMgmt)\n"}


async def test_a_node_that_does_not_exist_is_noticed_before_the_parameters(api: Api) -> None:
    reply = await api.get("/nodes/nope/qemu", nonsense=1)
    expected = "hostname lookup 'nope' failed - failed to get address info for: nope: Name or service not known"
    assert (reply.status, reply.reason) == (500, expected)


async def test_a_node_name_that_no_path_can_contain_allows_nothing(api: Api) -> None:
    reply = await api.get("/nodes/no_pe!/status")
    assert (reply.status, reply.reason) == (403, "Permission check failed (, Sys.Audit)")


async def test_parameters_are_checked_against_the_facts(api: Api) -> None:
    unknown = await api.get("/version", x=1)
    assert unknown.status == 400
    assert unknown.reason == "Parameter verification failed."
    assert unknown.body["message"] == "Parameter verification failed.\n"
    assert "not defined in schema" in unknown.errors["x"]
    word = await api.get("/nodes/pve1/qemu", full="true")
    assert word.errors == {"full": "type check ('boolean') failed - got 'true'"}
    enum = await api.get("/cluster/resources", type="lxc")
    assert "enumeration 'vm, storage, node, sdn'" in enum.errors["type"]


async def test_a_parameter_of_the_path_must_not_have_another_value_in_the_body(api: Api) -> None:
    reply = await api.post("/nodes/pve1/qemu/108/status/start", vmid=109)
    text = "duplicate parameter (already defined in URI) with conflicting values!"
    assert reply.errors == {"vmid": text}
    assert (await api.post("/nodes/pve1/qemu/108/status/start", vmid=108)).status == 200


async def test_bodies_are_refused_where_pve_refuses_them(api: Api) -> None:
    on_get = await api.request("GET", "/version", data=b"a=1")
    assert (on_get.status, on_get.reason) == (501, "Unexpected content for method 'GET'")
    odd = await api.request("POST", "/pools", data=b"<x/>", headers={"Content-Type": "text/xml"})
    assert (odd.status, odd.reason) == (506, "upload 'Content-Type 'text/xml' not implemented")
    large = await api.request("POST", "/pools", data=b"a" * 524289)
    assert large.status in (501, 506)
    broken = await api.request("POST", "/pools", data=b"{", headers={"Content-Type": "application/json"})
    assert broken.status == 500
    assert not broken.text.startswith("{")


_PERL_LOCATION = "at /usr/share/perl5/PVE/APIServer/AnyEvent.pm line "


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "malformed JSON string, neither tag, array, object, number, string or atom, at character offset 0"),
        (b'{"a":"b"', ", or } expected while parsing object/hash, at character offset 8"),
        (b'{"a"', "':' expected, at character offset 4"),
        (b'{"a":[1', ", or ] expected while parsing array, at character offset 7"),
        (b'{"a":"b', "unexpected end of string while parsing JSON string, at character offset 7"),
        (b"{", """'"' expected, at character offset 1 (before "(end of string)") """ + _PERL_LOCATION),
        (b"{a: 1}", """'"' expected, at character offset 1 (before "a: 1}") """ + _PERL_LOCATION),
        (b'{"a" 1}', """':' expected, at character offset 5 (before "1}") """ + _PERL_LOCATION),
        (b'{"a": 1} x', """garbage after JSON object, at character offset 9 (before "x") """ + _PERL_LOCATION),
        (
            b'{"a": [1 2]}',
            """, or ] expected while parsing array, at character offset 9 (before "2]}") """ + _PERL_LOCATION,
        ),
        (b"not json", """'null' expected, at character offset 0 (before "not json") """ + _PERL_LOCATION),
        (b"[]", f"Not a HASH reference {_PERL_LOCATION}"),
        (b'"x"', f"""Can't use string ("x") as a HASH ref while "strict refs" in use {_PERL_LOCATION}"""),
    ],
)
async def test_what_perl_says_about_bodies_that_are_no_object(api: Api, body: bytes, reason: str) -> None:
    reply = await api.request("POST", "/pools", data=body, headers={"Content-Type": "application/json"})
    assert reply.status == 500
    assert reply.reason.startswith(reason)
    assert reply.text == reply.reason


async def test_json_bodies_and_repeated_keys_are_understood(api: Api) -> None:
    reply = await api.request("POST", "/nodes/pve3/qemu/109/status/shutdown", json={"timeout": 2, "forceStop": True})
    assert await api.finish_task(reply) == "OK"
    assert not api.cluster.world.guests[109].running


async def test_the_whole_path_is_decoded_before_it_is_split(api: Api) -> None:
    reply = await api.request("GET", "//nodes%2Fpve1//status")
    assert reply.status == 200


async def test_extjs_always_says_200_and_puts_the_truth_inside(api: Api) -> None:
    good = await api.request("GET", "/version", fmt="extjs")
    assert good.body["success"] == 1
    bad = await api.request("GET", "/nodes/pve1/qemu/999/config", fmt="extjs")
    assert bad.status == 200
    assert bad.body == {
        "status": 500,
        "data": None,
        "success": 0,
        "message": "Configuration file 'nodes/pve1/qemu-server/999.conf' does not exist\n",
    }


@pytest.mark.api(version="8.2.4")
async def test_before_8_4_the_reason_phrase_is_the_only_place_of_the_error(api: Api) -> None:
    reply = await api.get("/nodes/pve1/qemu/999/config")
    assert reply.reason == "Configuration file 'nodes/pve1/qemu-server/999.conf' does not exist"
    assert reply.body == {"data": None}


async def test_an_error_closes_the_connection_and_a_success_keeps_it(api: Api) -> None:
    assert (await api.request("GET", "/version")).headers["Connection"] == "Keep-Alive"
    assert (await api.request("GET", "/nope")).headers["Connection"] == "close"


async def test_a_connection_serves_a_hundred_requests(api: Api) -> None:
    kept = [(await api.request("GET", "/version")).headers["Connection"] for _ in range(101)]
    assert kept == ["Keep-Alive"] * 99 + ["close", "Keep-Alive"]


async def test_large_answers_are_compressed_if_the_client_likes_it(api: Api) -> None:
    packed = await api.request("GET", "/cluster/resources", headers={"Accept-Encoding": "gzip"})
    plain = await api.request("GET", "/cluster/resources", headers={"Accept-Encoding": "identity"})
    assert packed.headers["Content-Encoding"] == "gzip"
    assert "Content-Encoding" not in plain.headers
    assert packed.data == plain.data


async def test_plain_http_on_the_tls_port_is_sent_to_https(api: Api) -> None:
    host, port = api.cluster.url.removeprefix("https://").split(":")
    for method, status in (("GET", "301"), ("POST", "308")):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"{method} /x HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        head = (await reader.read()).decode()
        writer.close()
        await writer.wait_closed()
        assert head.startswith(f"HTTP/1.1 {status} ")
        assert f"Location: {api.cluster.url}/x" in head


async def test_every_request_is_counted(api: Api) -> None:
    await api.get("/version")
    await api.get("/cluster/resources", type="vm")
    assert api.cluster.requests == [("GET", "/version"), ("GET", "/cluster/resources")]
