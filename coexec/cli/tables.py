"""The documents of the commands as tables for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import RenderableType
from rich.table import Table

Document = dict[str, Any]
Lines = list[RenderableType]


def table(names: Sequence[str], numbers: Sequence[str] = ()) -> Table:
    """An empty table; columns of ``numbers`` stand right and never lose a digit, others may wrap."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in names:
        number = name in numbers
        made.add_column(name, justify="right" if number else "left", no_wrap=number, overflow="fold")
    return made


def number(value: float | None, digits: int = 0, suffix: str = "") -> str:
    """A number with so many digits after the point; "-" for None."""
    return "-" if value is None else f"{value:.{digits}f}{suffix}"


def share(value: float | None) -> str:
    """A share as percent."""
    return number(None if value is None else 100 * value, 0, " %")


def devices_view(document: Document) -> Lines:
    cpu = document["cpu"]
    lines: Lines = [f"CPU: {cpu['model']}, {cpu['cores']} cores, backends: {', '.join(cpu['backends'])}"]
    if document["devices"]:
        names = ("id", "name", "platform", "driver", "type", "units", "SVM", "sync", "usable")
        made = table(names, ("units", "SVM"))
        for device in document["devices"]:
            made.add_row(
                device["id"],
                device["name"],
                device["platform"],
                device["driver"],
                device["type"],
                str(device["compute_units"]),
                f"{device['svm_capabilities']:#x}",
                ", ".join(device["sync"]) or "none",
                "yes" if device["usable"] else f"no: {device['reason']}",
            )
        lines += ["OpenCL devices:", made]
    else:
        lines.append("OpenCL devices: none found, so everything runs on the CPU")
    for device in document["devices"]:
        if device["emulated_gpu"]:
            lines.append(f"{device['id']} is a CPU-type device: it stands in for a GPU (emulated GPU)")
        if device["usable"]:
            refused = device["sync_unavailable"].items()
            lines += [f"{device['id']} without {name}: {reason}" for name, reason in refused]
    if document["hint"]:
        lines.append(f"To get one: {document['hint']}")
    return lines


def demo_view(document: Document) -> Lines:
    lines: Lines = [_where(document), _checked(document)]
    numbers = ("GPU", "CPU us\npredicted", "GPU us\npredicted", "CPU us", "GPU us", "layer us", "efficiency")
    title = f"{document['model']}, microseconds of each side's part, predicted and measured alone, and of the layer:"
    made = table(("layer", "op", "shape", "axis", *numbers), numbers)
    for row in document["layers"]:
        made.add_row(
            row["name"],
            row["op"],
            row["shape"],
            row["axis"] if 0 < row["cut"] < row["units"] else "-",
            share(row["gpu_share"]),
            *(number(row[key]) for key in ("predicted_cpu_us", "predicted_gpu_us", "cpu_us", "gpu_us", "measured_us")),
            share(row["efficiency"]),
        )
    return [*lines, title, made, "whole network, medians:", _totals(document)]


def _where(document: Document) -> str:
    if document["device"] is None:
        return f"no OpenCL device: CPU only, {document['cpu_threads']} threads"
    if document["emulated_gpu"]:
        which = (
            f"emulated GPU: {document['compute_units']} of {document['cores']} cores, CPU side: "
            f"{document['cpu_threads']} of {document['cores']}"
        )
    else:
        which = f"GPU: {document['compute_units']} compute units, CPU side: {document['cpu_threads']} threads"
    device = f"{document['device']} {document['device_name']}"
    return f"{device}, {which}; sync {document['sync']}; cuts from {document['costs_from']}"


def _checked(document: Document) -> str:
    if document["checked_against"] is None:
        return f"result not checked: {document['not_checked']}"
    error = document["max_rel_error"]
    verdict = "same result as" if document["correct"] else "WRONG RESULT, compared with"
    return f"{verdict} {document['checked_against']}: max |error| / max |reference| = {error:.1e}"


def _totals(document: Document) -> Table:
    made = table(("", "ms"), ("ms",))
    part = "its share of the cores" if document["emulated_gpu"] else "alone"
    rows = [
        ("coexec, split as planned", "coexec_ms"),
        (f"CPU only, {part}", "cpu_ms"),
        (f"GPU only, {part}", "gpu_ms"),
        ("CPU only, all cores", "cpu_all_cores_ms"),
        ("GPU only, all cores" if document["emulated_gpu"] else "GPU only, all compute units", "gpu_all_cores_ms"),
    ]
    for label, key in rows:
        made.add_row(label, number(document[key], 2))
    made.add_row("speedup over the better side alone", number(document["speedup"], 2, "x"))
    made.add_row("spread of coexec's runs (interquartile range / median)", share(document["noise"]))
    return made


