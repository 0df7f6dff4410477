"""The picture of a comparison, from a summary as `prism compare` writes it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "python/prism/compare.py"


def row(variant, item, **figures):
    spread = {name: {"mean": value, "deviation": None, "values": [value]} for name, value in figures.items()}
    return {"variant": variant, "mixer": "prism", "item": item, "finished": 1, "planned": 1, "figures": spread}


SUMMARIES = {
    "recommendation": [row("prism", "", **{"test NDCG@10": 0.1, "positions_per_second": 5e4, "markov test NDCG@10": 0.07}),
                       {**row("late", ""), "finished": 0}],
    "probe": [row("prism", "parity", accuracy=1.0, chance=0.5), row("attention", "parity", accuracy=0.52, chance=0.5),
              row("prism", "mux", accuracy=0.98, chance=0.5), row("attention", "mux")],
    "speed": [row("prism", "2048", train_tokens_per_second=1e5, forward_tokens_per_second=3e5),
              row("prism", "4096", train_tokens_per_second=1e5, forward_tokens_per_second=3e5), row("slow", "2048")],
}


@pytest.mark.parametrize("task", SUMMARIES)
def test_picture(task, tmp_path):
    pytest.importorskip("matplotlib", reason="skipped: no matplotlib package")
    (tmp_path / "summary.json").write_text(json.dumps({"task": task, "rows": SUMMARIES[task]}))
    subprocess.run([sys.executable, SCRIPT, tmp_path], check=True, capture_output=True)
    assert (tmp_path / "compare.png").read_bytes().startswith(b"\x89PNG")


def test_nothing_finished_is_said(tmp_path):
    pytest.importorskip("matplotlib", reason="skipped: no matplotlib package")
    (tmp_path / "summary.json").write_text(json.dumps({"task": "probe", "rows": [{**row("a", "mux"), "finished": 0}]}))
    done = subprocess.run([sys.executable, SCRIPT, tmp_path], capture_output=True, text=True)
    assert done.returncode != 0
    assert "no finished cell" in done.stderr
