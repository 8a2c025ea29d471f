"""Native code checks its arguments: a wrong one raises, and never ends the process."""

from __future__ import annotations

import subprocess
import sys

import pytest

from streamgauge.ingest.http1 import heads
from streamgauge.ingest.tap.relay.choice import native_relay

PROGRAM = """
import faulthandler, random, sys
from streamgauge.ingest.tap.process import worker

faulthandler.enable()
random.seed(34)
ODD = (None, -1, 0, 1, 10**6, 2**31, 2**63 - 1, 2**64, 1.5, True, b"", b"HTTP/1.1 200 OK\\r\\n\\r\\n", "x", (), [], {}, object(), object)
calls = 0

def call(function):
    global calls
    for count in range(14):
        for values in [[value] * count for value in ODD] + [random.choices(ODD, k=count) for _ in range(60)]:
            try:
                function(*values)
            except Exception:
                pass
            calls += 1

modules = [m for name, m in sys.modules.items() if name.startswith("streamgauge.ingest.") and m.__file__.endswith(".so")]
for module in modules:
    for name, value in list(vars(module).items()):
        if isinstance(value, type) and value.__module__ == module.__name__:
            call(value)
            try:
                made = value.__new__(value)
            except Exception:
                continue
            for member in dir(made):
                if not member.startswith("__"):
                    try:
                        method = getattr(made, member)
                    except Exception:
                        continue
                    if callable(method):
                        call(method)
        elif type(value).__name__ == "builtin_function_or_method" and getattr(value, "__module__", "") == module.__name__:
            call(value)
print(calls, *(module.__name__ for module in modules))
"""


@pytest.mark.skipif(native_relay is None, reason="the native relay is not built: no C compiler")
def test_wrong_arguments_never_end_the_process():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-3000:]
    calls, *modules = done.stdout.split()
    assert int(calls) > 10_000
    assert {heads.__name__, native_relay.__name__} <= {*modules}
