/* One tile of a linear layer by products in fp32 (AVX2, FMA); see linear.inc.c.
 *
 * A product of two bf16 numbers is exact in fp32, so only the order of the additions matters.
 */

#define COLUMNS 16  /* outputs whose weights lie together: two registers */
#define MOST_ROWS 6 /* 12 sums, two weights, an input and a mask fill the 16 registers */
#define FEW_ROWS 4  /* fewer wait for memory alone */
#define AHEAD_PASSES(passes) 1
#define STRETCH 768 /* inputs that are held in fp32 at once */

static inline __m256i eight_pairs(const uint16_t *from, int place) {
    return _mm256_loadu_si256((const __m256i *)from + place);
}

static inline __attribute__((always_inline)) void fma_stretch(
    const int rows, const int parts, const float x[][STRETCH + LANES], const uint16_t *weight,
    size_t part, float *sums, int inputs, const char *ahead, size_t stride) {
    /* Add the products of so many more inputs to COLUMNS sums of each row in each of the `parts`,
     * whose weights lie `part` apart. */
    const __m256i mask = _mm256_set1_epi32((int32_t)0xffff0000);
    __m256 sum[MOST_ROWS][4], both[4];
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < 2 * parts; c++) sum[r][c] = _mm256_loadu_ps(sums + r * PANEL + c * 8);
    for (int k = 0; k < inputs; k += 2) {
        const uint16_t *pairs = weight + (size_t)k * COLUMNS;
        if (stride) _mm_prefetch(ahead + k / 2 * stride, _MM_HINT_T1);
        for (int c = 0; c < 2 * parts; c++)
            both[c] = (__m256)_mm256_slli_epi32(eight_pairs(pairs + c / 2 * part, c % 2), 16);
        for (int r = 0; r < rows; r++)
            for (int c = 0; c < 2 * parts; c++)
                sum[r][c] = _mm256_fmadd_ps(_mm256_broadcast_ss(x[r] + k), both[c], sum[r][c]);
        for (int c = 0; c < 2 * parts; c++)
            both[c] = (__m256)_mm256_and_si256(eight_pairs(pairs + c / 2 * part, c % 2), mask);
        for (int r = 0; r < rows; r++)
            for (int c = 0; c < 2 * parts; c++)
                sum[r][c] = _mm256_fmadd_ps(_mm256_broadcast_ss(x[r] + k + 1), both[c], sum[r][c]);
    }
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < 2 * parts; c++) _mm256_storeu_ps(sums + r * PANEL + c * 8, sum[r][c]);
}

static inline void put_sums(const float *sums, const uint16_t *add, uint16_t *y, int columns) {
    /* Round up to 16 sums to bf16; what they are added to is rounded again. */
    uint16_t others[LANES] = {0}, rounded[LANES];
    vf sum = bf16_rounded(load(sums));
    if (add) {
        memcpy(others, add, columns * sizeof *add);
        sum = bf16_rounded(sum + bf16_lanes_at(others));
    }
    bf16_put_lanes(rounded, sum);
    memcpy(y, rounded, columns * sizeof *y);
}

static inline __attribute__((always_inline)) void linear_tile(
    const int rows, const uint16_t *x, const uint16_t *weight, const float *bias,
    const uint16_t *add, uint16_t *y, int inputs, int outputs, int columns, const char *ahead,
    size_t stride) {
    float sums[MOST_ROWS][PANEL], wide[MOST_ROWS][STRETCH + LANES]; /* more, for the cache's sake */
    for (int r = 0; r < rows; r++) memcpy(sums[r], bias, sizeof *sums);
    for (int begin = 0; begin < inputs; begin += STRETCH) {
        const int count = inputs - begin < STRETCH ? inputs - begin : STRETCH;
        for (int r = 0; r < rows; r++)
            for (int k = 0; k < count; k++) wide[r][k] = from_bf16(x[(size_t)r * inputs + begin + k]);
        const uint16_t *from = weight + (size_t)begin * COLUMNS;
        const size_t part = (size_t)inputs * COLUMNS;
        if (rows < 3) { /* so few sums that each would wait for itself */
            fma_stretch(rows, 2, wide, from, part, sums[0], count, ahead, 0);
        } else {
            fma_stretch(rows, 1, wide, from, 0, sums[0], count, ahead, stride / 2);
            fma_stretch(rows, 1, wide, from + part, 0, sums[0] + COLUMNS, count,
                        ahead + count / 2 * (stride / 2), stride / 2);
        }
        ahead += count / 2 * stride;
    }
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < PANEL && c < columns; c += LANES) {
            const size_t at = (size_t)r * outputs + c;
            put_sums(sums[r] + c, add ? add + at : NULL, y + at,
                     columns - c < LANES ? columns - c : LANES);
        }
}
