"""Real servers of ntfy, Matrix and mail, where they are installed: a message is there once."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import mailbox
import shutil
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest

from quorate.config.watch import ChannelSettings
from quorate.secret import Secret
from quorate.watch.channels import Channel, Message
from quorate.watch.outbox import Notice

NTFY = shutil.which("ntfy")
SYNAPSE = shutil.which("synapse_homeserver")
SMTPD = shutil.which("aiosmtpd")
pytestmark = pytest.mark.anyio
PATIENCE = 60.0
MATRIX = """
server_name: home.lan
report_stats: false
listeners: [{port: @PORT@, bind_addresses: [127.0.0.1], type: http, resources: [{names: [client]}]}]
database: {name: sqlite3, args: {database: "@HERE@/home.db"}}
media_store_path: "@HERE@/media"
signing_key_path: "@HERE@/signing.key"
registration_shared_secret: of-the-test
trusted_key_servers: []
"""


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@asynccontextmanager
async def serving(port: int, *words: str) -> AsyncIterator[str]:
    server = await asyncio.create_subprocess_exec(
        *words, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        async with asyncio.timeout(PATIENCE):
            await until_open(port)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.kill()
        await server.wait()


@asynccontextmanager
async def ntfy(folder: Path) -> AsyncIterator[str]:
    assert NTFY is not None
    port = free_port()
    where = ("--listen-http", f"127.0.0.1:{port}", "--base-url", f"http://127.0.0.1:{port}")
    async with serving(port, NTFY, "serve", *where, "--cache-file", str(folder / "cache.db")) as url:
        yield url


@asynccontextmanager
async def synapse(folder: Path) -> AsyncIterator[str]:
    assert SYNAPSE is not None
    port, file = free_port(), folder / "homeserver.yaml"
    file.write_text(MATRIX.replace("@PORT@", str(port)).replace("@HERE@", str(folder)))
    keys = await asyncio.create_subprocess_exec(SYNAPSE, "--config-path", str(file), "--generate-keys", cwd=folder)
    assert await keys.wait() == 0
    async with serving(port, SYNAPSE, "--config-path", str(file)) as url:
        yield url


async def until_open(port: int) -> None:
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.05)
        else:
            writer.close()
            return


async def kept(url: str) -> list[str]:
    async with aiohttp.ClientSession() as session, session.get(f"{url}/lab/json?poll=1") as answer:
        lines = (await answer.text()).splitlines()
    return [json.loads(line)["title"] for line in lines]


def channel(type: str, options: dict[str, str], **secrets: Secret) -> Channel:
    async def resolve(reference: str) -> Secret:
        raise AssertionError(reference)

    return Channel(ChannelSettings("phone", type, options, secrets), resolve, lambda: 0.0)


NOTICE = Notice("opened", "critical", "demo", "node-down", "Node pve1 is offline")
MESSAGE = Message("0123456789abcdef", "Node pve1 is offline", "It left.", "critical", "", (NOTICE,))


@pytest.mark.skipif(NTFY is None, reason="ntfy is not installed (https://docs.ntfy.sh/install)")
async def test_ntfy_keeps_a_message_once_even_if_its_answer_was_lost(tmp_path):
    async with ntfy(tmp_path) as url:
        phone = channel("ntfy", {"url": url, "topic": "lab"})
        await phone.send(MESSAGE)
        await phone.send(MESSAGE, unsure=True)
        assert await kept(url) == ["Node pve1 is offline"]


@pytest.mark.skipif(SYNAPSE is None, reason="Synapse is not installed (pip install matrix-synapse)")
async def test_matrix_keeps_a_message_once_even_if_its_answer_was_lost(tmp_path):
    async with synapse(tmp_path) as url, aiohttp.ClientSession() as session:

        async def ask(method: str, path: str, token: str = "", **body: Any) -> Any:
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            async with session.request(method, f"{url}{path}", headers=headers, json=body or None) as answer:
                assert answer.status == 200, await answer.text()
                return await answer.json()

        nonce = (await ask("GET", "/_synapse/admin/v1/register"))["nonce"]
        signed = "\0".join((nonce, "quorate", "word", "notadmin")).encode()
        mac = hmac.new(b"of-the-test", signed, hashlib.sha1).hexdigest()
        login = {"nonce": nonce, "username": "quorate", "password": "word", "mac": mac}
        token = (await ask("POST", "/_synapse/admin/v1/register", **login))["access_token"]
        room = (await ask("POST", "/_matrix/client/v3/createRoom", token, name="lab"))["room_id"]
        phone = channel("matrix", {"url": url, "room": room}, token=Secret(token))
        await phone.send(MESSAGE)
        await phone.send(MESSAGE, unsure=True)
        events = (await ask("GET", f"/_matrix/client/v3/rooms/{quote(room)}/messages?dir=b", token))["chunk"]
        said = [event["content"]["body"] for event in events if event["type"] == "m.room.message"]
        assert len(said) == 1
        assert "Node pve1 is offline" in said[0]


@pytest.mark.skipif(SMTPD is None, reason="aiosmtpd is not installed (pip install aiosmtpd)")
async def test_a_mail_server_files_a_message_with_its_id(tmp_path):
    assert SMTPD is not None
    port, box = free_port(), tmp_path / "box"
    words = ("-n", "-l", f"127.0.0.1:{port}", "-c", "aiosmtpd.handlers.Mailbox", str(box))
    async with serving(port, SMTPD, *words):
        options = {"host": "127.0.0.1", "port": str(port), "tls": "none"}
        await channel("smtp", {**options, "sender": "quorate@home.lan", "to": "admin@home.lan"}).send(MESSAGE)
        [mail] = mailbox.Maildir(box)
        assert mail["Subject"] == "Node pve1 is offline"
        assert mail["Message-ID"] == "<0123456789abcdef@home.lan>"
        assert mail["X-RcptTo"] == "admin@home.lan"
