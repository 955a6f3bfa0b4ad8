"""Every secret is a marker here, every tool runs well and badly, and the markers turn up nowhere they should not."""

from __future__ import annotations

import base64
import json
import logging
import shlex
import traceback
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from mcp import Client
from mcp.types import CallToolResult, ElicitResult

from quorate.app import build, simulated_cluster
from quorate.config import Approval, Settings
from quorate.operations.registry import operations
from quorate.problems import Problem
from quorate.pve.connection import Password, Secret, Token
from quorate.ssh.settings import Login
from quorate.state.approvals import Approvals, State
from quorate.state.passphrase import Passphrase
from tests.generators.population import populate
from tests.pipeline.test_every_tool_under_faults import one_call_each
from tests.rigs.mcp_session import DrivenTime, Rig, pointed_at, rig, second_server, text_of
from tests.rigs.simulated_guests import CONTAINER, VM
from tests.rigs.web_server import web

pytestmark = pytest.mark.anyio

OF_THE_PRODUCT = ("quorate", "aiohttp", "asyncssh", "uvicorn")
"""Loggers that an operator may turn up. The MCP client of a test is not the product's."""
TOKEN = "ca9a7e00-0000-4000-8000-00000000beef"
LOGIN = "Canary'login\"1%+é"
GIVEN = {
    "password": "Canary'user\"2%+é",
    "cipassword": "Canary'cloud\"3%+é",
    "env": "Canary'env\"4%+é",
    "stdin": "Canary'stdin\"5%+é",
    "command": "CanaryCommand6",
    "content": "Canary'file\"7%+é",
    "storage": "Canary'share\"8%+é",
    "header": "Canary'header\"9%+é",
    "variable": "Canary-variable-10",
}
KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nQ2FuYXJ5S2V5OQ\n-----END OPENSSH PRIVATE KEY-----\n"
MARKERS = (TOKEN, LOGIN, *GIVEN.values(), "Q2FuYXJ5S2V5OQ")

PLAIN_CONTAINER = 200
CONFIG, AGENT = "/nodes/pve1/qemu/108/config", f"/nodes/pve1/qemu/{VM}/agent"


def raw(method: str, path: str, /, **params: Any) -> tuple[str, dict[str, Any]]:
    return "api_call", {"method": method, "path": path, "params": params}


def tool(name: str, /, **arguments: Any) -> tuple[str, dict[str, Any]]:
    return name, arguments


