"""Channels: how a message reads, the same everywhere, and how ntfy, Gotify, webhooks, chats and mail deliver it."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import smtplib
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from email.message import EmailMessage
from email.utils import formatdate
from typing import Any
from urllib.parse import quote, urlsplit

import aiohttp
import msgspec

from quorate.config.watch import ChannelSettings
from quorate.documents import ACCEPTED, BodyRefused, read_body
from quorate.hints import tools
from quorate.pipeline.redaction import Redactor, one_line
from quorate.pve.errors import connection_failure
from quorate.secret import Secret
from quorate.units import moment
from quorate.watch.outbox import Notice, Parcel

MOST_LISTED = 20
LONGEST_LINE = 500
_WORDS = {"opened": "", "worse": "Worse: ", "more": "More: ", "again": "Still open: ", "resolved": "Resolved: "}
_REPEAT = "(This may repeat an earlier message: it is not known whether that one arrived.)"
_ORDER = ("critical", "warning", "unchecked", "info")
SECONDS = 20.0
LONGEST_ANSWER = 200
MOST_KEPT = 8 << 20
"""Bytes of the messages that a receiver still has."""
TELEGRAM = "https://api.telegram.org"
TELEGRAM_TEXT = 4000
NTFY_TEXT = 3800
_NTFY_PRIORITY = {"critical": "5", "warning": "4", "unchecked": "3", "info": "3"}
_GOTIFY_PRIORITY = {"critical": 9, "warning": 6, "unchecked": 4, "info": 3}
_NOT_SENT = (400, 401, 403, 404, 405, 410, 413, 415, 422, 429, 500, 501, 503)
"""The receiver itself refused; anything else from a proxy in between leaves it open."""


@dataclass(frozen=True, slots=True)
class Message:
    id: str
    title: str
    body: str
    severity: str
    """The worst of its news; `info` if everything in it is resolved."""
    link: str
    notices: tuple[Notice, ...]

    @property
    def text(self) -> str:
        return "\n".join(part for part in (self.title, self.body) if part)


def compose(parcel: Parcel, *, mark_repeat: bool) -> Message:
    """`mark_repeat`: the receiver cannot recognize a repetition, so the text says that it may be one."""
    notices = parcel.notices
    open_ones = [notice for notice in notices if notice.event != "resolved"]
    severity = min((notice.severity for notice in open_ones), key=_ORDER.index, default="info")
    title, body = _single(notices[0]) if len(notices) == 1 else _digest(notices)
    if parcel.unsure and mark_repeat:
        body = f"{body}\n{_REPEAT}"
    links = {notice.link for notice in notices if notice.link}
    return Message(parcel.id, title, body, severity, links.pop() if len(links) == 1 else "", tuple(notices))


def _single(notice: Notice) -> tuple[str, str]:
    title = f"{_label(notice)} {_WORDS.get(notice.event, '')}{_line(notice.what)}"
    lines = [notice.means if notice.event != "resolved" else "", f"Next: {_line(notice.next)}" if notice.next else ""]
    lines += [notice.link, f"Finding {notice.finding}, since {moment(notice.opened)}" if notice.opened else ""]
    return title, "\n".join(line for line in lines if line)


def _digest(notices: list[Notice]) -> tuple[str, str]:
    ordered = sorted(notices, key=lambda notice: (notice.event == "resolved", _ORDER.index(notice.severity)))
    open_ones = sum(notice.event != "resolved" for notice in notices)
    title = f"[Quorate] {open_ones} findings, {len(notices) - open_ones} resolved"
    lines = [
        f"- {_label(notice)} {_WORDS.get(notice.event, '')}{_line(notice.what)}" for notice in ordered[:MOST_LISTED]
    ]
    if len(ordered) > MOST_LISTED:
        lines.append(f"- and {len(ordered) - MOST_LISTED} more: see {tools.finding_list}")
    return title, "\n".join([*lines, *dict.fromkeys(notice.link for notice in ordered if notice.link)])


def _label(notice: Notice) -> str:
    return f"[{notice.severity} {notice.cluster}]" if notice.event != "resolved" else f"[{notice.cluster}]"


def _line(text: str) -> str:
    """Names of guests and hosts are text of strangers: one line, nothing invisible."""
    return one_line(text)[:LONGEST_LINE]


Options = Mapping[str, str]


class DeliveryFailure(Exception):
    """The receiver refused it or could not be reached: it did not arrive."""


class PartialDelivery(DeliveryFailure):
    """Some recipients have it: if it were sent again, they would get it twice."""


class DeliveryUnknown(Exception):
    """It was sent, but there was no answer: it may have arrived."""


@dataclass(frozen=True, slots=True)
class Channel:
    settings: ChannelSettings
    resolve: Callable[[str], Awaitable[Secret]]
    """Finds the secret of a reference such as `vault:phone`."""
    now: Callable[[], float]

    @property
    def name(self) -> str:
        return self.settings.name

    @property
    def recognizes_repeats(self) -> bool:
        """Whether sending a message again with the same id is harmless: the receiver keeps one, or can be asked."""
        kind = self.settings.type
        return kind in ("webhook", "matrix", "smtp", "ntfy") or (
            kind == "gotify" and "client_token" in self.settings.secrets
        )

    async def send(self, message: Message, *, unsure: bool = False, since: float = 0.0) -> None:
        """Raises DeliveryFailure or DeliveryUnknown. `unsure`: an earlier attempt after `since` may have arrived."""
        secrets = {name: await self._reveal(value) for name, value in self.settings.secrets.items()}
        try:
            await self._send(message, secrets, unsure=unsure, since=since)
        except (DeliveryFailure, DeliveryUnknown) as problem:  # a receiver may repeat what it was sent
            raise type(problem)(_without_secrets(str(problem), secrets)) from None

    async def _send(self, message: Message, secrets: Options, *, unsure: bool, since: float) -> None:
        if self.settings.type == "smtp":
            await _mail(self.settings.options, secrets, message, self.now())
            return
        timeout = aiohttp.ClientTimeout(total=SECONDS)
        async with aiohttp.ClientSession(
            timeout=timeout,
            trust_env=True,
            auto_decompress=False,
            headers=ACCEPTED,
            connector=aiohttp.TCPConnector(ssl=ssl.create_default_context()),
        ) as session:
            if unsure and await _has_arrived(session, self.settings, secrets, message, since):
                return
            await _SENDERS[self.settings.type](session, self.settings.options, secrets, message, self.now())

    async def _reveal(self, value: Secret | str) -> str:
        return (value if isinstance(value, Secret) else await self.resolve(value)).reveal()


def _without_secrets(text: str, secrets: Options) -> str:
    """The paths of webhooks are as secret as their whole addresses."""
    paths = [urlsplit(value).path for value in secrets.values() if "://" in value]
    return Redactor([*secrets.values(), *paths]).text(text)


async def _ntfy(session: aiohttp.ClientSession, options: Options, secrets: Options, message: Message, _: float) -> None:
    body: dict[str, Any] = {
        "topic": options["topic"],
        "title": message.title,
        "message": _render_marked(message, NTFY_TEXT),
        "priority": int(_NTFY_PRIORITY[message.severity]),
        **({"click": message.link} if message.link else {}),
    }
    await _post(session, options["url"], json=body, headers=_ntfy_login(options, secrets))


def _ntfy_login(options: Options, secrets: Options) -> dict[str, str]:
    if "token" in secrets:
        return {"Authorization": f"Bearer {secrets['token']}"}
    if "user" in options:
        login = base64.b64encode(f"{options['user']}:{secrets.get('password', '')}".encode()).decode()
        return {"Authorization": f"Basic {login}"}
    return {}


async def _gotify(
    session: aiohttp.ClientSession, options: Options, secrets: Options, message: Message, _: float
) -> None:
    body: dict[str, Any] = {
        "title": message.title,
        "message": _render_marked(message, TELEGRAM_TEXT),
        "priority": _GOTIFY_PRIORITY[message.severity],
        "extras": {"quorate": {"id": message.id}}
        | ({"client::notification": {"click": {"url": message.link}}} if message.link else {}),
    }
    await _post(session, f"{options['url']}/message", json=body, headers={"X-Gotify-Key": secrets["token"]})


async def _webhook(session: aiohttp.ClientSession, _: Options, secrets: Options, message: Message, now: float) -> None:
    """Signed as described by Standard Webhooks; the id is the same at every attempt."""
    body = msgspec.json.encode(
        {
            "id": message.id,
            "title": message.title,
            "text": message.body,
            "severity": message.severity,
            "link": message.link,
            "findings": [msgspec.to_builtins(notice) for notice in message.notices],
        }
    )
    stamp = str(int(now))
    signed = hmac.new(secrets["secret"].encode(), f"{message.id}.{stamp}.".encode() + body, hashlib.sha256).digest()
    headers = {
        "Content-Type": "application/json",
        "Idempotency-Key": message.id,
        "webhook-id": message.id,
        "webhook-timestamp": stamp,
        "webhook-signature": f"v1,{base64.b64encode(signed).decode()}",
    }
    await _post(session, secrets["url"], data=body, headers=headers)


async def _telegram(
    session: aiohttp.ClientSession, options: Options, secrets: Options, message: Message, _: float
) -> None:
    body = {
        "chat_id": options["chat"],
        "text": message.text[:TELEGRAM_TEXT],
        "link_preview_options": {"is_disabled": True},
    }
    await _post(session, f"{options.get('url', TELEGRAM)}/bot{secrets['token']}/sendMessage", json=body)


async def _matrix(
    session: aiohttp.ClientSession, options: Options, secrets: Options, message: Message, _: float
) -> None:
    """Matrix keeps one event for a transaction id, however often it is sent."""
    room, base = quote(options["room"], safe=""), options["url"]
    where = f"{base}/_matrix/client/v3/rooms/{room}/send/m.room.message/{quote(message.id, safe='')}"
    body = {"msgtype": "m.text", "body": message.text}
    await _post(session, where, method="PUT", json=body, headers={"Authorization": f"Bearer {secrets['token']}"})


async def _slack(
    session: aiohttp.ClientSession,
    _: Options,
    secrets: Options,
    message: Message,
    now: float,  # noqa: ARG001
) -> None:
    """Also for Mattermost, Rocket.Chat and Discord (with /slack at the end of its address)."""
    text = message.text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    await _post(session, secrets["url"], json={"text": text[:TELEGRAM_TEXT]})


_SENDERS: Mapping[str, Callable[[aiohttp.ClientSession, Options, Options, Message, float], Awaitable[None]]] = {
    "ntfy": _ntfy,
    "gotify": _gotify,
    "webhook": _webhook,
    "telegram": _telegram,
    "matrix": _matrix,
    "slack": _slack,
}


async def _post(session: aiohttp.ClientSession, url: str, *, method: str = "POST", **what: Any) -> None:
    try:
        async with session.request(method, url, allow_redirects=False, **what) as answer:
            reply = (await answer.content.read(LONGEST_ANSWER)).decode(errors="replace").strip()
            if 200 <= answer.status < 300:
                return
            where = urlsplit(url).hostname
            refusal = f"{where} answered {answer.status}" + (f": {' '.join(reply.split())}" if reply else "")
            raise (
                DeliveryFailure(refusal)
                if answer.status in _NOT_SENT or answer.status < 400
                else DeliveryUnknown(refusal)
            )
    except (aiohttp.ClientConnectorError, aiohttp.InvalidURL) as error:
        raise DeliveryFailure(_without_address(error, url)) from None
    except (aiohttp.ClientError, TimeoutError) as error:
        raise DeliveryUnknown(_without_address(error, url)) from None


def _without_address(error: Exception, url: str) -> str:
    """Addresses of webhooks are secrets, so errors name only the host."""
    host = urlsplit(url).hostname
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"{host} cannot be reached: {connection_failure(error)}"
    return f"{host} did not answer: {type(error).__name__}"


# -- after an attempt that may have arrived ----------------------------------------------------------------------------


async def _has_arrived(
    session: aiohttp.ClientSession, settings: ChannelSettings, secrets: Options, message: Message, since: float
) -> bool:
    """Ask receivers that keep messages. Raises DeliveryFailure if they cannot be asked now: then nothing is sent."""
    options, mark = settings.options, _mark(message)
    try:
        if settings.type == "ntfy":
            url = f"{options['url']}/{quote(options['topic'], safe='')}/json"
            params = {"poll": "1", "since": str(int(since) - 60)}
            return await _contains(session, url, params, _ntfy_login(options, secrets), mark)
        if settings.type == "gotify" and "client_token" in secrets:
            headers = {"X-Gotify-Key": secrets["client_token"]}
            return await _contains(session, f"{options['url']}/message", {"limit": "200"}, headers, mark)
    except (aiohttp.ClientError, TimeoutError, BodyRefused) as error:
        raise DeliveryFailure(_without_address(error, options["url"])) from None
    return False


async def _contains(session: aiohttp.ClientSession, url: str, params: Options, headers: Options, mark: str) -> bool:
    """Whether the receiver has a message with that mark. Anyone may fill a topic, so the answer is bounded."""
    async with session.get(url, params=params, headers=headers, allow_redirects=False) as answer:
        if answer.status == 429 or answer.status >= 500:
            raise DeliveryFailure(f"{urlsplit(url).hostname} answered {answer.status} to what it has received")
        return answer.status == 200 and mark.encode() in await read_body(answer, MOST_KEPT)


def _mark(message: Message) -> str:
    return f"#{message.id[:12]}"


def _render_marked(message: Message, limit: int) -> str:
    """The text with a mark by which the receiver can find it."""
    return f"{message.body[:limit]}\n{_mark(message)}".strip()


# -- mail --------------------------------------------------------------------------------------------------------------


async def _mail(options: Options, secrets: Options, message: Message, now: float) -> None:
    mail = EmailMessage()
    mail["Subject"], mail["From"], mail["To"] = message.title, options["sender"], options["to"]
    mail["Date"] = formatdate(now)
    domain = options["sender"].rpartition("@")[2].strip("> ") or "quorate"
    mail["Message-ID"] = f"<{message.id}@{domain}>"
    mail["Auto-Submitted"] = "auto-generated"
    mail.set_content(message.body or message.title)
    await asyncio.to_thread(_deliver, options, secrets, mail)


def _deliver(options: Options, secrets: Options, mail: EmailMessage) -> None:
    """Until the body is on its way, a failure means that nothing arrived."""
    tls = options.get("tls", "starttls")
    port = int(options.get("port", {"tls": "465", "none": "25"}.get(tls, "587")))
    sending = False
    try:
        with _connection(options["host"], port, tls) as server:
            if "user" in options:
                server.login(options["user"], secrets.get("password", ""))
            sending = True
            if refused := server.send_message(mail):
                raise PartialDelivery(f"{options['host']} refused {', '.join(refused)}; the others have it")
            sending = False
    except smtplib.SMTPResponseException as error:
        reply = error.smtp_error.decode(errors="replace") if isinstance(error.smtp_error, bytes) else error.smtp_error
        raise DeliveryFailure(f"{options['host']} answered {error.smtp_code}: {reply}"[:300]) from None
    except smtplib.SMTPRecipientsRefused as error:
        raise DeliveryFailure(f"{options['host']} refused {', '.join(error.recipients)}") from None
    except (OSError, smtplib.SMTPException) as error:
        why = f"{options['host']}: {getattr(error, 'strerror', None) or error or type(error).__name__}"
        raise (DeliveryUnknown(why) if sending else DeliveryFailure(why)) from None


def _connection(host: str, port: int, tls: str) -> smtplib.SMTP:
    context = ssl.create_default_context()
    if tls == "tls":
        return smtplib.SMTP_SSL(host, port, timeout=SECONDS, context=context)
    server = smtplib.SMTP(host, port, timeout=SECONDS)
    if tls == "starttls":
        try:
            server.starttls(context=context)
        except BaseException:
            server.close()
            raise
    return server
