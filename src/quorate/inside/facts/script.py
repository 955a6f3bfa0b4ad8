"""The script that collects facts in any POSIX shell, and its output split into answers.

The script runs every program and reads every file that exists; the parsers decide which answers to trust. Each program
gets a few seconds and each answer a few kilobytes, so neither a dead file server nor a flood of output hides the rest.
Answers are separated by an unpredictable mark, which is sent on standard input because the process list would show it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

MAX_BYTES = 48 * 1024
"""The most that is kept of one answer."""

# A program that does not end is killed together with its children where setsid exists; nothing else ends one that waits
# for a file server. No timer is portable, so a background `sleep` serves as one and is killed when it is not needed.
_BEGIN = f"""IFS= read -r q_mark; exec </dev/null 2>/dev/null
PATH=$PATH:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/homebrew/bin:/snap/bin
LC_ALL=C; export PATH LC_ALL; q_seconds=$1
q_few() {{ head -c {MAX_BYTES}; }}
[ "$(printf xy | head -c 1)" = x ] || q_few() {{ cat; }}
q_alone=; [ "$(setsid echo x)" != x ] || q_alone=setsid
q_within() {{
$q_alone "$@" & q_pid=$!
( trap 'kill $q_nap; exit' TERM; sleep "$q_seconds" & q_nap=$!; wait "$q_nap"
kill -9 "-$q_pid" || kill -9 "$q_pid" ) >/dev/null 2>&1 &
q_keeper=$!; wait "$q_pid"; q_code=$?; kill "$q_keeper"
[ "$q_code" != 137 ] || printf '\\n%s late\\n' "$q_mark"
}}
there() {{ command -v "$1" >/dev/null; }}
q_part() {{ printf '\\n%s %s\\n' "$q_mark" "$1"; }}
ask() {{ q_name=$1; shift; there "$1" || return 0; q_part "$q_name"; q_within "$@" 2>&1 | q_few; }}
script() {{ q_part "$1"; q_within /bin/sh -c "$2" | q_few; }}
file() {{ q_name=$1; shift
for q_file in "$@"; do [ ! -r "$q_file" ] || {{ q_part "$q_name"; q_few < "$q_file"; return 0; }}; done; }}
"""
_END = "q_part end; exit 0\n"

_CONTAINERS = "'{{.Names}}|{{.Status}}|{{.Image}}'"
_SYSCTL = (
    "hw.model hw.ncpu hw.physmem hw.memsize hw.packages hw.physicalcpu hw.logicalcpu machdep.cpu.brand_string "
    "kern.smp.cores kern.smp.cpus kern.boottime vm.loadavg kern.vm_guest kern.hv_vmm_present vm.swapusage"
)
_SYS_BLOCK = shlex.quote(
    'for d in /sys/block/*; do printf \'%s\\t%s\\t%s\\t%s\\n\' "${d##*/}" "$(cat "$d/size")" '
    '"$(cat "$d/queue/rotational")" "$(cat "$d/device/model")"; done'
)
_SYS_NET = shlex.quote(
    'for d in /sys/class/net/*; do printf \'%s\\t%s\\t%s\\t%s\\n\' "${d##*/}" "$(cat "$d/address")" '
    '"$(cat "$d/operstate")" "$(cat "$d/speed")"; done'
)
_SYS_USB = shlex.quote(
    "for d in /sys/bus/usb/devices/*; do [ ! -r \"$d/idVendor\" ] || printf '%s:%s\\t%s %s\\n' "
    '"$(cat "$d/idVendor")" "$(cat "$d/idProduct")" "$(cat "$d/manufacturer")" "$(cat "$d/product")"; done'
)
_SYS_PCI = shlex.quote(
    'for d in /sys/bus/pci/devices/*; do [ ! -r "$d/class" ] || printf \'%s\\t%s\\t%s:%s\\n\' "${d##*/}" '
    '"$(cat "$d/class")" "$(cat "$d/vendor")" "$(cat "$d/device")"; done'
)
_DMI = shlex.quote("for f in sys_vendor product_name; do cat /sys/class/dmi/id/$f || echo; done")
_TREE = shlex.quote("tr -d '\\0' < /proc/device-tree/model")
_SYSTEMCTL = "systemctl list-units --type=service --state=running,failed --no-legend --no-pager --plain"
_SENSORS = shlex.quote("cat /sys/class/thermal/thermal_zone*/temp /sys/class/hwmon/hwmon*/temp*_input")
# A kernel that was installed after the start of the machine runs only after the next one.
_RESTART = shlex.quote(
    "if [ -e /run/reboot-required ] || [ -e /var/run/reboot-required ]; then echo the system asks for it; "
    'elif [ -d /lib/modules ] && [ -n "$(ls /lib/modules)" ] && [ ! -d "/lib/modules/$(uname -r)" ] && '
    '[ -n "$(ls /boot 2>/dev/null)" ]; then echo the running kernel is no longer installed; '
    "elif [ -n \"$(find /boot -maxdepth 1 -name 'vmlinu*' -newer /proc/1)\" ]; then "
    "echo a newer kernel is installed; fi"
)
_LISTS = shlex.quote(
    "now=$(date +%s); for f in /var/lib/apt/periodic/update-success-stamp /var/lib/apt/lists/partial "
    "/var/lib/apt/lists /var/cache/apk /lib/apk/db/installed /var/cache/dnf /var/lib/pacman/sync "
    "/var/cache/zypp/raw; do "
    '[ ! -e "$f" ] || { echo $((now - $(stat -c %Y "$f"))); break; }; done'
)
_UNFINISHED = shlex.quote(
    "dpkg-query -W -f '${db:Status-Status} ${Package}\\n' | grep -E '^(half-|unpacked|triggers-)'"
)
_NOT_LINUX = '[ "$(uname -s)" != Linux ]'


def _sockets(kind: str, state: str) -> str:
    """Listening sockets only: a busy server has thousands of others."""
    return f"[ ! -r /proc/net/{kind} ] || script proc_{kind} \"grep ' {state} ' /proc/net/{kind}\""


_SOURCES: tuple[tuple[str, str], ...] = (
    # Quick sources first; those that may have to be killed last.
    ("system", "script uname 'uname -s; uname -n; uname -r; uname -m'"),
    ("system", "file os_release /etc/os-release /usr/lib/os-release"),
    ("system", "file redhat_release /etc/redhat-release"),
    ("system", "file etc_version /etc/version"),
    ("system", "ask sw_vers sw_vers"),
    ("system", "ask opnsense opnsense-version"),
    ("system", "script middleware 'command -v midclt'"),
    ("hardware", f"script dmi {_DMI}"),
    ("hardware", f"[ ! -r /proc/device-tree/model ] || script device_tree {_TREE}"),
    ("hardware", "ask detect_virt systemd-detect-virt"),
    ("hardware", "script in_container 'cat /run/systemd/container; [ ! -e /.dockerenv ] || echo docker'"),
    ("hardware", "script kenv 'kenv -q smbios.system.maker && kenv -q smbios.system.product'"),
    ("hardware cpu memory uptime", f"{_NOT_LINUX} && ask sysctl sysctl {_SYSCTL}"),
    ("cpu hardware", "ask lscpu lscpu"),
    ("cpu", "file cpuinfo /proc/cpuinfo"),
    ("cpu", "[ ! -r /proc/cpuinfo ] || script processors 'grep -c ^processor /proc/cpuinfo'"),
    ("cpu", "ask getconf getconf _NPROCESSORS_ONLN"),
    ("memory", "file meminfo /proc/meminfo"),
    ("memory", f"{_NOT_LINUX} && ask swapinfo swapinfo -k"),
    ("uptime", "file uptime /proc/uptime"),
    ("uptime", "file loadavg /proc/loadavg"),
    ("uptime", "ask date date +%s"),
    ("users", "ask who who"),
    ("time", "script localtime 'readlink /etc/localtime || cat /etc/timezone'"),
    ("network", "ask ip_json ip -j addr"),
    ("network", "ask ip_text ip addr"),
    ("network", "ask ip_route ip route"),
    ("network", "ask ip_route6 ip -6 route"),
    ("network", "there ip || ask ifconfig ifconfig -a"),
    ("network", f"script sys_net {_SYS_NET}"),
    ("network", "file proc_route /proc/net/route"),
    ("network", "file proc_inet6 /proc/net/if_inet6"),
    ("network", "file fib_trie /proc/net/fib_trie"),
    ("network", f"{_NOT_LINUX} && ask netstat_routes netstat -rn"),
    ("network", "file resolv /run/systemd/resolve/resolv.conf /etc/resolv.conf"),
    ("disks", "ask lsblk_json lsblk -J -b -d -o NAME,SIZE,MODEL,ROTA,TYPE"),
    ("disks", "ask lsblk_pairs lsblk -P -b -d -o NAME,SIZE,MODEL,ROTA,TYPE"),
    ("disks", f"there lsblk || [ ! -d /sys/block ] || script sys_block {_SYS_BLOCK}"),
    ("disks", "file partitions /proc/partitions"),
    ("disks", "ask geom geom disk list"),
    ("disks", "ask diskutil diskutil info -all"),
    ("usb", "ask lsusb lsusb"),
    ("usb", f"there lsusb || [ ! -d /sys/bus/usb ] || script sys_usb {_SYS_USB}"),
    ("pci gpus", "ask lspci lspci -mm"),
    ("pci gpus", "ask pciconf pciconf -lv"),
    ("pci gpus", f"there lspci || [ ! -d /sys/bus/pci ] || script sys_pci {_SYS_PCI}"),
    ("ports", "ask ss ss -tulnp"),
    ("ports", "ask sockstat sockstat -46l"),
    ("ports", f"there ss || {_NOT_LINUX} || ask netstat netstat -tulnp"),
    ("ports", f"{_NOT_LINUX} && ask lsof lsof -nP -iTCP -sTCP:LISTEN"),
    *(("ports", _sockets(kind, "0A")) for kind in ("tcp", "tcp6")),
    *(("ports", _sockets(kind, "07")) for kind in ("udp", "udp6")),
    ("services", f"ask systemctl {_SYSTEMCTL}"),
    ("services", "ask rc_status rc-status --all"),
    ("services", "ask launchctl launchctl list"),
    ("services", "there systemctl || ask status_all service --status-all"),
    ("time", "ask timedatectl timedatectl show"),
    ("time", "ask chronyc chronyc -n tracking"),
    ("time", "ask ntpq ntpq -pn"),
    ("system", "ask pveversion pveversion"),
    ("filesystems", "file mounts /proc/self/mounts"),
    ("filesystems", f"{_NOT_LINUX} && ask mount mount -p"),
    ("filesystems", "ask df_local df -Pkl"),
    ("containers", f"ask docker docker ps -a --format {_CONTAINERS}"),
    ("containers", f"ask podman podman ps -a --format {_CONTAINERS}"),
    ("containers vms", "ask lxd lxc list --format csv -c n,s,t"),
    ("containers vms", "ask incus incus list --format csv -c n,s,t"),
    ("containers", "ask lxc_ls lxc-ls -f -F NAME,STATE"),
    ("containers", "ask jls jls name"),
    ("containers", "ask pct pct list"),
    ("vms", "ask qm qm list"),
    ("vms", "ask virsh virsh -q list --all"),
    ("filesystems", "ask df df -Pk"),
    ("temperature", f"script sensors {_SENSORS}"),
    ("updates", f"script restart {_RESTART}"),
    ("updates", f"script lists_age {_LISTS}"),
    ("updates", f"! there dpkg-query || script unfinished {_UNFINISHED}"),
    ("updates", "ask apt apt-get -s -q -o Debug::NoLocking=1 dist-upgrade"),
    ("updates", "ask apk apk version -l '<'"),
    ("updates", "ask dnf dnf -q -C check-update"),
    ("updates", "ask pacman pacman -Qu"),
    ("updates", "ask opkg opkg list-upgradable"),
    ("updates", "ask zypper zypper -n --no-refresh list-updates"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Answers:
    """The text that each source printed, by the source's name."""

    texts: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    late: frozenset[str] = frozenset()
    """Sources that did not end in time, even if they printed something."""
    complete: bool = True
    """False if the output ended early."""

    def get(self, name: str) -> str:
        return self.texts.get(name, "")


def build_script(sections: Collection[str]) -> str:
    """The script for these sections; $1 is the number of seconds that each program gets."""
    lines = (line for used_by, line in _SOURCES if not set(used_by.split()).isdisjoint(sections))
    return "".join((_BEGIN, *(f"{line}\n" for line in lines), _END))


def sources_of(section: str) -> list[str]:
    """The names of a section's sources."""
    return [_NAME.findall(line)[0] for used_by, line in _SOURCES if section in used_by.split()]


_NAME = re.compile(r"\b(?:ask|script|file) ([a-z0-9_]+) ")


def split_answers(output: str, mark: str) -> Answers | None:
    """The answers of all sources; None if the script did not run at all."""
    texts: dict[str, str] = {}
    late: set[str] = set()
    current = ""
    _, *parts = f"\n{output}".split(f"\n{mark} ")
    for part in parts:
        name, _, text = part.partition("\n")
        if name == "late":
            late.add(current)
        elif name == "end":
            return Answers(texts, frozenset(late))
        else:
            current = name
            texts[name] = text.strip("\n")
    return Answers(texts, frozenset(late), complete=False) if parts else None
