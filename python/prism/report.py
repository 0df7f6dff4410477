#!/usr/bin/env python3
"""A page and pictures about one training run: `prism report RUN`, or `python report.py RUN`.

Reads config.toml, dataset.json, metrics.jsonl and (once training has ended) results.json, and writes
report/index.html with learning.png and baselines.png beside it. Needs matplotlib.
"""

import argparse
import html
import json
import sys
import tomllib
from pathlib import Path

try:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
except ImportError:
    sys.exit("report: matplotlib is not installed for this Python; pip install matplotlib (./run build does)")

INK, MUTED, GRID = "#1f2933", "#7b8794", "#e4e7eb"
MODEL, MARKOV, POPULARITY = "#2563a8", "#d98324", "#9aa5b1"
BASELINES = {"markov": ("Markov", MARKOV), "popularity": ("popularity", POPULARITY)}
COUNTS = {"length_min": "shortest history", "length_median": "median history", "length_max": "longest history"}
CHOSEN = ("HR@10", "NDCG@10", "HR@20", "NDCG@20", "MRR")

STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.edgecolor": GRID,
    "axes.labelcolor": MUTED,
    "axes.titlecolor": INK,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "legend.frameon": False,
    "figure.dpi": 160,
}

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title><style>
body {{ font: 15px/1.55 system-ui, "DejaVu Sans", sans-serif; color: #1f2933; background: #fff; max-width: 960px;
       margin: 2.5rem auto; padding: 0 1.25rem; }}
