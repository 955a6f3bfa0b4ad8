"""SDN: pending configuration and applying it."""

from __future__ import annotations

from pve_simulator.api_client import Api

ZONES, VNETS = "/cluster/sdn/zones", "/cluster/sdn/vnets"


async def test_changes_are_pending_until_they_are_applied_to_all_nodes(api: Api):
    assert (await api.post(ZONES, zone="lab", type="vlan", bridge="vmbr0")).data is None
    await api.post(VNETS, vnet="blue", zone="lab", tag=10)
    (zone,) = (await api.get(ZONES, pending=1)).data
    assert (zone["zone"], zone["state"], zone["pending"]) == ("lab", "new", {"bridge": "vmbr0"})
    assert (await api.get(ZONES, running=1)).data == []
    assert (await api.get("/nodes/pve1/sdn/zones")).data == []
    task = await api.put("/cluster/sdn")
    assert ":reloadnetworkall::" in task.data
    assert await api.finish_task(task) == "OK"
    for node in api.cluster.world.nodes:
        tasks = (await api.get(f"/nodes/{node}/tasks", typefilter="srvreload")).data
        assert [row["status"] for row in tasks] == ["OK"]
    (zone,) = (await api.get(ZONES, pending=1)).data
    assert "state" not in zone
    assert (await api.get("/nodes/pve1/sdn/zones")).data == [{"zone": "lab", "status": "available"}]
    (vnet,) = (await api.get("/nodes/pve1/sdn/zones/lab/content")).data
    assert vnet["vnet"] == "blue"
    ids = [row["id"] for row in (await api.get("/cluster/resources", type="sdn")).data]
    assert "network/pve1/zone/lab" in ids


async def test_the_pending_view_shows_changes_and_deletions(api: Api):
    await api.post(ZONES, zone="lab", type="simple", mtu=1400)
    await api.post(ZONES, zone="old", type="simple")
    await api.put("/cluster/sdn")
    await api.put(f"{ZONES}/lab", delete="mtu", nodes="pve1")
    await api.delete(f"{ZONES}/old")
    rows = {row["zone"]: row for row in (await api.get(ZONES, pending=1)).data}
    assert rows["lab"]["state"] == "changed"
    assert rows["lab"]["mtu"] == 1400
    assert rows["lab"]["pending"] == {"mtu": "deleted", "nodes": "pve1"}
    assert rows["old"]["state"] == "deleted"
    assert [row["zone"] for row in (await api.get(ZONES)).data] == ["lab"]
    await api.post("/cluster/sdn/rollback")
    assert [row["zone"] for row in (await api.get(ZONES)).data] == ["lab", "old"]


async def test_zones_and_vnets_follow_the_rules_of_their_type(api: Api):
    bare = await api.post(ZONES, zone="lab", type="vlan")
    assert bare.reason == "missing value for required option 'bridge'"
    foreign = await api.post(ZONES, zone="lab", type="simple", bridge="vmbr0")
    assert foreign.reason == "unexpected property 'bridge'"
    await api.post(ZONES, zone="lab", type="vlan", bridge="vmbr0")
    again = await api.post(ZONES, zone="lab", type="vlan", bridge="vmbr0")
    assert again.reason == "create sdn zone object failed: sdn zone object ID 'lab' already defined"
    untagged = await api.post(VNETS, vnet="blue", zone="lab")
    assert (untagged.status, untagged.reason) == (
        500,
        "create sdn vnet object failed: 400 Parameter verification failed.",
    )
    assert untagged.body["message"].endswith("tag: missing vlan tag\n")
    await api.post(VNETS, vnet="blue", zone="lab", tag=10)
    same = await api.post(VNETS, vnet="green", zone="lab", tag=10)
    assert "tag 10 already exist in vnet blue" in same.body["message"]
    used = await api.delete(f"{ZONES}/lab")
    assert used.reason.startswith("delete sdn zone object failed: zone lab is used by vnet blue at ")
    assert (await api.get(f"{ZONES}/nope")).reason == "sdn 'nope' does not exist"
    dns = await api.post(ZONES, zone="named", type="simple", dns="none")
    assert "dns: none don't exist" in dns.body["message"]
    alone = await api.post(ZONES, zone="tunnel", type="vxlan")
    assert "peers: must have exactly one of peers / fabric defined" in alone.body["message"]
    assert (await api.post(ZONES, zone="tunnel", type="vxlan", peers="10.0.0.1")).status == 200


