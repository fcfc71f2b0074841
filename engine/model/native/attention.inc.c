/* Tree attention. Included once per way to hold a block of keys (blocks.inc.c, pairs.inc.c), with
 * ELEM, LOAD, STORE, NAME and TILE_DIMS (dimensions in 64 bytes) set, and put_query, load_block and
 * attend_block defined.
 *
 * Every query row is computed over its own keys in logical order (committed prefix, then its path),
 * in blocks of 64 at fixed logical positions, with one fixed order of additions. Its bits therefore
 * depend on its own tokens only: not on the tree, the batch, the place of rows or the chunking.
 */

static void NAME(unit)(const Pass *pass, const Layer *layer, int begin, int end, int head,
                       float *scratch) {
    /* Rows [begin, end) of one segment against one KV head. */
    const int dim = pass->head_dim, padded = (dim + LANES - 1) / LANES * LANES, nd = padded / LANES;
    const int group = pass->group, queries = (end - begin) * group;
    const int slot = pass->slot_of[begin];
    const size_t plane = (size_t)pass->capacity * dim;
    const ELEM *keys = (const ELEM *)layer->keys + (slot * (size_t)pass->kv_heads + head) * plane;
    const ELEM *values = (const ELEM *)layer->values + (slot * (size_t)pass->kv_heads + head) * plane;
    float *kt = scratch, *v = kt + padded * BLOCK, *q = v + padded * BLOCK,
          *o = q + queries * padded, *l = o + queries * padded, *m = l + queries * LANES;
    int32_t rows[BLOCK];
    int base = 0, most = 0, least = INT32_MAX;

    memset(q, 0, sizeof(float) * queries * (2 * padded + LANES));
    for (int r = begin; r < end; r++) {
        const int low = layer->window > 0 ? pass->num_keys[r] - layer->window : 0;
        if (pass->base[r] > base) base = pass->base[r];
        if (pass->num_keys[r] > most) most = pass->num_keys[r];
        if (low < least) least = low < 0 ? 0 : low;
        for (int g = 0; g < group; g++) {
            const ELEM *source = (const ELEM *)layer->query + r * layer->query_row +
                                 (head * group + g) * layer->query_head;
            NAME(put_query)(source, dim, layer->scale, q + ((r - begin) * group + g) * padded);
            m[(r - begin) * group + g] = -INFINITY;
        }
    }
    for (int start = least / BLOCK * BLOCK; start < most; start += BLOCK) {
        const int shared = base - start < BLOCK ? base - start : BLOCK;
        for (int j = 0; j < BLOCK; j++) rows[j] = j < shared ? start + j : -1;
        NAME(load_block)(keys, values, rows, 0, shared, dim, padded, kt, v);
        /* While this block is attended to, the next comes from memory. */
        for (int j = start + BLOCK; j < base && j < start + 2 * BLOCK; j++)
            for (int i = 0; i < dim; i += TILE_DIMS) {
                __builtin_prefetch(keys + (size_t)j * dim + i);
                __builtin_prefetch(values + (size_t)j * dim + i);
            }
        for (int r = begin; r < end; r++) {
            const int left = pass->num_keys[r] - start, n = (r - begin) * group;
            const int last = left < BLOCK ? left : BLOCK;
            int first = layer->window > 0 ? left - layer->window : 0;
            if (first < 0) first = 0;
            if (first >= last) continue;
            /* Columns behind `shared` follow the row's path; those of the row before may fit. */
            const int32_t *path = pass->path + pass->path_start[r] + (start - pass->base[r]);
            for (int j = shared > 0 ? shared : 0; j < last; j++) {
                if (rows[j] == path[j]) continue;
                rows[j] = path[j];
                NAME(load_block)(keys, values, rows, j, j + 1, dim, padded, kt, v);
            }
            const Sight sight = {first, last, dim, layer->scale, layer->softcap};
            NAME(attend_block)(group, nd, q + n * padded, kt, v, values, rows, sight, m + n,
                               l + n * LANES, o + n * padded);
        }
    }
    for (int r = begin; r < end; r++)
        for (int g = 0; g < group; g++) {
            const int n = (r - begin) * group + g;
            float total = 0;
            for (int i = 0; i < LANES; i++) total += l[n * LANES + i];
            ELEM *target = (ELEM *)layer->output +
                           ((size_t)r * pass->kv_heads * group + head * group + g) * dim;
            for (int i = 0; i < dim; i++) target[i] = STORE(o[n * padded + i] / total);
        }
}

static void NAME(attend)(const Pass *pass, const Layer *layer, float *scratch) {
    /* All units and heads, shared out among the threads of the region that calls this. */
    const int tasks = pass->num_units * pass->kv_heads;
#pragma omp for schedule(dynamic, 1)
    for (int t = 0; t < tasks; t++) {
        const int u = t / pass->kv_heads;
        NAME(unit)(pass, layer, pass->units[2 * u], pass->units[2 * u + 1], t % pass->kv_heads,
                   scratch);
    }
}
