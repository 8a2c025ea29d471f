"""`forget` deletes one caller's rows and every byte of its ids in the data folder, and nothing of others."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from msgspec.structs import replace

from streamgauge.analytics.assembly.partition import LogPosition
from streamgauge.analytics.schema.tables import TABLES, Rows
from streamgauge.analytics.storage import forget as forget_module
from streamgauge.analytics.storage.commit import Commit
from streamgauge.analytics.storage.export import export
from streamgauge.analytics.storage.forget import Caller, find, forget
from streamgauge.analytics.storage.location import StoreLocation, locate
from streamgauge.analytics.storage.rebuild import rebuild
from streamgauge.analytics.storage.store import INLINED_ROWS, Store
from streamgauge.analytics.storage.upkeep import Upkeep
from streamgauge.ingest.keyed_ids import RECORDED
from streamgauge.ingest.record_log import segments
from streamgauge.ingest.record_log.embedded_writer import EmbeddedWriter
from streamgauge.ingest.record_log.segments import open_segment, read_rows
from streamgauge.ingest.records import AnyRecord, encode, pack, unpack
from tests.analytics.log_entries import alive, stream, stream_id
from tests.analytics.storage.rows import STARTED_US, commit_of, new_ids, streams
from tests.analytics.stores import analysed, ask, new_store
from tests.postgres import Postgres

CLIENT, OTHER, GATEWAY = "c1" * 16, "0b" * 16, "9a" * 16
SESSION, OTHER_SESSION = "5e" * 16, "0d" * 16
CALLER = Caller("client", CLIENT)
MANY = INLINED_ROWS // 10
"""Streams whose events fill a Parquet file."""
OWN = [*range(MANY), *range(2 * MANY, 2 * MANY + 4)]
OTHERS = [*range(MANY, 2 * MANY), *range(2 * MANY + 4, 2 * MANY + 8)]
INNER = 2 * MANY + 8
"""The stream behind a gateway of OWN[0], with the gateway's key."""
SHARED = OTHERS[0]
"""It has the trace of OWN[1]."""


def trace_of(number: int) -> str:
    return f"7{(OWN[1] if number == SHARED else number):031x}"


def records_of(number: int) -> list[AnyRecord]:
    first, *rest = stream(number)
    own = number in OWN
    client, session = (CLIENT, SESSION) if own else (OTHER, OTHER_SESSION)
    headers = [(RECORDED, session)]
    if number == INNER:
        client, headers = GATEWAY, []
    return [replace(first, client_id=client, trace_id=trace_of(number), headers=headers), *rest]


def log_entries(numbers: list[int]) -> Iterator[bytes]:
    """Entries with records of several streams, of both callers."""
    lanes = [records_of(number) for number in numbers]
    for at in range(max(map(len, lanes))):
        yield pack([lane[at] for lane in lanes if at < len(lane)], compress=True)


def frame(**columns: Any) -> pl.DataFrame:
    return pl.DataFrame({name: [value] for name, value in columns.items()}).with_columns(
        pl.col(name).cast(pl.Datetime("us", "UTC")) for name in columns if name.endswith("_at")
    )


