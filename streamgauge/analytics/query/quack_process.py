"""The Quack process of `streamgauge serve`: listens, and returns the answers of the query pool. A confined child.

Protocol (`run_child`): the first header has `host`, `port` and `token`. After the start the process sends one message for each
statement and receives its answer (`quack_gate`). It returns each message with an `id`, or ends if DuckDB has failed.
"""

from __future__ import annotations

import sys
from typing import Any

from streamgauge.analytics.query import sandbox
from streamgauge.analytics.query.child_process import ChildOptions
from streamgauge.analytics.query.query_process import Receive, Send, limit, open_reader, run_child

GATE = "streamgauge_gate"
QUACK_THREADS = 160
"""quack_serve starts 128 threads, some after it returns. Without address space for their stacks the server hangs."""


def serve(options: ChildOptions, given: dict[str, Any], send: Send) -> Receive:
    """Listen. Raises StoreUnavailable, OSError."""
    # Libraries that start threads are imported only here, in the confined process.
    import duckdb
    from duckdb.func import FunctionNullHandling

    from streamgauge.analytics.query.quack_gate import Gate
    from streamgauge.analytics.storage.database import load, one_line

    host, port = given["host"], given["port"]
    reader = open_reader(options)
    connection = reader.connection
    load(connection, "httpfs", "quack")  # the server could not load httpfs after the lock-down
    gate = Gate(reader, options.limits, send)
    connection.create_function(
        GATE,
        gate.__call__,
        ["VARCHAR", "VARCHAR"],
        "VARCHAR",
        # By default a function of NULL is NULL and is not called, and equal calls are one.
        null_handling=FunctionNullHandling.SPECIAL,
        side_effects=True,
    )
    connection.execute(f"SET GLOBAL quack_authorization_function = '{GATE}'")
    reader.lock_down()
    limit(options, reserved_bytes=QUACK_THREADS * sandbox.stack_bytes())
    try:
        connection.execute(
            f"CALL quack_serve('quack:{host}:{port}', token = ?, allow_other_hostname = {host != 'localhost'})",
            [given["token"]],
        )
    except duckdb.Error as e:
        raise OSError(f"cannot listen on {host}:{port}: {one_line(e)}. Pass --sql-listen.") from None

    def receive(header: dict[str, Any], body: bytes) -> None:
        if "id" in header:
            gate.check_database()
            send(header)
        else:
            gate.answered(header, body)

    return receive


if __name__ == "__main__":
    sys.exit(run_child(serve))
