"""The GPU's tree attention: each row over its keys in logical order, whatever the tree.

Positions are cut into blocks of BLOCK_N and splits of `split_len` at fixed places. A split starts
from nothing and takes its blocks from left to right; splits are combined from left to right. So
neither the tree nor the company of a row changes the order of its sums, and keys that a row does
not see add exact zeros.

One kernel, `attend_units`, does both kinds of blocks, so that a key has the same bits in either:
those below every row's own path are read once for the many rows of a unit, the last ones for one
row, along its path. A unit is (first row, number of rows, first key, last key + 1).
"""

import triton
import triton.language as tl


@triton.jit
def store_rows(
    key,
    value,
    keys,
    values,
    slots,
    stores,
    key_head,
    key_row,
    value_head,
    value_row,
    slot_stride,
    head_stride,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Write the rows' keys and values into their slots; a row with slot -1 is padding."""
    row, head = tl.program_id(0), tl.program_id(1)
    dims = tl.arange(0, BLOCK_D)
    slot = tl.load(slots + row)
    mask = dims < tl.where(slot >= 0, HEAD_DIM, 0)
    target = slot * slot_stride + head * head_stride + tl.load(stores + row) * HEAD_DIM + dims
    source = tl.load(key + head * key_head + row * key_row + dims, mask=mask)
    tl.store(keys + target, source, mask=mask)
    source = tl.load(value + head * value_head + row * value_row + dims, mask=mask)
    tl.store(values + target, source, mask=mask)


@triton.jit
def _scores(asked, known, scale, softcap):
    """[rows, keys] in float32, capped by tanh if `softcap` is above 0."""
    scores = tl.dot(asked, tl.trans(known), input_precision="ieee") * scale
    if softcap > 0.0:
        scores = softcap - 2.0 * softcap / (tl.exp(2.0 * scores / softcap) + 1.0)
    return scores


@triton.jit(do_not_specialize=["num_rows", "window"])
def attend_units(
    query,
    keys,
    values,
    maxima,
    sums,
    averages,
    units,
    slots,
    positions,
    bases,
    path_starts,
    path,
    query_head,
    query_row,
    slot_stride,
    head_stride,
    num_rows,
    scale,
    softcap,
    window,
    SPLIT_LEN: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_CELLS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    DOT: tl.constexpr,
):
    """Program (unit, KV head, n): the unit's keys within the n-th split from its first key on.

    Adds to the split's state (largest score, sum of weights, weighted sum of values) what the
    unit's blocks hold. A unit that begins inside a split goes on from the state found there.
    """
    unit = units + 4 * tl.program_id(0)
    kv_head = tl.program_id(1)
    start, count = tl.load(unit), tl.load(unit + 1)
    low, high = tl.load(unit + 2), tl.load(unit + 3)
    split = low // SPLIT_LEN + tl.program_id(2)
    begin = tl.maximum(low, split * SPLIT_LEN)
    end = tl.minimum(high, (split + 1) * SPLIT_LEN)
    if begin < end:
        place = tl.arange(0, BLOCK_M)
        rows, member = start + place // GROUP_CELLS, place % GROUP_CELLS
        is_used = (place // GROUP_CELLS < count) & (member < GROUP)
        heads = kv_head * GROUP + member
        dims = tl.arange(0, BLOCK_D)
        is_dim = (dims < HEAD_DIM)[None, :]
        position = tl.load(positions + rows, mask=is_used, other=-1)
        asked = tl.load(
            query + heads[:, None] * query_head + rows[:, None] * query_row + dims[None, :],
            mask=is_used[:, None] & is_dim,
            other=0.0,
        ).to(DOT)
        state = (split * num_rows + rows) * (GROUP * tl.num_programs(1)) + heads
        goes_on = is_used & (place < tl.where(low > split * SPLIT_LEN, BLOCK_M, 0))
        largest = tl.load(maxima + state, mask=goes_on, other=-float("inf"))
        total = tl.load(sums + state, mask=goes_on, other=0.0)
        cells = state[:, None] * HEAD_DIM + dims[None, :]
        mixed = tl.load(averages + cells, mask=goes_on[:, None] & is_dim, other=0.0)

        first = tl.load(slots + start) * slot_stride + kv_head * head_stride
        base = tl.load(bases + start)
        own_path = path + tl.load(path_starts + start) - base
        last = tl.max(position, 0)
        earliest = tl.min(tl.where(is_used, position, last), 0) - window + 1
        begin = tl.maximum(begin, earliest // BLOCK_N * BLOCK_N)
        for block in range(begin, end, BLOCK_N):
            at = block + tl.arange(0, BLOCK_N)
            is_key = at <= last
            node = tl.load(own_path + at, mask=is_key & (at >= base), other=0)
            lies = first + tl.where(at >= base, node, at)[:, None] * HEAD_DIM + dims[None, :]
            known = tl.load(keys + lies, mask=is_key[:, None] & is_dim, other=0.0)
            scores = _scores(asked, known.to(DOT), scale, softcap)
            distance = position[:, None] - at[None, :]
            scores = tl.where((distance >= 0) & (distance < window), scores, -float("inf"))
            larger = tl.maximum(largest, tl.max(scores, 1))
            shift = tl.where(larger == -float("inf"), 0.0, larger)
            weights = tl.exp(scores - shift[:, None])
            fade = tl.exp(largest - shift)
            total = total * fade + tl.sum(weights, 1)
            known = tl.load(values + lies, mask=is_key[:, None] & is_dim, other=0.0)
            mixed = mixed * fade[:, None]
            weights = weights.to(known.dtype).to(DOT)
            mixed = tl.dot(weights, known.to(DOT), mixed, input_precision="ieee")
            largest = larger
        tl.store(maxima + state, largest, mask=is_used)
        tl.store(sums + state, total, mask=is_used)
        tl.store(averages + cells, mixed, mask=is_used[:, None] & is_dim)


@triton.jit(do_not_specialize=["num_rows"])
def combine_splits(
    maxima,
    sums,
    averages,
    slots,
    positions,
    output,
    num_rows,
    SPLIT_LEN: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_CELLS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Program (row, KV head): the states of its splits into the row's outputs; padding: zeros."""
    row, kv_head = tl.program_id(0), tl.program_id(1)
    heads = GROUP * tl.num_programs(1)
    member, dims = tl.arange(0, GROUP_CELLS), tl.arange(0, BLOCK_D)
    is_head = member < GROUP
    is_cell = is_head[:, None] & (dims < HEAD_DIM)[None, :]
    splits = tl.where(tl.load(slots + row) < 0, 0, tl.load(positions + row) // SPLIT_LEN + 1)
    largest = tl.full([GROUP_CELLS], -float("inf"), tl.float32)
    total = tl.zeros([GROUP_CELLS], tl.float32)
    mixed = tl.zeros([GROUP_CELLS, BLOCK_D], tl.float32)
    for split in range(0, splits):
        state = (split * num_rows + row) * heads + kv_head * GROUP + member
        score = tl.load(maxima + state, mask=is_head, other=-float("inf"))
        larger = tl.maximum(largest, score)
        shift = tl.where(larger == -float("inf"), 0.0, larger)
        fade, gain = tl.exp(largest - shift), tl.exp(score - shift)
        total = total * fade + tl.load(sums + state, mask=is_head, other=0.0) * gain
        cells = state[:, None] * HEAD_DIM + dims[None, :]
        values = tl.load(averages + cells, mask=is_cell, other=0.0)
        mixed = mixed * fade[:, None] + values * gain[:, None]
        largest = larger
    divisor = tl.where(total > 0.0, total, 1.0)
    target = (row * heads + kv_head * GROUP + member)[:, None] * HEAD_DIM + dims[None, :]
    mixed = mixed / divisor[:, None]
    tl.store(output + target, mixed.to(output.dtype.element_ty), mask=is_cell)
