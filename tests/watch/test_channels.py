"""Messages: every kind of channel, routing, digests, failures, and deliveries that a killed server left behind."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from quorate.config import Approval
from quorate.config.policy import Hours
from quorate.config.watch import ChannelSettings, Digest, WatchSettings
from quorate.runs.store import Run, RunState, RunStore
from quorate.secret import Secret
from quorate.state.store import StateUnavailable
from quorate.watch.finding_store import NextCall, Observation
from quorate.watch.watch import Watch
from tests.rigs.manual_clock import jump
from tests.rigs.receivers import HttpReceiver, http_receiver, mail_receiver
from tests.watch.conftest import Watched, watching

pytestmark = pytest.mark.anyio

TROUBLE = Observation("node-down", "node pve1", "critical", "Node pve1 is offline", "view", next=NextCall("node_list"))


def channel(name: str, type: str, receiver: HttpReceiver, **more: Any) -> ChannelSettings:
    url = receiver.url
    token: dict[str, Any] = {"token": Secret("tk_secret_token")}
    options, secrets = {
        "ntfy": ({"url": url, "topic": "lab"}, token),
        "gotify": ({"url": url}, token),
        "webhook": ({}, {"url": Secret(f"{url}/hook"), "secret": Secret("shared")}),
        "telegram": ({"url": url, "chat": "42"}, token),
        "matrix": ({"url": url, "room": "!room:home.lan"}, token),
        "slack": ({}, {"url": Secret(f"{url}/services/T/B/X")}),
    }[type]
    return ChannelSettings(name, type, options, secrets, **more)


@asynccontextmanager
async def with_channels(tmp_path, *channels: ChannelSettings, **more: Any) -> AsyncIterator[Watched]:
    async with watching(tmp_path, WatchSettings(channels=channels, **more)) as watched:
        yield watched


async def observe(watch: Watch, *observations: Observation, cluster: str = "demo") -> None:
    await watch._findings.observe(cluster, observations, lambda _: True)


async def tell(watched: Watched, *observations: Observation) -> None:
    await observe(watched.watch, *observations)
    await watched.watch.notify()


@pytest.mark.parametrize("type", ["ntfy", "gotify", "webhook", "telegram", "matrix", "slack"])
async def test_a_finding_reaches_the_receiver_once_and_so_does_its_end(tmp_path, type):
    async with http_receiver() as receiver, with_channels(tmp_path, channel("phone", type, receiver)) as watched:
        await tell(watched, TROUBLE)
        await tell(watched, TROUBLE)
        (first,) = receiver.messages
        assert "Node pve1 is offline" in first.body.decode()
        assert "The node left the cluster" in first.body.decode()
        await tell(watched)
        await watched.watch.notify()
        _, second = receiver.messages
        assert "Resolved: Node pve1 is offline" in second.body.decode()


async def test_each_service_gets_what_it_understands(tmp_path):
    types = ("ntfy", "gotify", "webhook", "telegram", "matrix", "slack")
    async with http_receiver() as receiver:
        async with with_channels(tmp_path, *(channel(kind, kind, receiver) for kind in types)) as watched:
            await tell(watched, TROUBLE)
        by_path = {message.path.split("/")[1]: message for message in receiver.messages}
    ntfy, gotify, hook, telegram = by_path[""], by_path["message"], by_path["hook"], by_path["bottk_secret_token"]
    assert (ntfy.json["topic"], ntfy.json["priority"]) == ("lab", 5)
    assert ntfy.headers["Authorization"] == "Bearer tk_secret_token"
    assert (gotify.headers["X-Gotify-Key"], gotify.json["priority"]) == ("tk_secret_token", 9)
    assert telegram.json["chat_id"] == "42"
    assert by_path["_matrix"].method == "PUT"
    assert by_path["services"].json["text"].startswith("[critical demo] Node pve1 is offline")
    signed = f"{hook.headers['webhook-id']}.{hook.headers['webhook-timestamp']}.".encode() + hook.body
    signature = base64.b64encode(hmac.new(b"shared", signed, hashlib.sha256).digest()).decode()
    assert hook.headers["webhook-signature"] == f"v1,{signature}"
    assert hook.json["findings"][0]["kind"] == "node-down"


async def test_mail_is_handed_over_once_with_an_id_that_stays(tmp_path):
    async with mail_receiver() as receiver:
        options = {"host": "127.0.0.1", "port": str(receiver.port), "tls": "none", "user": "me"}
        options |= {"sender": "quorate@home.lan", "to": "admin@home.lan"}
        mail = ChannelSettings("mail", "smtp", options, {"password": Secret("hidden")})
        async with with_channels(tmp_path, mail) as watched:
            await tell(watched, TROUBLE)
            await tell(watched, TROUBLE)
        (received,) = receiver.mails
        assert received["Subject"] == "[critical demo] Node pve1 is offline"
        assert received["Message-ID"].endswith("@home.lan>")
        assert base64.b64decode(receiver.logins[0]) == b"\0me\0hidden"


async def test_routing_follows_severity_kind_cluster_and_hours(tmp_path):
    night = Hours("00:00-06:00", frozenset(range(7)), 0, 360)
    async with http_receiver() as receiver:
        usual = channel("all", "slack", receiver, severity="info")
        channels = (
            replace(usual, name="critical", severity="critical"),
            replace(usual, name="backups", kinds=("backup-*",)),
            replace(usual, name="not nodes", kinds=("!node-*",)),
            replace(usual, name="other", clusters=("other",)),
            replace(usual, name="night", hours=(night,)),
        )
        async with with_channels(tmp_path, *channels) as watched:
            old = Observation("backup-old", "", "info", "An old backup")
            await tell(watched, TROUBLE, old)
            states = {
                (delivery.channel, delivery.event, delivery.notice.kind): delivery.state
                for delivery in await watched.watch.deliveries(99)
            }
    assert states == {
        ("critical", "opened", "node-down"): "sent",
        ("backups", "opened", "backup-old"): "sent",
        ("not nodes", "opened", "backup-old"): "sent",
        ("night", "opened", "node-down"): "waiting",
        ("night", "opened", "backup-old"): "waiting",
    }


async def test_a_digest_collects_and_leaves_out_what_is_over(tmp_path):
    async with http_receiver() as receiver:
        daily = channel("daily", "slack", receiver, severity="info", digest=Digest(seconds=3600))
        async with with_channels(tmp_path, daily) as watched:
            passing = Observation("storage-full", "storage x", "warning", "It is full for a moment")
            others = [Observation("guest-down", f"guest {n}", "warning", f"Guest {n} is down") for n in range(3)]
            await tell(watched, TROUBLE, passing, *others)
            await tell(watched, TROUBLE, *others)
            assert receiver.messages == []
            await watched.quorate.clock.advance(3600)
            await watched.watch.notify()
            (only,) = receiver.messages
            text = only.json["text"]
            assert text.startswith("[Quorate] 4 findings, 0 resolved")
            assert "for a moment" not in text


async def test_a_storm_is_one_message(tmp_path):
    async with http_receiver() as receiver, with_channels(tmp_path, channel("a", "slack", receiver)) as watched:
        await tell(watched, *(replace_target(TROUBLE, f"node n{number}") for number in range(30)))
        (only,) = receiver.messages
        assert only.json["text"].startswith("[Quorate] 30 findings, 0 resolved")
        assert "and 10 more" in only.json["text"]


def replace_target(observation: Observation, target: str) -> Observation:
    return Observation(observation.kind, target, observation.severity, f"{target} is offline", "view")


async def notify_until_given_up(watched: Watched) -> None:
    """Report trouble for as long as a channel that fails is retried."""
    await observe(watched.watch, TROUBLE)
    for _ in range(4):
        await watched.watch.notify()
        await watched.watch._observe_server()
        await watched.quorate.clock.advance(700)
    await watched.watch.notify()


async def test_a_failing_channel_is_retried_and_reported_elsewhere(tmp_path):
    async with http_receiver() as broken, http_receiver() as well:
        broken.status = 503
        channels = (channel("broken", "slack", broken), channel("well", "slack", well))
        async with with_channels(tmp_path, *channels) as watched:
            await notify_until_given_up(watched)
            texts = [message.json["text"] for message in well.messages]
            assert len(texts) == 2
            assert "Messages on channel broken failed 3 times in a row: 127.0.0.1 answered 503" in texts[1]
            broken.status = 200
            await watched.quorate.clock.advance(3600)
            await watched.watch.notify()
            assert len(broken.messages) == 1
            await watched.watch._observe_server()
            await watched.watch.notify()
            assert "Resolved: Messages on channel broken" in well.messages[-1].json["text"]


async def test_a_message_whose_failure_could_not_be_stored_is_sent_again(tmp_path):
    async with http_receiver() as receiver, with_channels(tmp_path, channel("phone", "slack", receiver)) as watched:
        store = watched.watch._store

        async def lose_the_table(_: object) -> None:
            await store.execute("ALTER TABLE quorate_deliveries RENAME TO lost")

        receiver.status, receiver.on_message = 503, lose_the_table
        with pytest.raises(StateUnavailable):
            await tell(watched, TROUBLE)
        await store.execute("ALTER TABLE lost RENAME TO quorate_deliveries")
        receiver.status, receiver.on_message = 200, None
        await watched.watch.notify()
        (message,) = receiver.messages
        assert "Node pve1 is offline" in message.json["text"]
        await watched.watch.notify()
        assert len(receiver.messages) == 1


async def test_acknowledged_and_silenced_findings_send_nothing_more(tmp_path):
    async with http_receiver() as receiver, with_channels(tmp_path, channel("a", "slack", receiver)) as watched:
        await tell(watched, TROUBLE)
        (finding,) = await watched.watch.findings()
        now = watched.quorate.clock.now()
        await watched.watch.silence(finding.id, now + 3600, "tester")
        worse = Observation("node-down", "node pve1", "critical", "It is worse", "view", subjects=("guest 1",))
        await tell(watched, worse)
        assert len(receiver.messages) == 1
        await watched.quorate.clock.advance(3700)
        await tell(watched, worse)
        assert "Still open: It is worse" in receiver.messages[-1].json["text"]


async def test_waiting_approvals_and_the_freeze_notify_with_a_link_that_decides_nothing(tmp_path):
    async with http_receiver() as receiver:
        settings = WatchSettings(channels=(channel("a", "ntfy", receiver),), public_url="https://quorate.home.lan")
        async with watching(tmp_path, settings, approval=Approval.ASK) as watched:
            await watched.quorate.refusal("guest_delete", guest=108)
            await watched.watch.step()
            (asked,) = [message.json for message in receiver.messages if "asks on demo" in message.body.decode()]
            assert "Delete" in asked["title"]
            (waiting,) = await watched.watch._approvals.list()
            assert asked["click"] == f"https://quorate.home.lan/console/approvals/{waiting.id}"
            receiver.messages.clear()
            await watched.watch._freeze.set("tester", "storm", watched.quorate.app.audit)
            await watched.watch.step()
            assert [message.json["title"] for message in receiver.messages if "frozen" in message.json["title"]]


async def test_an_answered_approval_and_a_lifted_freeze_are_resolved(tmp_path):
    async with watching(tmp_path, WatchSettings(), approval=Approval.ASK) as watched:
        await watched.quorate.refusal("guest_delete", guest=108)
        await watched.watch._freeze.set("tester", "storm", watched.quorate.app.audit)
        await watched.watch.step()
        assert {"approval-waiting", "changes-frozen"} <= await watched.kinds()
        (waiting,) = await watched.watch._approvals.list()
        await watched.watch._approvals.answer(waiting.id, approve=False, by="tester")
        await watched.watch._freeze.lift("tester", watched.quorate.app.audit)
        await watched.watch.step()
        assert not {"approval-waiting", "changes-frozen"} & await watched.kinds()


async def test_what_was_detected_before_a_crash_is_delivered_once_after_it(tmp_path):
    async with http_receiver() as receiver, with_channels(tmp_path, channel("a", "webhook", receiver)) as watched:
        await observe(watched.watch, TROUBLE)
        again = Watch(watched.watch.settings, watched.quorate.app.store, [], watched.quorate.app.homelab)
        await again._notifier.enqueue(watched.quorate.clock.now())
        third = Watch(watched.watch.settings, watched.quorate.app.store, [], watched.quorate.app.homelab)
        await third.notify()
        await again.notify()
        assert len(receiver.messages) == 1


async def test_secrets_of_channels_appear_nowhere(tmp_path):
    async with http_receiver() as receiver, with_channels(tmp_path, channel("a", "slack", receiver)) as watched:
        receiver.status = 404
        await tell(watched, TROUBLE)
        (entry,) = await watched.watch.deliveries(9)
        assert entry.error == '127.0.0.1 answered 404: {"ok": false}'
        leak = Observation("task-failing", "x", "warning", f"curl {receiver.url}/services/T/B/X failed")
        await observe(watched.watch, leak)
        assert "/services/T/B/X" not in str(await watched.quorate.facts("finding_list"))


@pytest.mark.parametrize("type", ["ntfy", "webhook", "telegram", "matrix", "slack"])
async def test_a_receiver_that_repeats_a_secret_is_not_quoted_with_it(tmp_path, type):
    async with http_receiver() as receiver, http_receiver() as other:
        receiver.status, receiver.repeats = 404, True
        channels = (channel("a", type, receiver), channel("b", "slack", other))
        async with with_channels(tmp_path, *channels) as watched:
            await notify_until_given_up(watched)
            texts = [str([delivery.error for delivery in await watched.watch.deliveries(99)])]
            texts += [
                str(await watched.quorate.facts("finding_list")),
                *(message.body.decode() for message in other.messages),
            ]
            assert all("Cannot POST" in text for text in (texts[0], texts[1], texts[-1]))
            for secret in ("tk_secret_token", "/hook", "/services/T/B/X"):
                assert not [text for text in texts if secret in text]


@pytest.mark.thorough
async def test_a_paused_run_and_a_failed_one_notify_until_a_person_has_seen_to_them(tmp_path):
    async with http_receiver() as receiver, with_channels(tmp_path, channel("a", "slack", receiver)) as watched:
        runs, now = RunStore(watched.quorate.app.store), watched.quorate.clock.now()
        usual: dict[str, Any] = {
            "kind": "evacuate",
            "cluster": "demo",
            "tool": "run_evacuate",
            "created": now,
            "caller": {},
        }
        await runs.add(Run(id="aaaaaa", title="Evacuate pve1", state=RunState.RUNNING, **usual))
        await runs.add(Run(id="bbbbbb", title="Evacuate pve2", state=RunState.FAILED, ended=now, **usual))
        await runs.pause("aaaaaa", "tester", "a guest does not move")
        await watched.watch._observe_server()
        await watched.watch.notify()
        titles = sorted(message.json["text"].split("\n")[0] for message in receiver.messages)
        assert titles == [
            "[warning quorate] Run aaaaaa on demo is paused: Evacuate pve1 (a guest does not move)",
            "[warning quorate] Run bbbbbb on demo failed: Evacuate pve2",
        ]
        await runs.resume("aaaaaa", "tester")
        await jump(watched.quorate.clock, 90_000)
        await watched.watch._observe_server()
        assert await watched.kinds() == set()


async def test_a_paused_run_stays_a_finding_however_many_have_failed_since(tmp_path):
    async with http_receiver() as receiver, with_channels(tmp_path, channel("a", "slack", receiver)) as watched:
        runs, now = RunStore(watched.quorate.app.store), watched.quorate.clock.now()
        usual: dict[str, Any] = {"kind": "evacuate", "cluster": "demo", "tool": "run_evacuate", "caller": {}}
        await runs.add(Run(id="paused", title="Evacuate pve1", state=RunState.PAUSED, created=now, **usual))
        for number in range(60):
            failed: dict[str, Any] = {"state": RunState.FAILED, "created": now + number + 1, "ended": now}
            await runs.add(Run(id=f"f{number}", title="Evacuate pve2", **failed, **usual))
        await watched.watch._observe_server()
        assert [finding.seen_as.target for finding in await watched.watch.findings()].count("run paused") == 1


def texts(receiver: HttpReceiver) -> list[str]:
    return [message.json["text"].split("\n")[0] for message in receiver.messages]


async def test_what_comes_and_goes_is_kept_quiet_until_it_lasts(tmp_path):
    async with http_receiver() as receiver, with_channels(tmp_path, channel("a", "slack", receiver)) as watched:
        for _ in range(10):
            for observations in ((TROUBLE,), ()):
                await tell(watched, *observations)
                await watched.quorate.clock.advance(60)
        assert len(receiver.messages) == 4, "opened and resolved twice"
        await tell(watched, TROUBLE)
        (row,) = await watched.rows()
        assert row["state"] == "silenced"
        assert "comes and goes" in (await watched.quorate.facts("finding_get", finding=row["id"]))["note"]
        await watched.quorate.clock.advance(3601)
        await tell(watched, TROUBLE)
        assert texts(receiver)[4:] == ["[critical demo] Still open: Node pve1 is offline"]


async def test_a_silence_outlasts_a_moment_without_what_it_is_about(tmp_path):
    async with http_receiver() as receiver, with_channels(tmp_path, channel("a", "slack", receiver)) as watched:
        await tell(watched, TROUBLE)
        (row,) = await watched.rows()
        await watched.quorate.facts("finding_acknowledge", finding=row["id"], silence="8h", note="new switch tonight")
        await tell(watched)
        await watched.quorate.clock.advance(3 * 3600)
        await tell(watched, TROUBLE)
        (again,) = await watched.rows()
        facts = await watched.quorate.facts("finding_get", finding=again["id"])
        assert (again["id"] != row["id"], again["state"], facts["note"]) == (True, "silenced", "new switch tonight")
        assert len(receiver.messages) == 1
        await watched.quorate.clock.advance(5 * 3600 + 1)
        await tell(watched, TROUBLE)
        assert texts(receiver)[1:] == ["[critical demo] Still open: Node pve1 is offline"]


async def test_those_who_heard_of_a_finding_hear_of_its_end_even_if_it_was_less_severe_by_then(tmp_path):
    async with http_receiver() as pager, http_receiver() as other:
        channels = (channel("pager", "slack", pager, severity="critical"), channel("other", "slack", other))
        async with with_channels(tmp_path, *channels) as watched:
            small = Observation("storage-full", "storage a", "warning", "Storage a is 86% full", "view")
            await tell(watched, TROUBLE, small)
            await tell(watched, msgspec.structs.replace(TROUBLE, severity="warning"), small)
            await tell(watched)
            assert [text.split()[-4:] for text in texts(pager)] == [["Node", "pve1", "is", "offline"]] * 2
            assert "Resolved" in texts(pager)[1]
            assert len(other.messages) == 4


async def test_nobody_hears_that_something_is_resolved_before_they_hear_that_it_opened(tmp_path):
    async with http_receiver() as receiver, with_channels(tmp_path, channel("a", "slack", receiver)) as watched:
        receiver.status = 503
        await tell(watched, TROUBLE)
        await watched.quorate.clock.advance(5)
        receiver.status = 200
        await tell(watched)
        assert receiver.messages == []
        await watched.quorate.clock.advance(60)
        await watched.watch.notify()
        assert ["Resolved" in text for text in texts(receiver)] == [False, True]


async def test_a_mail_that_some_recipients_have_is_not_sent_again(tmp_path):
    async with mail_receiver() as receiver:
        receiver.refuses = "nobody@"
        options = {"host": "127.0.0.1", "port": str(receiver.port), "tls": "none"}
        options |= {"sender": "quorate@home.lan", "to": "admin@home.lan, nobody@home.lan"}
        async with with_channels(tmp_path, ChannelSettings("mail", "smtp", options, {})) as watched:
            await tell(watched, TROUBLE)
            for _ in range(3):
                await watched.quorate.clock.advance(3700)
                await tell(watched, TROUBLE)
            (delivery,) = await watched.watch.deliveries(9)
            assert (len(receiver.mails), delivery.state) == (1, "failed")
            assert "refused nobody@home.lan" in delivery.error


async def test_nothing_is_repeated_while_the_receiver_cannot_say_what_it_has(tmp_path):
    async with http_receiver() as receiver, with_channels(tmp_path, channel("a", "ntfy", receiver)) as watched:

        async def lose_the_answer(_: Any) -> None:
            receiver.status = 504

        receiver.on_message = lose_the_answer
        await tell(watched, TROUBLE)
        receiver.on_message, receiver.status, receiver.readable = None, 200, False
        await watched.quorate.clock.advance(31)
        await watched.watch.notify()
        receiver.readable = True
        await watched.quorate.clock.advance(200)
        await watched.watch.notify()
        (delivery,) = await watched.watch.deliveries(9)
        assert (len(receiver.messages), delivery.state) == (1, "sent")
