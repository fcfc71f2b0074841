/* Row-wise layers for one element type; see attention.inc.c for ELEM, LOAD, STORE and NAME. */

static void NAME(norm_row)(const ELEM *x, const ELEM *weight, ELEM *y, int dim, float eps) {
    /* weight * x / rms(x), rounded as transformers' Llama norm rounds. May work in place. */
    vf lanes = splat(0);
    float sum = 0;
    const int whole = dim / LANES * LANES;
    for (int i = 0; i < whole; i += LANES) {
        const vf v = NAME(lanes_at)(x + i);
        lanes += v * v;
    }
    for (int i = whole; i < dim; i++) sum += LOAD(x[i]) * LOAD(x[i]);
    for (int j = 0; j < LANES; j++) sum += lanes[j];
    const float scale = 1.0f / sqrtf(sum / dim + eps);
    for (int i = 0; i < whole; i += LANES) {
        const vf unit = NAME(rounded)(NAME(lanes_at)(x + i) * scale);
        NAME(put_lanes)(y + i, NAME(lanes_at)(weight + i) * unit);
    }
    for (int i = whole; i < dim; i++) {
        const ELEM unit = STORE(LOAD(x[i]) * scale);
        y[i] = STORE(LOAD(weight[i]) * LOAD(unit));
    }
}

static inline void NAME(gate_lanes)(const ELEM *x, const ELEM *up, ELEM *y) {
    const vf gate = NAME(lanes_at)(x), one = splat(1);
    const vf e = vexp(choose(gate < 0, gate, -gate));
    const vf unit = choose(gate < 0, e, one) / (one + e) * gate;
    NAME(put_lanes)(y, NAME(rounded)(unit) * NAME(lanes_at)(up));
}

static void NAME(gate_row)(const ELEM *x, ELEM *y, int dim) {
    /* silu(x[:dim]) * x[dim:], rounded after the silu as transformers does. */
    const int whole = dim / LANES * LANES, left = dim - whole;
    for (int i = 0; i < whole; i += LANES) NAME(gate_lanes)(x + i, x + dim + i, y + i);
    if (!left) return;
    ELEM ends[3][LANES] = {0};
    memcpy(ends[0], x + whole, left * sizeof *x);
    memcpy(ends[1], x + dim + whole, left * sizeof *x);
    NAME(gate_lanes)(ends[0], ends[1], ends[2]);
    memcpy(y + whole, ends[2], left * sizeof *x);
}
