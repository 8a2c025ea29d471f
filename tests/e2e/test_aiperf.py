"""AIPerf loads exported traces, computes the prefix hits that we do, and replays them against the simulator."""

from __future__ import annotations

import json
import os
import re
import subprocess
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest

from streamgauge.analytics.measures.measure import measure
from streamgauge.analytics.measures.session_prompts import SessionPrompts
from streamgauge.analytics.measures.sessions import Sessions
from streamgauge.analytics.query.reader import Reader
from streamgauge.analytics.reports.prefixes import Prefixes
from streamgauge.analytics.reports.stored_prompts import prompts
from streamgauge.analytics.storage.commit import Commit
from streamgauge.analytics.storage.location import locate
from streamgauge.commands.trace_export import export_trace
from streamgauge.ingest.keyed_ids import RECORDED_AGENT
from tests import aiperf
from tests.analytics.prompts import chat_usage, finished, prompt_of, request
from tests.analytics.stores import new_store
from tests.e2e.running import simulator

pytestmark = aiperf.MARKS
BLOCK = 64
NAME = "tests/bpe"
HITS = """
import sys
from pathlib import Path
from aiperf.dataset.loader.weka_trace import WekaTraceLoader
loader = WekaTraceLoader.__new__(WekaTraceLoader)
loader._user_block_size_override = None
loader._fixed_schedule_start_offset = loader._fixed_schedule_end_offset = loader._max_isl = None
loader._path = Path(sys.argv[1])
plans = loader._build_reconstruction_plans(loader.load_dataset())
values = loader._build_shared_metric_values(plans.parent_plans, plans.child_plans, plans.flat_plans)
pairs = [pair for of_trace in values.values() for pair in of_trace.values()]
print(len(pairs), sum(hit for hit, _ in pairs), sum(total for _, total in pairs))
"""
"""What the report of a replay calls Theoretical Prefix Cache Hit, over all requests of a folder."""
TOKENIZER = """
import sys
from pathlib import Path
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast
import aiperf
tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
alphabet = pre_tokenizers.ByteLevel.alphabet()
trainer = trainers.BpeTrainer(vocab_size=4000, special_tokens=["<|end|>"], initial_alphabet=alphabet)
tokenizer.train([str(file) for file in Path(aiperf.__file__).parent.rglob("*.txt")], trainer)
PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", bos_token="<|end|>").save_pretrained(sys.argv[1])
"""