def related_rows() -> dict[str, pl.DataFrame]:
    """Rows that refer to streams of CLIENT, or to the client."""
    first = stream_id(OWN[0])
    alert = {
        "changed_at": STARTED_US, "instance": "a", "rule": "errors", "began_at": STARTED_US, "value": 1.0,
        "threshold": 0.5, "severity": "page", "evidence": ["it is so"], "state": "firing",
    }  # fmt: skip
    span = {"kind": "server", "started_at": STARTED_US, "start_ns": 0, "duration_ns": 5, "status": "ok"}
    alerts = [
        {"alert_id": str(uuid.UUID(int=1)), "stream_id": first, "client_id": None, "place": None, "message": "errors"},
        {"alert_id": str(uuid.UUID(int=2)), "stream_id": None, "client_id": None, "message": "one client",
         "place": f'{{"client":"{CLIENT}"}}'},
        {"alert_id": str(uuid.UUID(int=3)), "stream_id": None, "client_id": CLIENT, "message": "x", "place": None},
    ]  # fmt: skip
    return {
        "hops": frame(
            outer_stream_id=first, inner_stream_id=stream_id(INNER), outer_started_at=STARTED_US, matched_by="trace",
            attempt=1, inner_outcome="ok",
        ),
        "hop_changes": frame(
            outer_stream_id=first, inner_stream_id=stream_id(INNER), outer_started_at=STARTED_US, what="model"
        ),
        "losses": frame(stream_id=first, cause="missing", lost_at=STARTED_US),
        "dead_letters": frame(stream_id=first, reason="x", size=1, sha256="0", set_aside_at=STARTED_US),
        "spans": pl.concat([
            frame(trace_id=trace_of(OWN[0]), span_id="a", stream_id=None, name="received", **span),
            frame(trace_id=trace_of(OWN[1]), span_id="b", stream_id=None, name="received, shared", **span),
            frame(trace_id=trace_of(OWN[1]), span_id="c", stream_id=stream_id(OWN[1]), name="own", **span),
        ], how="diagonal_relaxed"),
        "alert_events": pl.concat([frame(**alert, **one) for one in alerts], how="diagonal_relaxed"),
        "clients": frame(client_id=CLIENT, name="team-a"),
        "agent_events": pl.concat([
            frame(event_id="of the session", occurred_at=STARTED_US, agent="claude-code", session_id=SESSION, kind="tool_result"),
            frame(event_id="of another", occurred_at=STARTED_US, agent="claude-code", session_id="another", kind="tool_result"),
        ], how="diagonal_relaxed"),
    }  # fmt: skip


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with rows of both callers in files, in old files and inlined, and in the log."""
    data = tmp_path_factory.mktemp("forget") / "data"
    (data / "log" / "readers").mkdir(parents=True, mode=0o700)
    (data / "log" / "readers" / "late.json").write_text("{}")  # keeps all segments
    for number, part in enumerate((slice(MANY), slice(MANY, None))):
        with EmbeddedWriter(data / "log", "w0", cap_bytes=2**30) as writer:
            writer.append([*log_entries(OWN[part] + OTHERS[part] + ([INNER] if number else []))])
            waiting = replace(alive(1, stopping=True), waiting_for_client=[stream_id(OWN[0])])
            writer.append([pack([waiting], compress=False)])
        store = analysed(data)
        with closing(Upkeep(store, events_s=None, streams_s=None)) as upkeep:
            if number:
                store.commit(Commit("", tables=related_rows()))
                upkeep.back_up()
            else:
                upkeep.flush(least_rows=1)
                upkeep._call("ducklake_merge_adjacent_files")
        store.close()
    (data / "catalog.damaged-20260101T000000Z.sqlite").write_text(SESSION)
    (data / "up.log").write_text(f"started\nstream {stream_id(OWN[0])} failed\n")
    (data / "log" / "websockets").mkdir()
    (data / "log" / "websockets" / f"{stream_id(OWN[0])}-00").write_text("state")
    orphan = next((data / "tables" / "main" / "streams").glob("*.parquet"))
    os.link(orphan, orphan.with_suffix(".link"))
    orphan.with_name("ducklake-orphan.parquet").write_bytes(orphan.read_bytes())
    (data / "tables" / "open_streams").mkdir(exist_ok=True)
    (data / "tables" / "open_streams" / "analytics.live").write_text(stream_id(OWN[0]))
    return data


@pytest.fixture
def data(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "data"))


def needles(numbers: list[int], *ids: str) -> set[bytes]:
    """Ids of streams as text and as bytes, of their traces, and further ones."""
    own = [stream_id(number) for number in numbers]
    traces = {trace_of(number) for number in numbers if number != OWN[1]}
    return {text.encode() for text in (*own, *traces, *ids)} | {uuid.UUID(one).bytes for one in own}


def contents(path: Path) -> Iterator[bytes]:
    """The name and the bytes of a file, and what it holds in compressed form."""
    yield path.name.encode()
    yield path.read_bytes()
    if path.suffix == ".parquet":
        values = (value for column in pl.read_parquet(path) for value in column.to_list())
        yield b"\n".join(value if isinstance(value, bytes) else str(value).encode() for value in values)
    elif path.parent.name == "w0" and path.suffix == ".sqlite":
        with closing(open_segment(path)) as connection:
            for _, payload, _ in read_rows(connection, 0, 2**40)[0]:
                yield b"".join(map(encode, unpack(payload)[0]))


def found_in(data: Path, ids: set[bytes]) -> dict[bytes, Path]:
    """The ids that the files of a folder have, each with one of the files."""
    files = [path for path in data.rglob("*") if path.is_file()]
    return {one: path for path in files for content in contents(path) for one in ids if one in content}


def rows_of(store: Store) -> dict[str, list[str]]:
    """Rows as text, by table."""
    return {
        table.name: sorted(map(str, ask(store, f"FROM {table.name}")))
        for table in TABLES
        if table.rows is not Rows.UPDATED
    }


OWN_IDS = needles([*OWN, INNER], CLIENT, SESSION)


class Killed(BaseException):
    """Nothing catches it."""


def kill_in_each_step(location: StoreLocation, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run `forget` once for each of its steps, and end it there."""
    for owner, name, after in (
        (segments, "replace_segment", True),
        (Upkeep, "expire", False),
        (forget_module, "compact", False),
    ):
        function = getattr(owner, name)

        def killed(
            *arguments: Any, function: Callable[..., None] = function if after else lambda *_: None
        ) -> None:
            function(*arguments)
            raise Killed

        with monkeypatch.context() as patch:
            patch.setattr(owner, name, killed)
            with pytest.raises(Killed):
                forget(location, data, CALLER)


