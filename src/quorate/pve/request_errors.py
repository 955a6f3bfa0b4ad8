"""Why a request got no usable answer: no connection, no trust, too slow, cut off or not PVE."""

from __future__ import annotations

from quorate.hints import NODE_LIST, TASK_LIST, Advice
from quorate.http_body import BodyRefused
from quorate.http_client import aiohttp
from quorate.problems import BadArgument, OutcomeUnknown, Problem, ServerFailed, TimedOut, Unreachable
from quorate.pve import trust
from quorate.pve.connection import Connection
from quorate.pve.uploads import UploadBody


async def explain(connection: Connection, endpoint: str, method: str, path: str, error: Exception) -> Problem:
    """Why there is no answer. The order matters, because aiohttp's errors derive from each other."""
    match error:
        case aiohttp.ServerFingerprintMismatch():
            return trust.mismatch(endpoint, connection.trust, error.got)
        case aiohttp.ClientConnectorCertificateError():
            return await trust.untrusted_certificate(endpoint, _certificate_reason(error.certificate_error))
        case aiohttp.ClientSSLError():
            return Unreachable(
                f"{endpoint} does not speak TLS as expected",
                why=str(error),
                next_step="Check the port (PVE's is 8006)",
            )
        case aiohttp.ConnectionTimeoutError() | aiohttp.ClientConnectorError():
            return _no_connection(endpoint, error)
        case TimeoutError():
            return too_slow(connection, method, path)
        case BodyRefused():
            return _rejected_answer(method, path, error)
        case _:
            return _broken_connection(method, path, error)


def too_slow(connection: Connection, method: str, path: str) -> Problem:
    seconds = connection.limits.request_seconds
    if method != "GET":
        return outcome_unknown(method, path, f"There was no answer within {seconds:g} s")
    return TimedOut(
        f"PVE did not answer GET {path} within {seconds:g} s",
        next_step=Advice("The node may be overloaded: check it, or raise request_seconds in the config", NODE_LIST),
    )


def not_pve(path: str, status: int, size: int, error: str) -> Problem:
    return ServerFailed(
        f"The answer to {path} is not from the PVE API",
        why=f"HTTP {status}, {size} bytes: {error}",
        next_step="Check that the address is PVE's own (port 8006) and not a web proxy in front of it",
    )


def _certificate_reason(error: Exception) -> str:
    return str(getattr(error, "verify_message", "") or error)


def _no_connection(endpoint: str, error: Exception) -> Unreachable:
    why = str(getattr(error, "os_error", None) or error) or type(error).__name__
    return Unreachable(
        f"No connection to {endpoint}",
        why=why,
        next_step="Check the address and port, that the node is up, and that no firewall is in between",
    )


def _broken_connection(method: str, path: str, error: Exception) -> Problem:
    why = str(error) or type(error).__name__
    if method != "GET":
        return outcome_unknown(method, path, f"The connection broke: {why}")
    return TimedOut(
        f"The connection broke during GET {path}",
        why=why,
        next_step=Advice("Try again; if it persists, check the nodes", NODE_LIST),
    )


def _rejected_answer(method: str, path: str, error: BodyRefused) -> Problem:
    if method != "GET":
        return outcome_unknown(method, path, f"The answer {error}")
    return ServerFailed(
        f"The answer to GET {path} was rejected",
        why=f"It {error}",
        next_step="Request less, such as one node or a limit; the operator can raise answer_bytes",
    )


def unreadable_file(error: Exception) -> Problem:
    return BadArgument("The file could not be read completely", why=str(error), next_step="Nothing was stored")


def interrupted_upload(body: UploadBody, problem: OutcomeUnknown) -> Problem:
    if body.fault is not None:
        return unreadable_file(body.fault)
    if body.complete:
        return problem
    return TimedOut(
        f"The upload was interrupted after {body.sent >> 20} of {body.size >> 20} MiB",
        why=f"{problem.why} PVE discards an incomplete upload",
        next_step="Nothing was stored; try again. If it persists, the node may be out of space in /var/tmp",
    )


def outcome_unknown(method: str, path: str, why: str) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"It is not known whether {method} {path} took effect",
        why=why,
        next_step=Advice("It was not sent again. Look at the tasks and the target before you repeat it", TASK_LIST),
    )