def plan_view(document: Document) -> Lines:
    plan = document["plan"]
    head = (
        f"{plan['model']} on {document['resources']}: predicted {number(document['predicted_ms'], 2)} ms "
        f"({plan['costs_from']}), planned in {number(document['planning_ms'])} ms"
    )
    names = ("layer", "axis", "GPU", "CPU routine", "kernel", "CPU us", "GPU us", "sync us", "layer us")
    made = table(names, ("GPU", *names[5:]))
    for row in plan["layers"]:
        split = 0 < row["cut"] < row["units"]
        made.add_row(
            row["name"],
            row["axis"] if split else "-",
            f"{row['cut']}/{row['units']}",
            row["cpu_impl"] or "-",
            row["gpu_impl"] or "-",
            *(number(row[key], 1) for key in ("cpu_us", "gpu_us", "sync_us", "predicted_us")),
        )
    memory = document["memory"]
    shared, separate = (number(memory[f"{how}_bytes"] / 1e6, 1) for how in ("shared", "separate"))
    lines: Lines = [head, made, f"intermediate tensors share {shared} MB; separate ones would take {separate} MB"]
    if len(plan["options"]) > 1:
        compared = ", ".join(f"{name}: {ms:.2f} ms" for name, ms in plan["options"].items())
        lines.append(f"compute units + CPU threads that were compared: {compared}")
    if "explain" in document:
        lines += ["alternatives, predicted microseconds:", explain_table(document["explain"])]
    return lines + [f"{what} written to {path}" for what, path in document["written"].items()]


def explain_table(rows: Sequence[Document]) -> Table:
    names = ("layer", "shape", "chosen", "us", "CPU only us", "GPU only us", "best by channel", "best by row", "tried")
    made = table(names, names[2:])
    for row in rows:
        axis = "one side" if row["cut"] in (0, row["units"]) else row["axis"]
        made.add_row(
            row["name"],
            row["shape"],
            f"{axis} {row['cut']}/{row['units']}",
            number(row["predicted_us"], 1),
            number(row["cpu_only_us"], 1),
            number(row["gpu_only_us"], 1),
            *(_cut(row[key]) for key in ("best_channel", "best_row")),
            str(row["candidates"]),
        )
    return made


def _cut(best: Document | None) -> str:
    return "-" if best is None else f"{best['predicted_us']:.1f} at {best['cut']}/{best['units']}"


def run_view(document: Document) -> Lines:
    made = table(("output", "shape"))
    for name, shape in document["outputs"].items():
        made.add_row(name, "x".join(str(size) for size in shape) or "scalar")
    written = [f"outputs written to {document['written']}"] if document["written"] else []
    runs = document["runs"]
    return [f"latency {number(document['latency_ms'], 3)} ms, median of {runs} runs", made, *written]


def sync_view(document: Document) -> Lines:
    title = f"{document['device']}: from the host to a tiny kernel and back:"
    made = table(("strategy", "median us", "p99 us", "rounds"), ("median us", "p99 us", "rounds"))
    for row in document["strategies"]:
        made.add_row(row["name"], number(row["median_us"], 2), number(row["p99_us"], 2), str(row["rounds"]))
    return [title, made, *(f"{name} is not available: {reason}" for name, reason in document["unavailable"].items())]


def profile_view(document: Document) -> Lines:
    lines: Lines = [
        f"{document['added']} measurements added to {document['folder']}, {document['points']} in all, in "
        f"{number(document['elapsed_s'])} s; a hand-over adds {number(document['sync_us'], 1)} us to a split layer"
    ]
    if document["skipped"]:
        lines.append(f"{document['skipped']} workloads were left out; the first: {document['skip_reason']}")
    if document["short_of_points"]:
        few = ", ".join(f"{name} {points}" for name, points in document["short_of_points"].items())
        lines.append(f"too few measurements to predict by: {few}; {document['needed_points']} of each are needed")
        return [*lines, f"next: coexec profile --resume -o {document['folder']}"]
    return [*lines, f"next: coexec train {document['folder']}"]


def train_view(document: Document) -> Lines:
    names = ("side", "op", "implementation", "MAPE", "within 10 %", "points", "note")
    made = table(names, names[3:6])
    for row in document["models"]:
        mape = row["mape"]
        made.add_row(
            row["processor"],
            row["op"],
            row["implementation"],
            number(None if mape is None else 100 * mape, 1, " %"),
            share(row["within_10pct"]),
            str(row["points"]),
            row.get("note", ""),
        )
    lines: Lines = ["predictors, on measurements that they were not trained on:", made]
    missing = [row["implementation"] for row in document["models"] if row["mape"] is None]
    if missing:
        lines.append(f"no plan can be made yet of layers that need {', '.join(missing)}: measure more, train again")
    return lines


