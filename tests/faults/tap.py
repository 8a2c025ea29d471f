"""Runs of a tap whose calls fail, from the moment it is ready until it has stopped.

Each run is a start on the data folder of the run before it, so it is also the check of the restart.
"""

from __future__ import annotations

import http.client
import json
import signal
import threading
from contextlib import closing

from streamgauge.commands.status import pipeline_status
from streamgauge.ingest.record_log.run_totals import RunTotals, read_run_totals
from streamgauge.settings.model import Settings
from tests.analytics.stores import place_empty_catalog
from tests.deadline import DEADLINE_S, until
from tests.e2e.running import answers
from tests.faults.calls import NEVER, SENDS, Fault
from tests.faults.forks import Forks
from tests.ports import free_ports
from tests.streamgauge.stored import analyse, outcomes
from tests.streamgauge.upstream import JSON, STREAM

IMPORTS = ("tests.faults.child", "streamgauge.commands.process_commands", "streamgauge.ingest.tap.main")
BATCH = (
    ({"stream": True}, STREAM),
    ({"stream": False}, JSON),
    ({"stream": True, "chunked": True}, STREAM),
    ({"stream": False}, JSON),
)
"""Requests of one connection, and what the client reads."""
PERSISTENT_FAILURES = 5
"""Failures of a persistent fault of sockets: a client without a connection would wait for it."""


class TapRuns:
    """Runs of one fault on one data folder."""

    def __init__(self, forks: Forks, upstream: str, fault: Fault) -> None:
        self._forks, self._page, self._upstream, self._fault = forks, forks.page, upstream, fault
        self._sent = self._complete = 0
        self._on_sockets = fault.kinds >= SENDS
        place_empty_catalog(forks.data)

    def run(self, number: int) -> None:
        """One run, whose call `number` fails. The clients' bytes are right, and each request has a record in the log."""
        port, admin = free_ports(2)
        self._forks.start(
            "tests.faults.child:command", "tap", "--data", str(self._forks.data), "--upstream", self._upstream, "--listen",
            f"127.0.0.1:{port}", "--admin", f"127.0.0.1:{admin}", "--drain-timeout", "5",
        )  # fmt: skip

        def ready() -> bool | None:
            assert self._forks.running
            return answers(f"http://127.0.0.1:{admin}/readyz")

        until(ready, "the tap")
        self._page.arm(number, self._fault)
        self._send(port)
        # A failure of a call that writes no records ends no wait by itself, so both are asked.
        until(lambda: self._recorded() or self._page.failed, "the records or a failure")
        if self._page.failed:
            self._page.release()
            self._send(port, after=True)
            until(self._recorded, "the records after the release")
        self._forks.signal(signal.SIGTERM)  # fails calls of the stop, if none has failed before
        assert self._forks.wait() == 0
        self._page.release()

    def check(self) -> None:
        """captured = stored + lost, and each lost stream has a row of `losses`. A start without a failure mends all files."""
        self.run(NEVER)
        data = self._forks.data
        analyse(data)
        status = pipeline_status(Settings(data=data))
        counts = {name: status[name] for name in ("in_flight", "unreported", "unknown")}
        assert counts == {"in_flight": 0, "unreported": 0, "unknown": []}, status
        captured = status["captured"]
        if self._on_sockets:  # a request of a connection that broke may not have arrived
            assert self._complete <= captured <= self._sent, status
        else:
            assert captured == self._sent, status
        assert status["stored"] + status["lost"] == captured, status
        assert status["reconciles"], status
        found = outcomes(data)
        assert (found["lost"], found["without_row"]) == (status["lost"], 0), found
        if not self._on_sockets:
            assert found["ok"] == status["stored"], found
        leftover = [path.name for path in data.rglob(".*") if path.is_file()]
        assert leftover == [], leftover

    def _newest(self) -> RunTotals:
        return [*read_run_totals(self._forks.data / "log").values()][-1]

    def _recorded(self) -> bool:
        """Whether the log has each stream of this run that a client has completed."""
        totals = self._newest()
        return totals.streams_in_log == totals.streams_opened >= self._complete - self._complete_before

    def _send(self, port: int, *, after: bool = False) -> None:
        if not after:
            self._complete_before = self._complete
        errors: list[BaseException] = []

        def send() -> None:
            try:
                self._complete += self._exchange(port, may_break=self._on_sockets and not after)
            except BaseException as error:
                errors.append(error)

        client = threading.Thread(target=send)
        client.start()
        self._sent += len(BATCH)
        if self._on_sockets and self._fault.persistent and not after:
            until(lambda: not client.is_alive() or self._page.failed >= PERSISTENT_FAILURES, "failures")
            if self._page.failed:
                self._page.release()
        client.join()
        if errors:
            raise errors[0]

    def _exchange(self, port: int, *, may_break: bool) -> int:
        """Send the requests. Returns the number of complete responses. What breaks is a prefix of the response, or an error."""
        complete = 0
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)) as connection:
            for given, expected in BATCH:
                body = json.dumps({"model": "m", "messages": [], **given})
                try:
                    connection.request(
                        "POST", "/v1/chat/completions", body, {"Content-Type": "application/json"}
                    )
                    response = connection.getresponse()
                    try:
                        read, whole = response.read(), True
                    except http.client.IncompleteRead as error:
                        read, whole = error.partial, False
                except (OSError, http.client.HTTPException):
                    if not may_break:
                        raise
                    connection.close()
                    continue
                if may_break and response.status in (502, 504):
                    continue
                assert response.status == 200
                if may_break and not whole:
                    assert expected.startswith(read)
                    connection.close()
                    continue
                assert read == expected
                complete += 1
        return complete
