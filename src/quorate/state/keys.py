"""Keys that all replicas share: what one has sealed, another can open.

They seal what a client carries back to us between two requests: the name of a question, no right. Whoever owns the
database could answer approvals in it as well, so a key there gives nothing more away.
"""

from __future__ import annotations

import secrets

from quorate.state.store import Store


async def shared_key(store: Store, name: str) -> bytes:
    """The key of this name; the first to ask makes it."""
    await store.execute(
        "INSERT INTO quorate_keys (name, key) VALUES ($1, $2) ON CONFLICT DO NOTHING", name, secrets.token_hex(32)
    )
    rows = await store.fetch("SELECT key FROM quorate_keys WHERE name = $1", name)
    return bytes.fromhex(rows[0]["key"])
