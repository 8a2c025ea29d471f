"""Hostile clients on a running pipeline with traffic, and what is observed meanwhile.

- Clients are processes (`tests.hostile_sql.client`): most use the SQL port, one uses the query pool of the SQL page.
- A watcher samples pids, memory and freshness: the age of the oldest answered request that a reader does not yet see.
- An ordinary reader repeats queries with known answers over the SQL port.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import httpx

from streamgauge.analytics.query.query_errors import QueryError
from tests.chaos.rig import Run
from tests.deadline import DEADLINE_S, until
from tests.hostile_sql.client import Failed, Options, Reply, by_page, by_port, reply
from tests.hostile_sql.draw import COLUMNS, Catalog, catalog
from tests.hostile_sql.generator import Statement, statement
from tests.hostile_sql.minimise import minimise
from tests.tables import tables

MIB = 2**20
PLANTED = 20
PARTS = ("tap", "analyze", "serve")
TOTALS = (
    "SELECT count(*), sum(output_tokens), sum(output_event_count), bit_xor(hash(stream_id)) FROM streams "
    "WHERE request_id LIKE 'planted-%'"
)
ARITHMETIC = "SELECT sum(range) FROM range(1000)"
RECENT = "SELECT request_id FROM streams WHERE started_at > now() - INTERVAL 3 MINUTE"
MINIMISED = 3
"""Failing statements that are shortened, one for each problem."""
MINIMISE_S = 60.0
BEGIN_S = DEADLINE_S


@dataclass
class Observed:
    """Samples during the run."""

    grown_bytes: dict[str, int] = field(default_factory=dict)
    """Part → the most resident memory above that at the start."""
    stale_s: float = 0.0
    """Worst freshness."""
    ordinary: int = 0
    """Right answers of the ordinary reader."""
    ordinary_s: float = 0.0
    """Its slowest answer."""
    wrong: list[str] = field(default_factory=list)
    """Its wrong answers and errors."""
    late: list[str] = field(default_factory=list)
    """Its answers that reached their time limit."""
    samples: int = 0
    other_cores: float = 0.0
    """Mean number of cores that other processes used. They delay everything that is measured here."""


@dataclass
class Result:
    """Replies of all clients, and what was observed."""

    replies: list[Reply]
    observed: Observed
    took_s: float
    timeout_s: float
    client_crashes: list[Statement] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """Problem, seed, number and shortened statement."""

    @property
    def overrun_s(self) -> float:
        """The latest reply after the time limit."""
        return max((one.took_s - self.timeout_s for one in self.replies), default=0.0)

    def seconds_by_kind(self) -> Counter[str]:
        """Time in which clients waited for replies, rounded."""
        found: Counter[str] = Counter()
        for one in self.replies:
            found[one.kind] += one.took_s  # type: ignore[assignment]
        return Counter({kind: round(seconds) for kind, seconds in found.items()})

    def __str__(self) -> str:
        outcomes = Counter(one.outcome for one in self.replies)
        grown = ", ".join(f"{part} {size / MIB:.0f} MiB" for part, size in self.observed.grown_bytes.items())
        late = sorted(self.replies, key=lambda one: -one.took_s)[:5]
        by = {way: sum(one.by == way for one in self.replies) for way in ("port", "page")}
        return (
            f"{len(self.replies)} statements ({by['port']} by the port, {by['page']} by the page) in {self.took_s:.0f} s: "
            f"{len(self.replies) / self.took_s:.1f}/s\n"
            f"outcomes: {dict(outcomes.most_common())}\n"
            f"answered by kind: {dict(Counter(one.kind for one in self.replies if one.outcome == 'answered'))}\n"
            f"latest end after the limit: {self.overrun_s:.2f} s\n"
            f"longest: {[(one.number, one.by, one.kind, one.outcome, round(one.took_s, 2), one.message[:60]) for one in late]}\n"
            f"seconds by kind: {dict(self.seconds_by_kind())}\n"
            f"cores used by other processes: {self.observed.other_cores:.1f}\n"
            f"freshness at worst: {self.observed.stale_s:.2f} s ({self.observed.samples} samples)\n"
            f"memory grown by at most: {grown}\n"
            f"ordinary reader: {self.observed.ordinary} right answers, slowest {self.observed.ordinary_s:.2f} s, "
            f"{len(self.observed.wrong)} failures {self.observed.wrong[:3]}, {len(self.observed.late)} late\n"
            f"client processes that crashed: {len(self.client_crashes)}\n"
            f"problems: {dict(Counter(one.problem for one in self.replies if one.problem).most_common(20))}"
        )


def attack(
    chaos: Run,
    folder: Path,
    *,
    seed: str,
    statements: int,
    timeout_s: float,
    by_port: int,
    by_page: int,
    deadline_s: float,
) -> Result:
    """Send the statements 0 to `statements` of this seed with so many clients of each way."""
    plant(chaos)
    known = read_catalog(chaos)
    file = folder / "catalog.json"
    file.write_text(json.dumps(known.to_json()))
    ways = ["port"] * by_port + ["page"] * by_page
    begin = threading.Barrier(len(ways))
    clients = [
        _Client(
            folder / f"replies-{place}.jsonl",
            Options(
                data=str(chaos.data),
                catalog=str(file),
                by=way,
                seed=seed,
                numbers=list(range(place, statements, len(ways))),
                timeout_s=timeout_s,
            ),
            begin,
        )
        for place, way in enumerate(ways)
    ]
    began_s = time.monotonic()
    with observing(chaos) as observed:
        for client in clients:
            client.start()
        for client in clients:
            client.join(max(0.0, began_s + deadline_s - time.monotonic()))
    result = Result(
        [one for client in clients for one in client.replies], observed, time.monotonic() - began_s, timeout_s
    )
    result.client_crashes = [
        statement(known, seed, number) for client in clients for number in client.crashed_at
    ]
    result.problems = list(_shortened(chaos, known, seed, result))
    for client in clients:
        assert client.error is None, f"{client.error}\n{result}"
    return result


def plant(chaos: Run) -> None:
    """Store streams whose totals the ordinary reader checks."""
    body = {"model": "any", "stream": True, "messages": [{"role": "user", "content": "x"}]}
    force = json.dumps({"ttft_ms": 5, "gap_ms": 1, "tokens": 8, "fault": "none"})
    for number in range(PLANTED):
        headers = {"x-request-id": f"planted-{number}", "x-simulate": force}
        answer = httpx.post(
            f"{chaos.running.tap}/v1/chat/completions", json=body, headers=headers, timeout=30
        )
        assert answer.status_code == 200
    query = "SELECT count(*) FROM streams WHERE request_id LIKE 'planted-%'"
    until(lambda: tables(chaos.data).query(query).item() == PLANTED, "the planted streams")


def read_catalog(chaos: Run) -> Catalog:
    """The store's tables, as its readers see them."""
    found = tables(chaos.data).query(COLUMNS)
    assert len(found) > 100
    return catalog(found.rows())


