"""Reading callgrind's files."""

from __future__ import annotations

from pathlib import Path

from bench.instructions import callgrind

DUMP = """\
# callgrind format
version: 1
desc: Trigger: Client Request: a case
events: Ir
ob=/lib/one.so
fn=first
10 5
cob=/lib/two.so
cfn=second
calls=3 0
+1 700
+2 6

ob=/lib/two.so
fn=second
* 11
totals: 22
"""


def test_instructions_count_for_the_library_that_contains_them(tmp_path: Path) -> None:
    (dump := tmp_path / "callgrind.1").write_text(DUMP)
    assert callgrind.by_library(dump) == {"/lib/one.so": 11, "/lib/two.so": 11}
    assert callgrind.name_of(dump) == "a case"
