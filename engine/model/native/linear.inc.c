/* Linear layers in bf16 for few rows: each weight is read once, and rows never meet.
 *
 * An output is one chain of pair products in the order of the inputs, from the bias on, in fp32.
 * Its bits therefore depend on its own row only, for every number of rows and threads. Processors
 * with matrix tiles (AMX) are left to the library, which uses them.
 */

#ifdef HAS_PAIRS

#define PANEL 32      /* outputs that are computed together: two registers */
#define MOST_ROWS 14  /* 28 sums, two weights and one input fill the 32 registers */
#define FEW_ROWS 8    /* fewer wait for memory alone; asking it for more slows them */

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

static void linear_rows(int rows, const uint16_t *x, const uint16_t *weight, const float *bias,
                        const uint16_t *add, uint16_t *y, int inputs, int outputs, int columns,
                        const char *ahead, size_t stride) {
#define CASE(n) \
    case n: linear_tile(n, x, weight, bias, add, y, inputs, outputs, columns, ahead, stride); break;
    switch (rows) {
        CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7)
        CASE(8) CASE(9) CASE(10) CASE(11) CASE(12) CASE(13) CASE(14)
    }
#undef CASE
}

int treeline_linear_panel(void) {
    /* Outputs per panel of a packed weight, whose last panel is filled up; 0: no such kernel. */
    return PANEL;
}

void treeline_pack_linear(const uint16_t *weight, uint16_t *packed, int inputs, int outputs) {
    /* [outputs, inputs] -> [panels][inputs / 2][PANEL][2]; `inputs` is even. */
    for (int begin = 0; begin < outputs; begin += PANEL)
        for (int k = 0; k < inputs; k += 2)
            for (int c = 0; c < PANEL; c++, packed += 2) {
                const int output = begin + c;
                const uint16_t *pair = weight + (size_t)output * inputs + k;
                packed[0] = output < outputs ? pair[0] : 0;
                packed[1] = output < outputs ? pair[1] : 0;
            }
}

static void linear_panel(const Linear *linear, const uint16_t *x, const uint16_t *add, uint16_t *y,
                         int rows, int p) {
    /* Outputs [p * PANEL, (p + 1) * PANEL) of all rows. `add` [rows, outputs] may be null. */
    const int inputs = linear->inputs, outputs = linear->outputs;
    const int panels = (outputs + PANEL - 1) / PANEL;
    const int passes = (rows + MOST_ROWS - 1) / MOST_ROWS, each = (rows + passes - 1) / passes;
    const size_t size = (size_t)inputs * PANEL;
    const uint16_t *weight = linear->weight + p * size;
    const int left = outputs - p * PANEL, columns = left < PANEL ? left : PANEL;
    /* While one panel is computed, the next comes from memory, a share of it in each pass. */
    const size_t share = rows >= FEW_ROWS && p + 1 < panels ? 2 * size / passes : 0;
    float from[PANEL] = {0};
    if (linear->bias)
        for (int c = 0; c < columns; c++) from[c] = from_bf16(linear->bias[p * PANEL + c]);
    for (int begin = 0, pass = 0; begin < rows; begin += each, pass++) {
        const size_t at = (size_t)begin * outputs + p * PANEL;
        linear_rows(rows - begin < each ? rows - begin : each, x + (size_t)begin * inputs, weight,
                    from, add ? add + at : NULL, y + at, inputs, outputs, columns,
                    (const char *)(weight + size) + pass * share, share / (inputs / 2));
    }
}

void treeline_linear(const Linear *linear, const uint16_t *x, uint16_t *y, int rows, int threads) {
    /* [rows, inputs] -> [rows, outputs]. */
    if (!rows) return; /* as where nobody reads logits */
    const int panels = (linear->outputs + PANEL - 1) / PANEL;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int p = 0; p < panels; p++) linear_panel(linear, x, NULL, y, rows, p);
}

#include "decoder.inc.c"
#else
int treeline_linear_panel(void) { return 0; }
#endif
