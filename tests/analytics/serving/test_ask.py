"""Asking from many threads, over restarts of analytics, and when nobody is there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from analytics.serving import endpoint
from analytics.serving.ask import Asker, FileAsker, NotRunning, Refused, TooSlow
from analytics.serving.endpoint import Endpoint
from analytics.serving.serve import Server
from analytics.storage.store import FILE, Commit, Store
from tests.analytics.serving.test_guard import REFUSED


@contextmanager
def analytics(data: Path) -> Iterator[Server]:
    """What matters here of the real process: the tables, the port, the endpoint file."""
    store = Store(data / FILE)
    server = Server(store.cursor(), port=0)
    endpoint.write(data, Endpoint(server.quack, server.token, 1))
    try:
        yield server
    finally:
        server.close()
        store.close()


def test_nobody_there_is_said_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(NotRunning, match="streamgauge up") as nobody:
        Asker(tmp_path).query("SELECT 1")
    assert "\n" not in str(nobody.value)
    endpoint.write(tmp_path, Endpoint("quack:localhost:9", "x" * 20, 1))
    with pytest.raises(NotRunning, match="does not answer"):
        Asker(tmp_path).query("SELECT 1")


def test_a_restart_with_another_port_and_token_is_followed(tmp_path: Path) -> None:
    asker = Asker(tmp_path)
    with analytics(tmp_path) as first:
        assert asker.query("SELECT 1 AS x").item() == 1
        old = (first.quack, first.token)
    with pytest.raises(NotRunning):
        asker.query("SELECT 1")
    with analytics(tmp_path) as second:
        assert (second.quack, second.token) != old
        assert asker.query("SELECT 2 AS x").item() == 2


def test_the_same_port_with_another_token_is_a_restart_too(tmp_path: Path) -> None:
    with analytics(tmp_path) as server:
        stale = Asker(Endpoint(server.quack, "the-token-of-before"))
        with pytest.raises(NotRunning):
            stale.query("SELECT 1")


def test_threads_may_share_it(tmp_path: Path) -> None:
    with analytics(tmp_path):
        asker = Asker(tmp_path)
        answers: list[int] = []

        def ask(number: int) -> None:
            answers.append(asker.query(f"SELECT {number} AS x").item())

        threads = [threading.Thread(target=ask, args=(n,)) for n in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(answers) == list(range(16))


def test_a_statement_with_quotes_comments_and_dollars_arrives_as_it_is(tmp_path: Path) -> None:
    with analytics(tmp_path):
        asker = Asker(tmp_path)
        assert (
            asker.query("SELECT 'it''s $$ /* no */ -- comment' AS x -- really").item()
            == "it's $$ /* no */ -- comment"
        )
        assert asker.query("SELECT '''; DROP TABLE streams; --' AS x").item() == "'; DROP TABLE streams; --"
        with pytest.raises(Refused):
            asker.query("SELECT 'unclosed")


def test_empty_answers_keep_their_columns(tmp_path: Path) -> None:
    with analytics(tmp_path):
        found = Asker(tmp_path).query("SELECT stream_id, ttft_ns FROM streams")
        assert (found.height, found.columns) == (0, ["stream_id", "ttft_ns"])


def test_hostile_sql_at_the_file_changes_nothing_and_reads_nothing(tmp_path: Path) -> None:
    """What `streamgauge sql` and the dashboard's SQL page ask when no analytics runs."""
    store = Store(tmp_path / FILE)
    store.commit(Commit("log", keep=[("w0", "0198b2d0-0000-7000-8000-000000000000", b"kept-secret")]))
    store.close()
    (tmp_path / "planted.csv").write_text("a\nplanted-secret\n")
    before = (tmp_path / FILE).read_bytes()
    asker = FileAsker(tmp_path / FILE)
    try:
        for sql in [*REFUSED, f"FROM '{tmp_path}/planted.csv'", f"COPY streams TO '{tmp_path}/out.csv'"]:
            with pytest.raises(Refused) as refused:
                asker.query(sql)
            assert "-secret" not in str(refused.value)
        assert asker.query("SELECT count(*) FROM streams").item() == 0
    finally:
        asker.close()
    assert (tmp_path / FILE).read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["planted.csv", FILE]


def test_a_runaway_query_at_the_file_is_ended(tmp_path: Path) -> None:
    Store(tmp_path / FILE).close()
    asker = FileAsker(tmp_path / FILE)
    try:
        with pytest.raises(TooSlow):
            asker.query("SELECT count(*) FROM range(100000000000) a, range(100000000000) b", timeout_s=0.3)
    finally:
        asker.close()
