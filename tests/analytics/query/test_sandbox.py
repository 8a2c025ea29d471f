"""Rights of a confined process, tested in a real one."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.deadline import DEADLINE_S

TRY = """
import json, os, resource, socket, sys, threading
from streamgauge.analytics.query import sandbox

given = json.loads(sys.argv[1])
abi = sandbox.confine(
    readable=given["readable"], writable=given["writable"], network=False, bind_port=given["port"]
)
found = {"abi": abi, "oom": int(open("/proc/self/oom_score_adj").read())}

def attempt(name, action):
    def run():
        try:
            action()
            found[name] = "allowed"
        except OSError as e:
            found[name] = "denied"
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()

attempt("read_allowed", lambda: open(given["readable"][0] + "/file").read())
attempt("write_read_only", lambda: open(given["readable"][0] + "/new", "w"))
attempt("read_other", lambda: open(given["other"] + "/file").read())
attempt("list_other", lambda: os.listdir(given["other"]))
attempt("write_allowed", lambda: open(given["writable"][0] + "/new", "w").write("x"))
attempt("execute", lambda: os.execv("/bin/true", ["true"]))
attempt("parent_environment", lambda: open(f"/proc/{os.getppid()}/environ").read())
attempt("connect", lambda: socket.create_connection(("127.0.0.1", given["listening"])))
attempt("bind_other", lambda: socket.create_server(("127.0.0.1", 0)))
attempt("bind_allowed", lambda: socket.create_server(("127.0.0.1", given["port"])))
sandbox.limit(memory_bytes=300 * 2**20, file_bytes=1000)
sandbox.allow_cpu(5)
try:
    bytearray(400 * 2**20)
    found["memory"] = "allowed"
except MemoryError:
    found["memory"] = "denied"
bytearray(100 * 2**20)
long = given["writable"][0] + "/long"
attempt("long_file", lambda: [open(long, "ab", buffering=0).write(b"x" * 1000) for _ in range(2)])
found["core"] = resource.getrlimit(resource.RLIMIT_CORE)
found["cpu"] = resource.getrlimit(resource.RLIMIT_CPU)[0]
print(json.dumps(found))
"""


@pytest.fixture
def found(tmp_path: Path) -> dict[str, Any]:
    folders = {name: tmp_path / name for name in ("readable", "writable", "other")}
    for folder in folders.values():
        folder.mkdir()
        (folder / "file").write_text("text")
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
        probe.close()
        given = {
            "readable": [str(folders["readable"])],
            "writable": [str(folders["writable"])],
            "other": str(folders["other"]),
            "listening": listening.getsockname()[1],
            "port": port,
        }
        done = subprocess.run(
            [sys.executable, "-c", TRY, json.dumps(given)],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_files_network_and_resources_are_limited(found: dict[str, Any]) -> None:
    assert found["read_allowed"] == "allowed"
    assert found["oom"] >= 500
    assert found["memory"] == "denied"
    assert found["long_file"] == "denied"
    assert found["core"] == [0, 0]
    assert 5 <= found["cpu"] <= 8
    if not found["abi"]:
        pytest.skip("this kernel has no Landlock")
    for name in ("write_read_only", "read_other", "list_other", "execute", "parent_environment"):
        assert found[name] == "denied", name
    assert found["write_allowed"] == "allowed"
    if found["abi"] >= 4:
        assert (found["connect"], found["bind_other"], found["bind_allowed"]) == (
            "denied",
            "denied",
            "allowed",
        )
