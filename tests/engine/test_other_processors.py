"""The kernels take other paths on lesser processors: their tests run compiled for those as well."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = [f"tests/engine/test_{name}.py" for name in ("exact", "fused_decoder", "forward")]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the processors are of this kind")
@pytest.mark.parametrize("march", ["x86-64-v2", "x86-64-v3"])
def test_kernels_compiled_for(march: str) -> None:
    """v2 has neither AVX nor FMA: attention and norms only. v3 has AVX2: linears by FMA as well."""
    if march.endswith("v3") and " avx2 " not in Path("/proc/cpuinfo").read_text():
        pytest.skip("this machine is older")
    command = [sys.executable, "-m", "pytest", f"--march={march}", "-p", "no:xdist"]
    command += ["-k", "not speculation", *TESTS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:]
