"""Compare the rows of everything recorded between this work tree and another commit: `python -m tests.rows_diff BASE [FOLDER…]`.

Both trees `open` the recorded streams, HAR and packet files of the folders (default: `tests` and `../shared`) and `export` their
stores. The difference is printed by column, with examples. Rows belong together by file, request in the file, and position.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import duckdb

from streamgauge.analytics.schema.sql_quoting import identifier, literal
from streamgauge.ingest.keyed_ids import FILE as KEY_FILE

ROOT = Path(__file__).resolve().parent.parent
PATTERNS = ("*.sse", "*.ndjson", "*.har", "*.har.gz", "*.pcap", "*.pcapng")
NOT_SEARCHED = {".venv", ".venv-litellm", "build", "node_modules", ".git"}
RELATIONS = ("streams", "events", "usage_reports", "server_stats", "losses", "dead_letters", "spend")
RANDOM = (
    "stream_id", "trace_id", "span_id", "clock_id", "set_aside_at", "lost_at", "log_id", "output_fingerprint", "tool_fingerprint",
)  # fmt: skip
"""Columns that differ in two runs of one tree."""
ORDER = ("stream_id", "seq", "source", "name", "first_seq", "reason")
"""Columns by which the rows of a stream are numbered."""
IDS = ("session_id", "parent_session_id", "connection_id", "client_stream_id")
"""Columns that may contain the id of a stream."""
PRICES = (
    "model,currency,input,cached_input,cached_audio,cache_write_5m,cache_write_1h,input_audio,input_image,output,reasoning,"
    "output_audio,output_image,web_search\n*,USD,1.01,0.107,0.211,1.31,2.03,7.09,5.03,3.07,3.19,11.3,13.7,17.9\n"
)
"""Each kind of token has a price of its own, so that a token of another kind is another amount."""
MOST_EXAMPLES, MOST_CHARS = 3, 200


def recorded_files(folders: list[Path]) -> list[Path]:
    """Recorded streams and files of requests below the folders, in a fixed order."""
    return sorted(
        path
        for folder in folders
        for pattern in PATTERNS
        for path in folder.rglob(pattern)
        if NOT_SEARCHED.isdisjoint(path.parts)
    )


def copied(files: list[Path], target: Path) -> list[Path]:
    """Copies with a number in their names, which the column `tap` has then. Sidecars come along."""
    target.mkdir()
    copies = list[Path]()
    for number, file in enumerate(files):
        copies.append(Path(shutil.copy2(file, target / f"{number:04}-{file.name}")))
        if (sidecar := file.with_suffix(".json")).exists():
            shutil.copy2(sidecar, copies[-1].with_suffix(".json"))
    return copies


@contextlib.contextmanager
def work_tree(commit: str) -> Iterator[Path]:
    """The files of a commit in a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder, "tree")
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", tree, commit], cwd=ROOT, check=True)
        try:
            yield tree
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", tree], cwd=ROOT, check=True)


def export_rows(tree: Path, files: list[Path], work: Path, key: bytes, *options: str | Path) -> Path:
    """The exported store of the files as a tree reads them. Raises CalledProcessError."""
    data, database = work / "data", work / "rows.duckdb"
    data.mkdir(mode=0o700, parents=True)
    (data / KEY_FILE).touch(mode=0o600)
    (data / KEY_FILE).write_bytes(key)

    def streamgauge(*arguments: str | Path, check: bool = True) -> None:
        subprocess.run(
            [sys.executable, "-m", "streamgauge", *arguments, "--data", data],
            cwd=tree,
            env={**os.environ, "PYTHONPATH": str(tree)},
            stdout=subprocess.DEVNULL,
            stderr=(work / "messages").open("ab"),
            check=check,
        )

    # It fails for files without a request, and stores the others.
    streamgauge("open", "--no-dashboard", *files, *options, check=False)
    streamgauge("export", "--duckdb", database)
    return database


def attach(database: Path, name: str, connection: duckdb.DuckDBPyConnection) -> None:
    """Attach a store, and name its streams `FILE#NUMBER` in the table `NAME_streams`."""
    connection.execute(f"ATTACH {literal(str(database))} AS {name} (READ_ONLY)")
    connection.execute(f"""
        CREATE TABLE memory.{name}_streams AS
        SELECT stream_id, coalesce(tap, '?') || '#' || row_number() OVER (PARTITION BY tap ORDER BY started_at, path, stream_id) AS stream
        FROM {name}.streams""")


def columns_of(connection: duckdb.DuckDBPyConnection, store: str, relation: str) -> list[str]:
    rows = connection.execute(
        "SELECT column_name FROM duckdb_columns() WHERE database_name = ? AND table_name = ? ORDER BY column_index",
        [store, relation],
    ).fetchall()
    return [name for (name,) in rows]


