"""Kernels of our own for the CPU, compiled from C for this machine at first use and then cached.

A kernel is worth its place here when it makes a row's bits independent of its company, which no
library promises. Without a C compiler the engine still serves, on torch's attention and without
that guarantee; `exact: true` is then refused at start.
"""

import ctypes
import hashlib
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from engine.model.cache_folder import cache_folder

_HERE = Path(__file__).parent
_SOURCES = (
    *("kernels.c", "attention.inc.c", "blocks.inc.c", "pairs.inc.c"),
    *("rows.inc.c", "best.inc.c", "decoder.inc.c"),
    *("linear.inc.c", "pairs_tile.inc.c", "fma_tile.inc.c"),
)
_PROCESSOR = "native"  # what -march names; the tests compile for lesser processors too
_FLAGS = ("-O3", "-fopenmp", "-shared", "-fPIC", "-std=gnu11", "-lm")


class Pass(ctypes.Structure):
    """What all layers of one forward pass share (kernels.c). Arrays by address."""

    _fields_ = [
        *((name, ctypes.c_int32) for name in ("num_rows", "num_units", "kv_heads", "group")),
        *((name, ctypes.c_int32) for name in ("head_dim", "capacity")),
        *((name, ctypes.c_void_p) for name in ("slot_of", "row_of", "num_keys", "base")),
        *((name, ctypes.c_void_p) for name in ("path", "path_start", "units")),
    ]


class Layer(ctypes.Structure):
    """One layer's tensors by address, strides in elements (kernels.c)."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("query", "key", "value")),
        *((name, ctypes.c_int64) for name in ("query_row", "query_head", "key_row", "key_head")),
        *((name, ctypes.c_int64) for name in ("value_row", "value_head")),
        *((name, ctypes.c_void_p) for name in ("keys", "values", "output")),
        *((name, ctypes.c_float) for name in ("scale", "softcap")),
        ("window", ctypes.c_int32),
    ]


class Linear(ctypes.Structure):
    """A packed linear layer, by address (kernels.c)."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("weight", "bias")),
        *((name, ctypes.c_int32) for name in ("inputs", "outputs")),
    ]


class Decoder(ctypes.Structure):
    """What one decoder layer consists of (decoder.inc.c)."""

    _fields_ = [
        *((name, Linear) for name in ("query", "key", "value", "output", "gate_up", "down")),
        *((name, ctypes.c_void_p) for name in ("norm", "mlp_norm", "query_norm", "key_norm")),
        *((name, ctypes.c_float) for name in ("eps", "mlp_eps", "head_eps", "scale", "softcap")),
        ("window", ctypes.c_int32),
    ]


@cache
def load_kernels() -> ctypes.CDLL | None:
    """The compiled kernels, or None where no C compiler with OpenMP works."""
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    library = _library_path()
    if not library.exists() and (compiler is None or not _compile(compiler, library)):
        return None
    kernels = ctypes.CDLL(str(library))
    kernels.treeline_attend.argtypes = [
        ctypes.POINTER(Pass),
        ctypes.POINTER(Layer),
        ctypes.c_int,
        ctypes.c_int,
    ]
    kernels.treeline_attend.restype = ctypes.c_int
    number, address = ctypes.c_int, ctypes.c_void_p
    kernels.treeline_norm.argtypes = [
        *(address, address, address, number, number),
        *(ctypes.c_float, number, number),
    ]
    kernels.treeline_norm.restype = None
    kernels.treeline_gate.argtypes = [address, address, number, number, number, number]
    kernels.treeline_gate.restype = None
    kernels.treeline_move.argtypes = [address, *([number] * 5), address, number]
    kernels.treeline_move.restype = None
    kernels.treeline_best.argtypes = [
        *(address, number, number, number, address, address, address, number, number),
    ]
    kernels.treeline_best.restype = None
    if kernels.treeline_linear_panel():
        kernels.treeline_pack_linear.argtypes = [address, address, number, number]
        kernels.treeline_pack_linear.restype = None
        linear = ctypes.POINTER(Linear)
        kernels.treeline_linear.argtypes = [linear, address, address, number, number]
        kernels.treeline_linear.restype = None
        kernels.treeline_decode.argtypes = [
            *(ctypes.POINTER(Decoder), number, ctypes.POINTER(Pass)),
            *([address] * 4),
            *(ctypes.c_size_t, ctypes.c_size_t, address, number, number),
        ]
        kernels.treeline_decode.restype = number
    return kernels


def has_bf16_linears() -> bool:
    """Whether linear layers in bf16 are computed here by our kernels."""
    kernels = load_kernels()
    return kernels is not None and bool(kernels.treeline_linear_panel())


def kernels_id() -> str | None:
    """What names the kernels that run here, None where none do. Other kernels, other step costs."""
    return None if load_kernels() is None else _library_path().stem


def _library_path() -> Path:
    """Where the library for these sources and this processor is or will be."""
    digest = hashlib.sha256()
    for name in _SOURCES:
        digest.update((_HERE / name).read_bytes())
    digest.update(" ".join((*_FLAGS, _PROCESSOR, platform.machine(), _processor())).encode())
    return cache_folder() / "kernels" / f"{digest.hexdigest()[:16]}.so"


def _processor() -> str:
    """What -march=native depends on: a cache may be shared by machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


def _compile(compiler: str, library: Path) -> bool:
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        built = Path(folder) / library.name
        command = [compiler, str(_HERE / "kernels.c"), f"-march={_PROCESSOR}", *_FLAGS]
        command += ["-o", str(built)]
        done = subprocess.run(command, capture_output=True, check=False)
        if done.returncode:
            return False
        built.replace(library)
    return True
