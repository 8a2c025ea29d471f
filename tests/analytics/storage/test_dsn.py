"""A catalog's password is shown nowhere."""

from __future__ import annotations

import pytest

from analytics.storage.dsn import without_password


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (
            "postgres:host=db password=s3cret dbname=lake",
            "postgres:host=db password=… dbname=lake",
        ),
        (r"host=db PASSWORD = 'two \' words' user=u", "host=db PASSWORD = … user=u"),
        ("postgres:postgresql://u:s3cret@db/lake", "postgres:postgresql://u:…@db/lake"),
        (
            "postgresql://:s3@cret@db:5432/lake?sslmode=require",
            "postgresql://:…@db:5432/lake?sslmode=require",
        ),
        ("postgresql://db/lake?password=s3cret", "postgresql://db/lake?password=…"),
        ("sqlite", "sqlite"),
        ("host=db dbname=lake", "host=db dbname=lake"),
    ],
)
def test_a_password_is_left_out(said: str, shown: str) -> None:
    assert without_password(said) == shown
