"""The page on which an operator answers. It holds no data: its script reads the API with the token typed in."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from importlib.resources import files

from starlette.responses import HTMLResponse, Response

from quorate.surfaces.web.replies import NO_STORE


def page() -> Response:
    text, policy = _page()
    return HTMLResponse(text, headers=NO_STORE | {"Content-Security-Policy": policy, "Referrer-Policy": "no-referrer"})


@cache
def _page() -> tuple[str, str]:
    """The text, and a policy that lets run what is in it and nothing else."""
    text = files(__package__).joinpath("approvals.html").read_text(encoding="utf-8")
    script, style = (_hash(text, tag) for tag in ("script", "style"))
    return text, (
        f"default-src 'none'; script-src {script}; style-src {style}; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def _hash(text: str, tag: str) -> str:
    found = re.search(f"<{tag}>(.*?)</{tag}>", text, re.S)
    assert found is not None
    return f"'sha256-{base64.b64encode(hashlib.sha256(found[1].encode()).digest()).decode()}'"
