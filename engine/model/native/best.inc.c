/* The best entries of rows of logits for one element type; see attention.inc.c for ELEM and NAME. */

static void NAME(best_row)(const ELEM *x, int dim, int k, int64_t *argmax, int64_t *ids,
                           float *values) {
    /* The `k` largest of x[:dim], the largest first; of equal ones the first found, so that the
     * first of all is the argmax. A row with NaN has the argmax `dim`. */
    const int whole = dim / LANES * LANES;
    vi odd = {0};
    int count = 0;
    float least = -INFINITY; /* of the k, once there are k */
    for (int start = 0; start < dim; start += LANES * 4) {
        const int end = start + LANES * 4 < dim ? start + LANES * 4 : dim;
        if (end <= whole) {
            vf top = NAME(lanes_at)(x + start);
            odd |= top != top;
            for (int i = start + LANES; i < end; i += LANES) {
                const vf v = NAME(lanes_at)(x + i);
                odd |= v != v;
                top = choose(v > top, v, top);
            }
            if (count == k && !(largest(top) > least)) continue;
        }
        for (int i = start; i < end; i++) {
            const float value = LOAD(x[i]);
            if (i >= whole) odd[0] |= -(value != value);
            if (count == k && !(value > least)) continue;
            int place = count < k ? count++ : k - 1;
            for (; place && value > values[place - 1]; place--) {
                values[place] = values[place - 1];
                ids[place] = ids[place - 1];
            }
            values[place] = value;
            ids[place] = i;
            if (count == k) least = values[k - 1];
        }
    }
    *argmax = ids[0];
    for (int i = 0; i < LANES; i++)
        if (odd[i]) *argmax = dim;
}
