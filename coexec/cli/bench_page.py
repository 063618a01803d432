"""A benchmark's document as one HTML page that needs nothing else: bars, tables, environment.

The bars are elements with a width. A plotting library would put megabytes of script into the page for that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import Any

from coexec.cli.tables import BENCH_RATIOS, bench_notes, bench_setting, number, share
from coexec.errors import InputError
from coexec.experiments.peers import PEERS
from coexec.whole_file import replacing

Document = dict[str, Any]

OURS = {
    "coexec": "coexec",
    "split": "split, even shares",
    "cpu": "CPU side alone",
    "gpu": "GPU side alone",
    "cpu_all_cores": "CPU path, all cores",
    "gpu_all_cores": "OpenCL path, all cores",
}
"""Keys of coexec's own times, without their unit, and what the bars are called."""

STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.45 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(24rem, 1fr)); gap: 1.5rem 2.5rem; }
h3 { font-size: 1rem; margin: 0 0 .4rem; } h3 span, .note { font-weight: normal; opacity: .7; }
.bar { display: grid; grid-template-columns: 10.5rem 1fr; align-items: center; font-size: .85rem; }
.track { display: flex; align-items: center; gap: .4rem; padding-right: 5rem; }
.fill { height: .8rem; min-width: 1px; border-radius: 0 .2rem .2rem 0; background: #8a8f98; }
.coexec .fill { background: #d9662b; } .side .fill { background: #e3a98a; }
.other .fill { background: none; border: 1px dashed #8a8f98; }
.best { font-weight: bold; }
.value { white-space: nowrap; font-variant-numeric: tabular-nums; }
.charts + h3 { margin-top: 1.5rem; } .wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .85rem; }
th, td { text-align: right; padding: .2rem .6rem; border-bottom: 1px solid #8a8f9855; white-space: nowrap; }
th:first-child, td:first-child, dd, dt { text-align: left; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 0 1rem; font-size: .85rem; } dd { margin: 0; }
"""


def save_page(path: str, document: Document) -> None:
    """Write the page; InputError if the file cannot be written."""
    with replacing(path, InputError) as file:
        file.write(bench_page(document).encode())


def bench_page(document: Document) -> str:
    """The page, which is also well-formed XML."""
    sections = [
        *_section("Models", document["models"], "model", "ms", 2),
        *_section("Layers", document["layers"], "name", "us", 0),
        "<h2>Together</h2>",
        _summary(document["summary"]),
        *(f'<p class="note">{escape(line)}</p>' for line in bench_notes(document)),
        "<h2>Environment</h2>",
        *(f"<p>{escape(line)}</p>" for line in bench_setting(document)),
        _definitions(document["environment"]),
    ]
    body = "\n".join(sections)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
        f"<title>coexec bench</title><style>{STYLE}</style></head>\n<body><h1>coexec and its peers</h1>\n"
        f"<p>Times are medians; shorter bars are better, and every chart has a scale of its own. Bold is the fastest "
        f"fp32 peer; dashed ones compute in another precision and are not counted.</p>\n{body}\n</body></html>\n"
    )


def _section(title: str, rows: Sequence[Document], key: str, unit: str, digits: int) -> Iterator[str]:
    if not rows:
        return
    peers = list(rows[0]["peers"])
    ours = [name for name in OURS if rows[0].get(f"{name}_{unit}") is not None]
    ratios = [name for name in BENCH_RATIOS if any(row.get(name) is not None for row in rows)]
    yield f'<h2>{title}</h2>\n<div class="charts">'
    for row in rows:
        yield _chart(row, key, unit, digits, ours)
    yield "</div>\n<h3>Table</h3>"
    headings = [title.lower().rstrip("s"), *(f"{OURS[name]}, {unit}" for name in ours)]
    headings += [*(BENCH_RATIOS[name] for name in ratios), *(f"{peer}, {unit}" for peer in peers), "best peer", "noise"]
    yield _table(
        headings,
        (
            [
                row[key],
                *(number(row[f"{name}_{unit}"], digits) for name in ours),
                *(number(row.get(name), 2) for name in ratios),
                *(number(row["peers"][peer], digits) for peer in peers),
                row["best_peer"] or "-",
                share(row["noise"]),
            ]
            for row in rows
        ),
    )


def _chart(row: Document, key: str, unit: str, digits: int, ours: Sequence[str]) -> str:
    bars = [(OURS[name], row[f"{name}_{unit}"], "coexec" if name == "coexec" else "side") for name in ours]
    for name, time in row["peers"].items():
        if time is not None:
            kind = "peer" if PEERS[name].fp32 else "other"
            bars.append((name, time, f"{kind} best" if name == row["best_peer"] else kind))
    longest = max(time for _, time, _ in bars)
    how = row["way"] if "way" in row else f"{row['axis']} {row['cut']}/{row['units']}"
    ratio = "" if row["ratio"] is None else f", best peer / coexec {number(row['ratio'], 2)}"
    lines = [
        f'<div class="bar {kind}"><span>{escape(name)}</span><div class="track"><div class="fill" '
        f'style="flex: 0 0 {100 * time / longest:.1f}%"></div><span class="value">{number(time, digits)} {unit}</span>'
        "</div></div>"
        for name, time, kind in bars
    ]
    return (
        f"<section><h3>{escape(row[key])} <span>{escape(how + ratio)}</span></h3>\n" + "\n".join(lines) + "</section>"
    )


def _summary(groups: Sequence[Document]) -> str:
    ratios = [name for name in BENCH_RATIOS if any(group.get(name) is not None for group in groups)]
    rows = (
        [
            group["of"],
            str(group["rows"]),
            *(number(group[name], 2) for name in ratios),
            number(group["smallest"], 2),
            group["smallest_in"] or "-",
        ]
        for group in groups
    )
    return _table(["geometric means", "rows", *(BENCH_RATIOS[name] for name in ratios), "smallest", "in"], rows)


def _table(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    def cells(tag: str, texts: Iterable[str]) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(text)}</{tag}>" for text in texts) + "</tr>"

    body = "\n".join(cells("td", row) for row in rows)
    return f'<div class="wide"><table><thead>{cells("th", headings)}</thead><tbody>\n{body}\n</tbody></table></div>'


def _definitions(environment: Document) -> str:
    rows = {**environment, **environment["versions"]}
    del rows["versions"]
    return "<dl>" + "".join(f"<dt>{escape(k)}</dt><dd>{escape(str(v))}</dd>" for k, v in rows.items()) + "</dl>"
