"""The shell and the programs inside the guests."""

from __future__ import annotations

import asyncio

import pytest

from pve_simulator.clock import ManualClock
from pve_simulator.guest_os.machine import Machine, Machines, Process
from pve_simulator.guests.guest import OperatingSystem
from pve_simulator.simulator import SimulatedCluster


def machine(vmid: int = 102, system: OperatingSystem | None = None) -> Machine:
    world = SimulatedCluster(clock=ManualClock()).world
    world.guests[vmid].system = system or world.guests[vmid].system
    return world.part(Machines).of(world.guests[vmid])


def run(script: str, inside: Machine | None = None) -> Process:
    async def execute() -> Process:
        process = await (inside or machine()).execute(["/bin/sh", "-c", script])
        assert process is not None
        return process

    return asyncio.run(execute())


def output(script: str) -> str:
    return run(script).io.out.decode()


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("echo a  b", "a b\n"),
        ("echo -n a", "a"),
        ("printf '%s-%s\\n' a 1 b 2", "a-1\nb-2\n"),
        ("false || echo no; true && echo yes", "no\nyes\n"),
        ("! true; echo $?", "1\n"),
        ("X=5; echo $X ${Y:-none} '$X' \"$X y\"", "5 none $X 5 y\n"),
        ("echo $(echo a b | wc -w)", "2\n"),
        ("cd /tmp && pwd; (cd /etc; pwd); pwd", "/tmp\n/etc\n/tmp\n"),
        ("echo 1 > /tmp/f; echo 2 >> /tmp/f; cat /tmp/f | tail -1", "2\n"),
        ("ls /nope 2>/dev/null; echo $?", "2\n"),
        ("ls /nope 2>&1", "ls: cannot access '/nope': No such file or directory\n"),
        ("sh -c 'echo $1' x y", "y\n"),
        ("test -f /etc/hosts && [ 1 -lt 2 ] && echo ok", "ok\n"),
        ("mkdir -p /tmp/a/b && touch /tmp/a/b/c && find /tmp/a -type f", "/tmp/a/b/c\n"),
        ("echo /etc/host*", "/etc/hostname /etc/hosts\n"),
        ("grep -c root /etc/passwd", "1\n"),
        ("seq 3 | head -2 | wc -l", "2\n"),
        ("command -v nothere || echo absent", "absent\n"),
        ("stat -c '%s %a' /etc/hostname", "9 644\n"),
        ("cp /etc/hostname /tmp/h && mv /tmp/h /tmp/i && cat /tmp/i", "docker01\n"),
        ("echo hi | sha256sum | head -c 8", "98ea6e4f"),
        ("mkdir /srv/d; touch '/srv/d/a b'; find /srv/d -mindepth 1", "/srv/d/a b\n"),
        ("touch /srv/x /srv/y; find -H /srv -mindepth 1 -exec stat -c '%n %f' {} +", "/srv/x 81a4\n/srv/y 81a4\n"),
        ("stat -c '%F %a' /dev/null", "character special file 666\n"),
        ("f=$(mktemp /srv/.t-XXXXXX); stat -c %a $f; dirname -- $f", "600\n/srv\n"),
        ("chown root:ubuntu /etc/hosts; stat -c '%U:%G %u:%g' /etc/hosts", "root:ubuntu 0:1000\n"),
        ("head -2 /proc/net/route | tail -1 | head -c 24", "ens18\t00000000\t010AA8C0\t"),
        (
            "systemctl show -p Id,ActiveState,LoadState nothing",
            "Id=nothing.service\nActiveState=inactive\nLoadState=not-found\n",
        ),
        ("# only a comment", ""),
        ("if false; then echo a; elif true; then echo b; else echo c; fi", "b\n"),
        ("if false; then echo a; else echo c; fi; echo $?", "c\n0\n"),
        ("for x in 1 2 3; do [ $x = 2 ] && continue; echo $x; done", "1\n3\n"),
        ("i=0; while [ $i -lt 3 ]; do i=$((i+1)); done; echo $i", "3\n"),
        ("while true; do break; done; echo end", "end\n"),
        ("case abc in x|y) echo no;; a*) echo yes;; *) echo other;; esac", "yes\n"),
        ("f() { echo $1 $#; return 3; }; f a b; echo $? $1", "a 2\n3\n"),
        ("set -- 'a b' c; for x in \"$@\"; do echo $x; done; shift; echo $1 $#", "a b\nc\nc 1\n"),
        ('x=/a/b.c; echo ${x#*/} ${x##*/} ${x%.*} ${x%%/*}. ${x##*"/b"}', "a/b.c b.c /a/b . .c\n"),
        ("printf 'one\\ntwo\\n' | while IFS= read -r l; do echo \"<$l>\"; done", "<one>\n<two>\n"),
        ("echo 'a b c' | { read x y; echo $y; cat; }", "b c\n"),
        ("v=$(printf %b. 'a\\0303\\0251\\n'); echo \"${v%.}\"", "aé\n\n"),
        ("own=1; sh -c 'echo $own.'; export own; sh -c 'echo $own'", ".\n1\n"),
        ("exec 2>/dev/null; ls /nope; echo $?", "2\n"),
        ("exec echo last; echo never", "last\n"),
        ("su -s /bin/sh -c 'whoami; echo $HOME $1' -- ubuntu x y", "ubuntu\n/home/ubuntu y\n"),
        ("echo 'echo from $0' > /tmp/s; sh /tmp/s", "from /tmp/s\n"),
    ],
)
def test_the_shell_does_what_a_shell_does(script: str, expected: str):
    assert output(script) == expected


