"""Times forward passes of the real model by their number of rows, once per machine and model.

The price of a draft node follows from this curve, and its shape cannot be guessed: on one machine
60 more rows are nearly free, on another they double a step.
"""

import logging
import platform
import time
from pathlib import Path

import torch

from engine.model.cache_folder import cache_file
from engine.model.native import kernels_id
from engine.model.run_request import RunRequest
from engine.model.runner import ModelRunner
from engine.spec.drafter import Needs
from engine.spec.step_cost import SIZES, StepCost
from engine.spec.tree import TokenTree

_CONTEXT = 256  # tokens before the probed rows: attention to them is part of what a row costs

log = logging.getLogger("treeline.engine")


def probe_step_cost(runner: ModelRunner, model_name: str, top_k: int) -> StepCost:
    """The cost table of this machine and model: from the user's cache folder, or measured now.

    `top_k`: best tokens read per row. Takes under ten seconds, on slot 0, which must be free.
    """
    path = _cache_path(runner, model_name, top_k)
    known = StepCost.load(path)
    if known is not None:
        return known
    needs = Needs(top_k=top_k)
    capacity = runner.kv.shape.capacity
    sizes = [size for size in SIZES if size <= capacity]
    context = min(_CONTEXT, capacity - sizes[-1])

    if context:
        runner.run([RunRequest(0, 0, [0] * context, TokenTree.anchored(0), needs)])

    def run(rows: int) -> float:
        tree = TokenTree.anchored(0)
        for node in range(rows - 1):
            tree.add(node // 2, node % 2)
        runner.run([RunRequest(0, context, (), tree, needs)])
        return runner.forward_seconds

    cost = StepCost.measured(run, time.perf_counter, sizes)
    try:
        cost.save(path)
    except OSError as error:
        log.warning("the step costs were measured but not kept: %s", error)
    return cost


def _cache_path(runner: ModelRunner, model_name: str, top_k: int) -> Path:
    is_cuda = runner.device.type == "cuda"
    facts = {
        "machine": torch.cuda.get_device_name() if is_cuda else _cpu_name(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "model": model_name,
        "kv": repr(runner.kv.shape),
        "dtype": str(runner.kv.data.dtype),
        "top_k": top_k,
        "context": _CONTEXT,
        "passes": runner.passes,
    }
    if not is_cuda:
        facts["kernels"] = kernels_id()
    return cache_file("step-cost", facts, ".json")


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
