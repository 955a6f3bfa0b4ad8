"""Health, readiness and metrics."""

from __future__ import annotations

import pytest

from quorate.config.http import HttpSettings
from quorate.state.approvals import Approvals, Request
from quorate.state.limits import Freeze
from tests.rigs.web_server import web

pytestmark = pytest.mark.anyio
ERAS = pytest.mark.parametrize("mode", ["auto", "legacy"])


async def test_health_and_readiness_need_no_token_and_tell_no_secret(tmp_path):
    async with web(tmp_path) as quorate:
        await quorate.token("alice")
        for path, status in {"/healthz": "alive", "/readyz": "ready"}.items():
            answer = await quorate.get(path)
            assert answer.status_code == 200
            assert answer.json()["status"] == status
            assert str(tmp_path) not in answer.text


async def test_a_cluster_that_is_down_does_not_make_the_server_unready(tmp_path):
    async with web(tmp_path) as quorate:
        await quorate.rig.sim.stop_endpoint(0)
        assert (await quorate.get("/readyz")).status_code == 200


async def test_metrics_are_for_callers_with_a_token(tmp_path):
    async with web(tmp_path) as quorate:
        token = await quorate.token("prometheus")
        assert (await quorate.get("/metrics")).status_code == 401
        answer = await quorate.get("/metrics", token)
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")


async def test_the_operator_can_open_metrics(tmp_path):
    async with web(tmp_path, http=HttpSettings(open_metrics=True)) as quorate:
        await quorate.token("alice")
        assert (await quorate.get("/metrics")).status_code == 200
        assert (await quorate.post()).status_code == 401


@ERAS
async def test_calls_are_counted_by_tool_and_outcome_and_timed(tmp_path, mode):
    async with web(tmp_path) as quorate:
        async with quorate.client(mode=mode) as client:
            await client.call_tool("guest_list", {})
            await client.call_tool("guest_get", {"guest": 100})
            await client.call_tool("guest_get", {"guest": 424242})
            await client.call_tool('no_such_tool\n{evil="1"}', {})
        numbers = await quorate.numbers()
        assert numbers['quorate_calls_total{outcome="ok",tool="guest_list"}'] == 1
        assert numbers['quorate_calls_total{outcome="ok",tool="guest_get"}'] == 1
        assert numbers['quorate_calls_total{outcome="error",tool="guest_get"}'] == 1
        assert numbers['quorate_calls_total{outcome="error",tool="unknown"}'] == 1
        assert numbers['quorate_call_seconds_count{tool="guest_get"}'] == 2
        assert numbers['quorate_call_seconds_bucket{le="+Inf",tool="guest_get"}'] == 2
        assert numbers["quorate_calls_running"] == 0
        assert not [name for name in numbers if "evil" in name]
        asked = sum(count for name, count in numbers.items() if name.startswith("quorate_pve_requests_total{"))
        assert asked == len(quorate.rig.sim.requests)
        assert numbers['quorate_pve_requests_total{answer="200",cluster="demo",method="GET"}'] > 0


async def test_durations_are_those_of_the_clock(tmp_path):
    async with web(tmp_path) as quorate:
        async with quorate.client() as client:
            await client.call_tool("guest_power", {"guest": 100, "action": "shutdown"})
        numbers = await quorate.numbers()
        took = numbers['quorate_call_seconds_sum{tool="guest_power"}']
        assert took > 0.1
        below = [numbers[f'quorate_call_seconds_bucket{{le="{bound}",tool="guest_power"}}'] for bound in (0.05, "+Inf")]
        assert below == [0, 1]


async def test_failures_and_pending_approvals_are_counted(tmp_path):
    async with web(tmp_path) as quorate:
        token = await quorate.token("alice")
        await quorate.post()
        await quorate.post("wrong")
        request = Request("http:alice", "demo", "guest_delete", "destroy", "d", "vm 100", "Delete 100")
        await Approvals(quorate.rig.app.store).ask(request)
        numbers = await quorate.numbers(token)
        assert numbers['quorate_auth_failures_total{reason="missing"}'] == 1
        assert numbers['quorate_auth_failures_total{reason="invalid_token"}'] == 1
        assert numbers["quorate_approvals_pending"] == 1
        assert numbers["quorate_changes_frozen"] == 0
        await Freeze(quorate.rig.app.store).set("the test", "", quorate.rig.app.audit)
        assert (await quorate.numbers(token))["quorate_changes_frozen"] == 1
