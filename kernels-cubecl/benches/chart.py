"""Draws the time of each pass over the time of a copy of the same bytes into existing memory, from the bench's JSON.

    pip install matplotlib
    python chart.py rows.json speed.svg "AMD EPYC (Zen 4), 2 virtual cores, Flex"
"""

import json
import sys

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

OPERATIONS = ["unscale_in_place", "unscale", "inspect"]
# Readable on white and on black pages.
GRAY = "#808080"


def main(source, target, hardware):
    with open(source) as file:
        rows = json.load(file)["rows"]
    seconds = {(row["set"], row["dtype"], row["op"]): row["seconds"] for row in rows}
    sets = list(dict.fromkeys(row["set"] for row in rows))
    dtypes = list(dict.fromkeys(row["dtype"] for row in rows))
    settings = ["text.color", "axes.edgecolor", "axes.labelcolor", "axes.titlecolor", "xtick.color", "ytick.color"]
    matplotlib.rcParams.update({name: GRAY for name in settings})
    matplotlib.rcParams["svg.hashsalt"] = "burn-amp"
    figure, areas = plt.subplots(1, len(sets), figsize=(9, 3.2), sharey=True)
    for area, name in zip(areas, sets):
        for at, operation in enumerate(OPERATIONS):
            for shift, dtype in enumerate(dtypes):
                own = seconds.get((name, dtype, operation))
                copy = seconds.get((name, dtype, "copy_into"))
                if own and copy:
                    label = dtype if (area is areas[0] and at == 2) else None
                    area.bar(at + (shift - 1) * 0.27, own / copy, 0.25, color=f"C{shift}", label=label)
        area.axhline(1, color=GRAY, linewidth=0.8)
        area.set_facecolor("none")
        area.set_title(name, fontsize=9)
        area.set_xticks(range(len(OPERATIONS)), [o.replace("_", "\n") for o in OPERATIONS], fontsize=8)
    areas[0].set_ylabel("time / time of a copy")
    figure.suptitle(hardware, x=0.01, ha="left", fontsize=8)
    figure.legend(loc="outside upper right", ncols=len(dtypes), fontsize=8, framealpha=0)
    figure.tight_layout(rect=(0, 0, 1, 0.95))
    figure.savefig(target, metadata={"Date": None}, transparent=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