SECRET_CALLS: tuple[tuple[str, dict[str, Any]], ...] = (
    tool("user_set", user="eve@pve", password=GIVEN["password"]),
    tool("user_set", user="alice@pve", password=GIVEN["password"]),
    tool("user_set", user="mallory@pve", password=[GIVEN["password"]]),
    tool("user_set", user="mallory@pve", colour="red", password=GIVEN["password"]),
    tool("container_create", template="debian-13-standard", password=GIVEN["password"]),
    tool("container_create", template="debian-13-standard", ssh_keys=[KEY]),
    tool("cloudinit_set", guest=107, password=GIVEN["cipassword"]),
    tool("cloudinit_set", guest=107, ssh_keys=[KEY]),
    tool("cloudinit_get", guest=107),
    tool("vm_create", name="fresh", cloud_init={"password": GIVEN["cipassword"], "user": "me"}),
    tool("vm_create", name="fresh", cloud_init=f"password={GIVEN['cipassword']}"),
    tool("guest_configure", guest=108, options={"cipassword": GIVEN["cipassword"]}),
    tool("guest_configure", guest=108, options={"cipassword": GIVEN["cipassword"], "nonsense": 1}),
    raw("PUT", CONFIG, cipassword=GIVEN["cipassword"]),
    raw("GET", CONFIG, password=GIVEN["password"]),
    raw("POST", "/access/users", userid="zoe@pve", password=GIVEN["password"]),
    raw("POST", "/access/ticket", username="a@pve", password=GIVEN["password"]),
    raw("POST", "/storage", storage="share", type="cifs", server="192.168.10.5", share="x", password=GIVEN["storage"]),
    raw(
        "POST",
        "/cluster/metrics/server/otel",
        type="opentelemetry",
        server="192.0.2.9",
        port=4318,
        **{"otel-headers": base64.b64encode(json.dumps({"Authorization": GIVEN["header"]}).encode()).decode()},
    ),
    raw("PUT", f"/nodes/pve1/lxc/{PLAIN_CONTAINER}/config", env=f"PGPASSWORD={GIVEN['variable']}"),
    tool("guest_configure", guest=PLAIN_CONTAINER, options={"env": f"PGPASSWORD={GIVEN['variable']}"}),
    tool("guest_configure", guest=PLAIN_CONTAINER, options={"env": f"MYSQL_PWD={GIVEN['variable']}"}),
    tool("container_create", template="debian-13-standard", options={"env": f"PGPASSWORD={GIVEN['variable']}"}),
    tool("container_create", template="nginx:1.29", options={"env": {"PGPASSWORD": GIVEN["variable"]}}),
    tool("guest_configure", guest=PLAIN_CONTAINER, options={"env": {"PGPASSWORD": GIVEN["variable"]}}),
    raw("GET", f"/nodes/pve1/lxc/{PLAIN_CONTAINER}/config"),
    raw("GET", f"/nodes/pve1/lxc/{PLAIN_CONTAINER}/pending"),
    tool("guest_configure", guest=PLAIN_CONTAINER, unset=["env"]),
    raw("POST", f"{AGENT}/set-user-password", username="root", password=GIVEN["password"]),
    raw("POST", f"{AGENT}/file-write", file="/tmp/secret", content=GIVEN["content"]),
    raw("POST", f"{AGENT}/exec", command=["true", "--password", GIVEN["command"]], **{"input-data": GIVEN["stdin"]}),
    *(
        text
        for guest in (VM, CONTAINER)
        for text in (
            tool("guest_exec", guest=guest, command=["true"], env={"A_B": GIVEN["env"]}, stdin=GIVEN["stdin"]),
            tool("guest_exec", guest=guest, command=f"true --password={GIVEN['command']}"),
            tool("guest_exec", guest=guest, command=["true", "--token", GIVEN["command"]]),
            tool("guest_file_write", guest=guest, path="/tmp/secret", content=GIVEN["content"]),
        )
    ),
    tool("guest_exec", guest=VM, command=["true"], env={"A B": GIVEN["env"]}, stdin=GIVEN["stdin"]),
    tool("guest_exec", guest=VM, command=["true"], env=[GIVEN["env"]], stdin=[GIVEN["stdin"]]),
    tool("guest_exec", guest=VM, command=["true"], env=GIVEN["env"]),
    tool("guest_job", action="list"),
    tool("guest_file_write", guest=VM, path="relative", content=GIVEN["content"]),
    tool("guest_file_write", guest=VM, path="/tmp/x", content=GIVEN["content"], encoding="base64"),
)

SENT = (TOKEN, GIVEN["password"], GIVEN["cipassword"], GIVEN["storage"])
"""What PVE gets to see in a header or a parameter, and might repeat."""
SITUATIONS: dict[str, tuple[str, ...]] = {
    "all is well": (),
    "PVE repeats the secrets": ("500:bad value {echo}:POST:*", "500:bad value {echo}:PUT:*"),
    "reads repeat the secrets": ("500:bad header {echo}:GET:*",),
    "tasks repeat the secrets": ("task-fails:*:failed with {echo}",),
    "answers of writes are lost": ("drop:after:POST:*", "drop:after:PUT:*"),
    "the login is refused": ("401",),
}


def faults_for(situation: str, arguments: object) -> list[str]:
    """PVE repeats the token, and what the call itself brings."""
    spelled = json.dumps(arguments, ensure_ascii=False)
    echo = " ".join(sent for sent in SENT if sent == TOKEN or json.dumps(sent, ensure_ascii=False) in spelled)
    return [fault.format(echo=echo) for fault in SITUATIONS[situation]]


