"""What a benchmark says of its measurements: best peers, ratios, means, tables, and the HTML page."""

from __future__ import annotations

import copy
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from coexec import zoo
from coexec.cli.bench_page import bench_page, save_page
from coexec.cli.tables import bench_view
from coexec.cli.terminal import show
from coexec.experiments.bench import MODEL_SUITE
from coexec.experiments.bench_summary import against_best, difference_notes, summary
from coexec.experiments.peers import PEERS

PEER_TIMES = {"numpy": 4.0, "onnxruntime": 2.0, "openvino_default": 0.5, "litert": None}


def layer(name: str, op: str, us: float) -> dict[str, Any]:
    return {
        "name": name, "op": op, "axis": "channel", "cut": 8, "units": 32, "coexec_us": us, "cpu_us": 2.0, "gpu_us": 1.6,
        "cpu_all_cores_us": None, "gpu_all_cores_us": None, "efficiency": 0.9, "speedup": 1.6, "speedup_cap": 1.8,
        "noise": 0.02, "peers": PEER_TIMES, **against_best(PEER_TIMES, "us", ratio=us, cpu_ratio=2.0, gpu_ratio=None),
        "differences": {"numpy": 1e-6, "openvino_default": 0.004}, "notes": ["litert: it can't <do> this"],
    }  # fmt: skip


def network(name: str) -> dict[str, Any]:
    times = {**PEER_TIMES, "numpy": None}
    return {
        "model": name, "coexec_ms": 1.0, "way": "all cores for the GPU side", "split_ms": 1.25, "split_way": "1 + 1",
        "cpu_ms": 2.0, "gpu_ms": 1.6, "cpu_all_cores_ms": 1.1, "gpu_all_cores_ms": 1.0, "predicted_ms": 1.0,
        "costs_from": "measurement", "speedup": 1.6, "noise": 0.04, "peers": times,
        **against_best(times, "ms", ratio=1.0, split_ratio=1.25), "differences": {}, "notes": [],
    }  # fmt: skip


LAYERS = [layer("stem & <first>", "conv2d", 0.5), layer("deep", "conv2d", 2.0), layer("fc", "linear", 1.0)]
MODELS = [network("resnet18")]
ENVIRONMENT = {
    "date": "2026-12-01", "versions": {"numpy": "2.4", "ncnn": None}, "cpu_model": "AMD <EPYC>", "device": "intel:0",
    "emulated_gpu": True, "compute_units": 1, "cpu_threads": 1, "peer_threads": 1,
}  # fmt: skip
DOCUMENT = {
    "environment": ENVIRONMENT, "models": MODELS, "layers": LAYERS, "noise": 0.02,
    "summary": summary(LAYERS, MODELS), "notes": difference_notes([*LAYERS, *MODELS]),
}  # fmt: skip


def test_the_best_peer_is_the_fastest_in_fp32() -> None:
    assert against_best(PEER_TIMES, "us", ratio=0.5, cpu_ratio=None) == {
        "best_peer": "onnxruntime", "best_peer_us": 2.0, "ratio": 4.0, "cpu_ratio": None,
    }  # fmt: skip
    assert against_best({"openvino_default": 1.0, "ncnn": None}, "ms", ratio=1.0) == {
        "best_peer": None, "best_peer_ms": None, "ratio": None,
    }  # fmt: skip


def test_means_are_per_op_and_over_all() -> None:
    found = {group.pop("of"): group for group in copy.deepcopy(DOCUMENT["summary"])}
    assert list(found) == ["conv2d", "linear", "all layers", "models"]
    assert found["conv2d"] == {
        "rows": 2, "ratio": pytest.approx(2.0), "smallest": 1.0, "smallest_in": "deep", "cpu_ratio": pytest.approx(1.0),
        "gpu_ratio": None, "split_ratio": None,
    }  # fmt: skip
    assert found["all layers"]["rows"] == 3 and found["all layers"]["ratio"] == pytest.approx(2.0)
    assert found["models"]["ratio"] == pytest.approx(2.0) and found["models"]["split_ratio"] == pytest.approx(1.6)
    alone = {**LAYERS[0], **against_best({}, "us", ratio=1.0)}
    (group,) = summary([alone], [])
    assert group["rows"] == 0 and group["ratio"] is group["smallest"] is group["smallest_in"] is None


def test_results_that_differ_are_noted_once_per_peer() -> None:
    rows = [
        {"name": "a", "differences": {"mnn": 1.5e-3, "ncnn": 1e-4, "torch": None}},
        {"name": "b", "differences": {"mnn": 0.02}},
        {"model": "c", "differences": {"ncnn": float("inf")}},
    ]
    assert difference_notes(rows) == [
        "mnn: results differ from onnxruntime's by up to 2.0e-02 of the largest, in b and 1 more",
        "ncnn: results differ from onnxruntime's by up to inf of the largest, in c",
    ]


def test_the_tables_show_everything(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    for part in bench_view(DOCUMENT):
        show(part)
    shown = capsys.readouterr().out
    way = "all cores for the GPU side"
    for word in ("stem & <first>", "deep", "fc", "resnet18", way, "numpy", "onnxruntime", "AMD <EPYC>"):
        assert word in shown
    assert shown.count("litert: it can't <do> this") == 1
    assert "openvino_default: results differ" in shown and "peer / GPU" not in shown


def test_the_page_is_well_formed_and_complete() -> None:
    page = bench_page(DOCUMENT)
    doctype, _, document = page.partition("\n")
    assert doctype == "<!DOCTYPE html>"
    root = ElementTree.fromstring(document)
    text = " ".join(root.itertext())
    for word in (
        "stem & <first>",
        "deep",
        "fc",
        "resnet18",
        "all cores for the GPU side",
        "numpy",
        "onnxruntime",
        "AMD <EPYC>",
    ):
        assert word in text
    assert "litert: it can't <do> this" in text and "channel 8/32" in text
    charts = root.findall(".//section")
    assert len(charts) == len(LAYERS) + len(MODELS)
    for chart in charts:
        widths = [float(bar.attrib["style"].split()[-1].rstrip("%")) for bar in chart.findall(".//div[@class='fill']")]
        assert max(widths) == 100 and min(widths) > 0
    assert not [e for e in root.iter() if {"src", "href"} & set(e.attrib)]  # it needs nothing else


def test_the_page_of_one_half(tmp_path: Path) -> None:
    for part in ({"models": []}, {"layers": []}):
        save_page(str(tmp_path / "page.html"), {**DOCUMENT, **part})
        page = (tmp_path / "page.html").read_text(encoding="utf-8")
        assert ("resnet18</h3>" in page or "resnet18 <span>" in page) == ("layers" in part)


def test_suites_and_rows_are_of_known_names() -> None:
    assert set(MODEL_SUITE) < set(zoo.MODELS) and len(MODEL_SUITE) == 7
    assert set(PEER_TIMES) < set(PEERS)
