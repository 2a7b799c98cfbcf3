from __future__ import annotations

import pytest

from contracts.tasks.planted_secrets import find_secret

AWS = "AKIA" + "IOSFODNN7EXAMPLX"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (f"use {AWS} please", "AWS Access Key"),
        ("it is sk-" + "ant-api03-" + "Ab3d_f9hIjK1mNoPqRsT", "Anthropic API Key"),
        ("AIza" + "Sy" * 17 + "x", "Google API Key"),
        ("hf_" + "aBcDeF" * 6, "Hugging Face Token"),
        ("token: " + "ghp_" + "a1B2c3D4e5F6g7H8i9J0a1B2c3D4e5F6g7H8", "GitHub Token"),
        ("-----BEGIN RSA PRIVATE KEY-----", "Private Key"),
        ('password = "hunter2hunter2"', "Secret Keyword"),
        # The shortest that its pattern takes: no long word, so a mark has to tell.
        ("xox" + "b-1-a", "Slack Token"),
        ("AKC" + "0123456789", "Artifactory Credentials"),
        ("x APA" + "01234567", "Artifactory Credentials"),
        ("ftp://a:" + "b@c", "Basic Auth Credentials"),
        ("//r/:_auth" + "Token=npm_a", "NPM tokens"),
        ('contrase\u00f1a = "ab"', "Secret Keyword"),
        ('my PWD = "ab"', "Secret Keyword"),
        ("a table for two at eight, 2f6b0a1c-1111-4222-8333-944455566677", None),
        ("", None),
    ],
)
def test_secrets_are_found_and_ids_are_none(text: str, kind: str | None) -> None:
    assert find_secret(text) == kind