def compared_rows(store: str, relation: str, columns: list[str]) -> str:
    """SQL of a relation with `row`, the name of each row that both stores have. Ids of streams are replaced by their names."""
    values = [
        f"coalesce((SELECT stream FROM memory.{store}_streams AS s WHERE s.stream_id::VARCHAR = r.{name}::VARCHAR), r.{name}::VARCHAR)"
        f" AS {name}"
        if name in IDS
        else f"r.{identifier(name)}"
        for name in columns
        if name not in RANDOM
    ]
    order = ", ".join(f"r.{name}" for name in ORDER if name in columns)
    return f"""
        SELECT coalesce(stream, '?') || if({literal(relation)} IN ('streams', 'spend'), '', ' ' || row_number() OVER (
            PARTITION BY stream ORDER BY {order})) AS "row", {", ".join(values)}
        FROM {store}.{relation} AS r LEFT JOIN memory.{store}_streams USING (stream_id)"""


def report_relation(connection: duckdb.DuckDBPyConnection, relation: str) -> int:
    """Print the differences of a relation. Returns how many values and rows differ."""
    columns = {store: columns_of(connection, store, relation) for store in ("base", "tree")}
    for store, names in columns.items():
        if not names:
            print(f"{relation}: not in {store}")
            return 1
        connection.execute(f"USE {store}")  # a view names tables without their store
        connection.execute(
            f"CREATE OR REPLACE TABLE memory.{store}_rows AS {compared_rows(store, relation, names)}"
        )
    connection.execute("USE memory")
    differences = 0
    for store, other in (("base", "tree"), ("tree", "base")):
        found = connection.execute(
            f'SELECT "row" FROM {store}_rows WHERE "row" NOT IN (SELECT "row" FROM {other}_rows) ORDER BY ALL'
        ).fetchall()
        if found:
            differences += len(found)
            print(f"{relation}: {len(found)} rows only in {store}: {_some([row for (row,) in found])}")
        for name in columns[store]:
            if name not in columns[other] and name not in RANDOM:
                differences += _report_column_of_one_store(connection, relation, store, name)
    for name in columns["tree"]:
        if name in RANDOM or name not in columns["base"]:
            continue
        column = identifier(name)
        found = connection.execute(f"""
            SELECT "row", base_rows.{column}, tree_rows.{column} FROM base_rows JOIN tree_rows USING ("row")
            WHERE base_rows.{column}::VARCHAR IS DISTINCT FROM tree_rows.{column}::VARCHAR ORDER BY "row" """).fetchall()
        if found:
            differences += len(found)
            print(f"{relation}.{name}: {len(found)} rows")
            for row, before, after in found[:MOST_EXAMPLES]:
                print(f"    {row}: {before!r:.{MOST_CHARS}} → {after!r:.{MOST_CHARS}}")
    return differences


def _report_column_of_one_store(
    connection: duckdb.DuckDBPyConnection, relation: str, store: str, name: str
) -> int:
    found = connection.execute(
        f'SELECT "row", {identifier(name)} FROM {store}_rows WHERE {identifier(name)} IS NOT NULL ORDER BY "row"'
    ).fetchall()
    print(f"{relation}.{name}: only in {store}, with {len(found)} values")
    for row, value in found[:MOST_EXAMPLES]:
        print(f"    {row}: {value!r:.{MOST_CHARS}}")
    return len(found)


def _some(rows: list[str]) -> str:
    return ", ".join(rows[:MOST_EXAMPLES]) + (" …" if len(rows) > MOST_EXAMPLES else "")


def main() -> int:
    """Print the differences; return 0, or 2 if a tree cannot read the files."""
    parser = argparse.ArgumentParser(prog="tests.rows_diff", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("base", help="commit to compare with")
    parser.add_argument("folders", nargs="*", type=Path, default=[ROOT / "tests", ROOT.parent / "shared"])
    parser.add_argument("--capture-content", action="store_true", help="compare the text, too")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, work_tree(given.base) as base:
        work = Path(folder)
        files = copied(recorded_files([path.resolve() for path in given.folders]), work / "files")
        prices = work / "prices.csv"
        prices.write_text(PRICES)
        key = os.urandom(32)
        options: list[str | Path] = ["--price-file", prices]
        options += ["--capture-content"] if given.capture_content else []
        stores = dict[str, Path]()
        for name, tree in (("base", base), ("tree", ROOT)):
            try:
                stores[name] = export_rows(tree, files, work / name, key, *options)
            except subprocess.CalledProcessError as e:
                print((work / name / "messages").read_text()[-3000:], file=sys.stderr)
                print(f"rows-diff: {name} cannot read the files: exit code {e.returncode}", file=sys.stderr)
                return 2
        with duckdb.connect() as connection:
            for name, database in stores.items():
                attach(database, name, connection)
            differences = sum(report_relation(connection, relation) for relation in RELATIONS)
        print(f"{len(files)} files, {differences:,} differences to {given.base}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
