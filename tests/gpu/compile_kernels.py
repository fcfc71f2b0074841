"""Compiles the Triton kernels for real chips, which takes no device.

Run as a process of its own, since the interpreter's kernels cannot be compiled.
"""

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from engine.model import triton_kernels as kernels
from engine.model.pass_tensors import KEY_BLOCK

_SHARED_MEMORY = 164 << 10  # bytes of an A100 that a program may use
_INDICES = ("units", "slots", "stores", "positions", "bases", "path_starts", "path")
_STATES = ("maxima", "sums", "averages")
_FLOATS = ("scale", "softcap")
_VALUES = ("query", "key", "value", "keys", "values", "output")


def compile_for(kernel, chip: int, dtype: str, constants: dict) -> None:
    types = dict.fromkeys(_INDICES, "*i64") | dict.fromkeys(_STATES, "*fp32")
    types |= dict.fromkeys(_FLOATS, "fp32") | dict.fromkeys(_VALUES, f"*{dtype}")
    used = {name: constants[name] for name in kernel.arg_names if name in constants}
    if kernel is kernels.combine_splits:
        types["values"] = "*fp32"
    signature = {
        name: "constexpr" if name in used else types.get(name, "i32") for name in kernel.arg_names
    }
    source = ASTSource(kernel, signature, {(kernel.arg_names.index(n),): used[n] for n in used})
    options = {"num_warps": 4, "num_stages": 2}
    binary = triton.compile(source, GPUTarget("cuda", chip, 32), options)
    assert binary.metadata.shared <= _SHARED_MEMORY, (dtype, constants)


for chip, dtype, head_dim, row_block in (
    (80, "bf16", 128, 64),
    (90, "bf16", 128, 64),
    (90, "fp32", 64, 16),
):
    sizes = {
        "SPLIT_LEN": 512,
        "GROUP": 3,
        "GROUP_CELLS": 4,
        "HEAD_DIM": head_dim,
        "BLOCK_M": row_block,
        "BLOCK_N": KEY_BLOCK,
        "BLOCK_D": head_dim,
        "DOT": {"bf16": tl.bfloat16, "fp32": tl.float32}[dtype],
    }
    for kernel in (kernels.attend_units, kernels.combine_splits, kernels.store_rows):
        compile_for(kernel, chip, dtype, sizes)
