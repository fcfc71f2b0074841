/* The CPU's hot loops: attention of token trees over KV slots, and row-wise layers.
 *
 * Plain C with vector extensions (GCC, Clang), compiled for the machine at first use. It shares
 * OpenMP's thread pool with torch, so that no two pools fight for the cores.
 */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#define BLOCK 64
#define LANES 16

typedef float vf __attribute__((vector_size(4 * LANES), aligned(4)));
typedef int32_t vi __attribute__((vector_size(4 * LANES), aligned(4)));

/* What all layers of one forward pass share; arrays have one entry per packed row. */
typedef struct {
    int32_t num_rows, num_units, kv_heads, group, head_dim, capacity;
    const int32_t *slot_of;    /* KV slot */
    const int32_t *row_of;     /* place of the row's own key in the slot */
    const int32_t *num_keys;   /* keys that the row sees, itself included */
    const int32_t *base;       /* of these, leading ones that lie at their logical position */
    const int32_t *path;       /* places of the others, row after row */
    const int32_t *path_start; /* where a row's places begin in `path` */
    const int32_t *units;      /* [num_units][2]: begin and end of rows of one segment */
} Pass;

typedef struct {
    const void *query, *key, *value; /* [rows, heads, head_dim], strides in elements */
    int64_t query_row, query_head, key_row, key_head, value_row, value_head;
    void *keys, *values; /* [slots, kv_heads, capacity, head_dim] */
    void *output;        /* [rows, heads, head_dim] */
    float scale, softcap;
    int32_t window; /* 0: none */
} Layer;

static inline vf load(const float *from) { return *(const vf *)from; }
static inline void store(float *to, vf value) { *(vf *)to = value; }
static inline vf splat(float value) { return value - (vf){0}; }
static inline vf choose(vi mask, vf yes, vf no) {
    return (vf)(((vi)yes & mask) | ((vi)no & ~mask));
}

