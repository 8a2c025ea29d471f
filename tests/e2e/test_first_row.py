"""From a fresh clone to the first row with a running LiteLLM: the three commands of docs/how-to/own-gateway.md."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path

import pytest

from tests.e2e.running import ROOT, litellm
from tests.e2e.test_recipes import HOW_TO, follow, skip_unless_the_ports_are_free, steps

CONFIG = """
model_list:
  - model_name: gpt-5-mini
    litellm_params: {model: openai/gpt-5-mini, api_key: none, mock_response: "The river runs quietly past the old mill."}
general_settings: {master_key: sk-test}
"""
PROMISED_S = 180
(SECTION,) = re.findall(r"^## First row\n(.*?)(?=^## )", (HOW_TO / "own-gateway.md").read_text(), re.M | re.S)


def test_first_row_takes_three_commands() -> None:
    assert len(steps(SECTION)) == 3


@pytest.mark.slow
@pytest.mark.litellm
def test_clone_to_first_row_takes_at_most_three_minutes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The time depends on package cache and processor, so it is printed."""
    skip_unless_the_ports_are_free((4000, 4100, 4101, 4102, 8501))
    with litellm(CONFIG, tmp_path, port=4000):
        began_s = time.monotonic()
        clone = tmp_path / "clone"
        subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
        follow(SECTION, clone, deadline_s=PROMISED_S, KEY="sk-test")
        took_s = time.monotonic() - began_s
    with capsys.disabled():
        print(f"\nfrom a clone to the first row: {took_s:.0f} s")
    assert took_s < PROMISED_S
