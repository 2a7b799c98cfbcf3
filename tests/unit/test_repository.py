"""What no file of the repository may hold: secrets, paths of somebody's machine, hosts that packages are fetched from."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent

PERSONAL_PATH = re.compile(
    r"(?<![\w.:~-])/(?:home/(?!app/)\w|Users/\w|root/\w|work/\w|workspace/\w)|\b[A-Z]:\\\\?Users\\"
)
SECRET = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----\s*[A-Za-z0-9+/]{40}"
    r"|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"
    r"|\bgh[pousr]_[A-Za-z0-9]{36}"
    r"|\bsk-(?:proj-|ant-)?[A-Za-z0-9_-]{32,}"
    r"|\bhf_[A-Za-z0-9]{30,}"
    r"|\bxox[abprs]-[A-Za-z0-9-]{20,}"
    r"|://[^\s/:@]+:(?!millrace@|[{<$]|\*)[^\s/:@]{8,}@[a-z0-9.-]+\.[a-z]{2,}"
)
INDEX = re.compile(
    r"--(?:extra-)?index-url|\b(?:PIP|UV)_(?:EXTRA_)?INDEX(?:_URL)?[ \t]*[=:][ \t]*\w|--find-links|--trusted-host|\[\[?(?:tool\.)?uv\.index"
    r"|_authToken|<repository>|<mirror>"
)
# Files that name what to install, and the hosts they may name: those of schemas, of a cluster, of examples, and this machine.
INSTALLS = ("pyproject.toml", "constraints.txt", "Makefile", "Dockerfile", "docker-compose.yml", ".ci/", "deploy/")
HOST = re.compile(r"https?://([A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+)")
KNOWN_HOSTS = {"127.0.0.1", "json-schema.org", "maven.apache.org", "prometheus-operated.monitoring", "www.w3.org"}


def offences(name: str, text: str) -> list[str]:
    """What a file holds that it may not, each with its line."""
    patterns = {"a path of one machine": PERSONAL_PATH, "a secret": SECRET, "an index of packages": INDEX}
    found = [
        f"{name}:{text.count(chr(10), 0, match.start()) + 1}: {what}"
        for what, pattern in patterns.items()
        for match in pattern.finditer(text)
    ]
    if name.startswith(INSTALLS):
        found += [
            f"{name}: the host {host}"
            for host in HOST.findall(text)
            if host not in KNOWN_HOSTS and not host.endswith(".example")
        ]
    return found


def test_no_file_holds_a_secret_a_personal_path_or_a_package_host() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout: what belongs to the repository is not known")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout  # noqa: S607
    names = [name for name in listed.split("\0") if name and (ROOT / name).is_file()]
    assert len(names) > 100
    itself = str(Path(__file__).relative_to(ROOT))
    contents = {name: (ROOT / name).read_bytes() for name in names if name != itself}
    texts = {name: content.decode() for name, content in contents.items() if b"\0" not in content}
    assert [offence for name, text in texts.items() for offence in offences(name, text)] == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("docs/a.md", "see /home/ann/notes"),
        ("a.py", 'open("/root/key")'),
        ("a.toml", "path = 'C:\\Users\\ann'"),
        ("a.json", '{"cwd": "/root/project"}'),
        ("key.pem", "-----BEGIN PRIVATE KEY-----\n" + "A" * 64),
        ("env", "AWS_ACCESS_KEY_ID=AKIA" + "A" * 16),
        ("a.py", "token = 'ghp_" + "a" * 36 + "'"),
        ("a.py", "url = 'https://ann:longpassword@example.org/x'"),
        ("Makefile", "pip install --index-url http://127.0.0.1/simple x"),
        ("Dockerfile", "ENV PIP_EXTRA_INDEX_URL=http://x"),
        ("deploy/pom.xml", "<url>https://packages.example.org/maven</url>"),
    ],
)
def test_each_of_them_is_found(name: str, text: str) -> None:
    assert offences(name, text)


@pytest.mark.parametrize(
    "text",
    ["sqlite:////home/app/millrace.db", "../runs/home/x", "-----BEGIN PRIVATE KEY-----", "/v1/root/a", "~/home/x"],
)
def test_what_is_none_is_not_found(text: str) -> None:
    assert offences("docs/a.md", text) == []
