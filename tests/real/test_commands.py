"""Commands inside real guests, by every way in: what goes in, what comes out, how they end."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

import pytest

from tests.real.lab import Lab
from tests.real.transports import ALL_BUT_JUMP, EVERY_TRANSPORT, TRANSPORTS, reached

pytestmark = pytest.mark.anyio

SHOW = 'printf "%s\\n" "$@" "$(id -un)" "$(pwd)" "$WORDS"; cat'
AWKWARD = ["a b", "it's", '"double"', "$(touch /owned)", "`touch /owned`", "*", "~", "\\n", "%s", "é€", "--x", "", ";"]


@EVERY_TRANSPORT
async def test_both_outputs_the_exit_code_and_the_transport_are_separate(lab: Lab, tmp_path: Path, way: str):
    async with reached(lab, way, tmp_path) as inside:
        ran = await inside.exec("cat /proc/sys/kernel/hostname; echo err >&2; exit 3")
        assert (ran["result"], ran["exit_code"], ran["stderr"]) == ("command failed (exit 3)", 3, "err\n")
        assert ran["stdout"] == await inside.look("cat", "/proc/sys/kernel/hostname")
        assert ran["way"] == TRANSPORTS[way]


@EVERY_TRANSPORT
async def test_arguments_user_folder_environment_and_input_arrive_as_given(lab: Lab, tmp_path: Path, way: str):
    async with reached(lab, way, tmp_path) as inside:
        words = "é 'quoted'\n$(touch /owned)"
        ran = await inside.exec(
            ["sh", "-c", SHOW, "sh", *AWKWARD], user="worker", cwd="/usr", env={"WORDS": words}, stdin="größer\n"
        )
        assert ran["stdout"] == "\n".join([*AWKWARD, "worker", "/usr", words, "größer\n"])
        assert await inside.look("ls", "/owned") == ""


@ALL_BUT_JUMP
async def test_a_long_input_arrives_whole(lab: Lab, tmp_path: Path, way: str):
    text = "0123456789 é€\n" * 20_000  # several times what the agent takes with a command
    async with reached(lab, way, tmp_path) as inside:
        ran = await inside.exec(["sha256sum"], stdin=text)
        assert ran["stdout"].split()[0] == hashlib.sha256(text.encode()).hexdigest()
        assert await inside.look("sh", "-c", "ls -d /tmp/tmp.* 2>/dev/null") == ""


@ALL_BUT_JUMP
async def test_a_command_that_cannot_begin_says_why(lab: Lab, tmp_path: Path, way: str):
    async with reached(lab, way, tmp_path) as inside:
        missing = await inside.exec(["nosuchprogram"])
        assert missing["exit_code"] == 127
        assert "nosuchprogram" in missing["stderr"]
        assert "can't cd to /nosuch" in await inside.refusal("guest_exec", command=["true"], cwd="/nosuch")
        if way != "agent":
            long = await inside.exec(["echo", "x" * 131_072])  # Linux takes 128 KiB
            assert (long["exit_code"], "stdout" in long) == (126, False)
        else:
            assert "too long" in await inside.refusal("guest_exec", command=["echo", "x" * 131_072])
        assert "there is no user nobody9" in await inside.refusal("guest_exec", command=["true"], user="nobody9")


@ALL_BUT_JUMP
async def test_a_command_is_ended_at_its_time_limit_with_all_that_it_has_started(lab: Lab, tmp_path: Path, way: str):
    async with reached(lab, way, tmp_path) as inside:
        ran = await inside.exec("(sleep 4711 &) ; echo begun; sleep 4711", timeout=1)
        assert ran["timed_out"].startswith("It was killed after 1s")
        assert ran["stdout"] == "begun\n"
        await inside.gone("sleep 4711")


@ALL_BUT_JUMP
async def test_a_long_command_runs_in_the_background_and_is_followed_to_its_end(lab: Lab, tmp_path: Path, way: str):
    async with reached(lab, way, tmp_path) as inside:
        script = "echo begun; while [ ! -e /run/go-on ]; do sleep 0.1; done; rm /run/go-on; echo ended; exit 5"
        begun = await inside.exec(script, wait=0)
        assert begun["result"] == "running"
        [job] = await inside.quorate.rows("guest_job")
        assert (job["job"], job["command"], job["way"]) == (begun["job"], script, TRANSPORTS[way])
        while (told := await inside.quorate.facts("guest_job", action="poll", job=begun["job"])).get("stdout") is None:
            assert told["state"] == "running"
            if way == "agent":
                break  # it tells the output at the end only
        await inside.look("touch", "/run/go-on")
        told = await inside.quorate.facts("guest_job", action="poll", job=begun["job"], seconds=40)
        assert (told["state"], told["exit_code"], told["stdout"]) == ("ended", 5, "begun\nended\n")


@pytest.mark.parametrize("way", ["pct", "agent"])
async def test_a_command_in_the_background_can_be_stopped(lab: Lab, tmp_path: Path, way: str):
    async with reached(lab, way, tmp_path) as inside:
        stubborn = 'trap "" TERM; while :; do sleep 4712; done'
        begun = await inside.exec(stubborn, wait=0)
        await inside.there("sleep 4712")
        stopped = await inside.quorate.facts("guest_job", action="stop", job=begun["job"])
        assert stopped["result"] == "done"
        await inside.gone("sleep 4712")
        told = await inside.quorate.facts("guest_job", action="poll", job=begun["job"])
        assert told["state"] == "ended"


@EVERY_TRANSPORT
async def test_a_cancelled_call_ends_the_command_inside(lab: Lab, tmp_path: Path, way: str):
    async with reached(lab, way, tmp_path) as inside:
        calling = asyncio.ensure_future(inside.exec("setsid sleep 4713 & (sleep 4713 &); sleep 4713"))
        await inside.there("sleep 4713")
        calling.cancel()
        await asyncio.wait({calling})
        assert calling.cancelled()
        await inside.gone("sleep 4713")


@ALL_BUT_JUMP
async def test_commands_outlive_the_server_that_started_them(lab: Lab, tmp_path: Path, way: str):
    async with reached(lab, way, tmp_path) as inside:
        begun = await inside.exec("sleep 4714", wait=0)
        assert begun["result"] == "running"
        await inside.there("sleep 4714")
    assert await inside.running("sleep 4714")
    if way != "openrc":  # whose small pkill finds no applet; the laboratory's end is its end
        await inside.look("pkill", "-9", "sleep")
        await inside.gone("sleep 4714")
