"""The command line. Thin: options in, one call of the library, its document out as tables or JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from coexec.cli.terminal import claim_streams, exit_code_of, output, say, warn_in_lines

app = typer.Typer(
    name="coexec",
    help="Runs each layer of a neural network on the CPU and on an OpenCL GPU at once.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _paths(param: typer.CallbackParam, value: Any) -> Any:
    """The value of an option or argument that takes a path (or several, or None); InputError if it can be none."""
    from coexec.arguments import check_path

    for text in value if isinstance(value, list) else [value]:
        if text is not None:
            check_path(param.opts[-1], text)
    return value


def _positive(param: typer.CallbackParam, value: float | None) -> float | None:
    """The value of an option that takes a positive number (or None)."""
    from coexec.arguments import positive

    return None if value is None else positive(param.opts[-1], value)


ModelName = Annotated[
    str, typer.Argument(metavar="MODEL", callback=_paths, help="ONNX file, or a name in coexec.zoo (resnet18, ...).")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout, and nothing else.")]
Device = Annotated[
    str | None, typer.Option(help="OpenCL device as `coexec devices` names it, or cpu. Default: the best one.")
]
Profile = Annotated[
    str | None,
    typer.Option(callback=_paths, help="Profile by name or folder, or measure. Default: the one that fits the device."),
]
CpuThreads = Annotated[int | None, typer.Option(min=1, help="Threads of the CPU side. Default: the planner's choice.")]
ComputeUnits = Annotated[
    int | None, typer.Option(min=1, help="Compute units of the device to use. Default: the planner's choice.")
]
SyncName = Annotated[
    str | None, typer.Option("--sync", help="svm_flags, host_flags or events. Default: the best that works.")
]
InputShape = Annotated[
    list[str] | None, typer.Option(help="Shape of an input that the model leaves open, as name=1x3x224x224.")
]
Explain = Annotated[bool, typer.Option("--explain", help="Show what each layer's alternatives should cost.")]
Timeline = Annotated[
    str | None,
    typer.Option(
        metavar="FILE", callback=_paths, help="Write the predicted timeline as a Chrome trace (ui.perfetto.dev)."
    ),
]
PlanFile = Annotated[
    str | None, typer.Option("-o", "--output", metavar="FILE", callback=_paths, help="Write the plan as JSON.")
]

_debug = False


def run(arguments: Sequence[str]) -> int:
    """Run one command line; returns its exit code: 0 done, 1 fault, 2 bad input or usage, 3 device trouble.

    Takes over this process's stdout and stderr. Raises KeyboardInterrupt for Ctrl-C.
    """

    def command() -> Any:
        claim_streams()
        return app(list(arguments), prog_name="coexec", standalone_mode=False)

    warn_in_lines()
    return exit_code_of(command, debug=lambda: _debug)


def _show_version(wanted: bool) -> None:
    if wanted:
        import coexec

        print(f"coexec {coexec.__version__}")
        raise typer.Exit


@app.callback()
def _global_options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    global _debug
    _debug = debug


@app.command()
def devices(json: Json = False) -> None:
    """List OpenCL devices, whether they work, and how they can synchronise."""
    with output(json) as out:
        from coexec.cli.device_report import device_report
        from coexec.cli.tables import devices_view

        out.show(device_report(), devices_view)


@app.command()
def demo(
    model: Annotated[str, typer.Option(callback=_paths, help="ONNX file, or a name in coexec.zoo.")] = "resnet18",
    device: Device = None,
    profile: Profile = None,
    cpu_threads: CpuThreads = None,
    compute_units: ComputeUnits = None,
    sync: SyncName = None,
    input_shape: InputShape = None,
    json: Json = False,
) -> None:
    """Partition a model, run it split, check the result, and time it against either side alone."""
    with output(json) as out:
        from coexec.arguments import input_shapes, model_title, named_model
        from coexec.cli.tables import demo_view
        from coexec.experiments.demo import demo as run_demo

        with out.progress() as progress:
            document = run_demo(
                named_model(model),
                model_title(model),
                input_shapes=input_shapes(input_shape or ()),
                device=device,
                profile=profile,
                cpu_threads=cpu_threads,
                compute_units=compute_units,
                sync=sync,
                progress=progress,
            )
        out.show(document, demo_view)
    if document["correct"] is False:
        say(f"coexec: the result differs from that of {document['checked_against']}; please report it")
        raise typer.Exit(1)


@app.command()
def partition(
    model: ModelName,
    device: Device = None,
    profile: Profile = None,
    cpu_threads: CpuThreads = None,
    compute_units: ComputeUnits = None,
    sync: SyncName = None,
    effort: Annotated[
        float | None, typer.Option(callback=_positive, help="Seconds that --profile measure may take.")
    ] = None,
    explain: Explain = False,
    timeline: Timeline = None,
    plan_file: PlanFile = None,
    input_shape: InputShape = None,
    json: Json = False,
) -> None:
    """Plan a model for a device of this machine."""
    with output(json) as out:
        from coexec.arguments import read_graph
        from coexec.cli.tables import plan_view
        from coexec.planning import plan_here, result_of

        graph = read_graph(model, input_shape or (), {"--output": plan_file, "--timeline": timeline})
        with out.progress() as progress:
            progress(0, 1, "planning")
            planned = plan_here(graph, device, profile, cpu_threads, compute_units, sync, effort, progress=progress)
        out.show(result_of(planned, explain, timeline, plan_file), plan_view)


@app.command()
def predict(
    model: ModelName,
    profile: Annotated[str, typer.Option(callback=_paths, help="Name or folder of a trained profile.")],
    cpu_threads: CpuThreads = None,
    compute_units: ComputeUnits = None,
    explain: Explain = False,
    timeline: Timeline = None,
    plan_file: PlanFile = None,
    input_shape: InputShape = None,
    json: Json = False,
) -> None:
    """Plan a model for the device of a profile, which need not be here."""
    with output(json) as out:
        from coexec.arguments import read_graph
        from coexec.cli.tables import plan_view
        from coexec.planning import plan_for_profile, result_of

        graph = read_graph(model, input_shape or (), {"--output": plan_file, "--timeline": timeline})
        planned = plan_for_profile(graph, profile, cpu_threads, compute_units)
        out.show(result_of(planned, explain, timeline, plan_file), plan_view)


@app.command("run")
def run_model(
    model: ModelName,
    plan: Annotated[
        str | None, typer.Option(metavar="FILE", callback=_paths, help="Plan file. Default: plan now.")
    ] = None,
    inputs: Annotated[
        str | None,
        typer.Option("--input", metavar="FILE", callback=_paths, help=".npz file with one array per input, by name."),
    ] = None,
    outputs: Annotated[
        str | None, typer.Option("--output", metavar="FILE", callback=_paths, help=".npz file to write.")
    ] = None,
    repeat: Annotated[int, typer.Option(min=1, help="Timed runs, after one that warms up.")] = 5,
    device: Device = None,
    profile: Profile = None,
    input_shape: InputShape = None,
    json: Json = False,
) -> None:
    """Run a model on the arrays of an .npz file."""
    with output(json) as out:
        from coexec.cli.run_file import run_file
        from coexec.cli.tables import run_view

        out.show(run_file(model, plan, inputs, outputs, repeat, device, profile, input_shape or ()), run_view)


@app.command()
def sync(
    device: Device = None,
    rounds: Annotated[int, typer.Option(min=1, help="Hand-overs to time per strategy.")] = 4096,
    json: Json = False,
) -> None:
    """Measure what a hand-over between the sides costs, with each strategy that the device offers."""
    with output(json) as out:
        from coexec.api import choose_device
        from coexec.cli.tables import sync_view
        from coexec.errors import InputError
        from coexec.experiments.sync_bench import sync_bench

        info = choose_device(device, strict=True)
        if info is None:
            raise InputError("a hand-over needs two sides: name an OpenCL device, not cpu")
        with out.progress() as progress:
            document = sync_bench(info, rounds, progress)
        out.show(document, sync_view)


@app.command()
def profile(
    folder: Annotated[
        str, typer.Option("-o", "--output", metavar="DIR", callback=_paths, help="Folder of the profile.")
    ],
    device: Device = None,
    budget: Annotated[str, typer.Option(help="How long to measure: 90s, 20m, 1h.")] = "20m",
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a profile that was begun.")] = False,
    sync: SyncName = None,
    json: Json = False,
) -> None:
    """Measure a device: once, for `coexec train`. May be interrupted and resumed."""
    with output(json) as out:
        from dataclasses import asdict

        from coexec.arguments import duration_s
        from coexec.cli.tables import profile_view
        from coexec.profiling.measuring import profile as measure

        seconds = duration_s(budget)
        with out.progress() as progress:
            summary = measure(
                device,
                folder,
                seconds,
                resume,
                lambda p: progress(int(p.elapsed_s), int(p.budget_s), f"{p.points} measurements"),
                sync=sync,
            )
        out.show({**asdict(summary), "folder": str(summary.folder)}, profile_view)


@app.command()
def train(
    folder: Annotated[str, typer.Argument(metavar="DIR", callback=_paths, help="Folder that `coexec profile` wrote.")],
    trials: Annotated[int, typer.Option(min=0, help="Optuna trials per model; 0 does not tune.")] = 0,
    storage: Annotated[str | None, typer.Option(metavar="URL", help="Optuna storage, to go on later.")] = None,
    json: Json = False,
) -> None:
    """Fit the latency predictors of a profile."""
    with output(json) as out:
        from coexec.cli.tables import train_view
        from coexec.predictors.train import train as fit

        with out.progress() as progress:
            report = fit(folder, trials, storage, progress=lambda p: progress(p.done, p.models, p.name))
        out.show(report.to_json(), train_view)


@app.command()
def validate(
    model: Annotated[
        str | None, typer.Argument(metavar="[MODEL]", callback=_paths, help="ONNX file, or a name in coexec.zoo.")
    ] = None,
    suite: Annotated[str | None, typer.Option(help="Layers that come with coexec: linear or conv.")] = None,
    layers: Annotated[str | None, typer.Option(metavar="FILE", callback=_paths, help="JSON file of layers.")] = None,
    device: Device = None,
    profile: Profile = None,
    cpu_threads: CpuThreads = None,
    compute_units: ComputeUnits = None,
    sync: SyncName = None,
    step: Annotated[
        int | None, typer.Option(min=1, help="Output channels or rows between the cuts of the grid.")
    ] = None,
    seconds: Annotated[float, typer.Option(callback=_positive, help="Seconds per layer.")] = 4.0,
    input_shape: InputShape = None,
    json: Json = False,
) -> None:
    """Compare the planner's cuts with the best of a measured grid of cuts."""
    with output(json) as out:
        from coexec.arguments import input_shapes, named_model, one_of
        from coexec.cli.tables import validate_view
        from coexec.experiments.suites import load_layers
        from coexec.experiments.validate import validate_layers, validate_model

        one_of({"MODEL": model, "--suite": suite, "--layers": layers})
        with out.progress() as progress:
            common: dict[str, Any] = {
                "device": device,
                "profile": profile,
                "cpu_threads": cpu_threads,
                "compute_units": compute_units,
                "sync": sync,
                "step": step,
                "seconds_per_layer": seconds,
                "progress": progress,
            }
            if model is not None:
                shapes = input_shapes(input_shape or ())
                document = validate_model(named_model(model), input_shapes=shapes, **common)
            else:
                document = validate_layers(load_layers(suite or layers or ""), **common)
        out.show(document, validate_view)


