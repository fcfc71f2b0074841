/* Row-wise layers for one element type; see attention.inc.c for ELEM, LOAD, STORE and NAME. */

static void NAME(norm_row)(const ELEM *x, const ELEM *weight, ELEM *y, int dim, float eps) {
    /* weight * x / rms(x), rounded as transformers' Llama norm rounds. */
    float lanes[LANES] = {0}, sum = 0;
    const int whole = dim / LANES * LANES;
    for (int i = 0; i < whole; i += LANES)
        for (int j = 0; j < LANES; j++) lanes[j] += LOAD(x[i + j]) * LOAD(x[i + j]);
    for (int i = whole; i < dim; i++) sum += LOAD(x[i]) * LOAD(x[i]);
    for (int j = 0; j < LANES; j++) sum += lanes[j];
    const float scale = 1.0f / sqrtf(sum / dim + eps);
    for (int i = 0; i < dim; i++) {
        const ELEM unit = STORE(LOAD(x[i]) * scale);
        y[i] = STORE(LOAD(weight[i]) * LOAD(unit));
    }
}

static void NAME(gate_row)(const ELEM *x, ELEM *y, int dim) {
    /* silu(x[:dim]) * x[dim:], rounded after the silu as transformers does. */
    for (int i = 0; i < dim; i += LANES) {
        const int count = dim - i < LANES ? dim - i : LANES;
        vf gate = splat(0);
        for (int j = 0; j < count; j++) gate[j] = LOAD(x[i + j]);
        const vf e = vexp(choose(gate < 0, gate, -gate)), one = splat(1);
        const vf unit = choose(gate < 0, e, one) / (one + e) * gate;
        for (int j = 0; j < count; j++) {
            const ELEM active = STORE(unit[j]);
            y[i + j] = STORE(LOAD(active) * LOAD(x[dim + i + j]));
        }
    }
}
