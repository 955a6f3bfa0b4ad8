"""Services of machines that neither systemd nor OpenRC runs, on a real system: init scripts, runit, s6."""

import os
import shutil

import pytest

from tests.surfaces.compat.rows import homelabs

pytestmark = pytest.mark.anyio

# mypy: disable-error-code="union-attr"

# As on Debian without systemd: the script knows `status`.
SYSV = """#!/bin/sh
case $1 in
start|restart) echo 1 > /run/word;;
stop) rm -f /run/word;;
status) [ -e /run/word ] || exit 3;;
*) exit 2;;
esac
"""
NAP = f"{os.getpid()}1000"
"""Seconds that no other run sleeps, because `pkill` looks at the whole machine."""
# As on a BusyBox system: it only starts and stops, and its name says that it starts with the machine.
BUSYBOX = f"""#!/bin/sh
case $1 in
start) sleep {NAP} & ;;
stop) pkill -f "sleep {NAP}"; true;;
restart) "$0" stop; "$0" start;;
*) echo "Usage: $0 {{start|stop|restart}}"; exit 1;;
esac
"""
UPDATE_RC = """#!/bin/sh
mkdir -p /etc/rc2.d
case $2 in disable) rm -f "/etc/rc2.d/S01$1";; *) ln -sf "../init.d/$1" "/etc/rc2.d/S01$1";; esac
"""
RUN = "#!/bin/sh\nexec sleep 1000\n"


def put(box, path, text):
    file = box.folder / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    file.chmod(0o755)


async def changed(homelab, action, service="word"):
    """State of the service: before, now, and whether it starts with the machine."""
    arguments = {"device": "box", "changes": {"services": {service: action}}, "backup": False}
    answer = await homelab.quorate.facts("device_update", **arguments)
    return answer["before"], answer["now"], answer["enabled"]


async def test_an_init_script_is_used_where_there_is_nothing_else(tmp_path):
    async with homelabs.accounts(tmp_path, programs={"update-rc.d": UPDATE_RC}) as homelab:
        put(homelab.box, "etc/init.d/word", SYSV)
        assert await changed(homelab, "start") == ("inactive (stopped)", "active (running)", "disabled")
        assert await changed(homelab, "restart") == ("active (running)", "active (running)", "disabled")
        assert (await changed(homelab, "enable"))[2] == "enabled"
        assert (await changed(homelab, "disable"))[2] == "disabled"
        assert (await changed(homelab, "stop"))[1] == "inactive (stopped)"
        arguments = {"device": "box", "changes": {"services": {"nothing": "start"}}, "backup": False}
        assert "There is no service 'nothing'" in await homelab.quorate.refusal("device_update", **arguments)


async def test_a_script_of_busybox_is_known_by_its_process(tmp_path):
    async with homelabs.accounts(tmp_path) as homelab:
        put(homelab.box, "etc/init.d/S50sleep", BUSYBOX)
        assert (await changed(homelab, "start", "sleep"))[1:] == ("active (running)", "enabled")
        arguments = {"device": "box", "changes": {"services": {"sleep": "disable"}}, "backup": False}
        assert "S50NAME" in await homelab.quorate.refusal("device_update", **arguments)


async def test_where_there_is_no_manager_at_all_that_is_said(tmp_path):
    async with homelabs.accounts(tmp_path) as homelab:
        arguments = {"device": "box", "changes": {"services": {"word": "start"}}, "backup": False}
        text = await homelab.quorate.refusal("device_update", **arguments)
        assert "neither systemd nor OpenRC" in text
        assert "no runit, s6 or init scripts" in text


@pytest.mark.skipif(not shutil.which("runsvdir"), reason="needs runit")
async def test_runit_gets_its_own_commands(tmp_path):
    async with homelabs.accounts(tmp_path) as homelab:
        put(homelab.box, "etc/sv/word/run", RUN)
        (homelab.box.folder / "etc/service").mkdir()
        (homelab.box.folder / "etc/service/word").symlink_to("/etc/sv/word")
        await homelab.quorate.facts("host_exec", host="box", command="runsvdir /etc/service >/dev/null 2>&1 & sleep 7")
        assert await changed(homelab, "restart") == ("active (run)", "active (run)", "enabled")
        assert (await changed(homelab, "stop"))[1] == "inactive (down)"
        assert (await changed(homelab, "start"))[1] == "active (run)"
        assert (await changed(homelab, "disable"))[2] == "disabled"


@pytest.mark.skipif(not shutil.which("s6-svscan"), reason="needs s6")
async def test_s6_gets_its_own_commands(tmp_path):
    async with homelabs.accounts(tmp_path) as homelab:
        put(homelab.box, "run/service/word/run", RUN)
        await homelab.quorate.facts("host_exec", host="box", command="s6-svscan /run/service >/dev/null 2>&1 & sleep 2")
        assert await changed(homelab, "restart") == ("active (up)", "active (up)", "enabled")
        assert (await changed(homelab, "stop"))[1] == "inactive (down)"
        assert (await changed(homelab, "start"))[1] == "active (up)"
        assert (await changed(homelab, "disable"))[2] == "disabled"
