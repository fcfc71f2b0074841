"""Where no CUDA device is, Triton interprets its kernels. It reads that when it is first imported,
which may happen in any test module, so it is said before the first of them."""

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
