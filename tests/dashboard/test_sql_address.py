"""The length of a statement in an address."""

from __future__ import annotations

from urllib.parse import parse_qs, urlencode

import pytest

from streamgauge.dashboard import sql_statements


@pytest.mark.parametrize(
    ("sql", "chars"),
    [("SELECT 1", 8), ("a'b", 5), ("é", 6), ("🙂", 12), ("a*b-c_d.e", 9), ("~\n", 6), ("\ud800", 3), ("", 0)],
)
def test_length_is_that_of_the_encoded_statement(sql: str, chars: int) -> None:
    assert sql_statements.encoded_chars(sql) == chars


def test_longest_statement_fits_and_comes_back() -> None:
    sql = "ä" * (sql_statements.MAX_CHARS // 6)
    assert sql_statements.fits(sql)
    assert parse_qs(urlencode({sql_statements.PARAMETER: sql})) == {"sql": [sql]}
    assert not sql_statements.fits(sql + "x")
    assert "6,001 characters" in sql_statements.too_long(sql + "x")
