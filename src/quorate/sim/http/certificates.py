"""The cluster's own certificate authority and the certificate of its endpoints."""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from cryptography.hazmat.primitives import hashes

from quorate.certificates import Authority, certificate_pem, distinguished_name, key_pem

_LIFETIME = timedelta(days=3650)


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """The certificate of the endpoints, and what a client needs to trust it."""

    context: ssl.SSLContext
    ca_file: Path
    fingerprint: str


def create_identity(directory: Path, node_names: Iterable[str]) -> ServerIdentity:
    """A new authority and a server certificate for loopback and the nodes' names, as files in `directory`."""
    nodes = list(node_names)
    subject = distinguished_name("Proxmox Virtual Environment", "PVE Cluster Manager CA (simulated)")
    authority = Authority.create(subject, _LIFETIME)
    hosts = ["127.0.0.1", "::1", "localhost", *(name for node in nodes for name in (node, f"{node}.lan"))]
    certificate, key = authority.issue(distinguished_name("PVE Cluster Node", nodes[0]), hosts, _LIFETIME)
    ca_file, server_file, key_file = (directory / name for name in ("ca.pem", "server.pem", "server.key"))
    ca_file.write_text(certificate_pem(authority.certificate))
    server_file.write_text(certificate_pem(certificate))
    key_file.touch(mode=0o600)
    key_file.write_text(key_pem(key))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(server_file, key_file)
    return ServerIdentity(context, ca_file, certificate.fingerprint(hashes.SHA256()).hex(":").upper())