@pytest.mark.parametrize(
    ("script", "code", "error"),
    [
        ("nosuch", 127, "sh: 1: nosuch: not found\n"),
        ("/etc/hosts", 126, "sh: 1: /etc/hosts: Permission denied\n"),
        ("exit 42", 42, ""),
        ("echo 'a", 2, "sh: 1: Syntax error: Unterminated quoted string\n"),
        ("then", 2, 'sh: 1: Syntax error: "then" unexpected\n'),
        ("if true", 2, 'sh: 1: Syntax error: end of file unexpected (expecting "then")\n'),
        ("exec nosuch; echo never", 127, "sh: 1: exec: nosuch: not found\n"),
        ("echo a |", 2, 'sh: 1: Syntax error: "end of file" unexpected\n'),
        ("cat /nope", 1, "cat: /nope: No such file or directory\n"),
        ("rm /etc", 1, "rm: cannot remove '/etc': Is a directory\n"),
        ("echo x > /no/dir", 2, "sh: 1: cannot open /no/dir: No such file or directory\n"),
        ("cd /nope", 2, "sh: 1: cd: can't cd to /nope\n"),
        ("systemctl start nothing", 5, "Failed to start nothing.service: Unit nothing.service not found.\n"),
        ("id nobody9", 1, "id: 'nobody9': no such user\n"),
        ("apk add x", 127, "sh: 1: apk: not found\n"),
        ("kill 99999", 1, "kill: (99999): No such process\n"),
        ("rm -rf /", 1, "rm: it is dangerous to operate recursively on '/'\nrm: use --no-preserve-root to override\n"),
    ],
)
def test_what_fails_fails_with_the_right_code_and_words(script: str, code: int, error: str):
    process = run(script)
    assert (process.exitcode, process.io.err.decode()) == (code, error)


async def test_a_background_process_outlives_its_command():
    inside = machine()
    clock = inside.world.clock
    assert isinstance(clock, ManualClock)
    process = await inside.execute(["sh", "-c", "(sleep 5; echo late > /tmp/late) & echo now"])
    assert process is not None
    assert process.io.out == b"now\n"
    assert inside.files.find("/tmp/late") is None
    await clock.advance(6)
    assert inside.files.read("/tmp/late") == b"late\n"


async def test_a_signal_to_a_group_ends_a_command_and_what_it_started():
    inside = machine()
    clock = inside.world.clock
    assert isinstance(clock, ManualClock)
    script = "kill -0 -$$ || exec setsid sh -c '(sleep 5; touch /tmp/late) & sleep 60'"
    process = await inside.spawn(["sh", "-c", script])
    assert process is not None
    await asyncio.sleep(0)
    killing = await inside.execute(["kill", "-TERM", f"-{process.pid}"])
    assert killing is not None
    assert killing.exitcode == 0
    await clock.advance(10)
    assert process.signal == 15
    assert inside.files.find("/tmp/late") is None