@app.command()
def bench(
    models: Annotated[
        list[str] | None, typer.Argument(metavar="[MODEL]...", callback=_paths, help="ONNX files or zoo names.")
    ] = None,
    suite: Annotated[str | None, typer.Option(help="layers (the default) or models: seven of the zoo.")] = None,
    layer_file: Annotated[
        str | None, typer.Option("--layers", metavar="FILE", callback=_paths, help="JSON file of layers.")
    ] = None,
    peers: Annotated[
        str | None, typer.Option(help="Libraries to compare with, a,b; default: all that are installed.")
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="Threads of each library.")] = 1,
    device: Device = None,
    profile: Annotated[
        str | None,
        typer.Option(
            callback=_paths,
            help="Profile by name or folder, or measure. Default: measure for layers, for models the one that fits.",
        ),
    ] = None,
    sync: SyncName = None,
    rounds: Annotated[int, typer.Option(min=3, help="Measurements of each thing, at least.")] = 20,
    seconds: Annotated[float, typer.Option(callback=_positive, help="Seconds per layer or model, at least.")] = 2.0,
    html: Annotated[
        str | None, typer.Option(metavar="FILE", callback=_paths, help="Write charts and tables as one HTML page.")
    ] = None,
    json: Json = False,
) -> None:
    """Compare with either side alone and with other libraries."""
    with output(json) as out:
        from pathlib import Path

        from coexec.arguments import check_targets
        from coexec.cli.bench_page import save_page
        from coexec.cli.tables import bench_view
        from coexec.errors import InputError
        from coexec.experiments.bench import MODEL_SUITE, Effort, bench_layers, bench_models
        from coexec.experiments.suites import SUITES, load_layers

        chosen = suite or ("models" if models else "layers")
        if chosen not in ("layers", "models") or (models and chosen == "layers"):
            raise InputError(f"--suite is layers or models, not {chosen}; with MODEL it is models, or left out")
        if layer_file and chosen == "models":
            raise InputError("--layers goes with the layer benchmark; leave out MODEL and --suite models")
        if html is not None:
            check_targets({"--html": html}, [Path(name) for name in (*(models or ()), layer_file) if name])
        with out.progress() as progress:
            common: dict[str, Any] = {
                "peers": None if peers is None else [p for p in peers.split(",") if p],
                "threads": threads,
                "device": device,
                "sync": sync,
                "effort": Effort(rounds, seconds),
                "progress": progress,
            }
            if chosen == "models":
                document = bench_models(models or list(MODEL_SUITE), profile=profile, **common)
            else:
                layers = [layer for name in ([layer_file] if layer_file else SUITES) for layer in load_layers(name)]
                document = bench_layers(layers, profile=profile or "measure", **common)
        if html is not None:
            save_page(html, document)
        out.show(document, bench_view)
