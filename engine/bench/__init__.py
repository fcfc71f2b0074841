"""`treeline bench`: methods side by side on real prompts, on the clock or on recorded text.

Outputs are compared first: a speed-up means nothing where `identical` is below `prompts`, which is
why that column stands beside it in every table.
"""

from engine.bench.command import run

__all__ = ["run"]
