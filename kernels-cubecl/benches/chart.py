"""Draws the time of each pass beside a copy of the same bytes, from the bench's JSON.

    pip install matplotlib
    python chart.py rows.json speed.svg
"""

import json
import sys

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

OPERATIONS = ["unscale_in_place", "unscale", "inspect"]


def main(source, target):
    with open(source) as file:
        rows = json.load(file)["rows"]
    sets = list(dict.fromkeys(row["set"] for row in rows))
    dtypes = list(dict.fromkeys(row["dtype"] for row in rows))
    matplotlib.rcParams["svg.hashsalt"] = "burn-amp"
    figure, areas = plt.subplots(1, len(sets), figsize=(9, 3), sharey=True)
    for area, name in zip(areas, sets):
        for at, operation in enumerate(OPERATIONS):
            for shift, dtype in enumerate(dtypes):
                found = [r for r in rows if (r["set"], r["op"], r["dtype"]) == (name, operation, dtype)]
                if found and found[0]["copy_ratio"]:
                    label = dtype if (area is areas[0] and at == 2) else None
                    area.bar(at + (shift - 1) * 0.27, found[0]["copy_ratio"], 0.25, color=f"C{shift}", label=label)
        area.axhline(1, color="gray", linewidth=0.8)
        area.set_title(name, fontsize=9)
        area.set_yscale("log")
        area.set_xticks(range(len(OPERATIONS)), [o.replace("_", "\n") for o in OPERATIONS], fontsize=8)
    areas[0].set_ylabel("time / time of a copy")
    figure.legend(loc="outside upper right", ncols=len(dtypes), fontsize=8)
    figure.tight_layout(rect=(0, 0, 1, 0.93))
    figure.savefig(target, metadata={"Date": None})


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
