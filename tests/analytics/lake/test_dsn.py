"""A catalog's password is shown nowhere."""

from __future__ import annotations

import pytest

from analytics.lake.dsn import without_password


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (
            "ducklake:postgres:host=db password=s3cret dbname=lake",
            "ducklake:postgres:host=db password=… dbname=lake",
        ),
        (r"host=db PASSWORD = 'two \' words' user=u", "host=db PASSWORD = … user=u"),
        ("ducklake:postgres:postgresql://u:s3cret@db/lake", "ducklake:postgres:postgresql://u:…@db/lake"),
        (
            "postgresql://:s3@cret@db:5432/lake?sslmode=require",
            "postgresql://:…@db:5432/lake?sslmode=require",
        ),
        ("postgresql://db/lake?password=s3cret", "postgresql://db/lake?password=…"),
        ("duckdb", "duckdb"),
        ("host=db dbname=lake", "host=db dbname=lake"),
    ],
)
def test_a_password_is_left_out(said: str, shown: str) -> None:
    assert without_password(said) == shown
