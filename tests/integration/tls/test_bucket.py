"""A bucket over TLS with the identity of a workload: what fits gets keys, and what does not is refused by name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from contracts.errors import InvalidSettings, Unavailable
from tests.worlds.servers.authority import Authority
from tests.worlds.servers.cloud import POD_TOKEN, ROLE, WEB_TOKEN, Cloud, serving
from weights.stores.bucket import BucketTimeouts, open_bucket
from weights.stores.store import WeightStore

pytestmark = [pytest.mark.slow, pytest.mark.enable_socket]
_QUICK = BucketTimeouts(2.0, 5.0, 1, 1.0)
_KEYS = {"AWS_ACCESS_KEY_ID": "none", "AWS_SECRET_ACCESS_KEY": "none"}


@pytest.fixture(scope="module")
def cloud() -> Cloud:
    return Cloud()


@pytest.fixture(scope="module")
def places(cloud: Cloud, authority: Authority) -> Iterator[dict[str, str]]:
    """The same cloud, with three certificates."""
    with (
        serving(cloud, authority.issue("s3")) as good,
        serving(cloud, authority.issue("s3-old", since=-30.0, days=20.0)) as expired,
        serving(cloud, authority.issue("s3-other", ("s3.example.org",))) as other,
    ):
        yield {"good": good, "expired": expired, "other": other}


@pytest.fixture
def environments(
    places: dict[str, str], folder: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> dict[str, dict[str, str]]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)  # the client reads them by itself too
    (folder / "web").write_text(WEB_TOKEN)
    (folder / "pod").write_text(POD_TOKEN)
    (folder / "guess").write_text("guess")
    shared = {"AWS_ENDPOINT_URL": places["good"], "AWS_REGION": "us-east-1", "AWS_CA_BUNDLE": str(authority.file)}
    web = {"AWS_WEB_IDENTITY_TOKEN_FILE": str(folder / "web"), "AWS_ROLE_ARN": ROLE}
    web |= {"AWS_ENDPOINT_URL_STS": places["good"] + "/sts"}
    pod = {"AWS_CONTAINER_CREDENTIALS_FULL_URI": places["good"] + "/credentials"}
    pod |= {"AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": str(folder / "pod")}
    return {"web": shared | web, "pod": shared | pod}


@pytest.mark.parametrize(("name", "given"), [("web", "web identity"), ("pod", "pod identity")])
def test_a_workload_gets_its_keys_with_its_token(
    cloud: Cloud, environments: dict[str, dict[str, str]], name: str, given: str
) -> None:
    before = len(cloud.given)
    bucket = open_bucket(f"s3://{cloud.bucket}/{name}", environments[name], _QUICK)
    WeightStore(bucket).check()
    assert bucket.put_if_absent("a", b"1")
    assert not bucket.put_if_absent("a", b"2")
    assert bucket.get("a", 10) == b"1"
    assert cloud.given[before:] == [given], "one exchange for all requests"


@pytest.mark.parametrize(
    ("name", "changes", "kind", "says"),
    [
        ("web", {"AWS_WEB_IDENTITY_TOKEN_FILE": "{folder}/guess"}, InvalidSettings, "no keys for this workload .*InvalidIdentityToken.*AWS_ROLE_ARN"),
        ("web", {"AWS_ROLE_ARN": "arn:aws:iam::1:role/other"}, InvalidSettings, "no keys for this workload"),
        ("web", {"AWS_WEB_IDENTITY_TOKEN_FILE": "{folder}/none"}, InvalidSettings, "Failed to read token file .*none.* check AWS_WEB_IDENTITY"),
        ("pod", {"AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": "{folder}/guess"}, InvalidSettings, "refuses these keys .*/credentials"),
        ("web", _KEYS, InvalidSettings, "refuses these keys .*InvalidAccessKeyId"),
        ("web", {"AWS_ENDPOINT_URL": "expired"}, Unavailable, "certificate of the server has expired: renew it there"),
        ("web", {"AWS_ENDPOINT_URL": "other"}, Unavailable, "certificate of the server is not for that host"),
        ("web", {"AWS_CA_BUNDLE": "{folder}/stranger.pem"}, Unavailable, "nobody here trusts: set AWS_CA_BUNDLE"),
        ("web", {"AWS_ENDPOINT_URL_STS": "expired"}, Unavailable, "certificate of AWS_ENDPOINT_URL_STS has expired"),
        ("web", {"AWS_CA_BUNDLE": "{folder}/none"}, InvalidSettings, "AWS_CA_BUNDLE: .*none cannot be read"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("stranger")
def test_what_does_not_fit_is_refused_by_name(  # noqa: PLR0917 a table
    cloud: Cloud,
    places: dict[str, str],
    environments: dict[str, dict[str, str]],
    folder: Path,
    name: str,
    changes: dict[str, str],
    kind: type[Exception],
    says: str,
) -> None:
    changed = {key: places.get(value, value).format(folder=folder) for key, value in changes.items()}
    with pytest.raises(kind) as refused:
        WeightStore(open_bucket(f"s3://{cloud.bucket}/refused", environments[name] | changed, _QUICK)).check()
    assert re.search(says, str(refused.value)), refused.value
