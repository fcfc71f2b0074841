/* One tile of a linear layer by products of bf16 pairs (AVX512-BF16); see linear.inc.c. */

#define COLUMNS PANEL /* outputs whose weights lie together: two registers */
#define MOST_ROWS 14 /* 28 sums, two weights and one input fill the 32 registers */
#define FEW_ROWS 8   /* fewer wait for memory alone; asking it for more slows them */
#define AHEAD_PASSES(passes) (passes) /* that ask for a share of the next panel */

static inline __m512 widened(__m256i x) {
    return (__m512)_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16);
}

static inline __attribute__((always_inline)) void linear_tile(
    const int rows, const uint16_t *x, const uint16_t *weight, const float *bias,
    const uint16_t *add, uint16_t *y, int inputs, int outputs, int columns, const char *ahead,
    size_t stride) {
    __m512 sums[MOST_ROWS][2];
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < 2; c++) sums[r][c] = _mm512_loadu_ps(bias + 16 * c);
    for (int k = 0; k < inputs; k += 2) {
        const __m512bh low = (__m512bh)_mm512_loadu_si512(weight + (size_t)k * PANEL);
        const __m512bh high = (__m512bh)_mm512_loadu_si512(weight + (size_t)k * PANEL + 32);
        if (stride) {
            _mm_prefetch(ahead, _MM_HINT_T1);
            if (stride > 64) _mm_prefetch(ahead + 64, _MM_HINT_T1);
            ahead += stride;
        }
        for (int r = 0; r < rows; r++) {
            int32_t pair;
            memcpy(&pair, x + (size_t)r * inputs + k, sizeof pair);
            const __m512bh both = (__m512bh)_mm512_set1_epi32(pair);
            sums[r][0] = _mm512_dpbf16_ps(sums[r][0], both, low);
            sums[r][1] = _mm512_dpbf16_ps(sums[r][1], both, high);
        }
    }
    const __mmask32 kept = columns < PANEL ? (1u << columns) - 1 : ~0u;
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < 2; c++) {
            const size_t at = (size_t)r * outputs + 16 * c;
            const __mmask16 mask = (__mmask16)(kept >> (16 * c));
            __m256bh sum = _mm512_cvtneps_pbh(sums[r][c]);
            if (add) {
                const __m256i other = _mm256_maskz_loadu_epi16(mask, add + at);
                sum = _mm512_cvtneps_pbh(_mm512_add_ps(widened((__m256i)sum), widened(other)));
            }
            _mm256_mask_storeu_epi16(y + at, mask, (__m256i)sum);
        }
}
