/* Blocks of bf16 numbers multiplied two at a time: keys as pairs of dimensions, values, which stay
 * where they are, as pairs of neighbouring positions, whose weights are rounded to bf16 as
 * transformers rounds them. For head dimensions in whole tiles; see attention.inc.c. */

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

static inline __m512i interleaved(int first) {
    /* Which of 2 * 32 numbers stand where: the first of both, the second of both, ... */
    const __m512i places = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const __m512i own = _mm512_add_epi32(places, _mm512_set1_epi32(first));
    return _mm512_or_si512(own, _mm512_slli_epi32(_mm512_add_epi32(own, _mm512_set1_epi32(32)), 16));
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
    uint16_t shares[MOST_QUERIES][BLOCK];
    for (int g = 0; g < n; g++)
        for (int c = 0; c < BLOCK / LANES; c += 2) {
            const __m512 low = _mm512_loadu_ps(weights[g] + c * LANES);
            const __m512 high = _mm512_loadu_ps(weights[g] + (c + 1) * LANES);
            _mm512_storeu_si512(shares[g] + c * LANES, (__m512i)_mm512_cvtne2ps_pbh(high, low));
        }
    for (int j = sight.first & ~1; j < sight.last; j += 2) {
        const uint16_t *one = values + (size_t)rows[j] * sight.dim;
        /* Behind the last key there may be anything, so it is not read. */
        const int is_pair = j + 1 < sight.last;
        const uint16_t *two = is_pair ? values + (size_t)rows[j + 1] * sight.dim : one;
        for (int i = 0; i < nd; i += 2) {
            const __m512i a = _mm512_loadu_si512(one + i * LANES);
            const __m512i b = _mm512_maskz_loadu_epi16(is_pair ? ~0u : 0, two + i * LANES);
            const __m512bh low = (__m512bh)_mm512_permutex2var_epi16(a, interleaved(0), b);
            const __m512bh high = (__m512bh)_mm512_permutex2var_epi16(a, interleaved(LANES), b);
            for (int g = 0; g < n; g++) {
                int32_t pair;
                memcpy(&pair, shares[g] + j, sizeof pair);
                const __m512bh both = (__m512bh)_mm512_set1_epi32(pair);
                o[g][i] = (vf)_mm512_dpbf16_ps((__m512)o[g][i], both, low);
                o[g][i + 1] = (vf)_mm512_dpbf16_ps((__m512)o[g][i + 1], both, high);
            }
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