async def test_subnets_lie_in_a_vnet_and_keep_it_there(api: Api):
    await api.post(ZONES, zone="lab", type="simple", ipam="pve")
    await api.post(VNETS, vnet="blue", zone="lab")
    subnets = f"{VNETS}/blue/subnets"
    outside = await api.post(subnets, subnet="10.9.0.0/24", type="subnet", gateway="10.8.0.1")
    assert "gateway: 10.8.0.1 is not in subnet 10.9.0.0/24" in outside.body["message"]
    wrong = await api.post(subnets, subnet="ten", type="subnet")
    assert list(wrong.errors) == ["subnet"]
    params = {
        "subnet": "10.9.0.0/24",
        "type": "subnet",
        "gateway": "10.9.0.1",
        "dhcp-range": "start-address=10.9.0.10,end-address=10.9.0.20",
    }
    assert (await api.post(subnets, **params)).data is None
    row = (await api.get(f"{subnets}/lab-10.9.0.0-24")).data
    assert (row["cidr"], row["zone"], row["mask"], row["vnet"]) == ("10.9.0.0/24", "lab", "24", "blue")
    assert row["dhcp-range"] == [{"start-address": "10.9.0.10", "end-address": "10.9.0.20"}]
    (address,) = (await api.get("/cluster/sdn/ipams/pve/status")).data
    assert (address["ip"], address["gateway"]) == ("10.9.0.1", 1)
    held = await api.delete(f"{VNETS}/blue")
    assert "vnet: Can't delete vnet if subnets exists" in held.body["message"]
    await api.delete(f"{subnets}/lab-10.9.0.0-24")
    assert (await api.delete(f"{VNETS}/blue")).data is None


async def test_only_the_holder_of_the_lock_may_change(api: Api):
    token = (await api.post("/cluster/sdn/lock")).data
    refused = await api.post(ZONES, zone="lab", type="simple")
    assert refused.reason == "create sdn zone object failed: invalid lock token provided!"
    assert (await api.post(ZONES, zone="lab", type="simple", **{"lock-token": token})).data is None
    assert (await api.put("/cluster/sdn", **{"lock-token": token})).status == 200
    assert (await api.delete(f"{ZONES}/lab")).data is None
    dirty = await api.post("/cluster/sdn/lock")
    assert dirty.reason == "configuration contains pending changes"
    assert (await api.post("/cluster/sdn/lock", **{"allow-pending": 1})).status == 200
    assert (await api.delete("/cluster/sdn/lock?force=1")).data is None
    assert (await api.post(ZONES, zone="new", type="simple")).data is None


async def test_controllers_ipams_and_dns_servers_are_kept_while_a_zone_needs_them(api: Api):
    await api.post("/cluster/sdn/controllers", controller="frr", type="evpn", asn=65000, peers="10.0.0.1")
    await api.post(ZONES, zone="wide", type="evpn", controller="frr", **{"vrf-vxlan": 10})
    used = await api.delete("/cluster/sdn/controllers/frr")
    assert used.reason == "delete sdn controller object failed: controller frr is used by wide"
    await api.post("/cluster/sdn/dns", dns="pdns", type="powerdns", url="http://x", key="k")
    assert [row["dns"] for row in (await api.get("/cluster/sdn/dns")).data] == ["pdns"]
    assert [row["ipam"] for row in (await api.get("/cluster/sdn/ipams")).data] == ["pve"]
    await api.put(f"{ZONES}/wide", dns="pdns")
    assert (await api.delete("/cluster/sdn/dns/pdns")).reason.endswith("dns pdns is used by wide")


async def test_privileges_on_a_zone_decide_what_is_listed(api: Api):
    for zone in ("lab", "work"):
        await api.post(ZONES, zone=zone, type="simple")
        await api.post(VNETS, vnet=f"net{zone}", zone=zone)
    await api.put("/access/acl", path="/sdn/zones/lab", roles="PVESDNUser", users="alice@pve")
    alice = api.as_token("alice@pve!cli")
    assert [row["zone"] for row in (await alice.get(ZONES)).data] == ["lab"]
    assert [row["vnet"] for row in (await alice.get(VNETS)).data] == ["netlab"]
    missing = await alice.get(f"{VNETS}/nope")
    assert missing.reason == "sdn vnet 'nope' does not exist"
    denied = await alice.get(f"{VNETS}/network")
    assert denied.reason == "Permission check failed (/sdn/zones/work/network, SDN.Audit|SDN.Allocate)"


async def test_a_vnet_has_a_firewall_for_forwarded_packets_only(api: Api):
    await api.post(ZONES, zone="lab", type="simple")
    await api.post(VNETS, vnet="blue", zone="lab")
    rules = f"{VNETS}/blue/firewall/rules"
    assert (await api.post(rules, type="in", action="DROP")).status == 400
    assert (await api.post(rules, type="forward", action="DROP")).data is None
    assert [rule["type"] for rule in (await api.get(rules)).data] == ["forward"]
    await api.put(f"{VNETS}/blue/firewall/options", enable=1)
    assert (await api.get(f"{VNETS}/blue/firewall/options")).data["enable"] == 1
