/* Blocks of keys and values as copies in fp32, for one element type; see attention.inc.c. */

static inline void NAME(put_query)(const ELEM *from, int dim, float scale, float *q) {
    for (int i = 0; i < dim; i++) q[i] = LOAD(from[i]) * scale;
}

static inline void NAME(load_block)(const ELEM *keys, const ELEM *values, const int32_t *rows,
                                    int from, int to, int dim, int padded, float *kt, float *v) {
    /* Columns [from, to) of a block: keys transposed to [padded][BLOCK], values to [BLOCK][padded]. */
    int tiled = from;
    for (; dim % TILE_DIMS == 0 && tiled + LANES <= to; tiled += LANES)
        for (int i = 0; i < dim; i += TILE_DIMS) {
            vi tile[LANES];
            for (int j = 0; j < LANES; j++)
                memcpy(tile + j, keys + (size_t)rows[tiled + j] * dim + i, sizeof *tile);
            transpose(tile);
            NAME(tile)(tile, kt + i * BLOCK + tiled);
        }
    for (int j = from; j < to; j++) {
        const ELEM *key = keys + (size_t)rows[j] * dim, *value = values + (size_t)rows[j] * dim;
        for (int i = 0; j >= tiled && i < dim; i++) kt[i * BLOCK + j] = LOAD(key[i]);
        for (int i = 0; i < dim; i++) v[j * padded + i] = LOAD(value[i]);
    }
}

static inline void NAME(attend_block)(int n, int nd, const float *q, const float *kt, const float *v,
                                      const ELEM *values, const int32_t *rows, Sight sight,
                                      float *max, float *mass, float *out) {
    /* Values are in `v` already, and queries are scaled. */
    (void)values, (void)rows;
    sight.scale = 1.0f;
    attend_copies(n, nd, q, kt, v, sight, max, mass, out);
}

static void NAME(write)(const Pass *pass, const Layer *layer, int r) {
    /* Put one row's key and value where its slot expects them. */
    const int dim = pass->head_dim;
    for (int head = 0; head < pass->kv_heads; head++) {
        const size_t to = ((pass->slot_of[r] * (size_t)pass->kv_heads + head) * pass->capacity +
                           pass->row_of[r]) * dim;
        memcpy((ELEM *)layer->keys + to,
               (const ELEM *)layer->key + r * layer->key_row + head * layer->key_head,
               sizeof(ELEM) * dim);
        memcpy((ELEM *)layer->values + to,
               (const ELEM *)layer->value + r * layer->value_row + head * layer->value_head,
               sizeof(ELEM) * dim);
    }
}
