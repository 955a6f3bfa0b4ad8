"""Endpoints that only PVE's web interface uses: fabrics, CPU models, ACME accounts, a new cluster."""

from __future__ import annotations

import pytest

from pve_simulator.api_client import Api

_FABRICS = "/cluster/sdn/fabrics"


async def test_a_fabric_has_nodes_and_is_gone_only_without_them(api: Api) -> None:
    await api.post(f"{_FABRICS}/fabric", id="fab1", protocol="openfabric", ip_prefix="10.9.0.0/24")
    node = {"node_id": "pve1", "protocol": "openfabric", "ip": "10.9.0.1", "interfaces": "name=eth0"}
    assert (await api.post(f"{_FABRICS}/node/fab1", **node)).status == 200
    everything = (await api.get(f"{_FABRICS}/all")).data
    assert [row["id"] for row in everything["fabrics"]] == ["fab1"]
    assert [row["node_id"] for row in everything["nodes"]] == ["pve1"]
    assert (await api.delete(f"{_FABRICS}/fabric/fab1")).status == 500
    assert (await api.delete(f"{_FABRICS}/node/fab1/pve1")).status == 200
    assert (await api.delete(f"{_FABRICS}/fabric/fab1")).status == 200
    assert (await api.get(f"{_FABRICS}/fabric")).data == []


async def test_acme_accounts_are_registered_changed_and_deactivated_in_tasks(api: Api) -> None:
    root = await api.as_user("root@pam", "simulated-root")
    account = "/cluster/acme/account/default"
    unagreed = await root.post("/cluster/acme/account", name="default", contact="a@example.com")
    assert "must agree to terms of service" in await root.finish_task(unagreed)
    terms = (await root.get("/cluster/acme/tos")).data
    registered = await root.post("/cluster/acme/account", name="default", contact="a@example.com", tos_url=terms)
    assert await root.finish_task(registered) == "OK"
    assert await root.finish_task(await root.put(account, contact="b@example.com")) == "OK"
    assert (await root.get(account)).data["account"]["contact"] == ["mailto:b@example.com"]
    assert await root.finish_task(await root.delete(account)) == "OK"
    assert (await root.get("/cluster/acme/account")).data == []


@pytest.mark.api(nodes=1)
async def test_a_node_alone_creates_a_cluster_once(api: Api) -> None:
    root = await api.as_user("root@pam", "simulated-root")
    assert [row["type"] for row in (await root.get("/cluster/status")).data] == ["node"]
    assert await root.finish_task(await root.post("/cluster/config", clustername="lab")) == "OK"
    rows = (await root.get("/cluster/status")).data
    assert [(row["type"], row["name"]) for row in rows] == [("cluster", "lab"), ("node", "pve1")]
    again = await root.post("/cluster/config", clustername="lab")
    assert again.reason == "cluster config '/etc/pve/corosync.conf' already exists"


@pytest.mark.api(version="9.2.3")
async def test_a_custom_cpu_model_is_created_used_and_removed(api: Api) -> None:
    models, config = "/cluster/qemu/custom-cpu-models", "/nodes/pve1/qemu/102/config"
    missing = await api.put(config, cpu="custom-lab")
    assert missing.errors["cpu"] == "invalid format - Custom cputype 'lab' not found\n"
    assert (await api.post(models, cputype="lab", **{"reported-model": "EPYC", "flags": "+aes"})).status == 200
    assert (await api.post(models, cputype="lab")).status == 400
    offered = (await api.get("/nodes/pve1/capabilities/qemu/cpu")).data
    assert {"name": "custom-lab", "vendor": "AuthenticAMD", "custom": 1} in offered
    assert (await api.put(config, cpu="custom-lab")).status == 200
    await api.put(f"{models}/lab", level="30", delete="flags")
    assert (await api.get(f"{models}/custom-lab")).data.keys() == {
        "cputype",
        "reported-model",
        "level",
        "digest",
    }
    await api.delete(f"{models}/lab")
    assert (await api.get(models)).data == []
