"""A packed pass on the device: all of it in one block, so that one copy brings it there.

The tensors keep their addresses from pass to pass, which is what a recorded graph needs. They are
padded to the number of rows that they were made for; a padding row has slot -1 and no keys.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.model.packed_pass import PackedPass

KEY_BLOCK = 64  # positions per block of keys
_FIELDS = ("token_ids", "positions", "reads", "slots", "stores", "bases", "path_starts")
_ALIGNED = 16  # entries: kernels are compiled per alignment, so all fields get the same


@dataclass(frozen=True, slots=True)
class PassLimits:
    """The largest pass that some tensors hold."""

    rows: int
    units: int  # groups of rows that share what they read
    path: int  # tree nodes on the paths of all rows together

    @classmethod
    def of(cls, packed: PackedPass, rows: int, rows_per_unit: int) -> "PassLimits":
        """Just enough for `packed`, padded to `rows`."""
        units = sum(-(-part.num_rows // rows_per_unit) for part in packed.parts)
        depths = (sum(part.tree.depths) for part in packed.parts if part.tree)
        return cls(rows, units, sum(depths))

    @classmethod
    def for_any(cls, rows: int, parts: int, rows_per_unit: int) -> "PassLimits":
        """Enough for every pass of up to `rows` rows in up to `parts` parts."""
        return cls(rows, rows // rows_per_unit + min(parts, rows), rows * (rows - 1) // 2)


class PassTensors:
    """Views into one block of int64, all of the pass's rows side by side.

    `token_ids`, `positions`, `reads` [rows]: what the model gets. `slots`, `stores` [rows]: where a
    row's key and value belong. A row's key at position p lies in row p of its slot below `bases`,
    and in row `path[path_starts + p - bases]` from there on. `shared_units` [units, 4] and
    `own_units` [rows, 4]: first row, number of rows, first position, last position + 1. A shared
    unit covers whole blocks below every path; an own unit covers the rest for one row.
    """

    def __init__(self, limits: PassLimits, rows_per_unit: int, device: torch.device) -> None:
        self._rows_per_unit = rows_per_unit
        stride = -(-limits.rows // _ALIGNED) * _ALIGNED
        units = len(_FIELDS) * stride
        own = units + -(-4 * limits.units // _ALIGNED) * _ALIGNED
        self._path_start = own + 4 * stride
        size = self._path_start + max(limits.path, 1)
        self._block = torch.zeros(size, dtype=torch.long, device=device)
        self._host = torch.zeros(size, dtype=torch.long, pin_memory=device.type == "cuda")

        def parts_of(block: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
            table = block[:units].view(-1, stride)[:, : limits.rows]
            shared = block[units:][: 4 * limits.units].view(-1, 4)
            return (
                table,
                shared,
                block[own:][: 4 * limits.rows].view(-1, 4),
                block[own + 4 * stride :],
            )

        table, self.shared_units, self.own_units, self.path = parts_of(self._block)
        self.token_ids, self.positions, self.reads, self.slots = table[:4]
        self.stores, self.bases, self.path_starts = table[4:]
        self.slots.fill_(-1)
        self._arrays = [part.numpy() for part in parts_of(self._host)]

    def write(self, packed: PackedPass) -> None:
        """Bring `packed` to the device. The host must not write again before the copy is done."""
        self._host[: self._path_start].zero_()
        rows = dict(zip(_FIELDS, self._arrays[0], strict=True))
        rows["slots"][len(packed) :] = -1
        rows["token_ids"][: len(packed)] = packed.token_ids
        rows["positions"][: len(packed)] = packed.positions
        rows["reads"][: len(packed.reads)] = packed.reads
        used = self._path_start + self._describe(packed, rows)
        self._block[:used].copy_(self._host[:used], non_blocking=True)

    def _describe(self, packed: PackedPass, rows: dict[str, npt.NDArray[np.int64]]) -> int:
        """Where every row's keys lie; returns the number of path entries."""
        _, shared_units, own_units, paths = self._arrays
        path: list[int] = []
        start = unit = 0
        for part in packed.parts:
            first, end = part.committed_len, start + part.num_rows
            base = first + len(part.prefix) + (1 if part.tree else 0)
            rows["slots"][start:end] = part.slot
            rows["stores"][start:end] = range(first, first + part.num_rows)
            rows["bases"][start:end] = base
            if part.tree:
                own: list[list[int]] = []
                for node, parent in enumerate(part.tree.parents):
                    own.append([*own[parent], base - 1 + node] if node else [])
                    rows["path_starts"][end - len(part.tree) + node] = len(path)
                    path += own[node]
            shared, ends = base // KEY_BLOCK * KEY_BLOCK, rows["positions"][start:end] + 1
            own_units[start:end, 0], own_units[start:end, 1] = range(start, end), 1
            own_units[start:end, 2], own_units[start:end, 3] = shared, ends
            for begin in range(0, part.num_rows, self._rows_per_unit):
                group = ends[begin : begin + self._rows_per_unit]
                shared_units[unit] = start + begin, len(group), 0, min(shared, group.max())
                unit += 1
            start = end
        paths[: len(path)] = path
        return len(path)
