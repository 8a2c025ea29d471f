"""The S3 account comes from the same sources as in AWS tools."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamgauge.analytics.storage.s3_account import Account, account

KEYS = {"AWS_ACCESS_KEY_ID": "AK1", "AWS_SECRET_ACCESS_KEY": "s1"}
CREDENTIALS = """[default]
aws_access_key_id = AK2
aws_secret_access_key = s2%/+=
[other]
aws_access_key_id = AK3
aws_secret_access_key = s3
aws_session_token = t3
"""
CONFIG = """[default]
region = eu-north-1
[profile other]
region = eu-west-2
endpoint_url = https://s3.example:9000
"""


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws/credentials").write_text(CREDENTIALS)
    (tmp_path / ".aws/config").write_text(CONFIG)
    return {"HOME": str(tmp_path)}


def test_without_keys_there_is_no_account(tmp_path: Path) -> None:
    assert account({"HOME": str(tmp_path), "AWS_REGION": "eu-north-1", "AWS_ACCESS_KEY_ID": "AK1"}) is None


def test_the_default_profile_is_used(home: dict[str, str]) -> None:
    assert account(home) == Account("AK2", "s2%/+=", None, "eu-north-1", None)


def test_a_named_profile_is_used(home: dict[str, str]) -> None:
    found = account(home | {"AWS_PROFILE": "other"})
    assert found == Account("AK3", "s3", "t3", "eu-west-2", "https://s3.example:9000")


def test_environment_takes_precedence_over_files(home: dict[str, str]) -> None:
    said = {**KEYS, "AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_DEFAULT_REGION": "us-east-1"}
    assert account(home | said) == Account("AK1", "s1", None, "us-east-1", "http://127.0.0.1:9")
    more = {"AWS_ENDPOINT_URL_S3": "http://127.0.0.1:8", "AWS_REGION": "us-west-1", "AWS_SESSION_TOKEN": "t1"}
    assert account(home | said | more) == Account("AK1", "s1", "t1", "us-west-1", "http://127.0.0.1:8")


def test_paths_of_the_files_are_configurable(home: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("[default]\naws_access_key_id=AK4\naws_secret_access_key=s4\n")
    found = account(
        home | {"AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "secret"), "AWS_CONFIG_FILE": "/nowhere"}
    )
    assert found == Account("AK4", "s4")


@pytest.mark.parametrize("text", ["no section", "[default\n", "\x00", "[default]\naws_access_key_id=AK\n"])
def test_invalid_file_counts_as_absent(home: dict[str, str], tmp_path: Path, text: str) -> None:
    (tmp_path / ".aws/credentials").write_text(text)
    assert account(home) is None


def test_secrets_are_not_shown() -> None:
    assert "s1" not in repr(Account("AK1", "s1", "s1t"))
