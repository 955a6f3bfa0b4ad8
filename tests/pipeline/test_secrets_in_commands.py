"""A command line is kept without the secrets that people write into it, and otherwise as it was."""

import pytest

from quorate.secret import HIDDEN, shown_line, without_secrets

CANARY = "Hunter2-canary"


@pytest.mark.parametrize(
    "line",
    [
        "mysql -u root -pX shop -e 'select 1'",
        "mysqldump --single-transaction -p'X' shop",
        "mysqladmin -pX status",
        "mariadb-dump -u root -pX all",
        "tool --password X --verbose",
        "tool --password=X",
        "tool --db-password 'X'",
        'tool --admin-passwd="X"',
        "tool --api-key X run",
        "tool --access_token=X",
        "tool -password X",
        "PGPASSWORD=X psql -h db",
        "export AWS_SECRET_ACCESS_KEY=X; aws s3 ls",
        "env GITHUB_TOKEN=X gh pr list",
        "MYSQL_PWD=X mysql",
        "REDISCLI_AUTH_PASS='X' redis-cli",
        "curl -u admin:X https://host/",
        "curl -s --user 'admin:X' https://host/",
        "curl -H 'Authorization: Bearer X' https://host/",
        'curl -H "Authorization: Basic X" https://host/',
        "curl -H 'Authorization: PVEAPIToken=root@pam!t=X' https://host/",
        "curl -H 'X-Api-Key: X' https://host/",
        "curl -H 'PRIVATE-TOKEN: X' https://host/",
        """curl -d '{"user": "me", "password": "X"}' https://host/""",
        "curl -d 'user=me&password=X&next=1' https://host/",
        "git clone https://me:X@example.com/repo.git",
        "psql postgresql://me:X@db/shop",
        "sshpass -p X ssh host",
        "sshpass -pX ssh host",
        "redis-cli -h cache -a X ping",
        "docker login -u me -p X registry.example.com",
        "echo 'root:X' | chpasswd",
        "echo root:X | sudo chpasswd",
        "htpasswd -b /etc/htpasswd me X",
        "openssl passwd -6 X",
        "echo secret=X >> /etc/app.conf",
        "echo '-----BEGIN OPENSSH PRIVATE KEY-----\nX\n-----END OPENSSH PRIVATE KEY-----' > key",
    ],
)
def test_a_secret_in_its_usual_place_is_hidden(line):
    hidden = without_secrets(line.replace("X", CANARY) if "X-Api" not in line else f"curl -H 'X-Api-Key: {CANARY}'")
    assert CANARY not in hidden
    assert HIDDEN in hidden


@pytest.mark.parametrize(
    "line",
    [
        "systemctl restart nginx",
        "passwd -S root",
        "cat /etc/passwd",
        "grep -r password /etc",
        "ls -p /tmp",
        "mkdir -p /srv/mysql/data",
        "docker run -p 80:80 -u 1000:1000 nginx",
        "cp -p a b; mv secret.txt token.txt",
        "ssh -p 2222 host uptime",
        "PWD=/tmp make",
        "curl -sS https://example.com/user:name/path",
        "ps aux | grep api-key",
        "ip route get 10.0.0.1",
        "echo key=value",
    ],
)
def test_what_is_no_secret_stays(line):
    assert without_secrets(line) == line


def test_the_text_around_a_secret_stays():
    assert without_secrets("PGPASSWORD=abc psql -h db -c 'select 1'") == "PGPASSWORD=*** psql -h db -c 'select 1'"
    assert without_secrets("mysql -u root -pabc shop") == "mysql -u root -p*** shop"
    assert without_secrets("curl -u me:abc https://h/") == "curl -u me:*** https://h/"


@pytest.mark.parametrize("part", ["x", "x ", "mysql ", "curl -u ", "a:", "docker login ", "PASS_", "--a-", "'", "x://"])
def test_a_very_long_line_is_shown_by_its_beginning(part: str) -> None:
    shown = shown_line(part * 100_000)
    assert len(shown) < 26_000
    assert shown.endswith(f"… ({len(part) * 100_000} characters)")


@pytest.mark.thorough
@pytest.mark.parametrize("part", ["curl -u ", "x", "mysql ", "a:", "docker login ", "x://", "PASS_", "--a-", "x-"])
def test_no_text_keeps_us_busy(part: str) -> None:
    assert without_secrets(part * 20_000) == part * 20_000
