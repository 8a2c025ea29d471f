"""What docs/how-to/upgrade.md states about versions: stores, records, renamed settings. Another version is a changed schema."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from streamgauge.analytics.schema.ddl import statements
from streamgauge.analytics.storage import create_schema
from streamgauge.analytics.storage.commit import Commit, StoreFailed
from streamgauge.analytics.storage.location import locate
from streamgauge.analytics.storage.store import Store
from streamgauge.cli import cli
from streamgauge.commands.status import status_command
from streamgauge.commands.store_commands import rebuild_command
from streamgauge.ingest.record_log.kafka_writer import group_by_stream
from streamgauge.ingest.records import PLAIN, Alive, Closed, encode, unpack
from streamgauge.settings.model import RENAMED, Settings, variable
from tests.analytics.storage.former_stores import VERSIONS, content, former_figures, sqlite_store
from tests.analytics.storage.rows import new_ids, streams
from tests.analytics.stores import ask_as_reader
from tests.former_stores.make import UNREAD
from tests.streamgauge.stored import analyse, write_streams

STREAMS = 5
FIRST_COLUMN = "stream_id UUID,"
COUNTS = "SELECT count(*), sum(event_count)::BIGINT FROM streams"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data folder whose rows are in Parquet files."""
    data = tmp_path / "data"
    write_streams(data, range(STREAMS))
    analyse(data, flush=True)
    return data


@contextmanager
def version(**changed: str) -> Iterator[None]:
    """A version with other `tables` or `views`."""
    current = dict(zip(("tables", "views", "comments"), statements(), strict=True))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(create_schema, "statements", lambda: (current | changed).values())
        yield


def one_more_column() -> str:
    tables, _, _ = statements()
    assert FIRST_COLUMN in tables
    return tables.replace(FIRST_COLUMN, f"{FIRST_COLUMN} another VARCHAR,", 1)


def counts(data: Path, query: str = COUNTS) -> tuple[int, ...]:
    (row,) = ask_as_reader(locate("sqlite", data), query)
    return row


def move_store(source: Path, target: Path) -> None:
    for path in [*source.glob("catalog.*"), source / "tables"]:
        path.rename(target / path.name)


def rebuild(data: Path) -> Result:
    return CliRunner().invoke(rebuild_command, ["--data", str(data), "--from-files"])


# -- Stores ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rebuilt", [False, True])
def test_store_whose_tables_have_fewer_columns_keeps_all_rows(data: Path, rebuilt: bool) -> None:
    before = counts(data)
    assert before[0] == STREAMS
    with version(tables=one_more_column()):
        if rebuilt:
            assert rebuild(data).exit_code == 0
        write_streams(data, range(STREAMS, STREAMS + 1))
        analyse(data)
        assert counts(data, "SELECT count(*), count(another) FROM streams") == (STREAMS + 1, 0)
        assert counts(data, f"{COUNTS} WHERE stream_id < (SELECT max(stream_id) FROM streams)") == before


def test_store_whose_files_have_more_columns_is_not_rebuilt_and_its_catalog_is_put_back(
    tmp_path: Path,
) -> None:
    with version(tables=one_more_column()):
        Store(locate("sqlite", tmp_path)).close()
        write_streams(tmp_path, range(STREAMS))
        analyse(tmp_path, flush=True)
    before = counts(tmp_path)
    done = rebuild(tmp_path)
    assert isinstance(done.exception, OSError)
    assert "cannot rebuild" in str(done.exception)
    assert not [*tmp_path.glob("catalog.damaged-*")]
    assert counts(tmp_path) == before


@pytest.mark.parametrize("former", VERSIONS)
def test_streams_that_a_former_tap_recorded_are_stored_after_the_upgrade_and_counters_reconcile(
    former: str, tmp_path: Path
) -> None:
    unpacked = content(former, tmp_path)
    location = sqlite_store(unpacked, tmp_path / "data")
    stored = former_figures(unpacked, location)["streams"]["rows"]
    analyse(tmp_path / "data")
    assert counts(tmp_path / "data", "SELECT count(*) FROM streams") == (stored + UNREAD,)
    done = CliRunner().invoke(status_command, ["--data", str(tmp_path / "data")], standalone_mode=False)
    assert done.return_value == 0, done.output


def test_empty_store_gets_what_the_log_has_and_the_former_store_continues_after_a_roll_back(
    data: Path,
) -> None:
    before = counts(data)
    former, new = data / "former", data / "new"
    former.mkdir()
    new.mkdir()
    move_store(data, former)
    analyse(data)
    assert counts(data) == before
    write_streams(data, range(STREAMS, STREAMS + 2))
    analyse(data, flush=True)
    after = counts(data)
    assert after[0] == STREAMS + 2
    move_store(data, new)
    move_store(former, data)
    analyse(data)
    assert counts(data) == after


def test_commits_of_another_version_fail_after_the_views_were_replaced(data: Path) -> None:
    running = Store(locate("sqlite", data))
    _, views, _ = statements()
    with version(views=views + "CREATE OR REPLACE VIEW another AS SELECT 1;\n"):
        Store(locate("sqlite", data)).close()
    with pytest.raises(StoreFailed, match="another version of Streamgauge changed the store's schema"):
        running.commit(Commit("log", tables={"streams": streams(*new_ids(1))}))
    running.close()


# -- Records -----------------------------------------------------------------------------------------------------------


def test_new_fields_of_records_are_ignored_and_not_passed_on() -> None:
    record = Alive("tap", 0, "incarnation", 1, 2, 3)
    with_field = [*msgspec.msgpack.decode(encode(record)), "new field"]
    assert unpack(PLAIN + msgspec.msgpack.encode([with_field])) == ([record], [])
    (passed_on,) = group_by_stream([PLAIN + msgspec.msgpack.encode([with_field])]).broadcast
    assert encode(passed_on) == encode(record)


def test_new_kinds_and_causes_of_records_become_dead_letters() -> None:
    closed = Closed("stream", 1, "complete", None, 1, None, None, 0, 0, 0, None)
    fields = msgspec.msgpack.decode(encode(closed))
    fields[fields.index("complete")] = "new_cause"
    records, poison = unpack(PLAIN + msgspec.msgpack.encode([["new_kind", 1], fields]))
    assert (records, [one.reason for one in poison]) == ([], ["not_a_record", "not_a_record"])


def test_missing_fields_of_old_records_have_defaults() -> None:
    closed = Closed("stream", 1, "complete", None, 1, None, None, 0, 0, 0, None)
    required = [field for field in msgspec.structs.fields(Closed) if field.required]
    old = msgspec.msgpack.decode(encode(closed))[: len(required) + 1]
    assert unpack(PLAIN + msgspec.msgpack.encode([old])) == ([closed], [])


# -- Settings ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("former", "current"), RENAMED.items())
def test_former_names_of_settings_are_errors_that_name_the_current_one(
    former: str, current: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert former not in Settings.model_fields
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(variable(former), "x")
    assert f"It is now {variable(current)}." in CliRunner().invoke(cli, ["version"]).output
    monkeypatch.delenv(variable(former))
    (tmp_path / "streamgauge.toml").write_text(f'{former} = "x"\n')
    assert f"It is now {current!r}." in CliRunner().invoke(cli, ["config", "check"]).output
