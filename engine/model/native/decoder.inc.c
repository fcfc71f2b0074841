/* A whole decoder layer of the Llama kind in bf16, in one parallel region.
 *
 * For the few rows of a step a framework's calls cost more than all that is not a linear layer.
 * Every number is rounded where transformers rounds it, so the bits are the same.
 */

typedef struct {
    Linear query, key, value, output, gate_up, down;
    const uint16_t *norm, *mlp_norm;       /* [hidden] */
    const uint16_t *query_norm, *key_norm; /* [head_dim], may be null */
    float eps, mlp_eps, head_eps, scale, softcap;
    int32_t window; /* 0: none */
} Decoder;

static inline void rotate_lanes(uint16_t *low, uint16_t *high, const uint16_t *cosine,
                                const uint16_t *sine, int half) {
    /* Every product and every sum is a bf16 number. */
    const vf a = bf16_lanes_at(low), b = bf16_lanes_at(high);
    const vf straight = bf16_rounded(a * bf16_lanes_at(cosine));
    const vf turned = bf16_rounded(-b * bf16_lanes_at(sine));
    const vf straight_b = bf16_rounded(b * bf16_lanes_at(cosine + half));
    const vf turned_b = bf16_rounded(a * bf16_lanes_at(sine + half));
    bf16_put_lanes(low, straight + turned);
    bf16_put_lanes(high, straight_b + turned_b);
}

static void rotate(uint16_t *x, const uint16_t *cosine, const uint16_t *sine, int dim) {
    /* x * cos + rotate_half(x) * sin */
    const int half = dim / 2, whole = half / LANES * LANES, left = half - whole;
    for (int i = 0; i < whole; i += LANES)
        rotate_lanes(x + i, x + half + i, cosine + i, sine + i, half);
    if (!left) return;
    uint16_t ends[6][LANES] = {0}; /* low, high, cosines of both, sines of both */
    const uint16_t *parts[] = {x + whole, x + half + whole, cosine + whole, cosine + half + whole,
                               sine + whole, sine + half + whole};
    for (int i = 0; i < 6; i++) memcpy(ends[i], parts[i], left * sizeof *x);
    rotate_lanes(ends[0], ends[1], ends[2], ends[4], LANES);
    memcpy(x + whole, ends[0], left * sizeof *x);
    memcpy(x + half + whole, ends[1], left * sizeof *x);
}

static void place_heads(uint16_t *x, int heads, int dim, const uint16_t *norm, float eps,
                        const uint16_t *cosine, const uint16_t *sine) {
    /* Normalise, if the model does, and rotate the heads of one row in place. */
    for (int head = 0; head < heads; head++, x += dim) {
        if (norm) bf16_norm_row(x, norm, x, dim, eps);
        rotate(x, cosine, sine, dim);
    }
}

static inline int panels_of(const Linear *linear) { return (linear->outputs + PANEL - 1) / PANEL; }

static void decode(const Decoder *d, const Pass *pass, uint16_t *x, const uint16_t *cosine,
                   const uint16_t *sine, uint16_t *keys, uint16_t *values, uint16_t *scratch,
                   float *block, int rows) {
    /* One layer, in place, shared out among the threads of the region that calls this. */
    const int hidden = d->output.outputs, dim = pass->head_dim, inner = d->down.inputs;
    const int queries = d->query.outputs, kv = d->key.outputs, heads = queries / dim;
    uint16_t *normed = scratch, *query = normed + (size_t)rows * hidden;
    uint16_t *key = query + (size_t)rows * queries, *value = key + (size_t)rows * kv;
    uint16_t *seen = value + (size_t)rows * kv, *both = seen + (size_t)rows * queries;
    uint16_t *gated = both + (size_t)rows * 2 * inner;
    const Layer layer = {
        .query = query, .key = key, .value = value, .query_row = queries, .query_head = dim,
        .key_row = kv, .key_head = dim, .value_row = kv, .value_head = dim, .keys = keys,
        .values = values, .output = seen, .scale = d->scale, .softcap = d->softcap,
        .window = d->window,
    };
    const int num_q = panels_of(&d->query), num_k = panels_of(&d->key), num_v = panels_of(&d->value);
#pragma omp for schedule(static)
    for (int r = 0; r < rows; r++)
        bf16_norm_row(x + (size_t)r * hidden, d->norm, normed + (size_t)r * hidden, hidden, d->eps);
#pragma omp for schedule(static)
    for (int p = 0; p < num_q + num_k + num_v; p++) {
        if (p < num_q) linear_panel(&d->query, normed, NULL, query, rows, p);
        else if (p < num_q + num_k) linear_panel(&d->key, normed, NULL, key, rows, p - num_q);
        else linear_panel(&d->value, normed, NULL, value, rows, p - num_q - num_k);
    }
#pragma omp for schedule(static)
    for (int r = 0; r < rows; r++) {
        const uint16_t *c = cosine + (size_t)r * dim, *s = sine + (size_t)r * dim;
        place_heads(query + (size_t)r * queries, heads, dim, d->query_norm, d->head_eps, c, s);
        place_heads(key + (size_t)r * kv, pass->kv_heads, dim, d->key_norm, d->head_eps, c, s);
        if (r < pass->num_rows) bf16_write(pass, &layer, r);
        else memset(seen + (size_t)r * queries, 0, sizeof(uint16_t) * queries);
    }
    attend_bf16(pass, &layer, block);
#pragma omp for schedule(static)
    for (int p = 0; p < panels_of(&d->output); p++)
        linear_panel(&d->output, seen, x, x, rows, p);
#pragma omp for schedule(static)
    for (int r = 0; r < rows; r++)
        bf16_norm_row(x + (size_t)r * hidden, d->mlp_norm, normed + (size_t)r * hidden, hidden,
                      d->mlp_eps);
#pragma omp for schedule(static)
    for (int p = 0; p < panels_of(&d->gate_up); p++)
        linear_panel(&d->gate_up, normed, NULL, both, rows, p);
#pragma omp for schedule(static)
    for (int r = 0; r < rows; r++)
        bf16_gate_row(both + (size_t)r * 2 * inner, gated + (size_t)r * inner, inner);
#pragma omp for schedule(static)
    for (int p = 0; p < panels_of(&d->down); p++) linear_panel(&d->down, gated, x, x, rows, p);
}

int treeline_decode(const Decoder *layers, int num_layers, const Pass *pass, uint16_t *x,
                    const uint16_t *cosine, const uint16_t *sine, uint16_t *kv, size_t layer_stride,
                    size_t values_at, uint16_t *scratch, int rows, int threads) {
    /* Layers over `x` [rows, hidden], in place; `cosine`, `sine` [rows, head_dim]. The first
     * layer's keys begin at `kv` as in Layer, its values `values_at` numbers further. Rows behind
     * the pass's own are padding. `scratch` holds, per row, hidden + 2 * query + 2 * key + 3 * inner
     * numbers. Returns 1 if memory ran out, else 0. */
    int failed = 0;
#pragma omp parallel num_threads(threads)
    {
        float *block = own_scratch(pass, &failed);
        for (int l = 0; l < num_layers && !failed; l++) {
            uint16_t *keys = kv + l * layer_stride;
            decode(layers + l, pass, x, cosine, sine, keys, keys + values_at, scratch, block, rows);
        }
        free(block);
    }
    return failed;
}
