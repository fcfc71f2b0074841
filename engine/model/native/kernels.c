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

/* Linear layers in bf16, where no matrix tiles (AMX) serve the library better: by products of
 * pairs, or by fp32 products of what was bf16 in memory. */
#if !defined(__AMX_BF16__) && defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
#define HAS_LINEAR
#if defined(__AVX512BF16__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#define HAS_PAIRS
#endif
#endif

#define BLOCK 64
#define MOST_QUERIES 4
/* A vector is a register: with 16 registers instead of 32, fewer sums fit at once. */
#ifdef __AVX512F__
#define LANES 16
#define SUMS(queries) (BLOCK / LANES)
#else
#define LANES 8
#define SUMS(queries) ((queries) == 1 ? 8 : (queries) < 4 ? 4 : 2)
#endif

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

typedef struct {
    const uint16_t *weight; /* packed by treeline_pack_linear */
    const uint16_t *bias;   /* may be null */
    int32_t inputs, outputs;
} Linear;

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

#ifdef __clang__
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (vi){__VA_ARGS__})
#endif

static inline float largest(vf x) {
    /* Of numbers without order, so in any order: every lane with one half, a quarter, ... on. */
    vf y;
#if LANES == 16
    y = SHUFFLE(x, x, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
    x = choose(x > y, x, y);
    y = SHUFFLE(x, x, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11);
    x = choose(x > y, x, y);
    y = SHUFFLE(x, x, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
    x = choose(x > y, x, y);
    y = SHUFFLE(x, x, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
#else
    y = SHUFFLE(x, x, 4, 5, 6, 7, 0, 1, 2, 3);
    x = choose(x > y, x, y);
    y = SHUFFLE(x, x, 2, 3, 0, 1, 6, 7, 4, 5);
    x = choose(x > y, x, y);
    y = SHUFFLE(x, x, 1, 0, 3, 2, 5, 4, 7, 6);
#endif
    x = choose(x > y, x, y);
    return x[0];
}

/* What a row's queries see of one block of keys: columns [first, last). */
typedef struct {
    int first, last, dim;
    float scale, softcap;
} Sight;

static inline __attribute__((always_inline)) void weigh(
    const int n, vf s[][BLOCK / LANES], const Sight sight, float *max, float *mass,
    float weights[][BLOCK], float *fade) {
    /* From scores of `n` queries to weights; `fade` is what earlier blocks' weights count now. */
    vf lane;
    for (int i = 0; i < LANES; i++) lane[i] = i;
    for (int g = 0; g < n; g++) {
        vf top = splat(max[g]);
        for (int c = 0; c < BLOCK / LANES; c++) {
            s[g][c] *= sight.scale;
            if (sight.softcap > 0) {
                vf x = s[g][c] / sight.softcap, size = choose(x < 0, -x, x), e = vexp(size * -2.0f);
                vf t = (1.0f - e) / (1.0f + e);
                s[g][c] = choose(x < 0, -t, t) * sight.softcap;
            }
            vi seen = (lane >= (float)(sight.first - c * LANES)) &
                      (lane < (float)(sight.last - c * LANES));
            s[g][c] = choose(seen, s[g][c], splat(-INFINITY));
            top = choose(s[g][c] > top, s[g][c], top);
        }
        const float peak = largest(top);
        fade[g] = max[g] == -INFINITY ? 0.0f : exp1(max[g] - peak);
        vf sum = load(mass + g * LANES) * fade[g];
        for (int c = 0; c < BLOCK / LANES; c++) {
            vf p = choose(s[g][c] > -INFINITY, vexp(s[g][c] - peak), splat(0));
            sum += p;
            store(weights[g] + c * LANES, p);
        }
        store(mass + g * LANES, sum);
        max[g] = peak;
    }
}

static inline __attribute__((always_inline)) void add_values(
    const int n, const int nd, const int count, const float *v, float weights[][BLOCK],
    const Sight sight, const float *fade, float *out) {
    /* `count` of the `nd` vectors of each query's output. */
    vf o[MOST_QUERIES][16];
    for (int g = 0; g < n; g++)
        for (int i = 0; i < count; i++) o[g][i] = load(out + (g * nd + i) * LANES) * fade[g];
    for (int j = sight.first; j < sight.last; j++)
        for (int i = 0; i < count; i++) {
            const vf value = load(v + (j * nd + i) * LANES);
            for (int g = 0; g < n; g++) o[g][i] += weights[g][j] * value;
        }
    for (int g = 0; g < n; g++)
        for (int i = 0; i < count; i++) store(out + (g * nd + i) * LANES, o[g][i]);
}

static inline __attribute__((always_inline)) void copies_body(
    const int n, const int nd, const float *q, const float *kt, const float *v, const Sight sight,
    float *max, float *mass, float *out) {
    /* `n` queries of one row, which see the same keys, so that a key is loaded once for all. */
    const int at_once = LANES == 16 ? nd : SUMS(n); /* vectors of an output that have registers */
    vf s[MOST_QUERIES][BLOCK / LANES];
    float weights[MOST_QUERIES][BLOCK], fade[MOST_QUERIES];
    for (int begin = 0; begin < BLOCK / LANES; begin += SUMS(n)) {
        vf sums[MOST_QUERIES][SUMS(n)];
        for (int g = 0; g < n; g++)
            for (int c = 0; c < SUMS(n); c++) sums[g][c] = splat(0);
        for (int i = 0; i < sight.dim; i++)
            for (int c = 0; c < SUMS(n); c++) {
                const vf key = load(kt + i * BLOCK + (begin + c) * LANES);
                for (int g = 0; g < n; g++) sums[g][c] += q[g * nd * LANES + i] * key;
            }
        for (int g = 0; g < n; g++)
            for (int c = 0; c < SUMS(n); c++) s[g][begin + c] = sums[g][c];
    }
    weigh(n, s, sight, max, mass, weights, fade);
    int i = 0;
    for (; i + at_once <= nd; i += at_once)
        add_values(n, nd, at_once, v + i * LANES, weights, sight, fade, out + i * LANES);
    for (; i < nd; i++)
        add_values(n, nd, 1, v + i * LANES, weights, sight, fade, out + i * LANES);
}

/* The queries of one row against one block. Only the model's shape chooses the code: all copies add
 * in one order, but a compiler may fuse a multiplication and an addition in one of them. */
#if LANES == 16
#define BY_SHAPE(n, nd, BODY) \
    for (int g = 0, count; g < n; g += count) { \
        count = nd == 4 ? (n - g < 4 ? n - g : 4) : nd == 8 ? (n - g < 2 ? 1 : 2) : 1; \
        switch (nd << 4 | count) { \
        case 0x41: BODY(1, 4); break; \
        case 0x42: BODY(2, 4); break; \
        case 0x43: BODY(3, 4); break; \
        case 0x44: BODY(4, 4); break; \
        case 0x81: BODY(1, 8); break; \
        case 0x82: BODY(2, 8); break; \
        default: BODY(1, nd); \
        } \
    }
#else
#define BY_SHAPE(n, nd, BODY) \
    for (int g = 0, count; g < n; g += count) { \
        count = n - g < MOST_QUERIES ? n - g : MOST_QUERIES; \
        switch (count) { \
        case 1: BODY(1, nd); break; \
        case 2: BODY(2, nd); break; \
        case 3: BODY(3, nd); break; \
        case 4: BODY(4, nd); break; \
        } \
    }
#endif

static void attend_copies(int n, int nd, const float *q, const float *kt, const float *v,
                          Sight sight, float *max, float *mass, float *out) {
#define BODY(count, nd) \
    copies_body(count, nd, q + g * nd * LANES, kt, v, sight, max + g, mass + g * LANES, \
                out + g * nd * LANES)
    BY_SHAPE(n, nd, BODY)
#undef BODY
}

#if LANES == 16
#define LOW_HALVES 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define HIGH_HALVES 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#else
#define LOW_HALVES 0, 8, 1, 9, 2, 10, 3, 11
#define HIGH_HALVES 4, 12, 5, 13, 6, 14, 7, 15
#endif

static inline void transpose(vi x[LANES]) {
    /* LANES by LANES numbers: shuffling the halves of a pack together log2(LANES) times. */
    for (int round = 1; round < LANES; round *= 2) {
        vi y[LANES];
        for (int i = 0; i < LANES / 2; i++) {
            const vi a = x[i], b = x[i + LANES / 2];
            y[2 * i] = SHUFFLE(a, b, LOW_HALVES);
            y[2 * i + 1] = SHUFFLE(a, b, HIGH_HALVES);
        }
        for (int i = 0; i < LANES; i++) x[i] = y[i];
    }
}

static inline void f32_tile(const vi *x, float *kt) {
    /* As many dimensions of as many keys, transposed, to `kt`. */
    for (int i = 0; i < LANES; i++) store(kt + i * BLOCK, (vf)x[i]);
}

static inline void bf16_tile(const vi *x, float *kt) {
    /* The same of twice the dimensions: a number here holds two of them. */
    for (int i = 0; i < LANES; i++) {
        store(kt + 2 * i * BLOCK, (vf)(x[i] << 16));
        store(kt + (2 * i + 1) * BLOCK, (vf)(x[i] & (int32_t)0xffff0000));
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

static size_t attention_scratch(const Pass *pass) {
    /* Bytes that one thread needs for any unit. */
    const size_t padded = (pass->head_dim + LANES - 1) / LANES * LANES;
    int most = 0;
    for (int u = 0; u < pass->num_units; u++) {
        const int rows = pass->units[2 * u + 1] - pass->units[2 * u];
        if (rows > most) most = rows;
    }
    return sizeof(float) *
           (2 * padded * BLOCK + (size_t)most * pass->group * (2 * padded + LANES + 1));
}

typedef uint16_t vh __attribute__((vector_size(2 * LANES), aligned(2)));
typedef uint32_t vu __attribute__((vector_size(4 * LANES), aligned(4)));

static inline vf f32_lanes_at(const float *x) { return load(x); }
static inline vf f32_rounded(vf x) { return x; }
static inline void f32_put_lanes(float *y, vf x) { store(y, x); }

static inline vf bf16_lanes_at(const uint16_t *x) {
    return (vf)(__builtin_convertvector(*(const vh *)x, vu) << 16);
}
static inline vf bf16_rounded(vf x) {
    /* As to_bf16 rounds, kept as floats. */
    const vu bits = (vu)x, near = (bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff0000u;
    return choose(x == x, (vf)near, splat(NAN));
}
static inline void bf16_put_lanes(uint16_t *y, vf x) {
    *(vh *)y = __builtin_convertvector((vu)bf16_rounded(x) >> 16, vh);
}

static float *own_scratch(const Pass *pass, int *failed) {
    /* Such memory for the calling thread of a region. Behind it all threads agree on `failed`. */
    float *scratch = malloc(attention_scratch(pass));
    if (!scratch) {
#pragma omp atomic write
        *failed = 1;
    }
#pragma omp barrier
    return scratch;
}

#define ELEM float
#define LOAD(x) (x)
#define STORE(x) (x)
#define NAME(x) f32_##x
#define TILE_DIMS LANES
#include "blocks.inc.c"
#include "attention.inc.c"
#include "rows.inc.c"
#include "best.inc.c"
#undef ELEM
#undef LOAD
#undef STORE
#undef NAME
#undef TILE_DIMS
#define ELEM uint16_t
#define LOAD(x) from_bf16(x)
#define STORE(x) to_bf16(x)
#define NAME(x) bf16_##x
#define TILE_DIMS (2 * LANES)
#include "blocks.inc.c"
#include "attention.inc.c"
#include "rows.inc.c"
#include "best.inc.c"
#ifdef HAS_PAIRS
#undef NAME
#define NAME(x) pairs_##x
#include "pairs.inc.c"
#include "attention.inc.c"
#endif

static void attend_bf16(const Pass *pass, const Layer *layer, float *scratch) {
#ifdef HAS_PAIRS
    if (pass->head_dim % 32 == 0) {
        pairs_attend(pass, layer, scratch);
        return;
    }
#endif
    bf16_attend(pass, layer, scratch);
}

int treeline_attend(const Pass *pass, const Layer *layer, int is_bf16, int threads) {
    /* Attention of one layer over all units; 0, or 1 if memory ran out. */
    int failed = 0;
    for (int r = 0; r < pass->num_rows; r++)
        is_bf16 ? bf16_write(pass, layer, r) : f32_write(pass, layer, r);
#pragma omp parallel num_threads(threads)
    {
        float *scratch = own_scratch(pass, &failed);
        if (!failed && is_bf16) attend_bf16(pass, layer, scratch);
        else if (!failed) f32_attend(pass, layer, scratch);
        free(scratch);
    }
    return failed;
}

#include "linear.inc.c"

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

void treeline_best(const void *x, int rows, int dim, int k, int64_t *argmax, int64_t *ids,
                   float *values, int is_bf16, int threads) {
    /* Of [rows, dim], `k` >= 1: argmax [rows], ids and values [rows, k]. */
#pragma omp parallel for num_threads(threads) if (rows >= 4)
    for (int r = 0; r < rows; r++) {
        const size_t at = (size_t)r * dim, to = (size_t)r * k;
        if (is_bf16)
            bf16_best_row((const uint16_t *)x + at, dim, k, argmax + r, ids + to, values + to);
        else f32_best_row((const float *)x + at, dim, k, argmax + r, ids + to, values + to);
    }
}

void treeline_move(void *data, int planes, int slots, int kv_heads, int capacity, int row_bytes,
                   const int32_t *moves, int num_moves) {
    /* Copy rows of [planes, slots, kv_heads, capacity, row], each a slot, a source and a target,
     * one after the other. */
    for (int p = 0; p < planes; p++)
        for (int i = 0; i < num_moves; i++) {
            const int32_t *move = moves + 3 * i;
            for (int head = 0; head < kv_heads; head++) {
                char *rows = (char *)data +
                             (((size_t)p * slots + move[0]) * kv_heads + head) * capacity * row_bytes;
                memcpy(rows + (size_t)move[2] * row_bytes, rows + (size_t)move[1] * row_bytes,
                       row_bytes);
            }
        }
}
