"""The cost of a checkpoint and of a restore drawn against size and against history, from the figures of a run."""

from __future__ import annotations

from pathlib import Path

from bench.checkpoints import BY_HISTORY, BY_SIZE
from bench.samples import Sheet

NAMES = {
    "checkpoint of 10 changes": "checkpoint",
    "restore of 10 changes": "restore",
}


def _points(sheet: Sheet, group: str) -> dict[str, list[tuple[int, float]]]:
    """Curves by what is drawn: (size or number, milliseconds)."""
    curves: dict[str, list[tuple[int, float]]] = {}
    for line in sheet.lines.values():
        start = next((start for start in NAMES if line.group == group and line.name.startswith(start)), None)
        if start is None:
            continue
        digits = line.name[len(start) :].replace(",", "").replace("after", "").replace("files", "")
        for column in line.samples:
            median = line.median(column)
            assert median is not None
            curves.setdefault(f"{column}, {NAMES[start]}", []).append((int(digits), median))
    return curves


def draw(sheet: Sheet, path: Path) -> bool:
    """Write an SVG to ``path``; False if there is nothing to draw or no matplotlib to draw with."""
    panels = [
        (BY_SIZE, "files in the workspace"),
        (BY_HISTORY, "checkpoints before"),
    ]
    curves = [(_points(sheet, group), words) for group, words in panels]
    if not all(found for found, _ in curves):
        return False
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "plyfs"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(10, 4), sharey=True, layout="constrained")
    for axis, (found, words) in zip(axes, curves, strict=True):
        for name, points in sorted(found.items()):
            points.sort()
            axis.plot([x for x, _ in points], [y for _, y in points], marker="o", label=name)
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_xlabel(words)
        axis.grid(alpha=0.3)
        axis.legend(fontsize="small")
    axes[0].set_ylabel("milliseconds, median")
    figure.suptitle("Ten changed files: cost of a checkpoint and of a restore")
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
    return True
