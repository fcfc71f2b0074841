"""These tests run where a CUDA device is; elsewhere they are left out of the collection.

Those of the Triton kernels run wherever Triton is installed, without a device in its interpreter.
"""

from importlib.util import find_spec

import pytest
import torch

HAS_CUDA = torch.cuda.is_available()
HAS_TRITON = find_spec("triton") is not None

collect_ignore_glob = [] if HAS_CUDA else ["test_cuda*.py"]
if not HAS_TRITON:
    collect_ignore_glob.append("test_triton*.py")


def pytest_report_header(config: pytest.Config) -> str:
    triton = "run" if HAS_CUDA else "interpreted"
    return (
        f"gpu tests: {'run' if HAS_CUDA else 'left out, no CUDA device'}; "
        f"of Triton: {triton if HAS_TRITON else 'left out, it is not installed'}"
    )
