"""Administration of a node: settings, services, packages, certificates, logs, hardware, consoles."""

from __future__ import annotations

import pytest

from pve_simulator.api_client import Api

NODE = "/nodes/pve1"


async def exit_of(api: Api, path: str, **params: object) -> str:
    return await api.finish_task(await api.post(path, **params))


async def test_notes_and_options_are_kept_and_deleted(api: Api):
    assert (await api.get(f"{NODE}/config")).data == {}
    await api.put(f"{NODE}/config", description="rack 3", wakeonlan="aa:bb:cc:dd:ee:ff")
    config = (await api.get(f"{NODE}/config")).data
    assert config["description"] == "rack 3\n"
    stale = await api.put(f"{NODE}/config", description="x", digest="0" * 40)
    assert stale.reason == "detected modified configuration - file changed by other user? Try again."
    assert (await api.get(f"{NODE}/config", property="wakeonlan")).data == {"wakeonlan": "aa:bb:cc:dd:ee:ff"}
    await api.put(f"{NODE}/config", delete="description,wakeonlan")
    left = (await api.get(f"{NODE}/config")).data
    assert (left["description"], set(left)) == ("", {"description", "digest"})


async def test_dns_hosts_and_time_can_be_changed(api: Api):
    await api.put(f"{NODE}/dns", search="lan", dns1="1.1.1.1", dns2="9.9.9.9")
    assert (await api.get(f"{NODE}/dns")).data == {"search": "lan", "dns1": "1.1.1.1", "dns2": "9.9.9.9"}
    hosts = (await api.get(f"{NODE}/hosts")).data
    await api.post(f"{NODE}/hosts", data="127.0.0.1 localhost\n", digest=hosts["digest"])
    assert (await api.post(f"{NODE}/hosts", data="x", digest=hosts["digest"])).status == 500
    assert (await api.get(f"{NODE}/hosts")).data["data"] == "127.0.0.1 localhost\n"
    time = (await api.get(f"{NODE}/time")).data
    assert time == {"timezone": "UTC", "time": int(api.clock.now()), "localtime": int(api.clock.now())}
    mars = await api.put(f"{NODE}/time", timezone="Mars/Olympus Mons")
    assert mars.errors == {"timezone": "No such timezone"}


@pytest.mark.parametrize(("action", "state"), [("stop", "dead"), ("restart", "running"), ("start", "running")])
async def test_services_are_started_and_stopped_by_tasks(api: Api, action: str, state: str):
    reply = await api.post(f"{NODE}/services/pvestatd/{action}")
    assert f":srv{action}:pvestatd:" in reply.data
    assert await api.finish_task(reply) == "OK"
    assert (await api.get(f"{NODE}/services/pvestatd/state")).data["state"] == state


async def test_essential_services_are_not_stopped(api: Api):
    text = "invalid service cmd 'pveproxy stop': refusing to stop essential service!"
    assert await exit_of(api, f"{NODE}/services/pveproxy/stop") == text
    assert await exit_of(api, f"{NODE}/services/pveproxy/restart") == "OK"
    unknown = await api.post(f"{NODE}/services/nothing/stop")
    assert "does not have a value in the enumeration" in unknown.errors["service"]


async def test_package_lists_can_be_refreshed_and_repositories_switched(api: Api):
    assert {"pve-manager", "qemu-server"} <= {row["Package"] for row in (await api.get(f"{NODE}/apt/versions")).data}
    assert all("OldVersion" in row for row in (await api.get(f"{NODE}/apt/update")).data)
    assert await exit_of(api, f"{NODE}/apt/update") == "OK"
    shown = (await api.get(f"{NODE}/apt/repositories")).data
    path = "/etc/apt/sources.list.d/pve-enterprise.sources"
    assert (await api.post(f"{NODE}/apt/repositories", path=path, index=0, enabled=1)).data is None
    assert await exit_of(api, f"{NODE}/apt/update") == "WARNINGS: 1"
    assert (await api.put(f"{NODE}/apt/repositories", handle="test", digest=shown["digest"])).status == 500
    assert (await api.put(f"{NODE}/apt/repositories", handle="test")).data is None
    states = {
        row["handle"]: row.get("status") for row in (await api.get(f"{NODE}/apt/repositories")).data["standard-repos"]
    }
    assert states["enterprise"] == states["test"] == 1
    assert "qemu-server" in (await api.get(f"{NODE}/apt/changelog", name="qemu-server")).data


async def test_the_certificates_are_those_of_the_endpoint(api: Api):
    authority, own = (await api.get(f"{NODE}/certificates/info")).data
    assert own["fingerprint"] == api.cluster.fingerprint
    assert (authority["filename"], own["filename"]) == ("pve-root-ca.pem", "pve-ssl.pem")
    assert own["issuer"] == authority["subject"]
    assert "127.0.0.1" in own["san"]


async def test_a_custom_certificate_needs_its_key_and_force_to_be_replaced(api: Api):
    pem = (await api.get(f"{NODE}/certificates/info")).data[1]["pem"]
    without = await api.post(f"{NODE}/certificates/custom", certificates=pem)
    assert without.reason == "Attempted to upload custom certificate without (existing) key."
    assert (await api.delete(f"{NODE}/certificates/custom")).data is None
    ordered = await api.post(f"{NODE}/certificates/acme/certificate")
    assert (ordered.status, ordered.reason) == (400, "ACME domain list in node configuration is missing!")


