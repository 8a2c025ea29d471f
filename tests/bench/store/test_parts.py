"""Gates and tables of `bench store`, from results as the scripts print them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from bench.store import parts
from bench.store.trees import Failed, Tree

TREES = [Tree("current", Path("current"), "a"), Tree("parent", Path("parent"), "b")]
GIVEN = argparse.Namespace(
    rounds=3, streams=10, rates=[10.0, 20_000.0], seconds=1.0, dashboard=False, commits=2, bytes_events=10
)


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, str], dict[str, Any]]:
    """Results by script and tree."""
    found: dict[tuple[str, str], dict[str, Any]] = {}

    def run(self: Tree, script: str, *arguments: object) -> dict[str, Any]:
        return found[self.name, f"{script} {arguments[0]}" if script == "live" else script]

    monkeypatch.setattr(Tree, "run", run)
    return found


def missed(found: parts.Found) -> list[str]:
    return [line for line in found.lines if "**missed**" in line]


@pytest.mark.parametrize(("rate", "misses"), [(95.0, 0), (80.0, 1)])
def test_backlog_must_reach_nine_tenths_of_the_parent(
    results: dict[tuple[str, str], dict[str, Any]], rate: float, misses: int
) -> None:
    results |= {
        ("current", "backlog"): {"events_per_s": rate},
        ("parent", "backlog"): {"events_per_s": 100.0},
    }
    assert len(missed(parts.backlog(TREES, GIVEN))) == misses


def live_results(cores: float, p99_s: float) -> dict[tuple[str, str], dict[str, Any]]:
    loaded = {"streams": 1000.0, "p50_s": 0.1, "p99_s": 0.2, "max_s": 3.0, "analytics_cores": 0.5}
    few = {**loaded, "streams": 3.0, "p99_s": 9.0, "analytics_cores": 0.01}
    return {
        **{(tree, "live 0"): {"analytics_cores": 0.01} for tree in ("current", "parent")},
        **{(tree, "live 10.0"): few for tree in ("current", "parent")},
        ("parent", "live 20000.0"): loaded,
        ("current", "live 20000.0"): {**loaded, "analytics_cores": cores, "p99_s": p99_s},
    }


@pytest.mark.parametrize(("cores", "p99_s", "misses"), [(0.6, 1.4, 0), (0.7, 1.4, 1), (0.7, 1.6, 2)])
def test_live_has_gates_for_freshness_and_cores(
    results: dict[tuple[str, str], dict[str, Any]], cores: float, p99_s: float, misses: int
) -> None:
    results |= live_results(cores, p99_s)
    assert len(missed(parts.live(TREES, GIVEN))) == misses


def test_commit_lists_each_method_by_streams(results: dict[tuple[str, str], dict[str, Any]]) -> None:
    took = {"1": {"cpu_ms": 10.0, "wall_ms": 11.0}}
    results |= {
        ("current", "commit"): {"commit": took, "insert": took},
        ("parent", "commit"): {"commit": took},
    }
    lines = parts.commit(TREES, GIVEN).lines
    assert lines[-1] == "| 1 stream | 10.0 / 11.0 | 10.0 / 11.0 | 10.0 / 11.0 |"


def test_tree_without_an_interpreter_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(Failed, match=r"has no \.venv"):
        Tree.of("parent", tmp_path)


def test_failed_script_is_reported_with_its_exit_code(tmp_path: Path) -> None:
    (tmp_path / ".venv").symlink_to(Path(__file__).parents[3] / ".venv")
    with pytest.raises(Failed, match=r"backlog in .* failed \(exit code 1\)"):
        Tree("parent", tmp_path, "").run("backlog", 1)