def test_services_can_be_stopped_started_and_queried():
    inside = machine()
    assert run("systemctl is-active docker", inside).io.out == b"active\n"
    assert run("systemctl stop docker; systemctl is-active docker", inside).exitcode == 3
    assert run("systemctl status docker", inside).exitcode == 3
    assert run("systemctl restart docker && systemctl is-active -q docker", inside).exitcode == 0
    assert run("systemctl disable docker; systemctl is-enabled docker", inside).io.out == b"disabled\n"
    assert run("systemctl status nothing", inside).exitcode == 4


def test_the_system_agrees_with_the_cluster():
    inside = machine()
    assert "docker01" in run("uname -a", inside).io.out.decode()
    assert "192.168.10.31/24" in run("ip -br a", inside).io.out.decode()
    assert "up 9 days" in run("uptime", inside).io.out.decode()
    assert "/dev/sda1" in run("df -h /", inside).io.out.decode()
    assert "qemu-guest-agent" in run("ps aux", inside).io.out.decode()
    assert "ID=ubuntu" in run("cat /etc/os-release", inside).io.out.decode()


@pytest.mark.parametrize(
    ("drives", "remembers"),
    [
        ({"ide2": "local:iso/live.iso,media=cdrom", "boot": "order=ide2;scsi0"}, False),
        ({"ide2": "local:iso/live.iso,media=cdrom", "boot": "order=scsi0;ide2"}, True),
        ({"ide2": "none,media=cdrom", "boot": "order=ide2;scsi0"}, True),  # an empty drive boots nothing
    ],
)
def test_a_system_that_was_booted_from_a_cd_forgets_its_files_when_it_stops(drives: dict[str, str], remembers: bool):
    inside = machine()
    guest = inside.guest
    guest.config.update(drives)
    run("echo kept > /root/note; hostname changed; echo changed > /etc/hostname", inside)
    guest.stop_running()
    guest.start_running(inside.now() + 60, pid=4711)
    inside = inside.world.part(Machines).of(guest)
    assert (run("cat /root/note", inside).io.out.decode() == "kept\n") is remembers
    assert (inside.hostname == "changed") is remembers


def test_a_container_runs_on_the_kernel_of_its_node():
    assert run("uname -r", machine(200)).io.out == b"6.17.2-1-pve\n"


@pytest.mark.parametrize(
    "script",
    ["", ";", "&&", "a | | b", "(", ")", "$(", "echo ${", "echo \\", "{ echo a; }", "((", "> ", "<<EOF", "&", "'"],
)
def test_no_script_is_too_strange(script: str):
    assert run(script).exitcode in (0, 2, 127)


def test_a_service_that_cannot_start_has_failed_and_says_why_in_the_journal():
    inside = machine()
    inside.services["cron"].fails_with = "no crontab"
    started = run("systemctl restart cron", inside)
    assert started.exitcode == 1
    assert b"Job for cron.service failed" in started.io.err
    assert b"Result=exit-code" in run("systemctl show cron", inside).io.out
    assert b"no crontab" in run("journalctl -q -u cron -n 2", inside).io.out
    assert run("systemctl --no-block restart cron", inside).exitcode == 0


def test_openrc_runs_an_alpine_machine():
    inside = machine(system=OperatingSystem("alpine", "Alpine Linux", "v3.22", "3.22", "6.12.31-0-lts"))
    assert run("systemctl", inside).exitcode == 127
    assert run("rc-service sshd status", inside).io.out == b" * status: started\n"
    assert run("rc-service sshd stop; rc-service sshd status", inside).exitcode == 3
    assert b"[  stopped  ]" in run("rc-status -s | grep sshd", inside).io.out
    assert run("rc-service -e nope || rc-service nope start", inside).io.err == (
        b" * rc-service: service `nope' does not exist\n"
    )
    assert run("rc-update del sshd; rc-update show | grep -c sshd", inside).io.out.endswith(b"0\n")
    assert run("rc-update add sshd default", inside).io.out == b" * service sshd added to runlevel default\n"
