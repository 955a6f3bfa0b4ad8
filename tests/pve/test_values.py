"""Property strings: what is there stays, in its order."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorate.pve import values

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGkX6fYJ1sT0b1PXnq1d5gk9n8Yk7O3K3o4oT7gJm3fB a@b"

words = st.text("abcdefghijklmnopqrstuvwxyz0123456789-._:/", min_size=1, max_size=12)
parts = st.dictionaries(words, words, min_size=1, max_size=6)


@given(parts)
def test_building_what_was_parsed_gives_the_same_text(parsed):
    text = values.build(parsed)
    assert values.build(values.parse(text)) == text


@given(parts, words, words)
def test_merging_changes_one_part_and_keeps_the_others_in_their_order(original, key, value):
    merged = values.parse(values.merge(values.build(original), {key: value}))
    assert merged[key] == value
    assert [name for name in merged if name != key] == [name for name in original if name != key]


def test_none_takes_a_part_out_and_the_default_key_stays_bare():
    text = "local-lvm:vm-100-disk-0,cache=none,size=8G,unknown=kept"
    assert values.merge(text, {"cache": None, "ssd": True}, "file") == (
        "local-lvm:vm-100-disk-0,size=8G,unknown=kept,ssd=1"
    )


@pytest.mark.parametrize(
    ("stored", "model", "mac"),
    [
        ("virtio=BC:24:11:00:00:01,bridge=vmbr0,tag=5", "virtio", "BC:24:11:00:00:01"),
        ("model=e1000,macaddr=BC:24:11:00:00:02,bridge=vmbr0", "e1000", "BC:24:11:00:00:02"),
        ("rtl8139,bridge=vmbr0", "rtl8139", None),
    ],
)
def test_a_card_is_read_in_every_way_it_can_be_written(stored, model, mac):
    card = values.parse_nic(stored)
    assert (card["model"], card.get("macaddr"), card["bridge"]) == (model, mac, "vmbr0")
    again = values.parse_nic(values.build_nic(card))
    assert again == card


def test_the_same_settings_in_another_order_are_the_same():
    assert values.same("order=1,up=30", "up=30,order=1")
    assert values.same(True, 1)
    assert values.same("2048", 2048)
    assert not values.same("host,flags=+aes", "host")


@given(st.lists(st.sampled_from([KEY, "ssh-rsa AAAA+/= with=odd&signs é"]), min_size=1, max_size=4))
def test_ssh_keys_survive_the_encoding(keys):
    encoded = values.encode_keys(keys)
    assert not set(encoded) & set(" \n+&=/")
    assert values.decode_keys(encoded) == keys


def test_only_public_keys_pass_as_such():
    assert values.is_ssh_key(KEY)
    assert values.is_ssh_key('from="10.0.0.0/8" ' + KEY)
    assert not values.is_ssh_key("ssh-ed25519 AAAA")
    assert not values.is_ssh_key("ssh-rsa " + KEY.split()[1])
    assert not values.is_ssh_key("hello world")
    assert not values.is_ssh_key("ssh-rsa " + base64.b64encode(b"\0\0\0\0").decode())


@pytest.mark.parametrize(
    ("config", "disk"),
    [
        ({"boot": "order=ide2;scsi1;scsi0", "ide2": "none,media=cdrom", "scsi0": "a:1", "scsi1": "a:2"}, "scsi1"),
        ({"virtio0": "a:1", "scsi3": "a:2", "scsi10": "a:3"}, "scsi3"),
        ({"bootdisk": "sata0", "boot": "c", "sata0": "a:1", "scsi0": "a:2"}, "sata0"),
        ({"boot": "order=net0", "scsi0": "a:1"}, None),
        ({}, None),
    ],
)
def test_the_boot_disk_is_found_in_new_and_old_configurations(config, disk):
    assert values.boot_disk(config, is_vm=True) == disk


@pytest.mark.parametrize(
    ("drive", "yes"),
    [
        ("local-lvm:vm-9000-cloudinit,media=cdrom", True),
        ("local:100/vm-100-cloudinit.qcow2,media=cdrom,size=4M", True),
        ("local-lvm:cloudinit", True),
        ("local:iso/cloudinit-demo.iso,media=cdrom", False),
        ("local-lvm:vm-100-disk-0,size=8G", False),
        ("none,media=cdrom", False),
    ],
)
def test_the_cloudinit_drive_is_distinguished_from_other_drives(drive, yes):
    assert values.is_cloudinit(drive) is yes