def validate_view(document: Document) -> Lines:
    names = ("layer", "op", "chosen", "predicted us", "measured us", "oracle us", "oracle", "CPU us", "GPU us", "eff.")
    made = table(names, names[2:])
    for row in document["layers"]:
        made.add_row(
            row["name"],
            row["op"],
            f"{row['axis']} {row['cut']}/{row['units']}",
            *(number(row[key]) for key in ("predicted_us", "measured_us", "oracle_us")),
            f"{row['oracle_axis']} {row['oracle_cut']}",
            *(number(row[key]) for key in ("cpu_us", "gpu_us")),
            share(row["efficiency"]),
        )
    mape = document["mape"]
    lines: Lines = [
        f"{document['device']}, cuts from {document['costs_from']}:",
        made,
        f"oracle / measured {number(document['oracle_ratio'], 3)}, speedup {number(document['speedup'], 2)}x (oracle "
        f"{number(document['oracle_speedup'], 2)}x), efficiency {share(document['efficiency'])}, MAPE CPU "
        f"{share(mape['cpu'])}, GPU {share(mape['gpu'])}, noise {share(document['noise'])}",
    ]
    if "end_to_end" in document:
        ms = ", ".join(f"{key.removesuffix('_ms')} {number(v, 2)}" for key, v in document["end_to_end"].items())
        lines.append(f"whole network, ms: {ms}")
    return lines


def bench_view(document: Document) -> Lines:
    lines: Lines = []
    for title, rows, key, unit, digits in (
        ("models, ms", document["models"], "model", "ms", 2),
        ("layers, us", document["layers"], "name", "us", 0),
    ):
        if rows:
            peers = _peer_times(rows, key, digits)
            lines += [f"{title}:", _own_times(rows, key, unit, digits), f"peers on the same {title}:", peers]
    lines += ["geometric means, with the best fp32 peer of each:", _bench_summary(document["summary"])]
    return [*lines, *bench_notes(document), *bench_setting(document)]


def bench_notes(document: Document) -> list[str]:
    """What is said of the peers, each thing once."""
    return [
        *sorted({note for row in document["models"] + document["layers"] for note in row["notes"]}),
        *document["notes"],
    ]


def bench_setting(document: Document) -> list[str]:
    """Where, when and with what a benchmark was run."""
    where = document["environment"]
    kind = "emulated GPU" if where.get("emulated_gpu") else "GPU"
    used = f"{where.get('compute_units')} compute units + {where.get('cpu_threads')} CPU threads"
    peers = f"peers with {where.get('peer_threads')} threads"
    versions = ", ".join(f"{name} {version}" for name, version in where["versions"].items() if version)
    return [
        f"{where.get('device')} ({kind}), {used}, {peers}; {where.get('cpu_model')}; noise {share(document['noise'])}",
        f"{where.get('date')}; {versions}",
    ]


BENCH_TIMES = {"coexec": "coexec", "split": "split", "cpu": "CPU", "numpy": "CPU by NumPy", "gpu": "GPU"}
BENCH_RATIOS = {
    "efficiency": "efficiency",
    "speedup": "speedup",
    "speedup_cap": "cap",
    "ratio": "peer / coexec",
    "split_ratio": "peer / split",
    "cpu_ratio": "peer / CPU",
    "gpu_ratio": "peer / GPU",
}
"""Keys of a benchmark's rows, in the order of the table, and its headings; what no row has is left out."""


def _own_times(rows: list[Document], key: str, unit: str, digits: int) -> Table:
    """Our times, how good the split is, what it gains over the better side, and the best peer's time over ours."""
    times = {f"{name}_{unit}": title for name, title in BENCH_TIMES.items() if f"{name}_{unit}" in rows[0]}
    ratios = {name: title for name, title in BENCH_RATIOS.items() if any(row.get(name) is not None for row in rows)}
    numbers = [*times.values(), *ratios.values()]
    ways = ["way"] if "way" in rows[0] else []
    made = table((key, *ways, *numbers, "best peer"), numbers)
    for row in rows:
        values = [*(number(row[name], digits) for name in times), *(number(row[name], 2) for name in ratios)]
        made.add_row(row[key], *(row[way] for way in ways), *values, row["best_peer"] or "-")
    return made


def _peer_times(rows: list[Document], key: str, digits: int) -> Table:
    peers = list(rows[0]["peers"])
    made = table((key, *peers), peers)
    for row in rows:
        made.add_row(row[key], *(number(row["peers"][peer], digits) for peer in peers))
    return made


def _bench_summary(groups: list[Document]) -> Table:
    ratios = {n: t for n, t in BENCH_RATIOS.items() if any(group.get(n) is not None for group in groups)}
    numbers = ["rows", *ratios.values(), "smallest"]
    made = table(("", *numbers, "in"), numbers)
    for group in groups:
        values = (number(group[name], 2) for name in ratios)
        smallest = number(group["smallest"], 2)
        made.add_row(group["of"], str(group["rows"]), *values, smallest, group["smallest_in"] or "-")
    return made