class _Client:
    """A client process, restarted behind the statement that crashed it."""

    def __init__(self, log: Path, options: Options, begin: threading.Barrier) -> None:
        """`log`: what the process writes, for those who watch a long run. `begin`: all clients are ready."""
        self._log = log
        self._options = options
        self._process: subprocess.Popen[str] | None = None
        self._thread = threading.Thread(target=self._run)
        self._begin = begin
        self.replies: list[Reply] = []
        self.crashed_at: list[int] = []
        self.error: str | None = None

    def start(self) -> None:
        self._thread.start()

    def join(self, timeout_s: float) -> None:
        """Wait for the last reply. Ends the process after `timeout_s`."""
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self.error = f"{len(self._numbers_left())} statements were not sent in time"
            if self._process is not None:
                self._process.kill()
            self._thread.join()

    def _numbers_left(self) -> list[int]:
        done = {one.number for one in self.replies} | set(self.crashed_at)
        return [number for number in self._options.numbers if number not in done]

    def _run(self) -> None:
        while self.error is None and (numbers := self._numbers_left()):
            started = self._send(numbers)
            if self.error is None and self._numbers_left():
                if started is None:
                    self.error = "a client ended before its first statement"
                else:
                    self.crashed_at.append(started)

    def _wait_for_others(self) -> None:
        with contextlib.suppress(threading.BrokenBarrierError):  # it was passed before, or a client has ended
            self._begin.wait(BEGIN_S)
        self._begin.abort()

    def _send(self, numbers: list[int]) -> int | None:
        started = None
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.hostile_sql.client"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        self._process = process
        assert process.stdin is not None
        assert process.stdout is not None
        with process, self._log.open("a", buffering=1) as log:
            process.stdin.write(json.dumps(asdict(self._options) | {"numbers": numbers}) + "\n")
            process.stdin.flush()
            for line in process.stdout:
                log.write(line)
                message = json.loads(line)
                if "ready" in message:
                    self._wait_for_others()
                    process.stdin.write("\n")
                    process.stdin.close()
                elif "started" in message:
                    started = int(message["started"])
                else:
                    self.replies.append(Reply(**message))
        return started