def python(script: str, *argv: str) -> str:
    return subprocess.run(
        [str(aiperf.PYTHON), "-c", script, *argv], check=True, capture_output=True, text=True
    ).stdout


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment with a cache of the hub that has a tokenizer, without network. AIPerf's workers read no folder."""
    cache, revision = tmp_path_factory.mktemp("hub"), "0" * 40
    repository = cache / f"models--{NAME.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(revision)
    python(TOKENIZER, str(repository / "snapshots" / revision))
    return {**os.environ, "HF_HUB_CACHE": str(cache), "HF_HUB_OFFLINE": "1"}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sessions of agents with changed prompts, and subagents."""
    rng, asked, number = Random(7), [], 0
    for session in range(8):
        for agent in (None, f"sub-{session}"):
            begin_s = session * 0.5 + (0.3 if agent else 0)
            tools = rng.choice((3, 4))
            for turn in range(rng.randint(1, 5)):
                number += 1
                prompt = prompt_of(turn, tools=tools, system="s" * rng.choice((900, 900, 950)))
                more: dict[str, Any] = {"headers": [(RECORDED_AGENT, agent)]} if agent else {}
                tokens = sum(one.size for one in prompt) // 4 + rng.randint(0, 30)
                asked.append(
                    request(number, prompt, session=f"session-{session}", usage=chat_usage(tokens, None), at_s=begin_s + 0.1 * turn, **more)
                )  # fmt: skip
    folder = tmp_path_factory.mktemp("data")
    with closing(new_store(folder)) as store:
        store.commit(
            Commit("", tables=measure(finished(*asked), prompts=SessionPrompts(), sessions=Sessions()))
        )
    return folder


def export(data: Path, form: str, path: Path) -> dict[str, Any]:
    return export_trace(
        locate("sqlite", data), form, path, since=None, until=None, block_size=BLOCK, by_session=False
    )


def available(data: Path) -> tuple[int, int, int]:
    """Requests, available blocks without a lifetime within each conversation, and all blocks."""
    with closing(Reader(locate("sqlite", data))) as reader:
        rows = reader.query(
            "SELECT stream_id::VARCHAR AS stream_id, coalesce(parent_session_id, session_id) AS root, input_tokens "
            "FROM streams ORDER BY started_at",
            10_000, 60,
        ).to_dicts()  # fmt: skip
        known = prompts(lambda sql: reader.query(sql, 10_000, 60), [row["stream_id"] for row in rows])
    prefixes, hit, total = dict[str, Prefixes](), 0, 0
    for row in rows:
        of_root = prefixes.setdefault(row["root"], Prefixes())
        hit += of_root.add(known[row["stream_id"]], row["input_tokens"]).available // BLOCK
        total += row["input_tokens"] // BLOCK
    return len(rows), hit, total


def replay(hub: dict[str, str], artifacts: Path, *argv: str) -> dict[str, Any]:
    """The report of a replay against the simulator."""
    with simulator("--rate-faults", "0", "--time-scale", "0.05") as url:
        done = subprocess.run(
            [str(aiperf.AIPERF), "profile", "-m", "gpt-sim-mini", "--url", url, "--endpoint-type", "chat", "--streaming", "--ui", "none",
             "--tokenizer", NAME, "--artifact-dir", str(artifacts), *argv],
            env=hub, capture_output=True, text=True,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
    found: dict[str, Any] = json.loads((artifacts / "profile_export_aiperf.json").read_text())
    return found


def test_prefix_hits_of_a_weka_trace_are_what_is_available(data: Path, tmp_path: Path) -> None:
    export(data, "weka", tmp_path / "trace")
    requests, hit, total = map(int, python(HITS, str(tmp_path / "trace")).split()[-3:])
    assert (requests, total) == available(data)[::2]
    assert 100 * hit / total == pytest.approx(100 * available(data)[1] / total, abs=2)
    assert hit > total / 4


def test_replayed_weka_trace_has_all_requests(data: Path, hub: dict[str, str], tmp_path: Path) -> None:
    about = export(data, "weka", tmp_path / "trace")
    found = replay(
        hub, tmp_path / "out", "--custom-dataset-type", "weka_trace", "--input-file", str(tmp_path / "trace"),
        "--concurrency", str(about["conversations"]), "--request-count", str(about["requests"]),
    )  # fmt: skip
    assert found["request_count"]["avg"] == about["requests"]
    assert found["theoretical_prefix_cache_hit"]["avg"] > 25


def test_mooncake_trace_is_analysed_and_replayed_with_its_lengths(
    data: Path, hub: dict[str, str], tmp_path: Path
) -> None:
    about = export(data, "mooncake", trace := tmp_path / "trace.jsonl")
    argv = [str(aiperf.AIPERF), "analyze-trace", str(trace), "--block-size", str(BLOCK)]
    text = subprocess.run(argv, check=True, capture_output=True, text=True).stdout
    requests = re.search(r"Total requests: +(\d+)", text)
    assert requests is not None
    assert int(requests[1]) == about["requests"]
    found = replay(
        hub, tmp_path / "out", "--custom-dataset-type", "mooncake_trace", "--input-file", str(trace), "--fixed-schedule",
        "--isl-block-size", str(BLOCK),
    )  # fmt: skip
    assert found["request_count"]["avg"] == about["requests"]
    lengths = [json.loads(line)["input_length"] for line in trace.read_text().splitlines()]
    assert found["input_sequence_length"]["avg"] == pytest.approx(sum(lengths) / len(lengths), rel=0.05)
