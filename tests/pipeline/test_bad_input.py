"""What a caller reads when something is wrong: what happened, and what to do."""

from dataclasses import replace

import pytest

from quorate.config import Access, ClusterSettings
from quorate.pve.connection import Connection, Limits, Password, Secret, Token, Trust
from tests.rigs.argument_refusals import refusal_of
from tests.rigs.mcp_session import rig

pytestmark = pytest.mark.anyio

QUICK = Limits(request_seconds=5, total_seconds=5)


async def test_an_unknown_argument_is_refused_with_the_nearest_one(tmp_path):
    async with rig(tmp_path) as quorate:
        text = await quorate.refusal("guest_list", nodes="pve1")
        assert "no argument 'nodes'" in text
        assert "Did you mean 'node'?" in text


def test_a_wrong_type_is_refused_with_what_is_wanted():
    text = refusal_of("guest_list", {"limit": "many"})
    assert "limit='many'" in text
    assert "integer, at least 1 and at most 200" in text


def test_a_number_out_of_range_is_refused_with_the_range():
    assert "at most 200" in refusal_of("guest_list", {"limit": 5000})


def test_a_missing_argument_is_named():
    text = refusal_of("guest_power", {"guest": 100})
    assert "needs the argument 'action'" in text
    assert "shutdown" in text


def test_a_misspelt_choice_gets_the_valid_ones():
    assert "Did you mean 'start'?" in refusal_of("guest_power", {"guest": 100, "action": "strat"})


async def test_an_unknown_tool_gets_the_nearest_one(tmp_path):
    async with rig(tmp_path) as quorate:
        assert "Did you mean 'guest_list'?" in await quorate.refusal("guests_list")


async def test_an_unknown_guest_gets_near_names(tmp_path):
    async with rig(tmp_path) as quorate:
        name = (await quorate.rows("guest_list"))[0]["name"]
        text = await quorate.refusal("guest_get", guest=name[:-1] + "x")
        assert "There is no guest" in text
        assert name in text


async def test_an_ambiguous_name_lists_the_candidates(tmp_path):
    async with rig(tmp_path) as quorate:
        first, second = [guest for guest in quorate.sim.world.guests.values() if guest.kind == "lxc"][:2]
        second.config["hostname"] = first.config["hostname"] = "twin"
        first.touch()
        second.touch()
        text = await quorate.refusal("guest_get", guest="twin")
        assert str(first.vmid) in text
        assert str(second.vmid) in text
        assert "vmid" in text


async def test_an_unknown_node_gets_the_nodes_there_are(tmp_path):
    async with rig(tmp_path) as quorate:
        assert "pve1, pve2, pve3" in await quorate.refusal("node_get", node="pve9")


async def test_a_malformed_task_id_is_explained(tmp_path):
    async with rig(tmp_path) as quorate:
        assert "UPID" in await quorate.refusal("task_get", task="100")


async def test_an_unknown_task_is_not_found(tmp_path):
    async with rig(tmp_path) as quorate:
        text = await quorate.refusal("task_get", task="UPID:pve1:00000001:00000001:60000000:qmstart:100:root@pam:")
        assert "no such task" in text
        assert "task_list" in text


async def with_connection(tmp_path, change, **options):
    """A rig whose connection is changed after the simulator is up."""
    from pve_simulator.clock import ManualClock
    from pve_simulator.simulator import SimulatedCluster
    from quorate.app import simulated_cluster

    async with SimulatedCluster(clock=ManualClock(), auth_delay=0.0) as sim:
        settings = simulated_cluster(sim)
        connection = change(settings.connection, sim)
        async with rig(tmp_path, cluster=replace(settings, connection=connection), **options) as quorate:
            return await quorate.refusal("guest_list")


async def test_a_wrong_token_is_an_authentication_problem_that_hides_the_secret(tmp_path):
    def wrong(connection, sim):
        return replace(connection, credentials=Token(sim.token_id, Secret("11111111-2222-3333-4444-555555555555")))

    text = await with_connection(tmp_path, wrong)
    assert "did not accept the credentials of root@pam!simulator" in text
    assert "11111111-2222" not in text
    assert "pveum user token list" in text


async def test_a_wrong_password_is_an_authentication_problem(tmp_path):
    text = await with_connection(
        tmp_path, lambda connection, _: replace(connection, credentials=Password("root@pam", Secret("not-this-one")))
    )
    assert "did not accept the credentials of root@pam" in text
    assert "not-this-one" not in text


async def test_an_untrusted_certificate_shows_the_fingerprint_to_trust(tmp_path):
    seen = {}

    def untrusted(connection, sim):
        seen["fingerprint"] = sim.fingerprint
        return replace(connection, trust=Trust())

    text = await with_connection(tmp_path, untrusted)
    assert "is not trusted" in text
    assert f"PROXMOX_FINGERPRINT={seen['fingerprint']}" in text


async def test_a_changed_certificate_is_refused_with_both_fingerprints(tmp_path):
    seen = {}

    def pinned(connection, sim):
        seen["fingerprint"] = sim.fingerprint
        return replace(connection, trust=Trust(fingerprint="AB" * 32))

    text = await with_connection(tmp_path, pinned)
    assert "not the pinned one" in text
    assert seen["fingerprint"] in text


