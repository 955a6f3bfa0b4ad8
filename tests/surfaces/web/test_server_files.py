"""Files of the server that a caller over HTTP names: only those set aside are used, and no answer reveals others."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.types import ElicitResult

from quorate.config import Access, Approval
from quorate.config.http import HttpSettings
from tests.pipeline.test_safety_table import tries
from tests.rigs.homelab import House, house
from tests.rigs.mcp_session import text_of
from tests.rigs.web_server import Web, served, web

pytestmark = pytest.mark.anyio

CONTENT = b"an image, or so it says" * 100


@asynccontextmanager
async def remote(quorate: Web) -> AsyncIterator[Client]:
    async with quorate.client(await quorate.token("alice", "operate")) as client:
        yield client


async def answer(client: Client, tool: str, **arguments: Any) -> tuple[bool, str]:
    """Whether it worked, and its whole text."""
    result = await client.call_tool(tool, arguments)
    return not result.is_error, text_of(result)


def make_paths(tmp_path: Path, folder: Path) -> dict[str, str]:
    """Every kind of path that is not a plain file below the folder."""
    outside = tmp_path / "outside"
    outside.mkdir()
    folder.mkdir()
    secret = outside / "backup.tar.gz"
    secret.write_bytes(CONTENT)
    (outside / "locked.iso").write_bytes(CONTENT)
    (outside / "locked.iso").chmod(0)
    (outside / "empty.iso").touch()
    (folder / "link.iso").symlink_to(secret)
    (folder / "circle.iso").symlink_to(folder / "circle.iso")
    (folder / "dangling.iso").symlink_to(outside / "nothing")
    (folder / "linked").symlink_to(outside)
    os.link(secret, folder / "hard.iso")
    (folder / "folder.iso").mkdir()
    os.mkfifo(folder / "pipe.iso")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(folder / "socket.iso"))
    (tmp_path / f"{folder.name}-more").mkdir()
    (tmp_path / f"{folder.name}-more" / "tools.iso").write_bytes(CONTENT)
    return {
        "existing": str(secret),
        "missing": str(outside / "none.tar.gz"),
        "locked": str(outside / "locked.iso"),
        "empty": str(outside / "empty.iso"),
        "in no folder": "/no/such/folder/tools.iso",
        "below a file": f"{secret}/tools.iso",
        "a link": str(folder / "link.iso"),
        "a link to itself": str(folder / "circle.iso"),
        "a link to nothing": str(folder / "dangling.iso"),
        "a linked folder": str(folder / "linked" / "backup.tar.gz"),
        "a hard link": str(folder / "hard.iso"),
        "a folder": str(folder / "folder.iso"),
        "a pipe": str(folder / "pipe.iso"),
        "a socket": str(folder / "socket.iso"),
        "missing in the folder": str(folder / "none.iso"),
        "up and down again": f"{folder}/../outside/backup.tar.gz",
        "up and back": f"{folder}/../{folder.name}/tools.iso",
        "a similar folder": str(tmp_path / f"{folder.name}-more" / "tools.iso"),
        "the home": "~/tools.iso",
        "another home": "~nobody-by-this-name/tools.iso",
        "relative": "tools.iso",
        "the root": "/.iso",
        "a device": "/dev/zero/.iso",
        "a process": "/proc/self/root/tools.iso",
        "a NUL": f"{folder}/tools\x00.iso",
        "too long": f"{folder}/{'x' * 5000}.iso",
    }


@tries("a caller over HTTP names a file of the server, to send it elsewhere or to find out whether it exists")
@pytest.mark.parametrize("set_aside", [True, False])
async def test_a_remote_caller_gets_one_answer_for_every_file_that_is_not_set_aside(tmp_path, set_aside):
    folder = tmp_path / "images"
    paths = make_paths(tmp_path, folder)
    (folder / "tools.iso").write_bytes(CONTENT)
    more = {"upload_dirs": (folder,) if set_aside else ()}
    async with web(tmp_path, access=Access.OPERATE, toolsets=("all",), more=more) as quorate, remote(quorate) as client:
        refusals = {}
        for name, path in paths.items():
            for dry_run in (True, False):
                worked, text = await answer(client, "image_upload", file=path, storage="nas", dry_run=dry_run)
                assert not worked, name
                refusals[name, dry_run] = text
        if not set_aside:
            _, refusals["set aside elsewhere", False] = await answer(
                client, "image_upload", file=str(folder / "tools.iso")
            )
        assert len(set(refusals.values())) == 1, set(refusals.values())
        assert "upload_dirs in [images]" in refusals["existing", False]
        assert all(method == "GET" for method, _ in quorate.rig.sim.requests)
        assert [entry["outcome"] for entry in quorate.rig.audit()].count("done") == 0


async def test_a_remote_caller_uploads_what_the_operator_set_aside(tmp_path):
    folder = tmp_path / "images"
    (folder / "debian").mkdir(parents=True)
    (folder / "debian" / "tools.iso").write_bytes(CONTENT)
    more = {"upload_dirs": (tmp_path / "another", folder)}
    async with web(tmp_path, access=Access.OPERATE, toolsets=("all",), more=more) as quorate, remote(quorate) as client:
        worked, text = await answer(client, "image_upload", file=f"{folder}/debian/tools.iso", storage="nas")
        assert worked, text
        stored = quorate.rig.sim.world.storages["nas"].volume("pve1", "nas:iso/tools.iso")
        assert stored is not None
        assert stored.size == len(CONTENT)


async def test_a_link_that_appears_while_the_person_reads_the_question_is_not_followed(tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    image, secret = folder / "tools.iso", tmp_path / "backup.iso"
    secret.write_bytes(CONTENT)
    settings: dict[str, Any] = {"approval": Approval.ASK, "approve_changes": True, "more": {"upload_dirs": (folder,)}}
    async with web(tmp_path, toolsets=("all",), **settings) as quorate:
        for swap in (lambda: image.symlink_to(secret), lambda: os.link(secret, image)):
            image.unlink(missing_ok=True)
            image.write_bytes(CONTENT)
            questions: list[str] = []

            async def person(_: Any, params: Any, swap: Callable[[], None] = swap) -> ElicitResult:
                questions.append(params.message)  # noqa: B023
                image.unlink()
                swap()
                return ElicitResult(action="accept", content={"typed": _word_of(params.message)})

            async with quorate.client(elicitation_callback=person) as client:
                worked, _ = await answer(client, "image_upload", file=str(image), storage="nas")
            assert questions
            assert not worked
            assert quorate.rig.sim.world.storages["nas"].volume("pve1", "nas:iso/tools.iso") is None


def _word_of(question: str) -> str:
    return question.rpartition("Type ")[2].partition(" to approve")[0]


async def test_a_caller_on_this_machine_uploads_any_image(tmp_path):
    image = tmp_path / "tools.iso"
    image.write_bytes(CONTENT)
    (tmp_path / "link.iso").symlink_to(image)
    async with web(tmp_path, toolsets=("all",)) as quorate:
        await quorate.rig.facts("image_upload", file=str(image), storage="nas")
        await quorate.rig.facts("image_upload", file=str(tmp_path / "link.iso"), storage="nas", filename="other.iso")
        missing = await quorate.rig.refusal("image_upload", file=str(tmp_path / "none.iso"), storage="nas")
        assert "No such file" in missing
        unknown = await quorate.rig.refusal("image_upload", file="~nobody-by-this-name/none.iso", storage="nas")
        assert "home directory is unknown" in unknown


# -- new files ---------------------------------------------------------------------------------------------------------


BACKED_UP = {"backup": "pbs:backup/ct/203/2026-01-14T01:00:05Z", "path": "/etc/hostname"}


@tries("a caller over HTTP saves a file of a backup on the server")
async def test_a_remote_caller_saves_new_files_only_where_the_operator_lets_it(tmp_path):
    folder = tmp_path / "images"
    paths = make_paths(tmp_path, folder)
    (folder / "inner").mkdir()
    outside = sorted(path.name for path in (tmp_path / "outside").iterdir())
    taken = [paths.pop(name) for name in ("a link", "a link to nothing", "a link to itself", "a hard link", "a folder")]
    taken += [paths.pop(name) for name in ("a pipe", "a socket")]
    paths.pop("missing in the folder")
    more = {"upload_dirs": (tmp_path / "another", folder)}
    async with web(tmp_path, toolsets=("all",), more=more) as quorate, remote(quorate) as client:

        async def save(path: str, **more: Any) -> tuple[bool, str]:
            return await answer(client, "backup_file_restore", **BACKED_UP, file=path, **more)

        refusals = set()
        for name, path in paths.items():
            for dry_run in (True, False):
                worked, text = await save(path, dry_run=dry_run)
                assert not worked, name
                refusals.add(text)
        assert len(refusals) == 1, refusals
        assert "upload_dirs in [images]" in refusals.pop()
        for path in taken:
            worked, text = await save(path)
            assert not worked, path
            assert "already exists" in text, path
        for path in (folder / "hostname", folder / "inner" / "hostname"):
            worked, text = await save(str(path))
            assert worked, text
            assert path.read_text() == "postgres\n"
            assert path.stat().st_mode & 0o777 == 0o600
        assert sorted(path.name for path in (tmp_path / "outside").iterdir()) == outside
        assert (tmp_path / "outside" / "backup.tar.gz").read_bytes() == CONTENT


async def test_a_folder_that_becomes_a_link_while_the_person_reads_the_question_is_not_written_to(tmp_path):
    folder, elsewhere = tmp_path / "images", tmp_path / "elsewhere"
    (folder / "inner").mkdir(parents=True)
    elsewhere.mkdir()
    settings: dict[str, Any] = {"approval": Approval.ASK, "approve_changes": True, "more": {"upload_dirs": (folder,)}}
    async with web(tmp_path, toolsets=("all",), **settings) as quorate:

        async def person(_: Any, params: Any) -> ElicitResult:
            (folder / "inner").rmdir()
            (folder / "inner").symlink_to(elsewhere)
            return ElicitResult(action="accept", content={"typed": _word_of(params.message)})

        async with quorate.client(elicitation_callback=person) as client:
            worked, _ = await answer(client, "backup_file_restore", **BACKED_UP, file=f"{folder}/inner/hostname")
        assert not worked
        assert (folder / "inner").is_symlink()
        assert not list(elsewhere.iterdir())


# -- private keys ------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def lab(tmp_path: Path, **options: Any) -> AsyncIterator[tuple[House, Client]]:
    """A host whose key is not set aside, and a remote caller."""
    secrets = tmp_path / "set-aside"
    async with (
        house(tmp_path, homelab={"secrets_folder": secrets}, access=Access.OPERATE, **options) as built,
        served(built.quorate, HttpSettings()) as quorate,
        remote(quorate) as client,
    ):
        yield built, client


async def test_a_remote_caller_gets_one_answer_for_every_key_that_is_not_set_aside(tmp_path):
    async with lab(tmp_path) as (built, client):
        paths = make_paths(tmp_path, tmp_path / "set-aside")
        works = tmp_path / "outside" / "works"
        works.write_bytes(built.hosts["nas"].key_file.read_bytes())
        works.chmod(0o600)
        paths["a key that works"] = str(works)
        address, port = "127.0.0.1", built.hosts["nas"].port
        for tool, arguments in (
            ("host_register", {"host": "new", "address": address, "port": port, "user": "tester"}),
            ("host_update", {"host": "nas"}),
            ("host_exec", {"host": "nas", "command": "touch proof"}),
            ("host_exec", {"host": f"tester@{address}:{port}", "command": "touch proof"}),
            ("host_discover", {"host": "nas"}),
            ("host_admin_setup", {"host": "nas", "account": "helper"}),
        ):
            texts = {(await answer(client, tool, key=path, **arguments)) for path in paths.values()}
            assert len(texts) == 1, (tool, texts)
            [(worked, text)] = texts
            assert not worked
            assert "secrets_folder in [homelab]" in text, (tool, text)
        assert [row["name"] for row in await built.quorate.rows("host_list", clusters=False)] == ["nas"]
        assert (await built.quorate.facts("host_list", host="nas"))["key"] == str(built.hosts["nas"].key_file)
        assert not list(tmp_path.rglob("proof"))


async def test_an_imported_configuration_reveals_no_key_and_no_file(tmp_path):
    async with lab(tmp_path) as (_, client):
        paths = make_paths(tmp_path, tmp_path / "set-aside")
        for source, line in (
            ("ssh_config", "Host new\n  HostName 10.0.0.9\n  IdentityFile {}\n"),
            ("ansible", "new ansible_host=10.0.0.9 ansible_ssh_private_key_file={}\n"),
        ):
            texts = {
                await answer(client, "host_import", source=source, text=line.format(path), dry_run=True)
                for name, path in paths.items()
                if name not in ("a NUL", "too long")
            }
            assert len(texts) == 1, texts
            assert "secrets_folder in [homelab]" in texts.pop()[1]
            worked, text = await answer(client, "host_import", source=source, dry_run=True)
            assert not worked
            assert "Callers over HTTP cannot use this file" in text


async def test_a_plan_of_an_infrastructure_cannot_name_a_key_either(tmp_path):
    async with lab(tmp_path) as (built, client):
        host = {"address": "127.0.0.1", "port": built.hosts["nas"].port, "user": "tester"}
        document = {"name": "home", "hosts": {"new": {**host, "key": str(built.hosts["nas"].key_file)}}}
        worked, text = await answer(client, "infra_apply", document=document)
        assert not worked
        assert "secrets_folder in [homelab]" in text
        assert [row["name"] for row in await built.quorate.rows("host_list", clusters=False)] == ["nas"]


async def test_a_remote_caller_uses_registered_logins_and_keys_that_are_set_aside(tmp_path):
    async with lab(tmp_path) as (built, client):
        (tmp_path / "set-aside").mkdir()
        key = tmp_path / "set-aside" / "lab"
        key.write_bytes(built.hosts["nas"].key_file.read_bytes())
        key.chmod(0o600)
        worked, text = await answer(client, "host_exec", host="nas", command="echo registered")
        assert worked, text
        worked, text = await answer(client, "host_exec", host="nas", command="echo set aside", key=str(key))
        assert worked, text
        worked, text = await answer(client, "host_update", host="nas", key=str(key))
        assert worked, text
        worked, text = await answer(client, "host_update", host="nas", key=str(key), display_name="The big one")
        assert worked, text


async def test_a_reference_to_a_file_elsewhere_gets_one_answer(tmp_path):
    async with lab(tmp_path) as (_, client):
        paths = make_paths(tmp_path, tmp_path / "set-aside")
        inside = ("a folder", "a pipe", "a socket", "a hard link", "missing in the folder", "too long", "relative")
        texts = set()
        for name, path in paths.items():
            if name in (*inside, "a NUL"):
                continue
            arguments = {"host": "new", "address": "10.0.0.9", "password": f"file:{path}", "verify": False}
            worked, text = await answer(client, "host_register", **arguments)
            assert not worked
            texts.add(text.replace(path, "PATH"))
        assert len(texts) == 1, texts
