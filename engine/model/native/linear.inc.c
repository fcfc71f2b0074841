/* Linear layers in bf16 for few rows: each weight is read once, and rows never meet.
 *
 * An output is one chain of products in the order of the inputs, from the bias on, in fp32.
 * Its bits therefore depend on its own row only, for every number of rows and threads. Processors
 * with matrix tiles (AMX) are left to the library, which uses them.
 */

#ifdef HAS_LINEAR

#define PANEL 32 /* outputs that are computed together */

#ifdef HAS_PAIRS
#include "pairs_tile.inc.c"
#else
#include "fma_tile.inc.c"
#endif

static void linear_rows(int rows, const uint16_t *x, const uint16_t *weight, const float *bias,
                        const uint16_t *add, uint16_t *y, int inputs, int outputs, int columns,
                        const char *ahead, size_t stride) {
#define CASE(n) \
    case n: linear_tile(n, x, weight, bias, add, y, inputs, outputs, columns, ahead, stride); break;
    switch (rows) {
        CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
#if MOST_ROWS > 6
        CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12) CASE(13) CASE(14)
#endif
    }
#undef CASE
}

int treeline_linear_panel(void) {
    /* Outputs per panel of a packed weight, whose last panel is filled up; 0: no such kernel. */
    return PANEL;
}

void treeline_pack_linear(const uint16_t *weight, uint16_t *packed, int inputs, int outputs) {
    /* [outputs, inputs] -> [outputs / COLUMNS][inputs / 2][COLUMNS][2], filled up to whole panels;
     * `inputs` is even. */
    const int filled = (outputs + PANEL - 1) / PANEL * PANEL;
    for (int begin = 0; begin < filled; begin += COLUMNS)
        for (int k = 0; k < inputs; k += 2)
            for (int c = 0; c < COLUMNS; c++, packed += 2) {
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
    const int asking = rows >= FEW_ROWS && p + 1 < panels ? AHEAD_PASSES(passes) : 0;
    const size_t share = asking ? 2 * size / asking : 0;
    float from[PANEL] = {0};
    if (linear->bias)
        for (int c = 0; c < columns; c++) from[c] = from_bf16(linear->bias[p * PANEL + c]);
    for (int begin = 0, pass = 0; begin < rows; begin += each, pass++) {
        const size_t at = (size_t)begin * outputs + p * PANEL;
        linear_rows(rows - begin < each ? rows - begin : each, x + (size_t)begin * inputs, weight,
                    from, add ? add + at : NULL, y + at, inputs, outputs, columns,
                    (const char *)(weight + size) + pass * share,
                    pass < asking ? share / (inputs / 2) : 0);
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