@contextmanager
def observing(chaos: Run) -> Iterator[Observed]:
    """Sample the pipeline until the block ends."""
    observed, stop = Observed(), threading.Event()
    threads = [threading.Thread(target=work, args=(chaos, observed, stop)) for work in (_watch, _read)]
    for thread in threads:
        thread.start()
    try:
        yield observed
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _watch(chaos: Run, observed: Observed, stop: threading.Event) -> None:
    pids = {part: chaos.pid(part) for part in PARTS}
    before = {part: resident_bytes(pid) for part, pid in pids.items() if pid}
    began_s, used_s, own_s = time.monotonic(), machine_cpu_s(), cpu_s_of_tree(os.getpid())
    while not stop.wait(0.5):
        for part, pid in pids.items():
            if chaos.pid(part) != pid or pid is None:
                observed.wrong.append(f"{part} has another pid")
                return
            grown_bytes = resident_bytes(pid) - before[part]
            observed.grown_bytes[part] = max(observed.grown_bytes.get(part, 0), grown_bytes)
        observed.stale_s = max(observed.stale_s, stale_s(chaos))
        observed.samples += 1
        other_s = machine_cpu_s() - used_s - (cpu_s_of_tree(os.getpid()) - own_s)
        observed.other_cores = max(0.0, other_s / (time.monotonic() - began_s))


def stale_s(chaos: Run) -> float:
    """Age of the oldest answered request that a reader does not see, of the last minutes."""
    now_ns = time.monotonic_ns()
    answered = [
        (row.request_id, row.end_ns)
        for row in list(chaos.traffic.rows.values())
        if row.status == 200
        and row.end_ns
        and not row.aborted
        and row.error is None
        and now_ns - row.started_ns < 120e9
    ]
    try:
        stored = set(tables(chaos.data).query(RECENT).to_series().to_list())
    except QueryError as e:
        raise AssertionError(f"a trusted query failed: {e}") from None
    return max(
        ((now_ns - end_ns) / 1e9 for request_id, end_ns in answered if request_id not in stored), default=0.0
    )


def _read(chaos: Run, observed: Observed, stop: threading.Event) -> None:
    send = by_port(chaos.data)
    expected = {ARITHMETIC: "[(499500,)]", TOTALS: str(tables(chaos.data).query(TOTALS).rows())}
    while not stop.wait(0.3):
        for sql, right in expected.items():
            began_s = time.monotonic()
            try:
                found = send(sql, 20.0)()
            except Failed as e:
                (observed.late if str(e).startswith("too slow") else observed.wrong).append(str(e))
                continue
            observed.ordinary_s = max(observed.ordinary_s, time.monotonic() - began_s)
            if found == right:
                observed.ordinary += 1
            else:
                observed.wrong.append(f"{found} instead of {right}")


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def machine_cpu_s() -> float:
    """CPU time used on the whole machine since its start, with time stolen by its host."""
    user, nice, system, _, _, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def cpu_s_of_tree(pid: int) -> float:
    """CPU time of a process and of all its descendants, living or awaited."""
    found = 0.0
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        found = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        children = [child for task in tasks for child in (task / "children").read_text().split()]
    except OSError:  # it has ended
        return found
    return found + sum(cpu_s_of_tree(int(child)) for child in children)


def is_idle(chaos: Run, within_s: float = 1.0) -> bool:
    """Whether the SQL server and its children use less than a tenth of a core: no statement runs on."""
    pid = chaos.pid("serve")
    assert pid is not None
    before_s = cpu_s_of_tree(pid)
    time.sleep(within_s)
    return cpu_s_of_tree(pid) - before_s < 0.1 * within_s


def _shortened(chaos: Run, known: Catalog, seed: str, result: Result) -> Iterator[str]:
    """One example of each problem. The first ones are shortened, as long as they fail again."""
    examples: dict[str, Reply] = {}
    for one in result.replies:
        if one.problem:
            examples.setdefault(one.problem, one)
    ways = {"port": by_port, "page": by_page}
    for place, (problem, one) in enumerate(examples.items()):
        whole = statement(known, seed, one.number)
        text = f"{problem}: {whole}\n  reply by the {one.by} after {one.took_s:.2f} s: {one.outcome} {one.message}"
        if place < MINIMISED:
            send, until_s = ways[one.by](chaos.data), time.monotonic() + MINIMISE_S

            def fails(sql: str, problem: str = problem, send=send, until_s: float = until_s) -> bool:  # type: ignore[no-untyped-def]
                return time.monotonic() < until_s and reply(send, sql, result.timeout_s, [])[3] == problem

            if fails(whole.sql):
                text += f"\n  shortened: {minimise(whole.sql, fails)!r}"
        yield text
