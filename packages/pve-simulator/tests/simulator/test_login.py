"""Authentication: tokens, tickets, CSRF tokens."""

from __future__ import annotations

from base64 import b32encode
from urllib.parse import quote

import pytest

from pve_simulator.api_client import Api, simulated_api
from pve_simulator.clock import ManualClock
from pve_simulator.routes.access.tfa import _code


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (None, "No ticket"),
        ("Bearer abc", "No ticket"),
        ("PVEAPIToken=garbage", "Authentication failed!"),
        ("PVEAPIToken=root@pam!simulator=wrong", "Authentication failed!"),
        ("PVEAPIToken=root@pam!nope=00000000-0000-0000-0000-000000000000", "Authentication failed!"),
        ("PVEAPIToken=ghost@pve!x=00000000-0000-0000-0000-000000000000", "Authentication failed!"),
        ("PVEAuthCookie=PVE:root@pam:00000000::abc", "Authentication failed!"),
    ],
)
async def test_bad_credentials_get_an_empty_401(api: Api, header, reason):
    headers = {} if header is None else {"Authorization": header}
    reply = await api.as_nobody(**headers).request("GET", "/version")
    assert (reply.status, reply.reason, reply.text) == (401, reason, "")
    assert reply.headers["Connection"] == "close"


@pytest.mark.api(version="8.4.1")
async def test_before_9_1_5_the_reason_says_what_was_wrong(api: Api) -> None:
    reply = await api.as_nobody(Authorization="PVEAPIToken=root@pam!simulator=wrong").get("/version")
    assert reply.reason == "invalid token value!"


async def test_a_refused_login_takes_three_seconds_on_the_clock() -> None:
    class NotedClock(ManualClock):
        def __init__(self) -> None:
            super().__init__()
            self.slept: list[float] = []

        async def sleep(self, seconds: float) -> None:
            if seconds == 3.0:
                self.slept.append(seconds)
            else:  # others may wait on this clock too
                await super().sleep(seconds)

    clock = NotedClock()
    async with simulated_api(clock=clock, auth_delay=3.0) as api:
        assert (await api.as_nobody().get("/version")).status == 401
        wrong = await api.as_nobody().post("/access/ticket", username="root@pam", password="wrong")
        assert wrong.status == 401
        assert clock.slept == [3.0, 3.0]


async def test_a_ticket_lets_a_user_read_and_with_the_csrf_token_change(api: Api) -> None:
    root = await api.as_user("root@pam", "simulated-root")
    assert (await root.get("/version")).status == 200
    assert (await root.post("/nodes/pve1/qemu/108/status/start")).status == 200
    del root.headers["CSRFPreventionToken"]
    assert (await root.get("/version")).status == 200
    refused = await root.post("/nodes/pve1/qemu/108/status/start")
    assert (refused.status, refused.reason) == (401, "Permission denied - invalid csrf token")
    root.headers["CSRFPreventionToken"] = "00000000:abc"
    assert (await root.post("/nodes/pve1/qemu/108/status/start")).status == 401


async def test_a_ticket_lives_two_hours_and_can_be_renewed_with_itself(api: Api) -> None:
    login = (await api.as_nobody().post("/access/ticket", username="root@pam", password="simulated-root")).data
    cookie = api.as_nobody(Cookie=f"PVEAuthCookie={quote(login['ticket'], safe='')}")
    await api.clock.advance(7000)
    assert (await cookie.get("/version")).status == 200
    renewed = await api.as_nobody().post("/access/ticket", username="root@pam", password=login["ticket"])
    await api.clock.advance(300)
    expired = await cookie.get("/version")
    assert (expired.status, expired.reason) == (401, "Authentication failed!")
    fresh = api.as_nobody(Cookie=f"PVEAuthCookie={quote(renewed.data['ticket'], safe='')}")
    assert (await fresh.get("/version")).status == 200


async def test_the_ticket_lists_the_capabilities_of_the_user(api: Api) -> None:
    login = (await api.as_nobody().post("/access/ticket", username="root@pam", password="simulated-root")).data
    assert login["clustername"] == "homelab"
    await api.post("/access/users", userid="eve@pve", password="eve-password")
    eve = (await api.as_nobody().post("/access/ticket", username="eve@pve", password="eve-password")).data
    assert "clustername" not in eve
    assert set(login["cap"]) == {"access", "dc", "mapping", "nodes", "sdn", "storage", "vms"}
    assert login["cap"]["dc"].keys() == {"SDN.Allocate", "SDN.Audit", "SDN.Use", "Sys.Audit", "Sys.Modify"}
    assert login["cap"]["access"].keys() == {"Group.Allocate", "Permissions.Modify", "User.Modify"}


