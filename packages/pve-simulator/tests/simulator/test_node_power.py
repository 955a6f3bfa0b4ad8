"""Reboot, shutdown and wake-up of nodes."""

from __future__ import annotations

from pve_simulator.api_client import Api


async def test_a_rebooting_node_is_away_for_a_while_and_starts_its_guests_again(api: Api):
    assert (await api.post("/nodes/pve2/status", command="reboot")).data is None
    assert (await api.get("/nodes/pve2/status")).status == 200
    await api.clock.advance(60)
    away = await api.get("/nodes/pve2/status")
    assert (away.status, away.reason, away.text) == (595, "No route to host", "")
    states = {row["node"]: row["status"] for row in (await api.get("/nodes")).data}
    assert states == {"pve1": "online", "pve2": "offline", "pve3": "online"}
    await api.clock.advance(120)
    back = (await api.get("/nodes/pve2/status")).data
    assert back["uptime"] < 180
    assert (await api.get("/nodes/pve2/qemu/103/status/current")).data["status"] == "running"
    assert (await api.get("/nodes/pve2/lxc/207/status/current")).data["status"] == "stopped"
    kinds = [row["type"] for row in (await api.get("/nodes/pve2/tasks")).data[:2]]
    assert kinds == ["startall", "stopall"]


async def test_a_shut_down_node_stays_away_until_it_is_woken(api: Api):
    wake = "/nodes/pve2/wakeonlan"
    assert (await api.post(wake)).reason == "No wake on LAN MAC address defined for 'pve2'!"
    await api.put("/nodes/pve2/config", wakeonlan="aa:bb:cc:dd:ee:ff")
    await api.post("/nodes/pve2/status", command="shutdown")
    await api.clock.advance(600)
    assert (await api.get("/nodes/pve2/status")).status == 595
    assert (await api.post(wake)).data == "aa:bb:cc:dd:ee:ff"
    await api.clock.advance(100)
    assert (await api.get("/nodes/pve2/status")).status == 200
    assert (await api.post("/nodes/pve1/wakeonlan")).reason == "'pve1' is local node, cannot wake my self!"
    assert (await api.post("/nodes/nope/wakeonlan")).reason == "no such cluster node 'nope'"


async def test_switching_off_needs_the_privilege(api: Api):
    denied = await api.as_token("bob@pve!monitor").post("/nodes/pve2/status", command="reboot")
    assert denied.reason == "Permission check failed (/nodes/pve2, Sys.PowerMgmt)"


async def test_the_time_away_is_missing_in_the_charts(api: Api):
    await api.post("/nodes/pve2/status", command="shutdown")
    await api.clock.advance(600)
    rows = (await api.get("/nodes/pve2/rrddata", timeframe="hour")).data
    assert "cpu" in rows[0]
    assert rows[-1].keys() == {"time"} or rows[-1]["time"] < api.clock.now() - 60
