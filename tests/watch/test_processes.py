"""The watch as a process of its own: killed before and while it sends, next to another one, and at the shell."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sqlite3
import tomllib
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from pve_simulator.simulator import SimulatedCluster
from tests.rigs.processes import Running, running
from tests.rigs.receivers import HttpReceiver, Received, http_receiver, mail_receiver

pytestmark = pytest.mark.anyio

PATIENCE = 60.0


def configuration(folder: Path, sim: SimulatedCluster, channels: str) -> Path:
    file = folder / "config.toml"
    file.write_text(
        f"""
state = "{folder / "state.sqlite"}"
audit_file = "{folder / "audit.jsonl"}"
[clusters.demo]
url = "{sim.url}"
token_id = "{sim.token_id}"
token_secret = "{sim.token_secret}"
fingerprint = "{sim.fingerprint}"
[watch]
every = 3600
{channels}
"""
    )
    file.chmod(0o600)
    return file


def process(file: Path, *words: str, command: str = "watch") -> AbstractContextManager[Running]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PROXMOX", "QUORATE"))}
    return running(command, "--config", str(file), *words, environ=environ)


async def run(file: Path, *words: str) -> tuple[int, str, str]:
    with process(file, *words) as started:
        out, err = await asyncio.to_thread(started.communicate)
        return await asyncio.to_thread(started.wait), out, err


def deliveries(file: Path) -> list[tuple[str, str]]:
    """State and channel of every message in the store."""
    path = file.parent / "state.sqlite"
    if not path.exists():
        return []
    with contextlib.closing(sqlite3.connect(path)) as state:
        tables = state.execute("SELECT 1 FROM sqlite_master WHERE name = 'quorate_deliveries'").fetchall()
        return state.execute("SELECT state, channel FROM quorate_deliveries").fetchall() if tables else []


async def until_all(file: Path, state: str, channels: Iterable[str]) -> None:
    """Wait until every channel has messages and all of them are in this state: rows are stored one after the other."""
    while True:
        rows = await asyncio.to_thread(deliveries, file)
        if {channel for _, channel in rows} == set(channels) and {current for current, _ in rows} == {state}:
            return
        await asyncio.sleep(0.05)


NTFY = '[watch.channels.phone]\ntype = "ntfy"\nurl = "{url}"\ntopic = "lab"\nkinds = ["backup-missing"]\n'
HOOK = '[watch.channels.hook]\ntype = "webhook"\nurl = "{url}/hook"\nsecret = "s"\nkinds = ["backup-missing"]\n'


ALL_CHANNELS = {
    "ntfy": 'url = "{url}"\ntopic = "lab"',
    "gotify": 'url = "{url}"\ntoken = "t"',
    "webhook": 'url = "{url}/hook"\nsecret = "s"',
    "telegram": 'url = "{url}"\ntoken = "t"\nchat = "42"',
    "matrix": 'url = "{url}"\ntoken = "t"\nroom = "!room:home.lan"',
    "slack": 'url = "{url}/services/x"',
    "smtp": 'host = "127.0.0.1"\nport = {port}\ntls = "none"\nsender = "quorate@home.lan"\nto = "admin@home.lan"',
}
DIGEST = 'kinds = ["backup-missing"]\ndigest = "12h"'


def make_due(file: Path) -> None:
    """The time of the digest has come."""
    with contextlib.closing(sqlite3.connect(file.parent / "state.sqlite")) as state:
        state.execute("UPDATE quorate_deliveries SET due = 0")
        state.commit()


async def test_every_channel_gets_a_message_once_if_the_server_is_killed_between_detection_and_delivery(tmp_path):
    async with http_receiver() as receiver, mail_receiver() as mailbox, SimulatedCluster(auth_delay=0.0) as sim:
        channels = [
            f'[watch.channels.{name}]\ntype = "{name}"\n{DIGEST}\n{more}' for name, more in ALL_CHANNELS.items()
        ]
        text = "\n".join(channels).format(url=receiver.url, port=mailbox.port)
        file = configuration(tmp_path, sim, text)
        with process(file) as first:
            await asyncio.wait_for(until_all(file, "waiting", ALL_CHANNELS), PATIENCE)
            os.kill(first.pid, signal.SIGKILL)
            await asyncio.to_thread(first.wait)
        assert (receiver.messages, mailbox.mails) == ([], [])
        await asyncio.to_thread(make_due, file)
        with process(file), process(file):
            await asyncio.wait_for(until_all(file, "sent", ALL_CHANNELS), PATIENCE)
        paths = sorted(message.path.split("/")[1] for message in receiver.messages)
        assert paths == ["", "_matrix", "bott", "hook", "message", "services"]
        assert len(mailbox.mails) == 1


async def killed_while_sending(tmp_path: Path, channel: str, receiver: HttpReceiver) -> None:
    """The first process dies between the receiver's reading of the message and its answer; a second one follows."""
    reached, never = asyncio.Event(), asyncio.Event()

    async def hang(_: Received) -> None:
        reached.set()
        await never.wait()

    async with SimulatedCluster(auth_delay=0.0) as sim:
        file = configuration(tmp_path, sim, channel.format(url=receiver.url))
        (receiving,) = tomllib.loads(channel)["watch"]["channels"]
        receiver.on_message = hang
        with process(file) as first:
            await asyncio.wait_for(reached.wait(), PATIENCE)
            os.kill(first.pid, signal.SIGKILL)
            await asyncio.to_thread(first.wait)
        receiver.on_message = None
        with process(file):
            await asyncio.wait_for(until_all(file, "sent", [receiving]), PATIENCE)
        never.set()