@pytest.mark.parametrize(
    ("username", "password"),
    [("root@pam", "wrong"), ("root@nope", "x"), ("root", "x"), ("dave@pve", "dave-is-away")],
)
async def test_a_wrong_password_gets_a_401_with_a_body(api: Api, username, password):
    reply = await api.as_nobody().post("/access/ticket", username=username, password=password)
    assert (reply.status, reply.reason) == (401, "authentication failure")
    assert reply.body == {"data": None, "message": "authentication failure\n"}


async def test_the_realm_may_be_a_separate_parameter(api: Api) -> None:
    reply = await api.as_nobody().post("/access/ticket", username="bob", realm="pve", password="bob-looks-around")
    assert reply.data["username"] == "bob@pve"


async def test_a_token_cannot_ask_for_a_ticket(api: Api) -> None:
    reply = await api.post("/access/ticket", username="root@pam", password="simulated-root")
    assert reply.status == 403
    expected = "Permission check failed (URI '/access/ticket' not available with API token, need proper ticket."
    assert reply.reason == expected


async def test_expired_tokens_and_tokens_of_disabled_users_are_refused(api: Api) -> None:
    alice = api.as_token("alice@pve!cli")
    assert (await alice.get("/version")).status == 200
    api.cluster.world.access.users["alice@pve"].tokens["cli"].expire = 1000
    assert (await alice.get("/version")).status == 401
    api.cluster.world.access.users["alice@pve"].tokens["cli"].expire = 0
    api.cluster.world.access.users["alice@pve"].enable = False
    assert (await alice.get("/version")).status == 401


async def test_realms_can_be_read_without_login(api: Api) -> None:
    realms = (await api.as_nobody().get("/access/domains")).data
    assert [realm["realm"] for realm in realms] == ["pam", "pve"]


async def test_a_second_factor_makes_a_login_two_steps(api: Api) -> None:
    root = await api.as_user("root@pam", "simulated-root")
    keys = (await root.post("/access/tfa/alice@pve", type="recovery")).data["recovery"]
    assert (await root.post("/access/tfa/alice@pve", type="recovery")).status == 500
    nobody, alice = api.as_nobody(), {"username": "alice@pve"}
    first = (await nobody.post("/access/ticket", **alice, password="alice-in-the-lab")).data
    assert first["NeedTFA"] == 1
    assert first["CSRFPreventionToken"]
    assert "cap" not in first
    assert (await root.get("/access/users/alice@pve")).data["keys"] == "x"
    half = nobody.as_nobody(Cookie=f"PVEAuthCookie={quote(first['ticket'], safe='')}")
    assert (await half.get("/version")).status == 401  # a challenge ticket grants no access
    second = {**alice, "tfa-challenge": first["ticket"], "password": f"recovery:{keys[0]}"}
    assert "NeedTFA" not in (await nobody.post("/access/ticket", **second)).data
    assert (await nobody.post("/access/ticket", **second)).status == 401  # each key works once
    wrong = {**second, "username": "bob@pve"}
    assert (await nobody.post("/access/ticket", **wrong)).status == 401
    assert [row["userid"] for row in (await root.get("/access/tfa")).data] == ["alice@pve"]
    assert (await root.delete("/access/tfa/alice@pve/recovery")).status == 200
    assert "keys" not in (await root.get("/access/users/alice@pve")).data
    assert (await api.as_user("alice@pve", "alice-in-the-lab")).headers["CSRFPreventionToken"]


async def test_a_totp_is_only_added_with_its_current_code(api: Api) -> None:
    bob = await api.as_user("bob@pve", "bob-looks-around")
    totp = {"type": "totp", "totp": f"otpauth://totp/x?secret={b32encode(b'k' * 20).decode()}"}
    own = {**totp, "description": "phone", "password": "bob-looks-around"}
    assert (await bob.post("/access/tfa/bob@pve", **totp, description="phone")).errors == {
        "password": "password is required to modify TFA data"
    }
    assert "verify" in (await bob.post("/access/tfa/bob@pve", **own, value="000000")).reason
    code = _code(b"k" * 20, int(api.clock.now()) // 30)
    added = (await bob.post("/access/tfa/bob@pve", **own, value=code)).data
    assert (await bob.get(f"/access/tfa/bob@pve/{added['id']}")).data["description"] == "phone"
    first = (await api.as_nobody().post("/access/ticket", username="bob@pve", password="bob-looks-around")).data
    answer = {"username": "bob@pve", "tfa-challenge": first["ticket"], "password": f"totp:{code}"}
    assert (await api.as_nobody().post("/access/ticket", **answer)).data["ticket"].startswith("PVE:bob@pve:")
