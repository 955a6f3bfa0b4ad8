"""What differs between a guest now and a snapshot, a backup, another guest, or itself at an earlier time."""

import pytest

from tests.rigs.mcp_session import text_of

pytestmark = pytest.mark.anyio

VM, OTHER_VM, CT, OTHER_CT = 108, 107, 207, 206


async def differences(quorate, **arguments):
    facts = await quorate.facts("guest_diff", **arguments)
    rows = [dict(zip(facts["columns"], row, strict=True)) for row in facts["rows"]]
    return {f"{row['part']} {row['what']}": (row.get("old", ""), row.get("new", "")) for row in rows}, facts


async def change_it(quorate):
    await quorate.facts("guest_configure", guest=VM, memory=2048, add_tags=["web"], description="first\nthird")
    await quorate.facts("nic_set", guest=VM, nic="net0", vlan=20)


async def test_a_snapshot_is_compared_setting_by_setting(quorate):
    unchanged, facts = await differences(quorate, guest=VM, snapshot="clean")
    assert not unchanged
    assert facts["result"] == "no difference"
    await change_it(quorate)
    await quorate.facts("disk_add", guest=VM, size="1G")
    changed, facts = await differences(quorate, guest=VM, snapshot="clean")
    assert changed["setting memory"] == ("1024", "2048")
    assert changed["network net0 tag"] == ("", "20")
    assert changed["disk scsi1"][0] == ""
    assert "size=1G" in changed["disk scsi1"][1]
    assert not [what for what in changed if what.startswith("notes")]
    assert "firewall" in facts["not_compared"]


async def test_a_backup_is_compared_with_its_notes(quorate):
    await quorate.facts("guest_configure", guest=VM, description="first\nsecond: 100% sure")
    await quorate.facts("backup_create", guest=VM, storage="nas", notes="before the change")
    await change_it(quorate)
    await quorate.facts("disk_change", guest=VM, action="resize", size="+2G")
    changed, facts = await differences(quorate, guest=VM, backup="newest")
    assert changed["disk scsi0 size"] == ("8G", "10G")
    assert changed["setting tags"] == ("lab", "lab web")
    rows = await quorate.rows("guest_diff", guest=VM, backup="newest")
    assert [(row["old"], row["new"]) for row in rows if row["part"] == "notes"] == [
        ("second: 100% sure", ""),
        ("", "third"),
    ]
    assert facts["backup_notes"] == "before the change"
    (backup,) = [row["backup"] for row in await quorate.rows("backup_list", guest=VM, storage="nas")]
    assert (await quorate.facts("backup_show", backup=backup))["guest_notes"] == "first\nsecond: 100% sure"


async def test_only_changes_of_the_guests_own_settings_are_counted(quorate):
    await quorate.facts("guest_configure", guest=VM, cores=3)
    await quorate.facts("guest_configure", guest=107, cores=3)
    await quorate.facts("snapshot_create", guest=VM, snapshot="between")
    facts = await quorate.facts("guest_diff", guest=VM, since="1h")
    assert facts["changes"] == "1 change of its settings by this server since then"


async def test_a_guest_without_a_backup_says_so(quorate):
    assert "has no backup" in await quorate.refusal("guest_diff", guest=VM, backup="newest")


async def test_another_guest_is_compared_without_what_always_differs(quorate):
    clone = (await quorate.facts("guest_clone", guest=9000, name="copy", full=True))["vmid"]
    same, _ = await differences(quorate, guest=clone, other=9000)
    assert not [what for what in same if what.startswith(("disk", "network"))]
    await quorate.facts("firewall_options_set", scope="guest", of=clone, options={"enable": True})
    await quorate.facts("acl_set", action="grant", path=f"/vms/{clone}", holders=["bob@pve"], roles=["PVEVMUser"])
    await quorate.facts("guest_configure", guest=clone, cores=3)
    changed, facts = await differences(quorate, guest=clone, other=9000)
    assert changed["setting cores"] == ("2", "3")
    assert changed["firewall option enable"][1] == "1"
    assert changed["rights user bob@pve PVEVMUser"] == ("", "on the guest")
    assert facts["old"] == "vm 9000 debian-13-cloud"
    assert "a VM and a container" in await quorate.refusal("guest_diff", guest=VM, other=CT)
    containers, _ = await differences(quorate, guest=CT, other=OTHER_CT)
    assert "place node" in containers


async def test_the_configuration_of_an_earlier_time_comes_from_the_journal(quorate):
    await quorate.facts("guest_configure", guest=VM, cores=2)
    await quorate.clock.advance(3600)
    await change_it(quorate)
    await quorate.facts("guest_configure", guest=VM, memory=4096)
    await quorate.facts("disk_change", guest=VM, action="resize", size="+2G")
    await quorate.facts("guest_configure", guest=OTHER_VM, cores=2)
    await quorate.facts("guest_configure", guest=VM, cores=1, dry_run=True)
    changed, facts = await differences(quorate, guest=VM, since="30m")
    assert changed["setting memory"] == ("1024", "4096")
    assert changed["network net0 tag"] == ("", "20")
    assert "setting cores" not in changed
    assert len(facts["also_done"]) == 1
    assert "Grow scsi0 of vm 108" in facts["also_done"][0]
    earlier, _ = await differences(quorate, guest=VM, since="2h")
    assert earlier["setting cores"] == ("1", "2")


async def test_the_last_backup_before_then_is_named_for_what_others_changed(quorate):
    await quorate.facts("backup_create", guest=VM, storage="nas")
    await quorate.clock.advance(7200)
    _, facts = await differences(quorate, guest=VM, since="1h")
    assert "guest_diff guest=108 backup=nas:backup/vzdump-qemu-108-" in facts["note"]


async def test_secrets_are_never_shown(quorate):
    await quorate.facts("cloudinit_set", guest=9000, password="correct horse battery")
    answer = await quorate.call("guest_diff", guest=9000, other=VM)
    assert "correct horse" not in text_of(answer)
    assert "cipassword" not in text_of(answer)


async def test_exactly_one_thing_is_compared(quorate):
    assert "One thing to compare with" in await quorate.refusal("guest_diff", guest=VM)
    assert "One thing to compare with" in await quorate.refusal("guest_diff", guest=VM, other=OTHER_VM, since="1d")
    assert "compared with itself" in await quorate.refusal("guest_diff", guest=VM, other=VM)