async def test_a_cluster_that_is_down_is_unreachable_and_the_tools_are_still_listed(tmp_path):
    nowhere = ClusterSettings(
        "default",
        Connection(("https://127.0.0.1:9",), Token("root@pam!down", Secret("secret-of-nobody")), limits=QUICK),
    )
    async with rig(tmp_path, cluster=nowhere) as quorate:
        assert (await quorate.client.list_tools()).tools
        text = await quorate.refusal("guest_list")
        assert "No connection to https://127.0.0.1:9" in text
        assert "firewall" in text


async def test_an_offline_node_is_named(tmp_path):
    async with rig(tmp_path, faults=["node-offline:pve3"]) as quorate:
        guest = next(
            guest for guest in quorate.sim.world.guests.values() if guest.node == "pve3" and not guest.template
        )
        text = await quorate.refusal("guest_power", guest=guest.vmid, action="start")
        assert "Node pve3 did not answer" in text
        assert "node_list" in text
        assert (await quorate.facts("cluster_status"))["offline"] == ["pve3"]
        assert (await quorate.facts("node_get", node="pve3"))["status"] == "offline"


async def test_without_quorum_changes_are_refused_with_the_reason(tmp_path):
    async with rig(tmp_path, faults=["no-quorum"]) as quorate:
        guest = next(guest for guest in quorate.sim.world.guests.values() if not guest.running and not guest.template)
        assert "no quorum" in await quorate.refusal("guest_power", guest=guest.vmid, action="start")
        assert (await quorate.facts("cluster_status"))["quorate"] is False


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("guest_power", {"action": "start"}),  # refused at once
        ("guest_configure", {"notes": "x"}),  # PVE cannot write the guest's file
        ("snapshot_create", {"name": "nq"}),  # the same, but only within the task
        ("backup_create", {"storage": "local"}),  # the task ends with "job errors"; its log names the cause
        ("pool_set", {"pool": "nq", "comment": "x", "guest": None}),  # PVE waits ten seconds for a lock first
    ],
)
async def test_without_quorum_every_refusal_says_what_is_still_possible(tmp_path, tool, arguments):
    async with rig(tmp_path, access=Access.ADMIN, faults=["no-quorum"], in_memory=True) as quorate:
        arguments = {key: value for key, value in {"guest": 108, **arguments}.items() if value is not None}
        refusal = await quorate.refusal(tool, **arguments)
        assert "The cluster has no quorum" in refusal
        assert "stop, shut down or reset guests that run" in refusal
        assert "Until then you can read everything" in refusal


async def test_a_running_guest_can_be_stopped_without_quorum(tmp_path):
    async with rig(tmp_path, access=Access.ADMIN, faults=["no-quorum"], in_memory=True) as quorate:
        guest = next(guest for guest in quorate.sim.world.guests.values() if guest.running and guest.kind == "lxc")
        await quorate.facts("guest_power", guest=guest.vmid, action="shutdown")
        assert not guest.running


async def test_a_missing_privilege_is_named_with_the_command_that_grants_it_before_anything_is_sent(tmp_path):
    from pve_simulator.access.directory import Token as SimToken
    from pve_simulator.access.directory import User
    from quorate.app import simulated_cluster

    async with rig(tmp_path, access=Access.ADMIN) as quorate:
        access = quorate.sim.world.access
        access.users["watcher@pve"] = User("watcher@pve")
        secret = "12345678-1234-1234-1234-123456789abc"
        access.users["watcher@pve"].tokens["view"] = SimToken(secret=secret, privsep=False)
        access.grant("/", "PVEAuditor", "watcher@pve")
        settings = simulated_cluster(quorate.sim)
        weak = replace(settings.connection, credentials=Token("watcher@pve!view", Secret(secret)))
        async with rig(tmp_path / "weak", cluster=replace(settings, connection=weak)) as other:
            guest = next(
                guest for guest in quorate.sim.world.guests.values() if not guest.running and not guest.template
            )
            text = await other.refusal("guest_power", guest=guest.vmid, action="start")
            assert f"VM.PowerMgmt on /vms/{guest.vmid}" in text
            assert "pveum acl modify" in text
            assert "--tokens 'watcher@pve!view'" in text
            assert all(method == "GET" for method, _ in quorate.sim.requests)


async def test_secrets_are_not_repeated_in_errors_about_arguments(tmp_path):
    async with rig(tmp_path) as quorate:
        for tool, arguments in (
            ("container_create", {"template": "debian-13", "password": {"deep": "hunter2-hunter2"}}),
            ("vm_create", {"cloud_init": "password=hunter2-hunter2"}),
            ("user_set", {"user": "x@pve", "password": "hunter2-hunter2", "enabled": "perhaps"}),
        ):
            assert "hunter2" not in await quorate.refusal(tool, **arguments)
        url = "http://me:hunter2-hunter2@127.0.0.1/x.iso"
        assert "hunter2" not in await quorate.refusal("image_download", url=url, storage="nowhere")
        assert "hunter2" not in quorate.audit_file.read_text()
