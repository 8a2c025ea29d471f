"""The files with the state of open WebSockets are private, bounded, and belong to one checkpoint each."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamgauge.analytics.storage import websocket_states
from streamgauge.analytics.storage.websocket_states import WebSocketStates


def test_state_belongs_to_its_checkpoint_until_the_next_one_is_committed(tmp_path: Path) -> None:
    states = WebSocketStates(tmp_path / "states")
    assert states.save("s", b"first", b"one")
    states.committed([])
    assert states.save("s", b"second", b"two")
    killed = WebSocketStates(tmp_path / "states")
    assert killed.load("s", b"first") == b"one"
    killed.committed([])
    assert killed.load("s", b"second") is None
    assert killed.load("t", b"first") is None


def test_files_are_private_and_end_with_their_streams(tmp_path: Path) -> None:
    states = WebSocketStates(tmp_path / "states")
    for stream in "st":
        assert states.save(stream, b"checkpoint", b"state")
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "states").iterdir()} == {0o600}
    assert (tmp_path / "states").stat().st_mode & 0o777 == 0o700
    states.committed(["s"])
    assert len(list((tmp_path / "states").iterdir())) == 1
    # `t` ended in a commit after which the process was killed.
    WebSocketStates(tmp_path / "states").committed([])
    assert not list((tmp_path / "states").iterdir())


def test_damaged_state_is_none(tmp_path: Path) -> None:
    states = WebSocketStates(tmp_path)
    assert states.save("s", b"checkpoint", b"state")
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    for damaged in (b"", whole[:-1], whole + b"x", whole[:-1] + b"f", b"x" + whole[1:]):
        path.write_bytes(damaged)
        assert states.load("s", b"checkpoint") is None
    path.write_bytes(whole)
    assert states.load("s", b"checkpoint") == b"state"


def test_states_beyond_the_limit_and_on_a_full_disk_are_not_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket_states, "MAX_STATE_BYTES", 8)
    states = WebSocketStates(tmp_path)
    assert states.save("s", b"c", b"state")
    assert not states.save("t", b"c", b"state")
    states.committed(["s"])
    assert states.save("t", b"c", b"state")
    (tmp_path / next(tmp_path.iterdir()).name).unlink()
    tmp_path.rmdir()
    states.committed(["t"])
    assert not states.save("u", b"c", b"state")
