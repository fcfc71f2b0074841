"""One forward pass over the packed rows of many requests, and what is read of it.

All rows of all requests form one `[1, rows]` batch, so linear layers see one matrix product. Only
rows whose logits somebody reads reach the language-model head.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.errors import ModelError
from engine.model.attention import NAME, AttentionStep, Segment
from engine.model.kv_cache import KvCache, KvShape
from engine.model.loader import LoadedModel
from engine.model.topk import best_tokens
from engine.spec.drafter import Needs, Rows
from engine.spec.tree import TokenTree

# Packed bf16 products on a CPU give a row the same bits for every row count from 8 on, and 8 rows
# cost about what one costs.
_MIN_ROWS_CPU_BF16 = 8


@dataclass(frozen=True, slots=True)
class RunRequest:
    """One request's part in a pass: known tokens to compute, the last of them the tree's anchor.

    `prefix`: known tokens before the anchor (a prompt chunk), empty while decoding. `tree` is None
    for a chunk that does not end the prompt; its last token is then in `prefix` too.
    """

    slot: int
    committed_len: int
    prefix: Sequence[int]
    tree: TokenTree | None
    needs: Needs
    wants_prefix_logits: bool = False

    @property
    def num_rows(self) -> int:
        """Rows in the pass."""
        return len(self.prefix) + (len(self.tree) if self.tree else 0)


@dataclass(frozen=True, slots=True)
class RunResult:
    """What one request's rows gave. Rows of `tree` only, unless said otherwise."""

    logits: Tensor  # [num_nodes, vocab]
    argmax: list[int]  # [num_nodes]; vocab_size where a row holds NaN
    rows: Rows  # of the tree's nodes
    prefix_rows: Rows | None  # of the prefix, if the drafter reads them
    prefix_logits: Tensor | None  # [len(prefix), vocab], if asked


class ModelRunner:
    """Owns the model, the KV tensor and the one way to run them."""

    def __init__(self, loaded: LoadedModel, num_slots: int, max_tree_nodes: int) -> None:
        config = loaded.model.config.get_text_config()
        heads = config.num_attention_heads
        kv_heads = getattr(config, "num_key_value_heads", None) or heads
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
        capacity = loaded.max_model_len + max_tree_nodes + 1
        self._model = loaded.model
        self.device = self._device = loaded.device
        self._dtype = loaded.dtype
        self._group = heads // kv_heads
        shape = KvShape(config.num_hidden_layers, kv_heads, head_dim, capacity)
        self.kv = KvCache(shape, num_slots, loaded.dtype, loaded.device)
        is_cpu_bf16 = loaded.device.type == "cpu" and loaded.dtype == torch.bfloat16
        self._min_rows = _MIN_ROWS_CPU_BF16 if is_cpu_bf16 else 1
        self.forward_seconds = 0.0  # of the last pass
        self._probe()

    def _probe(self) -> None:
        """Run one row and see that every layer went through our attention."""
        step = self._forward([RunRequest(0, 0, (), TokenTree.anchored(0), Needs())])[1]
        missing = set(range(self.kv.shape.num_layers)) - step.layers_seen
        if missing:
            raise ModelError(
                f"{type(self._model).__name__}: layers {sorted(missing)} bypass the attention "
                f"interface ({NAME}), so token trees cannot be verified with this model."
            )

    @torch.inference_mode()
    def run(self, parts: Sequence[RunRequest]) -> list[RunResult | None]:
        """Compute all rows, write their KV into the slots' scratch rows, and read what is needed.

        Returns one result per part, None for a part whose logits nobody reads.
        """
        begin = time.perf_counter()
        logits, _ = self._forward(parts)
        if not len(logits):
            self.forward_seconds = time.perf_counter() - begin
            return [None] * len(parts)
        top_k = max((part.needs.top_k for part in parts), default=0)
        argmax, ids, values = best_tokens(logits, top_k)
        mass = None
        if any(part.needs.log_mass for part in parts):
            mass = torch.logsumexp(logits.float(), 1).cpu().numpy()
        best = Rows(ids.cpu().numpy(), values.float().cpu().numpy(), mass)
        results = self._split(parts, logits, argmax.tolist(), best)
        self.forward_seconds = time.perf_counter() - begin
        return results

    def _split(
        self, parts: Sequence[RunRequest], logits: Tensor, argmax: list[int], best: Rows
    ) -> list[RunResult | None]:
        results: list[RunResult | None] = []
        row = 0
        for part in parts:
            begin, row = row, row + len(self._rows_read(part))
            if begin == row:
                results.append(None)
                continue
            num_prefix = row - begin - (len(part.tree) if part.tree else 0)
            middle = begin + num_prefix
            results.append(
                RunResult(
                    logits=logits[middle:row],
                    argmax=argmax[middle:row],
                    rows=best[middle:row],
                    prefix_rows=best[begin:middle] if part.needs.prompt_rows else None,
                    prefix_logits=logits[begin:middle] if part.wants_prefix_logits else None,
                )
            )
        return results

    @staticmethod
    def _rows_read(part: RunRequest) -> range:
        """Rows of a part, counted from its start, whose logits somebody reads."""
        reads_prefix = part.needs.prompt_rows or part.wants_prefix_logits
        first = 0 if reads_prefix else len(part.prefix)
        return range(first, part.num_rows)

    def _forward(self, parts: Sequence[RunRequest]) -> tuple[Tensor, AttentionStep]:
        token_ids: list[int] = []
        positions: list[int] = []
        reads: list[int] = []
        segments: list[Segment] = []
        for part in parts:
            start = len(token_ids)
            reads.extend(start + row for row in self._rows_read(part))
            segments.append(self._segment(part, start))
            token_ids.extend(part.prefix)
            positions.extend(range(part.committed_len, part.committed_len + len(part.prefix)))
            if part.tree:
                token_ids.extend(part.tree.token_ids)
                anchor = part.committed_len + len(part.prefix)
                positions.extend(anchor + depth for depth in part.tree.depths)
        padding = self._min_rows - len(token_ids)
        if padding > 0:
            token_ids.extend([0] * padding)
            positions.extend([0] * padding)
        step = AttentionStep(self.kv, segments, self._dtype, self._group)
        output = self._model(
            input_ids=torch.tensor([token_ids], device=self._device),
            position_ids=torch.tensor([positions], device=self._device),
            use_cache=False,
            logits_to_keep=torch.tensor(reads, dtype=torch.long, device=self._device),
            treeline_step=step,
        )
        return output.logits[0], step

    def _segment(self, part: RunRequest, start: int) -> Segment:
        """The rows' visibility: the prefix is a chain, the tree hangs from its end."""
        chain, rows = len(part.prefix), part.num_rows
        depths = np.arange(rows)
        ancestors: Tensor | None = None
        if rows > 1:
            mask = np.tri(rows, dtype=np.bool_)
            if part.tree:
                mask[chain:, chain:] = part.tree.ancestor_mask()
            ancestors = torch.from_numpy(mask).to(self._device)
        if part.tree:
            depths[chain:] = np.asarray(part.tree.depths) + chain
        depth_tensor = torch.from_numpy(depths).to(self._device)
        return Segment(part.slot, part.committed_len, start, rows, ancestors, depth_tensor)
