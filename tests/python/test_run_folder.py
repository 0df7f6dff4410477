"""A run folder read with the Python packages that its formats come from."""

import json
import os
import random
import subprocess
import tomllib
from pathlib import Path

import pytest

PROGRAM = Path(os.environ.get("PRISM_PROGRAM", Path(__file__).parents[2] / "build/release/bin/prism"))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A small model trained for three epochs."""
    if not PROGRAM.exists():
        pytest.skip(f"skipped: {PROGRAM} is not built (PRISM_PROGRAM names another)")
    folder = tmp_path_factory.mktemp("run")
    numbers = random.Random(1)
    log = folder / "log.csv"
    rows = ["user_id,item_id,timestamp"]
    for user in range(60):
        start = numbers.randrange(20)
        rows += [f"u{user},i{(start + t) % 20},{t}" for t in range(12)]
    log.write_text("\n".join(rows) + "\n")
    flags = "--width 16 --heads 2 --blocks 1 --max-length 8 --batch-size 16 --epochs 3 --warmup 0 --quiet"
    subprocess.run([PROGRAM, "train", log, "--out", folder / "run", *flags.split()], check=True, capture_output=True)
    return folder / "run"


def rows_of(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_checkpoints_open_with_safetensors(run):
    safetensors = pytest.importorskip("safetensors", reason="skipped: no safetensors package")
    for name in ("last", "best"):
        with safetensors.safe_open(run / f"checkpoints/{name}.safetensors", "np") as file:
            metadata = file.metadata()
            assert metadata["format"] == "prism-checkpoint"
            assert metadata["format_version"] == "1"
            assert json.loads(metadata["settings"])["model"]["width"] == 16
            table = file.get_tensor("model.item_embedding")
            moments = [key for key in file.keys() if key.startswith("optimiser.")]
            assert json.loads(metadata["state"])["state"]["step"] > 0
            assert file.get_tensor("item_counts").sum() == 60 * 10
        assert table.shape == (20, 16)
        assert (len(moments) > 0) == (name == "last")


def test_events_open_with_tensorboard(run):
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="skipped: no tensorboard package")
    events = accumulator.EventAccumulator(str(run))
    events.Reload()
    epochs = [row for row in rows_of(run) if row["kind"] == "epoch"]
    scalars = events.Scalars("epoch/loss")
    assert [s.step for s in scalars] == [row["step"] for row in epochs]
    assert [s.value for s in scalars] == pytest.approx([row["loss"] for row in epochs], rel=1e-6)
    assert "valid/NDCG@10" in events.Tags()["scalars"]


def test_logs_and_config_are_plain_json_and_toml(run):
    rows = rows_of(run)
    assert [row["epoch"] for row in rows if row["kind"] == "epoch"] == [1, 2, 3]
    assert tomllib.loads((run / "config.toml").read_text())["train"]["epochs"] == 3
    results = json.loads((run / "results.json").read_text())
    assert set(results["test"]) == {"model", "popularity", "markov"}
    assert (run / "items.txt").read_text().splitlines()[0].startswith("i")


def test_report_makes_a_page_and_pictures(run):
    pytest.importorskip("matplotlib", reason="skipped: no matplotlib package")
    script = Path(__file__).parents[2] / "python/prism/report.py"
    subprocess.run([os.sys.executable, script, run], check=True, capture_output=True)
    page = (run / "report/index.html").read_text()
    for picture in ("learning.png", "baselines.png"):
        assert picture in page
        assert (run / "report" / picture).read_bytes().startswith(b"\x89PNG")
