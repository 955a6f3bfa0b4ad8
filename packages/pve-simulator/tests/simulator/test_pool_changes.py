"""Creating, changing and deleting pools."""

from __future__ import annotations

from pve_simulator.api_client import Api


async def test_a_pool_takes_members_shows_them_and_is_deleted_only_when_empty(api: Api):
    world = api.cluster.world
    vmid = next(vmid for vmid in world.guests if world.access.pool_of(vmid) is None)
    assert (await api.post("/pools", poolid="dev", comment="c")).data is None
    again = await api.post("/pools", poolid="dev")
    assert again.reason == "create pool failed: pool 'dev' already exists"
    assert (await api.put("/pools", poolid="dev", vms=vmid, storage="local")).data is None
    pool = (await api.get("/pools/dev")).data
    assert (pool["poolid"], pool["comment"]) == ("dev", "c")
    assert pool["members"][0]["id"].endswith(f"/{vmid}")
    assert "pool" not in pool["members"][0]
    assert [member["storage"] for member in pool["members"][1:]] == ["local"]
    twice = await api.put("/pools/dev", vms=vmid)
    assert twice.reason == f"update pools failed: VM {vmid} is already a pool member"
    full = await api.delete("/pools/dev")
    assert full.reason == f"delete pool failed: pool 'dev' is not empty (contains VM {vmid})"
    await api.put("/pools/dev", vms=vmid, delete=1)
    full = await api.delete("/pools?poolid=dev")
    assert full.reason == "delete pool failed: pool 'dev' is not empty (contains storage 'local')"
    await api.put("/pools/dev", storage="local", delete=1)
    absent = await api.put("/pools/dev", storage="local", delete=1)
    assert absent.reason == "update pools failed: Storage 'local' is not a pool member"
    assert (await api.delete("/pools/dev")).data is None
    gone = await api.delete("/pools/dev")
    assert gone.reason == "delete pool failed: pool 'dev' does not exist"


async def test_a_guest_of_another_pool_moves_only_on_request(api: Api):
    vmid = min(api.cluster.world.access.pools["lab"].vms)
    await api.post("/pools", poolid="dev")
    refused = await api.put("/pools/dev", vms=vmid)
    assert refused.reason.startswith(f"update pools failed: VM {vmid} belongs already to pool 'lab'")
    await api.put("/pools/dev", vms=vmid, **{"allow-move": 1})
    assert api.cluster.world.access.pool_of(vmid) == "dev"
    assert vmid not in api.cluster.world.access.pools["lab"].vms


async def test_nothing_changes_when_one_of_several_members_is_refused(api: Api):
    world = api.cluster.world
    free = next(vmid for vmid in world.guests if world.access.pool_of(vmid) is None)
    member = min(world.access.pools["lab"].vms)
    await api.post("/pools", poolid="dev")
    assert (await api.put("/pools/dev", vms=f"{free},{member}", comment="new")).status == 500
    assert world.access.pools["dev"].vms == set()
    assert world.access.pools["dev"].comment is None


async def test_nested_pools_need_their_parent_and_are_addressed_by_parameter(api: Api):
    orphan = await api.post("/pools", poolid="x/y")
    assert orphan.reason == "create pool failed: parent 'x' of pool 'x/y' does not exist"
    await api.post("/pools", poolid="x")
    await api.post("/pools", poolid="x/y")
    assert (await api.get("/pools", poolid="x/y")).data[0]["poolid"] == "x/y"
    parent = await api.delete("/pools/x")
    assert parent.reason == "delete pool failed: pool 'x' is not empty (contains pool 'x/y')"


async def test_adding_a_member_to_a_pool_needs_privileges_on_the_member(api: Api):
    await api.put("/access/acl", path="/pool/lab", roles="PVEPoolAdmin", users="bob@pve")
    bob = await api.as_user("bob@pve", "bob-looks-around")
    world = api.cluster.world
    free = next(vmid for vmid in world.guests if world.access.pool_of(vmid) is None)
    refused = await bob.put("/pools/lab", vms=free)
    assert (refused.status, refused.reason) == (
        500,
        f"update pools failed: 403 Permission check failed (/vms/{free}, Permissions.Modify|VM.Allocate)",
    )