def test_no_byte_of_the_caller_remains_and_others_keep_their_rows_despite_kills(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = locate("sqlite", data)
    with closing(Store(location)) as before:
        rows = rows_of(before)
    assert found_in(data, OWN_IDS).keys() >= {one for one in OWN_IDS if len(one) > 16} | needles(OWN[:MANY])
    planned = find(location, data, CALLER)
    kill_in_each_step(location, data, monkeypatch)
    steps: list[str] = []
    forget(location, data, CALLER, steps.append)
    assert steps == ["find the streams", "record log", "rows", "Parquet files", "catalog"]
    assert found_in(data, OWN_IDS) == {}
    assert (data / "up.log").read_text() == "started\n"
    assert not [*data.glob("catalog.damaged*")]

    texts = {one.decode() for one in OWN_IDS if len(one) > 16}
    kept = {
        name: [row for row in had if not any(text in row for text in texts)] for name, had in rows.items()
    }
    with closing(Store(location)) as after:
        now = rows_of(after)
        assert ask(after, "SELECT stream_id, client_id, message FROM alert_events") == [
            (None, None, "errors")
        ]
        del kept["alert_events"], now["alert_events"]
        assert now == kept
        assert ask(after, "SELECT name FROM spans") == [("received, shared",)]
        assert planned.streams == len(OWN) + 1
        assert planned.shared_traces == 1
        assert planned.log_records > planned.streams
        totals = after.totals()
        assert totals["forgotten_streams_rows"] == planned.streams
        assert totals["forgotten_events_rows"] == planned.tables["events"]
        [(counted,)] = ask(after, "SELECT sum(streams)::BIGINT FROM stream_minutes")
        assert counted == planned.streams + len(OTHERS)


def test_later_records_and_rebuilds_do_not_restore_the_caller(data: Path) -> None:
    location = locate("sqlite", data)
    forget(location, data, CALLER)
    for use_backup in (True, False):
        rebuild(location, use_backup=use_backup)
        with EmbeddedWriter(data / "log", "w0", cap_bytes=2**30) as writer:
            writer.append([*log_entries([3 * MANY + use_backup])])
        store = analysed(data)
        counts = "SELECT count(*), count(*) FILTER (client_id = $1), count(*) FILTER (outcome <> 'ok') FROM streams"
        assert ask(store, counts, [CLIENT]) == [(len(OTHERS) + 2 - use_backup, 0, 0)]
        assert ask(store, "SELECT count(*) FROM losses") == [(0,)]
        store.close()


def test_session_is_forgotten_with_its_subagents_and_without_other_sessions(tmp_path: Path) -> None:
    location = new_store(tmp_path).location
    own, subagent, other = new_ids(2), new_ids(1), new_ids(3)
    rows = [
        streams(*own, session_id=SESSION, client_id=CLIENT, parent_session_id=None),
        streams(*subagent, session_id="a" * 32, client_id=CLIENT, parent_session_id=SESSION),
        streams(*other, session_id=OTHER_SESSION, client_id=CLIENT, parent_session_id=None),
    ]
    with closing(Store(location)) as store:
        store.acquire_partition("another log", "0")
        store.commit(commit_of("another log", "0", 5, [], open_ids=[*own, *other]))
        store.commit(Commit("", tables={"streams": pl.concat(rows, how="diagonal_relaxed")}))
        with closing(Upkeep(store, events_s=None, streams_s=None)) as upkeep:
            upkeep.flush(1)  # DuckLake inlines a few deletions from a file
    forget(location, tmp_path, Caller("session", SESSION))
    with closing(Store(location)) as store:
        assert ask(store, "SELECT DISTINCT session_id FROM streams") == [(OTHER_SESSION,)]
        assert ask(store, "SELECT sum(streams)::BIGINT FROM client_minutes") == [(6,)]
        assert store.acquire_partition("another log", "0") == LogPosition(5, 4, tuple(other))
    assert found_in(tmp_path, {SESSION.encode(), *(one.encode() for one in own)}) == {}


def test_label_is_forgotten_without_other_values_and_labels(tmp_path: Path) -> None:
    location = new_store(tmp_path).location
    rows = [labelled(team="search", user="a"), labelled(team="chat", user="search"), labelled(user="a")]
    alerts = [related_rows()["alert_events"].with_columns(place=pl.lit('{"label":"team=search"}')).head(1)]
    with closing(Store(location)) as store:
        store.commit(Commit("", tables={"streams": pl.concat(rows), "alert_events": pl.concat(alerts)}))
        minutes = "SELECT label, value, streams FROM label_minutes ORDER BY ALL"
        before = ask(store, minutes)
    found = forget(location, tmp_path, Caller("label", "search", "team"))
    assert found.tables == {"streams": 1, "alert_events": 1, "label_minutes": 1}
    with closing(Store(location)) as store:
        assert ask(store, "SELECT labels['user'] FROM streams ORDER BY 1") == [("a",), ("search",)]
        assert ask(store, minutes) == [row for row in before if row[:2] != ("team", "search")]


def labelled(**labels: str) -> pl.DataFrame:
    kind = pl.Map(pl.String, pl.String)
    return streams(*new_ids(1), client_id=CLIENT).with_columns(labels=pl.Series([labels], dtype=kind))


def test_caller_with_streams_that_are_not_stored_is_refused(data: Path) -> None:
    location = locate("sqlite", data)
    with EmbeddedWriter(data / "log", "w0", cap_bytes=2**30) as writer:
        writer.append([pack([replace(stream(9 * MANY)[0], client_id=CLIENT)], compress=True)])
    for state in ("unread", "open"):
        if state == "open":
            analysed(data).close()
        with pytest.raises(OSError, match="1 streams of the same client are open or not stored yet"):
            forget(location, data, CALLER)
    assert find(location, data, CALLER).streams == len(OWN) + 1
    assert find(location, data, Caller("client", OTHER)).obstacle is None
    export(location, data / "copy.duckdb")
    (data / "notes.txt").write_text(f"about {stream_id(OTHERS[0])}\n")
    with pytest.raises(OSError, match=r"copy\.duckdb, .*notes\.txt may have its data\. Move such files"):
        forget(location, data, Caller("client", OTHER))


def test_rows_are_deleted_from_a_catalog_in_postgres(
    make_location: Callable[[str], StoreLocation], postgres: Postgres, tmp_path: Path
) -> None:
    location = make_location("postgres")
    own = new_ids(INLINED_ROWS + 1)
    with closing(Store(location)) as store, closing(Upkeep(store, events_s=None, streams_s=None)) as upkeep:
        store.commit(Commit("", tables={"streams": streams(*own, *new_ids(1), client_id=CLIENT)}))
        upkeep.flush(1)
        rows = [streams(*new_ids(2), client_id=client) for client in (CLIENT, OTHER)]
        store.commit(Commit("", tables={"streams": pl.concat(rows)}))
    postgres.run("ANALYZE", str(location.dsn))  # as the server does by itself: statistics have values of rows
    forget(location, tmp_path, CALLER)
    with closing(Store(location)) as store:
        assert ask(store, "SELECT client_id, count(*) FROM streams GROUP BY 1") == [(OTHER, 2)]
        assert ask(store, "SELECT client_id FROM client_minutes") == [(OTHER,)]
        folder = Path(store.data_path)
    assert found_in(folder, {CLIENT.encode(), *(uuid.UUID(one).bytes for one in own)}) == {}
    postgres.run("CHECKPOINT", "postgres")
    assert found_in(postgres.folder / "cluster" / "base", {CLIENT.encode(), own[0].encode()}) == {}
