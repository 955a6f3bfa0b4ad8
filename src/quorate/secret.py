"""Texts that must not leave: a secret that never prints itself, the names that hold secrets, and their usual places in
command lines."""

from __future__ import annotations

import re

HIDDEN = "***"
SECRET_KEYS = frozenset(
    {
        "password",
        "sudo_password",
        "cipassword",
        "secret",
        "token_secret",
        "ticket",
        "csrfpreventiontoken",
        "sshkeys-private",
    }
)
"""Names under which arguments and facts hold a secret."""
# Parameters of the raw API that hold credentials; elsewhere such names are too common to mean that.
SECRET_PARAMETERS = SECRET_KEYS | {
    "token", "key", "client-key", "certkey", "encryption-key", "keyring", "eab-hmac-key", "target-endpoint", "data",
    "header", "otel-headers", "confirmation-password", "input-data", "env", "keys",
    "new-password", "eab_hmac_key", "secret-key", "access-key",
}  # fmt: skip
_FILE_WRITE = "/agent/file-write"  # elsewhere `content` is a type of volumes; here it is a file
_HOSTS_FILE = re.compile(r"/nodes/[^/]+/hosts")  # `data` is the file, which everyone on the node can read
LONGEST = 25_000
"""More than a person reads before approving, so a command that is cut is never approved."""


class Secret:
    """A text that never prints itself; reading it is explicit: `secret.reveal()`."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __repr__(self) -> str:
        return HIDDEN


def secret_parameters(path: str) -> frozenset[str]:
    """The parameters of a raw API call that are hidden."""
    if _HOSTS_FILE.fullmatch(path):
        return SECRET_PARAMETERS - {"data"}
    return SECRET_PARAMETERS | {"content"} if path.endswith(_FILE_WRITE) else SECRET_PARAMETERS


# -- in command lines --------------------------------------------------------------------------------------------------

_VALUE = r"""(?:'[^']*'|"[^"]*"|[^\s'"|;&)]+)"""
_NAME = r"(?:pass(?:word|wd|phrase|code)?|secret|token|api[-_]?key|access[-_]?key|private[-_]?key|credentials?)"
_VARIABLE = r"(?:PASS|SECRET|TOKEN|API_?KEY|ACCESS_KEY|CREDENTIAL)"

# The first group stays, the rest of the match is hidden. Every repetition before a secret is bounded: commands come
# from callers, and none of them may keep us busy.
# The patterns are compiled at their first use: a call that shows no command does without them.
_PLACES = (
    # --password X, --db-password=X, -password X
    rf"(?i)(?<!\S)(--?(?:[\w-]{{0,60}}[-_])?{_NAME}(?:[-_]\w+)?(?:=|\s+)){_VALUE}",
    # PGPASSWORD=x cmd, MYSQL_PWD=x, export AWS_SECRET_ACCESS_KEY=x
    rf"\b((?:[A-Z0-9_]{{0,60}}{_VARIABLE}[A-Z0-9_]{{0,60}}|MYSQL_PWD)=){_VALUE}",
    # password=x, "secret": "x" as in a body or a connection string
    rf"""(?i)((?<![\w-]){_NAME}["']?\s*[=:]\s*)(?!\s){_VALUE}""",
    # mysql -pX, mysqldump -pX
    rf"(\b(?:mysql|mariadb)[\w-]*\b[^|;&\n]{{0,200}}?\s-p){_VALUE}",
    rf"(\bsshpass\s+-p\s*){_VALUE}",
    rf"(\bredis-cli\b[^|;&\n]{{0,200}}?\s-a\s+){_VALUE}",
    rf"(\b(?:docker|podman|helm|az|oc)\b[^|;&\n]{{0,200}}?\blogin\b[^|;&\n]{{0,200}}?\s-p\s*){_VALUE}",
    # curl -u user:X
    r"""(\bcurl\b[^|;&\n]{0,200}?\s(?:-u|-U|--user|--proxy-user)[=\s]*["']?[^\s:'"]+:)[^\s'"]+""",
    # -H "Authorization: Bearer X", X-Api-Key: X
    r"""(?i)((?:proxy-)?authorization:\s*(?:(?:bearer|basic|token|digest|apikey|pveapitoken)[\s=]+)?)[^'"\n]+""",
    r"""(?i)((?:x-[\w-]{0,60}(?:key|token|secret)|private-token|set-cookie|cookie):\s*)[^'"\n]+""",
    # scheme://user:X@host
    r"(\b[\w+.-]{1,30}://[^\s/:@'\"]*:)[^\s/@'\"]+(?=@)",
    # echo root:X | chpasswd
    r"""((?<![\w.-])[\w.-]{1,100}:)[^\s'"|]{1,256}(?=["']?\s*\|\s*(?:sudo\s+)?chpasswd)""",
    rf"(\bhtpasswd\s+-\w*b\w*\s+\S+\s+\S+\s+){_VALUE}",
    rf"(\bopenssl\s+passwd\s+(?:-\w+\s+)*)(?!-){_VALUE}",
)
PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.S)


_RUNS = re.compile(r"[`$;|&<>(){}\n]")
"""Characters with which a shell runs or redirects something."""


def without_secrets(text: str) -> str:
    """A command line, before it is recorded or shown."""
    for place in _PLACES:
        text = re.sub(place, rf"\1{HIDDEN}", text)
    return PRIVATE_KEY.sub(HIDDEN, text)


def shown_line(command: str) -> str:
    """A command for the person who approves it; of a very long one, the beginning.

    What only looks like a secret but could run something is shown: `--password "$(reboot)"`.
    """
    shown = command[:LONGEST]
    for place in _PLACES:
        shown = re.sub(place, _hide_harmless, shown)
    return shown if len(command) <= LONGEST else f"{shown} … ({len(command)} characters)"


def _hide_harmless(match: re.Match[str]) -> str:
    return match[0] if _RUNS.search(match[0], len(match[1])) else f"{match[1]}{HIDDEN}"