static inline vf vexp(vf x) {
    /* exp(x) for x <= 0, to about one unit in the last place (Cephes' reduction and polynomial). */
    x = choose(x > -87.0f, x, splat(-87.0f));
    vf n = (x * 1.44269504f + 12582912.0f) - 12582912.0f;
    vf r = x - n * 0.693359375f - n * -2.12194440e-4f;
    vf p = splat(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    vi bits = (__builtin_convertvector(n, vi) + 127) << 23;
    return p * (vf)bits;
}

static inline float exp1(float x) { return vexp(splat(x))[0]; }

static inline __attribute__((always_inline)) void block_body(
    const float *q, const float *kt, const float *v, int first, int last, int dim, const int nd,
    float softcap, float *max, float *mass, float *out) {
    vf s[BLOCK / LANES], p[BLOCK / LANES], lane, o[16];
    for (int c = 0; c < BLOCK / LANES; c++) s[c] = splat(0);
    for (int i = 0; i < dim; i++)
        for (int c = 0; c < BLOCK / LANES; c++)
            s[c] += q[i] * load(kt + i * BLOCK + c * LANES);
    if (softcap > 0)
        for (int c = 0; c < BLOCK / LANES; c++) {
            vf x = s[c] / softcap, size = choose(x < 0, -x, x), e = vexp(size * -2.0f);
            vf t = (1.0f - e) / (1.0f + e);
            s[c] = choose(x < 0, -t, t) * softcap;
        }
    for (int i = 0; i < LANES; i++) lane[i] = i;
    float top = *max;
    for (int c = 0; c < BLOCK / LANES; c++) {
        vi seen = (lane >= (float)(first - c * LANES)) & (lane < (float)(last - c * LANES));
        s[c] = choose(seen, s[c], splat(-INFINITY));
        for (int i = 0; i < LANES; i++) top = s[c][i] > top ? s[c][i] : top;
    }
    const float fade = *max == -INFINITY ? 0.0f : exp1(*max - top);
    vf sum = load(mass) * fade;
    float weights[BLOCK];
    for (int c = 0; c < BLOCK / LANES; c++) {
        p[c] = choose(s[c] > -INFINITY, vexp(s[c] - top), splat(0));
        sum += p[c];
        store(weights + c * LANES, p[c]);
    }
    store(mass, sum);
    *max = top;
    for (int i = 0; i < nd; i++) o[i] = load(out + i * LANES) * fade;
    for (int j = first; j < last; j++)
        for (int i = 0; i < nd; i++)
            o[i] += weights[j] * load(v + j * nd * LANES + i * LANES);
    for (int i = 0; i < nd; i++) store(out + i * LANES, o[i]);
}

static void attend_block(const float *q, const float *kt, const float *v, int first, int last,
                         int dim, int nd, float softcap, float *max, float *mass, float *out) {
    /* One query against one block. The head size decides which copy of the code runs, no row does. */
    switch (nd) {
    case 4: block_body(q, kt, v, first, last, dim, 4, softcap, max, mass, out); break;
    case 8: block_body(q, kt, v, first, last, dim, 8, softcap, max, mass, out); break;
    default: block_body(q, kt, v, first, last, dim, nd, softcap, max, mass, out);
    }
}

static inline float from_bf16(uint16_t x) {
    union { uint32_t i; float f; } u = {(uint32_t)x << 16};
    return u.f;
}
static inline uint16_t to_bf16(float x) {
    union { float f; uint32_t i; } u = {x};
    if (x != x) return 0x7fc0;
    return (uint16_t)((u.i + 0x7fff + ((u.i >> 16) & 1)) >> 16);
}

#define ELEM float
#define LOAD(x) (x)
#define STORE(x) (x)
#define NAME(x) f32_##x
#include "attention.inc.c"
#include "rows.inc.c"
#undef ELEM
#undef LOAD
#undef STORE
#undef NAME
#define ELEM uint16_t
#define LOAD(x) from_bf16(x)
#define STORE(x) to_bf16(x)
#define NAME(x) bf16_##x
#include "attention.inc.c"
#include "rows.inc.c"

int treeline_attend(const Pass *pass, const Layer *layer, int is_bf16, int threads) {
    /* Attention of one layer over all units; 0, or 1 if memory ran out. */
    int most = 0, failed = 0;
    const int padded = (pass->head_dim + LANES - 1) / LANES * LANES;
    for (int r = 0; r < pass->num_rows; r++)
        is_bf16 ? bf16_write(pass, layer, r) : f32_write(pass, layer, r);
    for (int u = 0; u < pass->num_units; u++) {
        const int rows = pass->units[2 * u + 1] - pass->units[2 * u];
        if (rows > most) most = rows;
    }
    const size_t size = (size_t)4 * padded * BLOCK +
                        (size_t)most * pass->group * (2 * padded + LANES + 1);
    const int tasks = pass->num_units * pass->kv_heads;
#pragma omp parallel num_threads(threads)
    {
        float *scratch = malloc(sizeof(float) * size);
        if (!scratch) {
#pragma omp atomic write
            failed = 1;
        }
#pragma omp barrier
#pragma omp for schedule(dynamic, 1)
        for (int t = 0; t < tasks; t++) {
            const int u = t / pass->kv_heads, head = t % pass->kv_heads;
            const int begin = pass->units[2 * u], end = pass->units[2 * u + 1];
            if (failed) continue;
            if (is_bf16) bf16_unit(pass, layer, begin, end, head, scratch);
            else f32_unit(pass, layer, begin, end, head, scratch);
        }
        free(scratch);
    }
    return failed;
}

void treeline_norm(const void *x, const void *weight, void *y, int rows, int dim, float eps,
                   int is_bf16, int threads) {
    /* RMS norm of [rows, dim]. */
#pragma omp parallel for num_threads(threads) if (rows >= 64)
    for (int r = 0; r < rows; r++) {
        const size_t at = (size_t)r * dim;
        if (is_bf16) bf16_norm_row((const uint16_t *)x + at, weight, (uint16_t *)y + at, dim, eps);
        else f32_norm_row((const float *)x + at, weight, (float *)y + at, dim, eps);
    }
}

void treeline_gate(const void *x, void *y, int rows, int dim, int is_bf16, int threads) {
    /* [rows, 2 * dim] -> [rows, dim]: silu of the first half times the second. */
#pragma omp parallel for num_threads(threads) if (rows >= 32)
    for (int r = 0; r < rows; r++) {
        const size_t at = (size_t)r * dim;
        if (is_bf16) bf16_gate_row((const uint16_t *)x + 2 * at, (uint16_t *)y + at, dim);
        else f32_gate_row((const float *)x + 2 * at, (float *)y + at, dim);
    }
}
