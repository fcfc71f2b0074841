"""These tests run where a CUDA device is; elsewhere they are left out of the collection."""

import pytest
import torch

collect_ignore_glob = [] if torch.cuda.is_available() else ["test_*.py"]


def pytest_report_header(config: pytest.Config) -> str:
    return f"gpu tests: {'run' if torch.cuda.is_available() else 'left out, no CUDA device'}"
