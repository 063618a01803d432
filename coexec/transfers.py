"""What has to be copied where both sides have memories of their own."""

from __future__ import annotations

from collections.abc import Sequence

from coexec.dependencies import Region, overlap, regions
from coexec.layout import Array
from coexec.plan import Task
from coexec.sync import Launch
from coexec.tensors import Tensors


def written(tensors: Tensors, task: Task) -> list[tuple[Region, Array]]:
    """What a task writes, with exactly its elements as a view of the tensor's memory."""
    graph = tensors.graph
    node = next(node for node in graph.nodes if node.name == task.node)
    found = regions(graph, node, task)[1]
    if graph.can_split(node):  # a region may hold more than the part
        return [(found[0], tensors.part(task)[2])]
    return [(region, tensors.view(region.name)[region.box]) for region in found]


def add_copies(tensors: Tensors, tasks: Sequence[tuple[Task, Launch | None]]) -> None:
    """Give each launch what to copy in before and out after, where sides have separate memories."""
    graph, places = tensors.graph, tensors.graph.placement.places
    nodes = {node.name: node for node in graph.nodes}
    host_only: dict[str, list[tuple[Region, Array]]] = {}
    for name in graph.inputs:
        whole = (slice(None),) * len(graph.tensors[name].shape)
        region = Region(name, whole, *graph.placement.in_root(graph, name, whole))
        host_only.setdefault(region.root, []).append((region, tensors.view(name)))
    read = {name for task, launch in tasks if launch is None for name in nodes[task.node].inputs}
    read_by_host = {places[name].root for name in (*read, *graph.outputs) if name in places}
    for task, launch in tasks:
        if launch is None:
            for region, view in written(tensors, task):
                host_only.setdefault(region.root, []).append((region, view))
            continue
        for region in regions(graph, nodes[task.node], task)[0]:
            shape = graph.tensors[region.root].shape
            for other, view in host_only.pop(region.root, []):
                if overlap(other.root_box, region.root_box, shape):
                    launch.uploads.append((tensors.memory(region.root), view))
                else:
                    host_only.setdefault(region.root, []).append((other, view))
        launch.downloads.extend(
            (tensors.memory(region.root), view)
            for region, view in written(tensors, task)
            if region.root in read_by_host
        )