def spellings(secret: str) -> Iterator[tuple[str, str]]:
    """Every encoding that the product produces, with its name."""
    yield "plain", secret
    yield "URL", quote(secret, safe="")
    yield "form", quote_plus(secret)
    yield "JSON", json.dumps(secret)[1:-1]
    yield "JSON text", json.dumps(secret, ensure_ascii=False)[1:-1]
    yield "repr", repr(secret)[1:-1]
    yield "shell", shlex.quote(secret).strip("'")
    yield "hex", secret.encode().hex()
    for before in range(3):
        whole = base64.b64encode(bytes(before) + secret.encode()).decode().rstrip("=")
        yield f"base64 at {before}", whole[4 if before else 0 : len(whole) - 2]


def found_in(text: str, markers: Iterable[str] = MARKERS) -> list[str]:
    """Which markers a text contains, and how, with what is around them."""
    places = []
    for marker in markers:
        for name, spelling in spellings(marker):
            place = text.find(spelling)
            if place >= 0:
                places.append(f"{marker} ({name}): …{text[max(0, place - 80) : place + len(spelling) + 40]}…")
    return places


def whole_of(answer: CallToolResult) -> str:
    return text_of(answer) + json.dumps(answer.structured_content, ensure_ascii=False)


def files_of(folder: Path) -> str:
    """Whatever was written: the audit trail, the store with its journal."""
    kept = (
        file
        for file in folder.iterdir()
        if file.is_file() and file.suffix in (".jsonl", ".sqlite", ".sqlite-wal", ".log")
    )
    return "".join(file.read_bytes().decode(errors="replace") for file in kept)


def logged(caplog: pytest.LogCaptureFixture) -> str:
    """With the whole chain of exceptions."""
    lines = []
    for record in caplog.records:
        if record.name.split(".")[0] in OF_THE_PRODUCT:
            lines.append(record.getMessage())
            if record.exc_info and record.exc_info[1]:
                lines += traceback.format_exception(record.exc_info[1])
    return "\n".join(lines)


def test_a_marker_would_be_found_in_any_spelling() -> None:
    for marker in MARKERS:
        assert found_in(f"x{marker}y")
        assert found_in(quote(f"/x?{marker}"))
        assert found_in(json.dumps({"a": [marker]}))
        assert found_in(shlex.join(["sh", "-c", marker]))
        for before in range(4):
            assert found_in(base64.b64encode(b"abc"[:before] + marker.encode() + b"zz").decode()), before


def turn_up(caplog: pytest.LogCaptureFixture) -> None:
    for name in OF_THE_PRODUCT:
        caplog.set_level(logging.DEBUG, name)


def beside(folder: Path) -> Path:
    """For the first server, which only makes the world."""
    (folder / "first").mkdir()
    return folder / "first"


@asynccontextmanager
async def marked(tmp_path: Path, caplog: pytest.LogCaptureFixture, **more: Any) -> AsyncIterator[Rig]:
    """A server whose own token is a marker, with all its loggers turned up."""
    turn_up(caplog)
    async with rig(beside(tmp_path), ssh=True) as quorate:
        quorate.sim.world.access.users["root@pam"].tokens["simulator"].secret = TOKEN
        target = pointed_at(quorate.sim, credentials=Token(quorate.sim.token_id, Secret(TOKEN)))
        async with second_server(quorate, tmp_path / "audit.jsonl", clusters=(target,), **more) as server:
            yield server


@pytest.mark.thorough
@pytest.mark.parametrize("situation", SITUATIONS)
async def test_no_tool_tells_a_secret(tmp_path: Path, caplog: pytest.LogCaptureFixture, situation: str) -> None:
    state = str(tmp_path / "state.sqlite")
    async with marked(tmp_path, caplog, state=state) as quorate:
        await populate(quorate)
        every = [(operation.name, arguments) for operation, arguments in one_call_each(quorate)]
        done = 0
        for name, arguments in [*every, *SECRET_CALLS]:
            faults = [quorate.sim.faults.add(fault) for fault in faults_for(situation, arguments)]
            dry = situation == "all is well" and operations()[name].changes
            for more in ({"dry_run": True}, {}) if dry else ({},):
                answer = await quorate.call(name, **arguments, **more)
                assert found_in(whole_of(answer)) == [], f"{name} {arguments}"
                done += not answer.is_error
            for fault in faults:
                quorate.sim.faults.remove(fault)
        assert situation != "all is well" or done > len(every)  # most of it works, and not only the reads
        assert found_in(str(quorate.progress)) == []
        assert found_in(logged(caplog)) == []
    assert found_in(files_of(tmp_path)) == []


