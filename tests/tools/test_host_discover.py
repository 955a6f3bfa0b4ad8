"""Facts about a host: by each system's own means, bounded in time and size, and never guessed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quorate.inside.facts import script
from quorate.inside.facts.collector import read_facts
from quorate.inside.facts.model import SECTIONS, Facts, Updates
from quorate.inside.facts.script import Answers, build_script, split_answers
from quorate.inside.maintenance import parse_listing
from quorate.tools.host_discover import Section, summary
from tests import paths
from tests.rigs.homelab import house
from tests.rigs.sudo import PASSWORD, needs_sudo, plain_login
from tests.rigs.tcp_server import hang, tcp_server

RECORDED = paths.DATA / "discovery"
SOURCES = sorted({name for section in SECTIONS for name in script.sources_of(section)})


def recorded(system: str) -> dict[str, Any]:
    """The facts that the recorded answers of a system lead to."""
    answers: dict[str, str] = {}
    for part in (RECORDED / f"{system}.txt").read_text().split("@@ ")[1:]:
        name, _, words = part.partition("\n")
        assert name in SOURCES, f"nobody asks for {name}"
        answers[name] = words.rstrip("\n") if name != "dmi" else words
    return read_facts(Answers(answers)).to_builtins()


# -- recorded systems --------------------------------------------------------------------------------------------------


def test_a_debian_server_is_read_whole():
    facts = recorded("debian")
    assert facts["hardware"] == {"vendor": "Dell Inc.", "model": "OptiPlex 7050", "virtualisation": "none"}
    assert facts["system"] == {
        "hostname": "tower", "family": "linux", "id": "debian", "name": "Debian GNU/Linux 12 (bookworm)",
        "version": "12", "kernel": "6.1.0-27-amd64", "architecture": "x86_64",
    }  # fmt: skip
    model = "Intel(R) Core(TM) i7-7700 CPU @ 3.60GHz"
    assert facts["cpu"] == {"model": model, "sockets": 1, "cores": 4, "threads": 8}
    assert facts["memory"] == {
        "total": 32768000 * 1024, "available": 20480000 * 1024, "swap_total": 1024000 * 1024, "swap_used": 24000 * 1024,
    }  # fmt: skip
    assert facts["disks"] == [
        {"name": "nvme0n1", "size": 512110190592, "model": "Samsung SSD 970 PRO 512GB", "rotational": False},
        {"name": "sda", "size": 2000398934016, "model": "WDC WD20EZRZ-00Z5HB0", "rotational": True},
    ]
    assert [(filesystem["mount"], filesystem["type"], filesystem["used"]) for filesystem in facts["filesystems"]] == [
        ("/", "ext4", 123000000 * 1024), ("/mnt/nas", "nfs4", 100000000 * 1024),
        ("/srv/my data", "xfs", 976000000 * 1024),
    ]  # fmt: skip
    assert facts["network"] == {
        "interfaces": [
            {"name": "enp0s31f6", "mac": "54:bf:64:01:02:03", "state": "up",
             "addresses": ["192.168.1.10/24", "2001:db8::a/64"], "speed": 1000},
            {"name": "wg0", "state": "up", "addresses": ["10.8.0.1/24"]},
        ],
        "gateways": ["192.168.1.1 dev enp0s31f6", "fe80::1 dev enp0s31f6"],
        "dns": ["192.168.1.1", "9.9.9.9"],
    }  # fmt: skip
    assert [device["id"] for device in facts["usb"]] == ["0658:0200"]
    assert facts["gpus"] == ["NVIDIA Corporation GP107 [GeForce GTX 1050 Ti]"]
    assert [tuple(row.values()) for row in facts["containers"]] == [
        ("docker", "cam", "paused", "frigate:stable"), ("docker", "db", "stopped", "postgres:16"),
        ("docker", "web", "running", "nginx:1.27"), ("lxd", "ct1", "running"),
    ]  # fmt: skip
    assert [tuple(row.values()) for row in facts["vms"]] == [
        ("lxd", "vm1", "stopped"), ("virsh", "old", "stopped"), ("virsh", "win11", "running"),
    ]  # fmt: skip
    assert [tuple(row.values()) for row in facts["ports"]] == [
        ("tcp", "*", 22, "sshd"), ("tcp", "127.0.0.53", 53, "systemd-resolve"), ("tcp", "*", 9100),
        ("udp", "*", 5353, "avahi-daemon"),
    ]  # fmt: skip
    assert facts["services"] == {"manager": "systemd", "running": ["docker", "ssh"], "failed": ["smartd"]}
    assert facts["uptime"] == {"seconds": 93784, "load": [0.52, 0.48, 0.40]}
    assert facts["users"] == [{"name": "admin", "origin": "192.168.1.20"}, {"name": "admin", "origin": "tty1"}]
    assert facts["time"] == {"zone": "Europe/Berlin", "synchronised": True}
    assert "not_known" not in facts


def test_an_alpine_on_a_raspberry_pi_is_read_by_what_busybox_has():
    facts = recorded("alpine")
    assert facts["hardware"] == {"model": "Raspberry Pi 4 Model B Rev 1.4"}
    assert (facts["system"]["id"], facts["system"]["version"]) == ("alpine", "3.20.3")
    assert facts["cpu"] == {"threads": 2}
    assert facts["memory"] == {"total": 1894312 * 1024, "available": 1500000 * 1024}
    assert facts["disks"] == [{"name": "mmcblk0", "size": 62333952 * 512, "rotational": False}]
    eth0, wlan0 = facts["network"]["interfaces"]
    assert eth0["addresses"] == ["192.168.1.53/24", "fe80::dea6:32ff:fe01:203/64"]
    assert (eth0["state"], wlan0["state"]) == ("up", "down")
    assert facts["network"]["gateways"] == ["192.168.1.1 dev eth0"]
    assert [tuple(row.values()) for row in facts["ports"]] == [
        ("tcp", "*", 22, "sshd"), ("tcp", "*", 53, "dnsmasq"), ("udp", "*", 67, "dnsmasq"),
    ]  # fmt: skip
    assert facts["services"] == {"manager": "openrc", "running": ["crond", "sshd"], "failed": ["dnsmasq"]}
    assert facts["time"] == {"zone": "Europe/Vienna", "synchronised": True}
    assert facts["users"] == [{"name": "root", "origin": "192.168.1.20"}]
    assert facts["usb"] == [{"id": "2109:3431"}]
    assert facts["not_known"] == dict.fromkeys(("pci", "gpus"), "No program or file there provides it")


def test_an_older_rocky_falls_back_and_says_why_its_containers_are_unknown():
    facts = recorded("rocky")
    assert facts["hardware"]["virtualisation"] == "kvm"
    assert facts["cpu"] == {"model": "QEMU Virtual CPU version 2.5+", "sockets": 2, "cores": 2, "threads": 2}
    assert facts["disks"] == [{"name": "sda", "size": 34359738368, "model": "QEMU HARDDISK", "rotational": True}]
    assert "containers" not in facts
    assert facts["not_known"]["containers"].startswith("docker: permission denied")
    assert facts["vms"] == []


def test_a_name_that_sounds_like_a_complaint_is_none_and_podman_is_not_counted_twice():
    podman = "failed-error|Up 2 hours|cannot:1"
    facts = read_facts(Answers({"podman": podman, "docker": f"Emulate Docker CLI using podman.\n{podman}"}))
    assert [(container.engine, container.name) for container in facts.containers or ()] == [("podman", "failed-error")]
    assert "containers" not in facts.not_known


def test_a_nas_on_freebsd_is_read():
    facts = recorded("freebsd_nas")
    assert (facts["system"]["id"], facts["system"]["name"]) == ("truenas", "TrueNAS 13.0-U6.1")
    assert facts["system"]["family"] == "freebsd"
    assert facts["hardware"] == {"vendor": "Supermicro", "model": "X10SL7-F", "virtualisation": "none"}
    assert facts["cpu"] == {"model": "Intel(R) Xeon(R) CPU E3-1230 v3 @ 3.30GHz", "cores": 4, "threads": 8}
    assert facts["memory"] == {"total": 34241437696, "swap_total": 2097084 * 1024, "swap_used": 1024 * 1024}
    assert [(disk["name"], disk["rotational"]) for disk in facts["disks"]] == [("ada0", True), ("ada1", False)]
    assert [(filesystem["mount"], filesystem["type"]) for filesystem in facts["filesystems"]] == [
        ("/", "zfs"),
        ("/mnt/tank/media", "zfs"),
    ]
    igb0, igb1 = facts["network"]["interfaces"]
    assert igb0["addresses"] == ["192.168.1.30/24", "fe80::ec4:7aff:fe01:203/64"]
    assert (igb0["state"], igb0["speed"], igb1["state"]) == ("up", 1000, "down")
    assert facts["network"]["gateways"] == ["192.168.1.1 dev igb0"]
    assert [tuple(row.values()) for row in facts["ports"]] == [
        ("tcp", "*", 22, "sshd"), ("tcp", "192.168.1.30", 445, "smbd"), ("udp", "*", 123, "ntpd"),
    ]  # fmt: skip
    assert facts["gpus"] == ["Matrox Electronics Systems Ltd. MGA G200eW WPCM450"]
    assert facts["containers"] == [{"engine": "jail", "name": "plex", "state": "running"}]
    assert facts["uptime"] == {"seconds": 86400, "load": [0.31, 0.40, 0.45]}
    assert facts["time"] == {"synchronised": True}


def test_a_mac_is_read():
    facts = recorded("macos")
    assert (facts["system"]["id"], facts["system"]["name"]) == ("macos", "macOS 15.1")
    assert facts["hardware"] == {"vendor": "Apple", "model": "Mac13,1", "virtualisation": "none"}
    assert facts["cpu"] == {"model": "Apple M1 Max", "sockets": 1, "cores": 10, "threads": 10}
    assert facts["memory"] == {"total": 34359738368, "swap_total": 2048 << 20, "swap_used": int(1024.5 * (1 << 20))}
    assert facts["disks"] == [
        {"name": "disk0", "size": 500277792768, "model": "APPLE SSD AP0512R", "rotational": False}
    ]
    assert [filesystem["mount"] for filesystem in facts["filesystems"]] == ["/", "/System/Volumes/Data"]
    assert facts["network"]["interfaces"][0]["addresses"] == ["192.168.1.40/24", "fe80::1c2d:3e4f:5a6b:7c8d/64"]
    assert [row["port"] for row in facts["ports"]] == [22, 49152]
    assert facts["services"] == {
        "manager": "launchd", "running": ["homebrew.mxcl.postgresql@16"], "failed": ["org.example.broken"],
    }  # fmt: skip
    assert facts["users"] == [{"name": "sam", "origin": "console"}]
    assert facts["time"] == {"zone": "America/New_York"}


def test_a_proxmox_host_is_read_without_the_interfaces_of_its_guests():
    facts = recorded("proxmox")
    assert (facts["system"]["id"], facts["system"]["name"]) == ("proxmox-ve", "Proxmox VE 8.3.0")
    assert [interface["name"] for interface in facts["network"]["interfaces"]] == ["eth0", "vmbr0"]
    assert [tuple(row.values()) for row in facts["vms"]] == [
        ("qm", "100 web01", "running"),
        ("qm", "101 old", "stopped"),
    ]
    assert [tuple(row.values()) for row in facts["containers"]] == [
        ("pct", "200 pihole", "running"), ("pct", "201 nextcloud", "stopped"),
    ]  # fmt: skip


def test_a_box_without_any_program_is_read_from_the_kernels_files():
    facts = recorded("bare")
    assert facts["network"]["interfaces"] == [
        {"name": "br0", "mac": "00:11:22:33:44:55", "state": "up",
         "addresses": ["192.168.1.2/24", "fe80::211:22ff:fe33:4455/64"]},
    ]  # fmt: skip
    assert facts["network"]["gateways"] == ["192.168.1.1 dev br0"]
    assert facts["disks"] == [{"name": "sda", "size": 15633408 * 1024}]
    assert [tuple(row.values()) for row in facts["ports"]] == [
        ("tcp", "*", 23), ("tcp", "127.0.0.1", 8080), ("udp", "*", 67),
    ]  # fmt: skip
    unknown = {"hardware", "cpu", "memory", "filesystems", "usb", "pci", "gpus", "services", "uptime", "users", "time"}
    assert set(facts["not_known"]) == unknown


@pytest.mark.parametrize("system", sorted(path.stem for path in RECORDED.glob("*.txt")))
def test_facts_are_the_same_after_they_were_kept(system):
    import msgspec

    facts = msgspec.convert(recorded(system), Facts)
    assert facts.to_builtins() == recorded(system)
    assert len(json.dumps(summary(facts))) < 6000


# -- whatever is said --------------------------------------------------------------------------------------------------

_PIECES = st.sampled_from(
    [piece for path in sorted(RECORDED.glob("*.txt")) for piece in path.read_text().split("\n") if piece]
)
_SIGNS = st.sampled_from(["\t", " : ", "=", "|", "%", '"', "[{", "\0"])
GARBAGE = st.lists(st.one_of(_PIECES, st.text(max_size=30), _SIGNS), max_size=8)


@pytest.mark.thorough
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(SOURCES), st.builds(lambda lines: "\n".join(lines), GARBAGE), max_size=12))
def test_reading_facts_never_fails_on_any_answer(answers):
    facts = read_facts(Answers(answers, frozenset(list(answers)[:1])))
    summary(facts)
    assert facts.to_builtins() is not None


@given(st.text(), st.text(min_size=1, max_size=8))
def test_splitting_answers_never_fails_on_any_text(text, mark):
    split_answers(text, mark)


def test_what_a_host_makes_endless_is_bounded():
    ports = "\n".join(f"tcp LISTEN 0 0 *:{port} *:*" for port in range(1, 3000))
    facts = read_facts(
        Answers({"ss": ports, "sys_net": f"{'x' * 9000}\t02:00:00:00:00:01\tup\t", "docker": "a|Up|" * 9000})
    )
    assert len(facts.ports or ()) == 500
    assert len(facts.network.interfaces[0].name if facts.network else "") == 1000
    assert len(summary(facts)["ports"]) == 61


ZYPPER = """Loading repository data...
Reading installed packages...
S | Repository             | Name       | Current Version | Available Version | Arch
--+------------------------+------------+-----------------+-------------------+-------
v | Main Update Repository | curl       | 8.6.0-1.1       | 8.6.0-2.1         | x86_64
v | repo-sle-update        | libzstd1   | 1.5.5-1.5       | 1.5.6-1.1         | x86_64
v | Main Update Repository | python3-gi | 3.42.2-1        | 3.46.0-1          | noarch
"""


@pytest.mark.parametrize(("listed", "pending"), [(ZYPPER, 3), ("Loading repository data...\nNo updates found.", 0)])
def test_updates_that_zypper_lists_are_counted(listed, pending):
    answers = split_answers(f"\nM1 restart\n\nM1 lists_age\n3600\n\nM1 zypper\n{listed}\nM1 end\n", "M1")
    assert answers is not None
    updates = read_facts(answers, ["updates"]).updates
    assert updates == Updates("zypper", pending, age=3600)
    assert "zypper" in script.sources_of("updates")


def test_updates_that_zypper_lists_are_named_with_both_versions():
    assert parse_listing("zypper", ZYPPER) == [
        ("curl", "8.6.0-1.1", "8.6.0-2.1", False),
        ("libzstd1", "1.5.5-1.5", "1.5.6-1.1", False),
        ("python3-gi", "3.42.2-1", "3.46.0-1", False),
    ]


def test_output_before_the_first_mark_or_with_another_mark_is_not_an_answer():
    answers = split_answers("Welcome!\nM0 uname\nx\n\nM1 uname\nLinux\nM0 who\n\nM1 late\n\nM1 end\nbye", "M1")
    assert answers == Answers({"uname": "Linux\nM0 who"}, frozenset({"uname"}))
    assert split_answers("no such shell", "M1") is None


# -- the script --------------------------------------------------------------------------------------------------------

SHELLS = [shell for shell in (["dash"], ["bash", "--posix"], ["busybox", "sh"], ["mksh"], ["zsh", "--emulate", "sh"])
          if shutil.which(shell[0])]  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: shell[0])
def test_every_shell_asks_alike_and_nothing_that_hangs_or_floods_keeps_the_rest(tmp_path, shell):
    nap = f"sleep {os.getpid()}48{SHELLS.index(shell)}"  # of this run alone: pgrep looks at the whole machine
    programs = {
        "df": f"{nap} & {nap}",
        "docker": nap,
        "lspci": "yes flood",
        "ip": 'while :; do echo "$0"; done',
        "lscpu": "exit 127",
        "who": "echo ada pts/0 2026-01-01 10:00",
    }
    for name, lines in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{lines}\n")
        (tmp_path / name).chmod(0o755)
    sections = ("system", "cpu", "users", "pci", "network", "containers", "filesystems")
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run([*shell, "-c", build_script(sections), "sh", "1"], input=b"M1\n", capture_output=True, env=env, check=False)  # fmt: skip # noqa: E501
    answers = split_answers(done.stdout.decode(), "M1")
    assert answers is not None
    assert answers.complete
    if shell[0] == "busybox":  # it may take its own df, ip and lspci for those that are in the way
        assert "docker" in answers.late
        return
    assert {"df", "df_local", "docker"} <= answers.late
    assert all(len(words) <= script.MAX_BYTES for words in answers.texts.values())
    facts = read_facts(answers, sections)
    assert [user.name for user in facts.users or ()] == ["ada"]
    assert facts.cpu is not None
    assert facts.network is not None
    assert set(facts.not_known) == {"pci", "containers", "filesystems"}
    assert "docker did not answer in time" in facts.not_known["containers"]
    left = subprocess.run(["pgrep", "-f", f"^{nap}$"], capture_output=True, text=True, check=False).stdout
    assert left == ""


def test_the_sections_that_callers_can_name_are_those_that_there_are():
    assert get_args(Section) == SECTIONS
    assert all(script.sources_of(section) for section in SECTIONS)


# -- from the front door -----------------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_a_host_is_discovered_in_one_round_trip(tmp_path):
    async with house(tmp_path, {"nas": {"noise": "echo Welcome; echo to >&2; "}}) as built:
        facts = await built.quorate.facts("host_discover", host="nas")
        assert len(built.hosts["nas"].commands) == 1
        assert facts["host"] == "host nas"
        assert facts["system"]["hostname"] == os.uname().nodename
        assert any(line.startswith("/, ") for line in facts["filesystems"])
        exact = await built.quorate.facts("host_discover", host="nas", detail=True, sections=["cpu", "ports"])
        assert set(exact) <= {"host", "way", "cpu", "ports", "not_known"}
        assert exact["cpu"]["threads"] >= 1
        assert built.hosts["nas"].port in [listener["port"] for listener in exact["ports"]]


@pytest.mark.anyio
async def test_output_until_the_time_is_up_is_shown(tmp_path, monkeypatch):
    monkeypatch.setattr("quorate.inside.facts.collector.SHARE", 0.001)
    (tmp_path / "bin").mkdir()
    stuck = tmp_path / "bin" / "df"
    stuck.write_text("#!/bin/sh\nexec sleep 4722\n")
    stuck.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
    async with house(tmp_path, {"nas": {"environment": environment}}) as built:
        facts = await built.quorate.facts("host_discover", host="nas", seconds=5, sections=["system", "filesystems"])
        assert facts["system"]["hostname"] == os.uname().nodename
        assert facts["not_known"] == {"filesystems": "The output ended before this section"}


@pytest.mark.anyio
async def test_unreachable_hosts_are_refused_with_the_reason(tmp_path):
    async with house(tmp_path) as built:
        async with tcp_server(hang) as port:
            words = await built.quorate.refusal("host_discover", host=f"tester@127.0.0.1:{port}", seconds=5)
        assert "did not start a command within 5 s" in words
        words = await built.quorate.refusal("host_discover", host="tester@127.0.0.1:1", seconds=5)
        assert "cannot be reached" in words


def small_root(folder: Path) -> str:
    """What a login shell has to say so that nothing is there but BusyBox: no /proc, no /sys, no /etc."""
    (folder / "bin").mkdir(parents=True)
    (folder / "dev").mkdir()
    (folder / "dev" / "null").touch()
    shutil.copy(BUSYBOX or "", folder / "bin" / "busybox")
    for name in ("sh", "cat", "head", "sleep", "uname", "id"):
        (folder / "bin" / name).symlink_to("busybox")
    (folder / "bin" / "run").write_text('#!/bin/sh\nshift; exec "$@"\n')
    (folder / "bin" / "run").chmod(0o755)
    return f"exec chroot {folder} /bin/run "


BUSYBOX = shutil.which("busybox")


def is_static(program: str | None) -> bool:
    return program is not None and b"/ld-" not in Path(program).read_bytes()[:4096]


@pytest.mark.skipif(os.geteuid() != 0 or not is_static(BUSYBOX), reason="needs root and a static BusyBox")
@pytest.mark.anyio
async def test_a_minimal_host_shows_what_is_unknown_and_nothing_is_guessed(tmp_path):
    async with house(tmp_path, {"box": {"noise": small_root(tmp_path / "root")}}) as built:
        facts = await built.quorate.facts("host_discover", host="box", seconds=20)
        assert facts["system"]["hostname"] == os.uname().nodename
        assert {"cpu", "memory", "disks", "filesystems", "ports", "uptime"} <= set(facts["not_known"])
        assert (await built.quorate.facts("host_exec", host="box", command="echo $0"))["stdout"] == "/bin/sh\n"


@needs_sudo
@pytest.mark.anyio
async def test_root_sees_more_by_sudo(tmp_path):
    async with house(tmp_path, {"nas": {"noise": plain_login(tmp_path / "login")}}) as built:
        arguments = {"host": "nas", "sections": ["ports"], "detail": True, "key": str(built.hosts["nas"].key_file)}
        port = built.hosts["nas"].port

        async def owner(**more: Any) -> str | None:
            facts = await built.quorate.facts("host_discover", **arguments, **more)
            process: str | None = next(
                listener.get("process") for listener in facts["ports"] if listener["port"] == port
            )
            return process

        assert await owner() is None
        assert await owner(sudo=True, password=PASSWORD) is not None
