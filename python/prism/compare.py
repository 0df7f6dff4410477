#!/usr/bin/env python3
"""The picture of a comparison: `prism compare` draws it, `prism report FOLDER` or `python compare.py FOLDER` again.

Reads summary.json and writes compare.png beside it. Needs matplotlib.
"""

import argparse
import json
import sys
from pathlib import Path

try:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
except ImportError:
    sys.exit("compare: matplotlib is not installed for this Python; pip install matplotlib (./run build does)")

sys.path.insert(0, str(Path(__file__).parent))
from report import INK, MARKOV, MUTED, POPULARITY, STYLE  # noqa: E402


def figure_of(row, name, part="mean"):
    """A figure of a row; None where it was not measured."""
    return row["figures"].get(name, {}).get(part)


def color_of(place, count):
    return plt.get_cmap("viridis")(0.05 + 0.85 * place / max(count - 1, 1))


def draw_recommendation(rows, figure):
    """Accuracy with its spread over seeds, and against speed."""
    rows = [row for row in rows if row["finished"]]
    left, right = figure.subplots(1, 2, width_ratios=[3, 2])
    names = [row["variant"] for row in rows]
    means = [figure_of(row, "test NDCG@10") for row in rows]
    spread = [figure_of(row, "test NDCG@10", "deviation") or 0 for row in rows]
    colors = [color_of(i, len(rows)) for i in range(len(rows))]
    places = range(len(rows))
    left.barh(places, means, xerr=spread, color=colors, error_kw={"ecolor": INK, "elinewidth": 0.9, "capsize": 2})
    for place, mean in zip(places, means):
        left.annotate(f" {mean:.4f}", (0, place), va="center", fontsize=8, color="white")
    for name, color in (("markov", MARKOV), ("popularity", POPULARITY)):
        value = figure_of(rows[0], f"{name} test NDCG@10") if rows else None
        if value is not None:
            left.axvline(value, color=color, linestyle="--", linewidth=1.2, label=name)
    left.set_yticks(places, names)
    left.invert_yaxis()
    left.grid(axis="y", visible=False)
    left.set_title("Test NDCG@10, mean and deviation over seeds")
    left.legend(loc="lower right")
    for row, mean, color in zip(rows, means, colors):
        right.plot(figure_of(row, "positions_per_second"), mean, "o", color=color, markersize=8)
        right.annotate(row["variant"], (figure_of(row, "positions_per_second"), mean), fontsize=7.5, color=MUTED,
                       textcoords="offset points", xytext=(5, 4))
    right.set_title("NDCG@10 and training speed")
    right.set_xlabel("positions/s")
    right.margins(x=0.3, y=0.15)


def draw_probe(rows, figure):
    """Accuracies as a table of colours: probes down, variants across."""
    items = list(dict.fromkeys(row["item"] for row in rows))
    variants = list(dict.fromkeys(row["variant"] for row in rows))
    found = {(row["item"], row["variant"]): row for row in rows}
    axes = figure.subplots()
    nothing = float("nan")
    values = [[figure_of(found[i, v], "accuracy") if (i, v) in found else None for v in variants] for i in items]
    axes.imshow([[nothing if v is None else v for v in line] for line in values], vmin=0, vmax=1, cmap="viridis",
                aspect="auto")
    for y, (item, line) in enumerate(zip(items, values)):
        for x, (variant, value) in enumerate(zip(variants, line)):
            if value is None:
                continue
            deviation = figure_of(found[item, variant], "accuracy", "deviation")
            text = f"{value:.2f}" if deviation is None else f"{value:.2f} ±{deviation:.2f}"
            axes.text(x, y, text, ha="center", va="center", fontsize=8, color="white" if value < 0.6 else INK)
    chances = [next((c for v in variants if (c := figure_of(found[i, v], "chance")) is not None), None) for i in items]
    labels = [item if c is None else f"{item} (chance {c:.2f})" for item, c in zip(items, chances)]
    axes.set_yticks(range(len(items)), labels)
    axes.set_xticks(range(len(variants)), variants, rotation=30, ha="right")
    axes.grid(visible=False)
    axes.set_title("Accuracy on the last position")


def draw_speed(rows, figure):
    """Tokens a second by length, in training and reading."""
    variants = list(dict.fromkeys(row["variant"] for row in rows))
    parts = (("train_tokens_per_second", "Training, tokens/s"), ("forward_tokens_per_second", "Forward, tokens/s"))
    for axes, (name, title) in zip(figure.subplots(1, 2), parts):
        for place, variant in enumerate(variants):
            points = [(int(row["item"]), figure_of(row, name)) for row in rows
                      if row["variant"] == variant and figure_of(row, name)]
            if points:
                axes.plot(*zip(*points), color=color_of(place, len(variants)), marker="o", markersize=4, label=variant)
        lengths = sorted({int(row["item"]) for row in rows})
        axes.set(title=title, xlabel="tokens of a sequence", xscale="log", yscale="log")
        axes.set_xticks(lengths, [f"{n // 1024}K" if n % 1024 == 0 else str(n) for n in lengths])
        axes.minorticks_off()
        axes.legend(fontsize=8)


DRAW = {"recommendation": draw_recommendation, "probe": draw_probe, "speed": draw_speed}


def make_picture(folder):
    """Writes the picture of the comparison in `folder` and returns its path."""
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    rows = summary["rows"]
    if not any(row["finished"] for row in rows):
        sys.exit(f"compare: {folder} has no finished cell yet")
    plt.rcParams.update(STYLE)
    variants = len({row["variant"] for row in rows})
    items = len({row["item"] for row in rows})
    height = {"recommendation": 1.6 + 0.32 * variants, "probe": 2 + 0.38 * items, "speed": 4}[summary["task"]]
    width = max(9.6, 3 + 1.1 * variants) if summary["task"] == "probe" else 10.5
    figure = plt.figure(figsize=(width, max(height, 3)), constrained_layout=True)
    DRAW[summary["task"]](rows, figure)
    path = folder / "compare.png"
    figure.savefig(path)
    plt.close(figure)
    return path


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder of prism compare")
    parser.add_argument("--json", action="store_true", help="say where the picture is as JSON")
    arguments = parser.parse_args()
    picture = make_picture(arguments.folder)
    print(json.dumps({"picture": str(picture)}) if arguments.json else picture)


if __name__ == "__main__":
    main()
