"""What must be said before the first test module is imported."""

import os

import pytest
import torch

from engine.model import native

# Where no CUDA device is, Triton interprets its kernels. It reads this when it is first imported.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--march", help="compile the CPU kernels for this processor, not for this one")


def pytest_configure(config: pytest.Config) -> None:
    if march := config.getoption("--march"):
        native._PROCESSOR = march