h1 {{ font-size: 1.6rem; margin: 0 0 .2rem; }} h2 {{ font-size: 1.1rem; margin: 2.2rem 0 .6rem; }}
.muted {{ color: #7b8794; }} img {{ width: 100%; height: auto; }}
.cards {{ display: flex; flex-wrap: wrap; gap: .8rem; margin: 1.2rem 0; }}
.card {{ border: 1px solid #e4e7eb; border-radius: 8px; padding: .7rem 1rem; min-width: 6.9rem; }}
.card b {{ display: block; font-size: 1.45rem; }} .card span {{ color: #7b8794; font-size: .85rem; }}
.warn {{ border-left: 4px solid #c0392b; padding: .5rem .9rem; background: #fdf1ef; }}
table {{ border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }}
th, td {{ text-align: right; padding: .32rem .6rem; border-bottom: 1px solid #e4e7eb; }}
th:first-child, td:first-child {{ text-align: left; }} th {{ color: #7b8794; font-weight: 600; }}
tr.model td {{ font-weight: 600; color: #2563a8; }}
.settings {{ columns: 2; column-gap: 2.5rem; }}
.settings section {{ break-inside: avoid; margin-bottom: 1.1rem; }}
.settings h3 {{ font-size: .9rem; margin: 0 0 .2rem; color: #7b8794; }}
.settings td {{ padding: .12rem .2rem; }} .settings td:last-child {{ overflow-wrap: anywhere; }}
</style></head><body>
<h1>{title}</h1><div class="muted">{subtitle}</div>
{body}
</body></html>
"""


def read_rows(path):
    """The rows of metrics.jsonl; a last line that is still being written is left out."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return rows


def read_json(path):
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def draw_learning(rows, results, metric, path):
    """Training loss beside the validation metric, with the baselines as lines."""
    epochs = [row for row in rows if row["kind"] == "epoch"]
    valid = [row for row in epochs if "valid" in row]
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.6, 3.4), constrained_layout=True)
    marker = "o" if len(epochs) < 40 else None
    left.plot([r["epoch"] for r in epochs], [r["loss"] for r in epochs], color=MODEL, marker=marker, markersize=3.5)
    left.set(title="Training loss", xlabel="epoch")
    right.plot([r["epoch"] for r in valid], [r["valid"][metric] for r in valid], color=MODEL, marker=marker,
               markersize=3.5)
    right.set(title=f"Validation {metric}", xlabel="epoch")
    for name, (label, color) in BASELINES.items():
        value = results.get("valid", {}).get(name, {}).get(metric)
        if value is not None:
            right.axhline(value, color=color, linestyle="--", linewidth=1.2)
            right.annotate(label, (0, value), xycoords=("axes fraction", "data"), color=color, fontsize=9,
                           textcoords="offset points", xytext=(4, 3))
    best = [r for r in valid if r["best"]]
    if best:
        value = best[-1]["valid"][metric]
        right.plot(best[-1]["epoch"], value, "o", color=MODEL, markersize=7)
        right.set_title(f"best {value:.4f}, epoch {best[-1]['epoch']}", loc="right", color=MODEL, fontsize=9)
    right.set_ylim(bottom=0)
    right.margins(y=0.12)
    for axes in (left, right):
        axes.xaxis.get_major_locator().set_params(integer=True)
    figure.savefig(path)
    plt.close(figure)


def draw_baselines(results, path):
    """Test metrics of the model and the baselines, with the model's 95 % intervals."""
    names = list(results["test"])
    columns = [c for c in CHOSEN if c in results["test"][names[0]]]
    width = 0.8 / len(names)
    figure, axes = plt.subplots(figsize=(9.6, 3.4), constrained_layout=True)
    for place, name in enumerate(names):
        label, color = BASELINES.get(name, (results["mixer"], MODEL))
        x = [i + (place - (len(names) - 1) / 2) * width for i in range(len(columns))]
        y = [results["test"][name][c] for c in columns]
        limits = [results.get("intervals", {}).get("test", {}).get(name, {}).get(c, [v, v]) for c, v in zip(columns, y)]
        errors = [[max(v - low, 0) for v, (low, _) in zip(y, limits)], [max(high - v, 0) for v, (_, high) in zip(y, limits)]]
        bars = axes.bar(x, y, width * 0.92, color=color, label=label, yerr=errors,
                        error_kw={"ecolor": INK, "elinewidth": 0.8, "capsize": 2})
        axes.bar_label(bars, [f"{v:.3f}" if v >= 0.01 else f"{v:.1g}" for v in y], fontsize=7.5, color=MUTED, padding=2)
    axes.set_xticks(range(len(columns)), columns)
    axes.grid(axis="x", visible=False)
    axes.set_title("Test metrics, 95 % intervals over users")
    axes.legend(loc="upper right")
    figure.savefig(path)
    plt.close(figure)


def table(head, rows, marked=""):
    def line(cells, tag="td", kind=""):
        return f"<tr{kind}>" + "".join(f"<{tag}>{html.escape(str(c))}</{tag}>" for c in cells) + "</tr>"

    body = [line(row, kind=' class="model"' if row[0] == marked else "") for row in rows]
    return "<table>" + (line(head, "th") if head else "") + "".join(body) + "</table>"


def cards(entries):
    return '<div class="cards">' + "".join(
        f'<div class="card"><b>{html.escape(str(value))}</b><span>{html.escape(label)}</span></div>'
        for label, value in entries) + "</div>"


def result_parts(results, metric):
    """Cards and a warning where the model loses; then the pictures' and the table's part."""
    test = results["test"]["model"]
    intervals = results["intervals"]["test"]["model"]
    parts = [cards([(f"{name} on test", f"{test[name]:.4f}") for name in ("HR@10", "NDCG@10", "MRR", "AUC") if name in test]
                   + [("best epoch", results["best_epoch"]), ("minutes", f"{results['seconds'] / 60:.1f}")])]
    for name in BASELINES:
        if results["test"][name][metric] > test[metric]:
            parts.append(f'<p class="warn">The model loses to {name}: {metric} {test[metric]:.4f} against '
                         f'{results["test"][name][metric]:.4f}.</p>')
    beside = ['<h2>Beside the baselines</h2><img src="baselines.png" alt="test metrics as bars">']
    rows = [[c, f"{test[c]:.4f}", "{:.4f} to {:.4f}".format(*intervals[c]) if c in intervals else "–"]
            + [f"{results['test'][name][c]:.4f}" for name in BASELINES] for c in test if c != "mean_rank"]
    beside.append(table(["test", results["mixer"], "95 % interval", *(label for label, _ in BASELINES.values())], rows))
    beside.append(f'<p class="muted">{html.escape(results["protocol"]["text"])}</p>')
    return parts, beside


def setting_text(value):
    return "–" if value in ("", []) else value if isinstance(value, str) else json.dumps(value)


def settings_part(config):
    sections = "".join(f"<section><h3>{html.escape(section)}</h3>"
                       + table([], [(key, setting_text(value)) for key, value in values.items()]) + "</section>"
                       for section, values in config.items())
    return f'<h2>Settings</h2><div class="settings">{sections}</div>'


def make_report(run):
    """Writes the report of run folder `run` and returns the page's path."""
    config = tomllib.loads((run / "config.toml").read_text(encoding="utf-8"))
    dataset, results = read_json(run / "dataset.json"), read_json(run / "results.json")
    rows = read_rows(run / "metrics.jsonl")
    metric = config["train"]["metric"]
    if not any("valid" in row for row in rows):
        sys.exit(f"report: {run} has no validated epoch yet")
    folder = run / "report"
    folder.mkdir(exist_ok=True)
    plt.rcParams.update(STYLE)
    draw_learning(rows, results, metric, folder / "learning.png")
    counts = dataset.get("counts", {})
    learning = '<h2>Learning</h2><img src="learning.png" alt="loss and validation metric by epoch">'
    if results:
        draw_baselines(results, folder / "baselines.png")
        above, beside = result_parts(results, metric)
        parts = [*above, learning, *beside]
    else:
        parts = ['<p class="muted">Training has not ended; the test figures come with its end.</p>', learning]
    parts.append("<h2>Data</h2>" + cards([(COUNTS.get(k, k), f"{v:,.6g}" if isinstance(v, float) else f"{v:,}")
                                         for k, v in counts.items()]))
    parts.append(f'<p class="muted">{html.escape(dataset.get("split", ""))}</p>')
    parts.append(settings_part(config))
    name = f"{config['model']['mixer']} on {Path(config['data']['file']).name}"
    page = folder / "index.html"
    page.write_text(PAGE.format(title=html.escape(name), subtitle=html.escape(f"run {run}, seed {config['run']['seed']}"),
                                body="\n".join(parts)), encoding="utf-8")
    return page


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="run folder")
    parser.add_argument("--json", action="store_true", help="say where the page is as JSON")
    arguments = parser.parse_args()
    page = make_report(arguments.run)
    print(json.dumps({"page": str(page)}) if arguments.json else page)


if __name__ == "__main__":
    main()
