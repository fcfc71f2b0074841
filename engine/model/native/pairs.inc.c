/* Blocks of bf16 keys as pairs of dimensions, multiplied two at a time; values stay where they are.
 * For head dimensions in whole tiles; see attention.inc.c. */

static inline void pairs_put_query(const uint16_t *from, int dim, float scale, float *q) {
    (void)scale; /* of the scores, so that queries stay as they are */
    memcpy(q, from, dim * sizeof *from);
}

static inline void pairs_load_block(const uint16_t *keys, const uint16_t *values,
                                    const int32_t *rows, int from, int to, int dim, int padded,
                                    float *kt, float *v) {
    /* Columns [from, to) of a block, transposed to [dim / 2][BLOCK] pairs. */
    (void)values, (void)padded, (void)v;
    vi *pairs = (vi *)kt;
    int j = from;
    for (; j % LANES == 0 && j + LANES <= to; j += LANES)
        for (int i = 0; i < dim; i += TILE_DIMS) {
            vi tile[LANES];
            for (int k = 0; k < LANES; k++)
                memcpy(tile + k, keys + (size_t)rows[j + k] * dim + i, sizeof *tile);
            transpose(tile);
            for (int k = 0; k < LANES; k++)
                pairs[((i / 2 + k) * BLOCK + j) / LANES] = tile[k];
        }
    for (; j < to; j++) {
        const uint16_t *key = keys + (size_t)rows[j] * dim;
        for (int i = 0; i < dim / 2; i++) memcpy(kt + i * BLOCK + j, key + 2 * i, sizeof *kt);
    }
}

static inline __attribute__((always_inline)) void pairs_body(
    const int n, const int nd, const float *q, const float *kt, const uint16_t *values,
    const int32_t *rows, const Sight sight, float *max, float *mass, float *out) {
    /* As copies_body. */
    vf s[MOST_QUERIES][BLOCK / LANES], o[MOST_QUERIES][16];
    float weights[MOST_QUERIES][BLOCK], fade[MOST_QUERIES];
    for (int g = 0; g < n; g++)
        for (int c = 0; c < BLOCK / LANES; c++) s[g][c] = splat(0);
    for (int i = 0; i < sight.dim / 2; i++)
        for (int c = 0; c < BLOCK / LANES; c++) {
            const __m512bh key = (__m512bh)_mm512_loadu_ps(kt + i * BLOCK + c * LANES);
            for (int g = 0; g < n; g++) {
                const __m512bh pair = (__m512bh)_mm512_set1_ps(q[g * nd * LANES + i]);
                s[g][c] = (vf)_mm512_dpbf16_ps((__m512)s[g][c], pair, key);
            }
        }
    weigh(n, s, sight, max, mass, weights, fade);
    for (int g = 0; g < n; g++)
        for (int i = 0; i < nd; i++) o[g][i] = load(out + (g * nd + i) * LANES) * fade[g];
    for (int j = sight.first; j < sight.last; j++) {
        const uint16_t *value = values + (size_t)rows[j] * sight.dim;
        for (int i = 0; i < nd; i++) {
            const vf numbers = bf16_lanes_at(value + i * LANES);
            for (int g = 0; g < n; g++) o[g][i] += weights[g][j] * numbers;
        }
    }
    for (int g = 0; g < n; g++)
        for (int i = 0; i < nd; i++) store(out + (g * nd + i) * LANES, o[g][i]);
}

static void pairs_attend_block(int n, int nd, const float *q, const float *kt, const float *v,
                               const uint16_t *values, const int32_t *rows, Sight sight, float *max,
                               float *mass, float *out) {
    (void)v;
#define BODY(count, nd) \
    pairs_body(count, nd, q + g * nd * LANES, kt, values, rows, sight, max + g, \
               mass + g * LANES, out + g * nd * LANES)
    BY_SHAPE(n, nd, BODY)
#undef BODY
}