async def test_no_question_and_no_approval_holds_a_secret(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    questions: list[str] = []

    async def person(context: Any, params: Any) -> ElicitResult:
        questions.append(f"{params.message}{params.requested_schema}")
        return ElicitResult(action="decline")

    state = str(tmp_path / "state.sqlite")
    several = {"state": state, "approval": Approval.ASK, "approve_changes": True}
    async with marked(tmp_path, caplog, **several) as quorate:
        asking = quorate.app.server()
        async with Client(asking, elicitation_callback=person) as client:
            for tool, arguments in SECRET_CALLS:
                assert found_in(whole_of(await quorate.call(tool, **arguments, **_at_once(tool)))) == []
                assert found_in(whole_of(await client.call_tool(tool, {**arguments, **_at_once(tool)}))) == []
        assert len(questions) > 5
        assert found_in("\n".join(questions)) == []
        assert len(await Approvals(quorate.app.store).list(tuple(State), limit=1000)) > 5
        assert found_in(logged(caplog)) == []
    assert found_in(files_of(tmp_path)) == []


def _at_once(tool: str) -> dict[str, Any]:
    return {"wait": 0} if operations()[tool].changes else {}


async def test_a_new_tokens_secret_is_shown_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with marked(tmp_path, caplog, state=str(tmp_path / "state.sqlite")) as quorate:
        for tool, arguments in (
            ("token_create", {"token": "bob@pve!one"}),
            ("api_call", {"method": "POST", "path": "/access/users/bob@pve/token/two"}),
        ):
            answer = await quorate.call(tool, **arguments)
            name = str(arguments.get("token", "!two")).partition("!")[2]
            secret = quorate.sim.world.access.users["bob@pve"].tokens[name].secret
            assert found_in(whole_of(answer), [secret])
            again = [
                await quorate.call("access_list", kind="tokens"),
                await quorate.call("api_call", method="GET", path=f"/access/users/bob@pve/token/{name}"),
                await quorate.call("task_list"),
            ]
            assert found_in("".join(map(whole_of, again)) + logged(caplog) + str(quorate.progress), [secret]) == []
            assert found_in(files_of(tmp_path), [secret]) == []


@pytest.mark.parametrize("right", [True, False], ids=["right", "wrong"])
async def test_a_login_by_password_tells_neither_password_nor_ticket(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, right: bool
) -> None:
    turn_up(caplog)
    async with rig(beside(tmp_path), ssh=True) as quorate:
        quorate.sim.world.access.users["root@pam"].password = LOGIN if right else "another"
        target = pointed_at(quorate.sim, credentials=Password("root@pam", Secret(LOGIN)))
        async with second_server(quorate, tmp_path / "audit.jsonl", clusters=(target,)) as server:
            answers = [await server.call("guest_list"), await server.call("guest_power", guest=108, action="start")]
            assert all(answer.is_error is not right for answer in answers)
            assert server.app.cluster is not None
            secrets = [LOGIN, *server.app.cluster.secrets()]
            assert len(secrets) == (4 if right else 2)
            server.sim.faults.add("500:" + " ".join(secrets).replace(";", ""))
            answers.append(await server.call("guest_get", guest=108))
            whole = (
                "".join(map(whole_of, answers)) + logged(caplog) + repr(server.app.settings) + repr(server.app.cluster)
            )
            assert found_in(whole + files_of(tmp_path), [LOGIN]) == []
            assert found_in(whole + files_of(tmp_path), secrets[2:]) == []


async def test_ssh_tells_neither_passwords_nor_keys(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    turn_up(caplog)
    key_file = tmp_path / "key"
    key_file.write_text(KEY)
    key_file.chmod(0o600)
    async with rig(beside(tmp_path), ssh=True) as quorate:
        target = simulated_cluster(quorate.sim)
        for nodes in (Login(user="root", password=Secret(LOGIN)), Login(user="root", key=key_file)):
            other = replace(target, ssh=replace(target.ssh, nodes=nodes))
            async with second_server(quorate, tmp_path / "audit.jsonl", clusters=(other,)) as server:
                answer = await server.call("guest_exec", guest=CONTAINER, command=["true"])
                assert answer.is_error
                assert "SSH" in text_of(answer)
                assert "not allowed" not in text_of(answer)  # the login was tried
                shown = f"{whole_of(answer)}{server.app.settings!r}{other!r}{server.app.cluster!r}"
                assert found_in(shown + logged(caplog) + files_of(tmp_path)) == []


async def test_the_address_of_the_state_keeps_its_password(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    turn_up(caplog)
    secret = "CanaryState10"
    async with rig(tmp_path) as quorate:
        settings = replace(
            quorate.app.settings, state=f"postgresql://quorate:{secret}@127.0.0.1:1/quorate", approval=Approval.ASK
        )
        app = build(settings, clock=DrivenTime(quorate.clock))
        shown = [repr(settings), repr(app), repr(app.store), app.store.place, app.audit.place]
        try:
            await app.store.ready()
        except Problem as problem:
            shown += [str(problem), *traceback.format_exception(problem)]
        else:
            raise AssertionError("nobody listens there")
        async with Client(app.server()) as client:
            shown.append(whole_of(await client.call_tool("guest_stop", {"guest": 104})))
        await app.close()
    assert found_in("\n".join(shown) + logged(caplog), [secret]) == []


async def test_settings_do_not_print_their_secrets(tmp_path: Path) -> None:
    async with rig(tmp_path) as quorate:
        target = pointed_at(quorate.sim, credentials=Token("root@pam!simulator", Secret(TOKEN)))
        by_password = pointed_at(quorate.sim, credentials=Password("root@pam", Secret(LOGIN)))
        settings = Settings(clusters=(target, by_password))
        app = build(settings)
        for value in (
            settings,
            target,
            by_password,
            target.connection,
            target.connection.credentials,
            app,
            app.pipeline,
        ):
            assert found_in(f"{value!r} {value!s} {value}") == []
        assert found_in(str(vars(app.cluster))) == []
        await app.close()


async def test_bearer_tokens_and_the_passphrase_are_kept_as_hashes_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    turn_up(caplog)
    phrase, guess = "Canary correct horse", "Canary wrong battery"
    async with web(tmp_path, approval=Approval.ASK) as house:
        token = await house.token("model", "admin")
        await Passphrase(house.rig.app.store).set(phrase)
        texts: list[str] = []
        async with house.client(token) as client:
            texts.append(whole_of(await client.call_tool("guest_stop", {"guest": 104, "wait": 0})))
            texts.append(whole_of(await client.call_tool("guest_list", {"nonsense": token})))
        (row,) = (await house.get("/approvals", token)).json()["approvals"]
        headers = {"Authorization": f"Bearer {token}"}
        for body in (
            {"decision": "approve", "passphrase": guess},
            {"decision": "approve", "passphrase": [phrase]},
            {"decision": "approve", "passphrase": phrase, "more": phrase},
            {"decision": "approve", "passphrase": phrase, "reason": "fine"},
        ):
            answered = await house.plain.post(f"/approvals/{row['id']}", json=body, headers=headers)
            texts.append(answered.text)
        texts.append((await house.post(f"{token}x")).text)
        texts.append((await house.get("/metrics", token)).text)
        texts.append((await house.get(f"/nowhere/{token}")).text)
        shown = "\n".join(texts) + logged(caplog) + files_of(tmp_path)
    assert found_in(shown, [phrase, guess]) == []
    assert found_in(shown, [token.rpartition("_")[2]]) == []
