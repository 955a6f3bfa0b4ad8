"""Cloud-init settings and the contents of the drive."""

from __future__ import annotations

from urllib.parse import quote

from pve_simulator.api_client import Api
from simulator.guest_steps import VM, config, create_vm, put

_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGkX6fYJ1sT0b1PXnq1d5gk9n8Yk7O3K3o4oT7gJm3fB a@b"


async def _cloud_vm(api: Api) -> None:
    await create_vm(
        api, name="ci", ide2="local-lvm:cloudinit", net0="virtio=BC:24:11:00:00:07,bridge=vmbr0", ciuser="admin",
        cipassword="secret123", sshkeys=quote(_KEY), ipconfig0="ip=10.0.0.5/24,gw=10.0.0.1", nameserver="1.1.1.1",
    )  # fmt: skip


async def test_keys_come_back_encoded_and_the_password_masked(api: Api) -> None:
    await _cloud_vm(api)
    stored = await config(api, f"{VM}/500")
    assert stored["sshkeys"] == quote(_KEY)
    assert stored["cipassword"] == "**********"
    assert str(api.cluster.world.guests[500].config["cipassword"]).startswith("$5$")


async def test_the_files_of_the_drive_can_be_read(api: Api) -> None:
    await _cloud_vm(api)
    user_data = (await api.get(f"{VM}/500/cloudinit/dump", type="user")).data
    network = (await api.get(f"{VM}/500/cloudinit/dump", type="network")).data
    meta = (await api.get(f"{VM}/500/cloudinit/dump", type="meta")).data
    assert user_data.startswith("#cloud-config\nhostname: ci\n")
    assert f"ssh_authorized_keys:\n  - {_KEY}\n" in user_data
    assert "user: admin\n" in user_data
    assert "mac_address: 'bc:24:11:00:00:07'" in network
    assert "address: '10.0.0.5'\n        netmask: '255.255.255.0'\n        gateway: '10.0.0.1'" in network
    assert meta.startswith("instance-id: ")


async def test_changes_of_a_running_vm_reach_the_drive_when_it_is_regenerated(api: Api) -> None:
    await _cloud_vm(api)
    await api.finish_task(await api.post(f"{VM}/500/status/start"))
    await put(api, f"{VM}/500/config", ciuser="other")
    rows = {row["key"]: row for row in (await api.get(f"{VM}/500/cloudinit")).data}
    assert rows["ciuser"] == {"key": "ciuser", "value": "admin", "pending": "other"}
    assert rows["cipassword"] == {"key": "cipassword", "value": "**********"}
    assert (await put(api, f"{VM}/500/cloudinit")).body == {"data": None}
    rows = {row["key"]: row for row in (await api.get(f"{VM}/500/cloudinit")).data}
    assert rows["ciuser"] == {"key": "ciuser", "value": "other"}


async def test_a_vm_without_the_drive_has_nothing_to_show(api: Api) -> None:
    assert (await api.get(f"{VM}/108/cloudinit")).data == []