async def test_the_log_mentions_tasks(api: Api):
    upid = (await api.post(f"{NODE}/services/cron/restart")).data
    await api.clock.advance(5)
    total = (await api.get(f"{NODE}/syslog")).body["total"]
    last = (await api.get(f"{NODE}/syslog", start=total - 1, limit=5)).data
    assert [row["n"] for row in last] == [total]
    assert f"end task {upid} OK" in last[0]["t"]
    first, *lines, end = (await api.get(f"{NODE}/journal", lastentries=3)).data
    assert first.startswith("s=")
    assert end.startswith("s=")
    assert len(lines) == 3
    nothing = await api.get(f"{NODE}/syslog", service="nothing")
    assert nothing.body == {"data": [{"n": 1, "t": "-- No entries --"}], "total": 1}


async def test_the_subscription_is_shown_without_its_key_to_those_who_may_not_audit(api: Api):
    assert (await api.get(f"{NODE}/subscription")).data["status"] == "notfound"
    assert (await api.put(f"{NODE}/subscription", key="pve2c-1234567890")).data is None
    assert (await api.get(f"{NODE}/subscription")).data["key"] == "pve2c-1234567890"
    assert "key" not in (await api.as_token("alice@pve!ci").get(f"{NODE}/subscription")).data
    assert (await api.delete(f"{NODE}/subscription")).data is None


async def test_everything_to_look_at_can_be_looked_at(api: Api):
    for path in (
        "netstat", "report", "hardware", "hardware/pci", "hardware/usb", "hardware/pci/0000:01:00.0",
        "capabilities", "capabilities/qemu", "capabilities/qemu/cpu",
        "capabilities/qemu/cpu-flags", "capabilities/qemu/machines", "capabilities/qemu/migration", "apt",
        "certificates", "certificates/acme", "services", "services/cron", "ceph", "ceph/cfg", "disks",
    ):  # fmt: skip
        assert (await api.get(f"{NODE}/{path}")).data, path
    assert (await api.get(f"{NODE}/hardware/pci/0000:01:00.0/mdev")).data == []


async def test_ceph_is_not_installed(api: Api):
    for reply in (await api.get(f"{NODE}/ceph/status"), await api.post(f"{NODE}/ceph/init")):
        assert (reply.status, reply.reason) == (500, "binary not installed: /usr/bin/ceph-mon")


async def test_several_calls_in_one_are_for_root_alone(api: Api):
    commands = '[{"method":"GET","path":"version"},{"method":"GET","path":"nope"},{"method":"GET","path":"rrddata"}]'
    denied = await api.post(f"{NODE}/execute", commands=commands)
    assert denied.reason == "Permission check failed (user != root@pam)"
    root = await api.as_user("root@pam", "simulated-root")
    version, unknown, wrong = (await root.post(f"{NODE}/execute", commands=commands)).data
    assert version["data"]["version"] == "9.1.8"
    assert (unknown["status"], unknown["message"]) == (500, "no handler for 'nodes/pve1/nope'\n")
    assert wrong["errors"] == {"timeframe": "property is missing and it is not optional"}


async def test_consoles_give_a_ticket_and_a_task_that_waits(api: Api):
    console = (await api.post("/nodes/pve1/qemu/102/vncproxy", websocket=1)).data
    assert console["port"] == "5900"
    assert console["cert"].startswith("-----BEGIN CERTIFICATE-----")
    good = await api.get("/nodes/pve1/qemu/102/vncwebsocket", port=5900, vncticket=console["ticket"])
    assert good.data == {"port": "5900"}
    other = await api.get("/nodes/pve1/lxc/200/vncwebsocket", port=5900, vncticket=console["ticket"])
    assert (other.status, other.reason) == (401, "permission denied - invalid PVEVNC ticket")
    await api.clock.advance(20)
    assert (await api.task(console["upid"]))["exitstatus"] == "connection timed out"
    assert (await api.post("/nodes/pve1/lxc/200/termproxy")).data["port"] == "5901"
    assert (await api.post("/nodes/pve1/qemu/102/termproxy")).data["port"] == "5902"
    assert (await api.post("/nodes/pve1/qemu/102/spiceproxy")).reason == "no spice port"
    assert (await api.post("/nodes/pve1/termproxy")).data["user"] == api.cluster.token_id
    assert "tls-port" in (await api.post("/nodes/pve1/spiceshell")).data
    assert (await api.post("/nodes/nope/vncshell")).reason.startswith("hostname lookup 'nope' failed")


async def test_the_monitor_shows_to_auditors_and_obeys_only_administrators(api: Api):
    monitor = "/nodes/pve1/qemu/102/monitor"
    bob = api.as_token("bob@pve!monitor")
    assert (await bob.post(monitor, command="info status")).data == "VM status: running\r\n"
    assert (await bob.post(monitor, command="quit")).reason == "Permission check failed (/, Sys.Modify)"
    stopped = await api.post("/nodes/pve1/qemu/108/monitor", command="info version")
    assert stopped.data == "ERROR: VM 108 not running\n"
    assert (await api.put("/nodes/pve1/qemu/102/sendkey", key="ctrl-alt-delete")).data is None
    assert (await api.put("/nodes/pve1/qemu/102/sendkey", key="nokey")).reason == "invalid parameter: nokey"
    assert (await api.put("/nodes/pve1/qemu/108/sendkey", key="ret")).reason == "VM 108 not running"
    tunnel = await api.post("/nodes/pve1/qemu/102/mtunnel")
    assert "already exists on node 'pve1'" in tunnel.errors["vmid"]