async def test_a_message_that_arrived_before_the_kill_is_not_sent_to_ntfy_again(tmp_path):
    async with http_receiver() as receiver:
        await killed_while_sending(tmp_path, NTFY, receiver)
        assert len(receiver.messages) == 1


async def test_a_message_that_did_not_arrive_before_the_kill_is_sent_after_it(tmp_path):
    async with http_receiver() as receiver:
        receiver.keeps = False

        async def keep_from_now_on() -> None:
            while receiver.on_message is None:
                await asyncio.sleep(0.01)
            while receiver.on_message is not None:
                await asyncio.sleep(0.01)
            receiver.keeps = True

        async with asyncio.TaskGroup() as group:
            group.create_task(keep_from_now_on())
            group.create_task(killed_while_sending(tmp_path, NTFY, receiver))
        assert len(receiver.messages) == 1


async def test_a_webhook_gets_the_same_id_again_so_that_its_receiver_keeps_one(tmp_path):
    async with http_receiver() as receiver:
        await killed_while_sending(tmp_path, HOOK, receiver)
        assert len({message.headers["Idempotency-Key"] for message in receiver.messages}) == 1


async def test_of_two_watchers_on_one_store_one_watches_and_every_message_is_sent_once(tmp_path):
    async with http_receiver() as receiver, SimulatedCluster(auth_delay=0.0) as sim:
        channel = NTFY.format(url=receiver.url).replace('kinds = ["backup-missing"]', 'severity = "info"')
        file = configuration(tmp_path, sim, channel)
        with process(file), process(file):
            await asyncio.wait_for(until_all(file, "sent", ["phone"]), PATIENCE)
        assert len(receiver.messages) <= len(deliveries(file))
        titles = [message.json["title"] for message in receiver.messages]
        assert len(titles) == len(set(titles))
        asked = [path for method, path in sim.requests if path == "/cluster/status"]
        assert len(asked) == 1


async def test_the_http_server_watches_as_well(tmp_path):
    async with http_receiver() as receiver, SimulatedCluster(auth_delay=0.0) as sim:
        reached = asyncio.Event()

        async def note(_: Received) -> None:
            reached.set()

        receiver.on_message = note
        file = configuration(tmp_path, sim, NTFY.format(url=receiver.url))
        with process(file, "--http", "127.0.0.1:0", command="serve"):
            await asyncio.wait_for(reached.wait(), PATIENCE)


async def test_findings_are_listed_acknowledged_and_silenced_at_the_shell(tmp_path):
    async with SimulatedCluster(auth_delay=0.0) as sim:
        file = configuration(tmp_path, sim, "")
        code, out, _ = await run(file, "--once")
        assert code == 0
        assert "guests have no backup" in out
        code, out, _ = await run(file, "list", "--json")
        (missing,) = [finding for finding in json.loads(out) if finding["finding"]["kind"] == "backup-missing"]
        code, out, _ = await run(file, "acknowledge", missing["id"], "--note", "later")
        assert f"{missing['id']}: acknowledged" in out
        code, out, _ = await run(file, "silence", missing["id"], "8h")
        assert "silenced until" in out
        code, _, err = await run(file, "silence", "nothing", "8h")
        assert (code, "There is no finding 'nothing'" in err) == (1, True)


async def test_a_test_message_is_sent_and_a_broken_channel_says_why(tmp_path):
    async with http_receiver() as receiver, SimulatedCluster(auth_delay=0.0) as sim:
        file = configuration(tmp_path, sim, NTFY.format(url=receiver.url))
        code, out, _ = await run(file, "test")
        assert (code, out) == (0, "phone: sent\n")
        assert receiver.messages[0].json["message"].startswith("This is a test message.")
        receiver.status = 401
        code, out, _ = await run(file, "test", "phone")
        assert code == 1
        assert "phone: failed: 127.0.0.1 answered 401" in out
        code, _, err = await run(file, "test", "pager")
        assert (code, "There is no channel 'pager'. Configured: phone." in err) == (1, True)
