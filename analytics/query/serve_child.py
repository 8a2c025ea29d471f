"""The Quack process of `streamgauge serve`: listens, and returns the answers of the query pool. Confined.

The first message on stdin holds `ChildOptions` and `host`, `port`, `token`. The process replies `{"ready": true}` or an
error. Then it sends one message for each statement and receives its answer (`quack_gate`). It returns each message with
an `id`, or ends if DuckDB has failed. It ends with stdin.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

from streamgauge.analytics.query import pipe_messages, sandbox
from streamgauge.analytics.query.child_options import ChildOptions
from streamgauge.analytics.query.child_process import MESSAGE_OVERHEAD_BYTES
from streamgauge.analytics.query.errors import QueryError, StoreUnavailable, to_wire
from streamgauge.analytics.query.query_child import confine, limit, open_reader

GATE = "streamgauge_gate"
QUACK_THREADS = 160
"""quack_serve starts 128 threads, some after it returns. Without address space for their stacks the server hangs."""


def main() -> int:
    """Serve until stdin ends."""
    events = os.dup(1)
    os.dup2(2, 1)
    first = pipe_messages.receive(0)
    if first is None:
        return 0
    options = ChildOptions.from_json(first[0])
    confine(options, bind_port=int(first[0]["port"]))
    lock = threading.Lock()

    def report(event: dict[str, Any]) -> None:
        with lock:
            pipe_messages.send(events, event)

    try:
        gate = serve(options, first[0]["host"], first[0]["port"], first[0]["token"], report)
    except (QueryError, OSError) as e:
        report(to_wire(e if isinstance(e, QueryError) else StoreUnavailable(str(e))))
        return 1
    report({"ready": True})
    max_bytes = options.limits.max_answer_bytes + MESSAGE_OVERHEAD_BYTES
    while (message := pipe_messages.receive(0, max_bytes)) is not None:
        if "id" in message[0]:
            gate.check_database()
            report(message[0])
        else:
            gate.answered(*message)
    os._exit(0)  # open sessions have no supervisor


def serve(options: ChildOptions, host: str, port: int, token: str, report: Any) -> Any:
    """Listen. Returns the gate. Raises StoreUnavailable, OSError."""
    import duckdb
    from duckdb.func import FunctionNullHandling

    from streamgauge.analytics.query.quack_gate import Gate
    from streamgauge.analytics.storage.database import load, one_line

    reader = open_reader(options)
    connection = reader.connection
    load(connection, "httpfs", "quack")  # the server could not load httpfs after the lock-down
    gate = Gate(reader, options.limits, report)
    connection.create_function(
        GATE,
        gate.__call__,
        ["VARCHAR", "VARCHAR"],
        "VARCHAR",
        null_handling=FunctionNullHandling.SPECIAL,
        side_effects=True,
    )
    connection.execute(f"SET GLOBAL quack_authorization_function = '{GATE}'")
    reader.lock_down()
    limit(options, reserved_bytes=QUACK_THREADS * sandbox.stack_bytes())
    try:
        connection.execute(
            f"CALL quack_serve('quack:{host}:{port}', token = ?, allow_other_hostname = {host != 'localhost'})",
            [token],
        )
    except duckdb.Error as e:
        raise OSError(f"cannot listen on {host}:{port}: {one_line(e)}. Pass --sql-listen.") from None
    return gate


if __name__ == "__main__":
    sys.exit(main())
