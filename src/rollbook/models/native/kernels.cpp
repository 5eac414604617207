// Passes over memory that are no large products, each done once: norms, rotation, activation, attention of one token over a cache,
// drawing from logits, and the head's softmax forward and backward. Weights and sums are fp32, what products read and write is bf16.
//
// Legend: L rows, H width, I intermediate width, B rows being decoded, M places of a cache, N query heads, K key/value heads,
// R = N / K, D head size, V vocabulary.
#include "kernels.h"

using namespace rb;

namespace {

// residual (+ delta) -> residual_out, its root-mean-square norm times weight -> out, 1 / rms -> scale.
void norm_row(const float* residual, const bf16* delta, const float* weight, float eps, float* residual_out, bf16* out,
              float* scale, int64_t H) {
    const int64_t whole = H / LANES * LANES;
    vf squares = {};
    float rest = 0.0f;
    for (int64_t i = 0; i < whole; i += LANES) {
        vf x = load(residual + i);
        if (delta) { x += load(delta + i); store(residual_out + i, x); }
        squares += x * x;
    }
    for (int64_t i = whole; i < H; ++i) {
        float x = residual[i];
        if (delta) { x += one(delta + i); residual_out[i] = x; }
        rest += x * x;
    }
    const float* at = delta ? residual_out : residual;
    const float r = 1.0f / std::sqrt((sum(squares) + rest) / float(H) + eps);
    for (int64_t i = 0; i < whole; i += LANES) store(out + i, load(at + i) * r * load(weight + i));
    for (int64_t i = whole; i < H; ++i) put(out + i, at[i] * r * weight[i]);
    if (scale) *scale = r;
}

template <int PARTS>
float dot(const vf* q, const bf16* key) {
    vf total = {};
    for (int i = 0; i < PARTS; ++i) total += q[i] * load(key + i * LANES);
    return sum(total);
}

struct Attention {
    bf16* key; bf16* value; const int64_t* at; const bf16* mixed; const float* cos; const float* sin;
    const float* q_norm; const float* k_norm; bf16* out;
    int64_t row, head, places, window, N, K;
    float scale, eps;
};

// One head in fp32, normed where the architecture norms heads.
template <int PARTS>
void taken(const bf16* from, const float* norm, float eps, float* to) {
    vf squares = {};
    for (int i = 0; i < PARTS; ++i) { vf x = load(from + i * LANES); store(to + i * LANES, x); squares += x * x; }
    if (!norm) return;
    const float r = 1.0f / std::sqrt(sum(squares) / float(PARTS * LANES) + eps);
    for (int i = 0; i < PARTS; ++i) store(to + i * LANES, load(to + i * LANES) * r * load(norm + i * LANES));
}

// x cos + turned(x) sin of one head, in fp32, rounded to bf16 as the product that reads it would see it.
inline void rotated(const float* x, const float* cos, const float* sin, bf16* out, int64_t D) {
    const int64_t half = D / 2;
    for (int64_t i = 0; i < half; ++i) {
        put(out + i, x[i] * cos[i] - x[i + half] * sin[i]);
        put(out + i + half, x[i + half] * cos[i + half] + x[i] * sin[i + half]);
    }
}

template <int PARTS>
void attend_head(const Attention& a, int64_t b, int64_t k, float* score) {
    constexpr int64_t D = PARTS * LANES;
    const int64_t R = a.N / a.K, at = a.at[b], slot = at % a.places;
    const bf16* mixed = a.mixed + b * (a.N + 2 * a.K) * D;
    bf16* keys = a.key + b * a.row + k * a.head;
    bf16* values = a.value + b * a.row + k * a.head;
    float plain[D];
    const float* cos = a.cos + b * D;
    const float* sin = a.sin + b * D;
    taken<PARTS>(mixed + (a.N + k) * D, a.k_norm, a.eps, plain);
    rotated(plain, cos, sin, keys + slot * D, D);
    std::memcpy(values + slot * D, mixed + (a.N + a.K + k) * D, D * sizeof(bf16));
    // the places that this token sees: all of its row's past, the last `window` of it, or every place of a cache that rolls
    const int64_t reach = a.window ? std::min(a.window, at + 1) : at + 1;
    const int64_t seen = std::min(reach, a.places), first = at + 1 - seen;
    for (int64_t r = 0; r < R; ++r) {
        bf16 turned[D];
        vf q[PARTS];
        taken<PARTS>(mixed + (k * R + r) * D, a.q_norm, a.eps, plain);
        rotated(plain, cos, sin, turned, D);
        for (int i = 0; i < PARTS; ++i) q[i] = load(turned + i * LANES);
        float top = -std::numeric_limits<float>::infinity();
        int64_t place = first % a.places;
        for (int64_t p = 0; p < seen; ++p) {
            score[p] = dot<PARTS>(q, keys + place * D) * a.scale;
            top = score[p] > top || score[p] != score[p] ? score[p] : top;
            place = place + 1 == a.places ? 0 : place + 1;
        }
        for (int64_t p = seen; p < (seen + LANES - 1) / LANES * LANES; ++p) score[p] = -std::numeric_limits<float>::infinity();
        vf mass = {};
        for (int64_t p = 0; p < seen; p += LANES) {
            vf e = exponential(load(score + p) - top);
            store(score + p, e);
            mass += e;
        }
        const float total = sum(mass);
        vf sums[PARTS] = {};
        place = first % a.places;
        for (int64_t p = 0; p < seen; ++p) {
            const bf16* value = values + place * D;
            for (int i = 0; i < PARTS; ++i) sums[i] += score[p] * load(value + i * LANES);
            place = place + 1 == a.places ? 0 : place + 1;
        }
        bf16* out = a.out + (b * a.N + k * R + r) * D;
        for (int i = 0; i < PARTS; ++i) store(out + i * LANES, sums[i] / total);
    }
}

template <int PARTS>
void attend_all(const Attention& a, int64_t B, float* scores, int64_t width) {
#pragma omp parallel for schedule(static)
    for (int64_t task = 0; task < B * a.K; ++task) attend_head<PARTS>(a, task / a.K, task % a.K, scores + task * width);
}

}  // namespace

extern "C" {

// residual f32 [L, H] (+ delta bf16 [L, H]) -> residual_out f32 (may be residual itself), out bf16, scale f32 [L]. delta, scale and,
// where there is no delta, residual_out may be null.
void rb_norm(const float* residual, const bf16* delta, const float* weight, float eps, float* residual_out, bf16* out, float* scale,
             int64_t L, int64_t H) {
#pragma omp parallel for schedule(static)
    for (int64_t l = 0; l < L; ++l)
        norm_row(residual + l * H, delta ? delta + l * H : nullptr, weight, eps, delta ? residual_out + l * H : nullptr,
                 out + l * H, scale ? scale + l : nullptr, H);
}

// Of out = x scale weight: grad_out bf16, grad_residual f32 or null (what arrives at x past the norm) -> grad f32 [L, H], the same in
// bf16 where grad_delta is not null, and each block of ROWS rows' share of the weight's gradient, [ceil(L / ROWS), H].
void rb_norm_backward(const float* x, const float* weight, const float* scale, const bf16* grad_out, const float* grad_residual,
                      float* grad, bf16* grad_delta, float* shares, int64_t L, int64_t H) {
    const int64_t blocks = (L + ROWS - 1) / ROWS;
#pragma omp parallel for schedule(static)
    for (int64_t block = 0; block < blocks; ++block) {
        float* share = shares + block * H;
        std::fill(share, share + H, 0.0f);
        for (int64_t l = block * ROWS; l < std::min(L, (block + 1) * ROWS); ++l) {
            const float* xl = x + l * H;
            const bf16* gl = grad_out + l * H;
            const float* pl = grad_residual ? grad_residual + l * H : nullptr;
            float* to = grad + l * H;
            bf16* delta = grad_delta ? grad_delta + l * H : nullptr;
            const float r = scale[l];
            const int64_t whole = H / LANES * LANES;
            vf along = {};
            float rest = 0.0f;
            for (int64_t i = 0; i < whole; i += LANES) {
                vf g = load(gl + i), unit = load(xl + i) * r;
                store(share + i, load(share + i) + g * unit);
                along += g * load(weight + i) * unit;
            }
            for (int64_t i = whole; i < H; ++i) {
                float g = one(gl + i), unit = xl[i] * r;
                share[i] += g * unit;
                rest += g * weight[i] * unit;
            }
            const float mean = (sum(along) + rest) / float(H);
            for (int64_t i = 0; i < whole; i += LANES) {
                vf d = (load(gl + i) * load(weight + i) - load(xl + i) * r * mean) * r;
                if (pl) d += load(pl + i);
                store(to + i, d);
                if (delta) store(delta + i, d);
            }
            for (int64_t i = whole; i < H; ++i) {
                float d = (one(gl + i) * weight[i] - xl[i] * r * mean) * r + (pl ? pl[i] : 0.0f);
                to[i] = d;
                if (delta) put(delta + i, d);
            }
        }
    }
}

// silu(gate) up, rows of gate and up `stride` apart -> out [L, I].
void rb_swiglu(const bf16* gate, const bf16* up, bf16* out, int64_t L, int64_t I, int64_t stride) {
#pragma omp parallel for schedule(static)
    for (int64_t l = 0; l < L; ++l) {
        const bf16* g = gate + l * stride;
        const bf16* u = up + l * stride;
        bf16* to = out + l * I;
        int64_t i = 0;
        for (; i + LANES <= I; i += LANES) { vf x = load(g + i); store(to + i, x * logistic(x) * load(u + i)); }
        for (; i < I; ++i) { float x = one(g + i); put(to + i, x * logistic(all(x))[0] * one(u + i)); }
    }
}

// The same in backward: grad [L, I] -> grad_gate, grad_up, rows `stride` apart as gate's and up's.
void rb_swiglu_backward(const bf16* gate, const bf16* up, const bf16* grad, bf16* grad_gate, bf16* grad_up, int64_t L, int64_t I,
                        int64_t stride) {
#pragma omp parallel for schedule(static)
    for (int64_t l = 0; l < L; ++l) {
        const int64_t at = l * stride;
        int64_t i = 0;
        for (; i + LANES <= I; i += LANES) {
            vf x = load(gate + at + i), d = load(grad + l * I + i), s = logistic(x);
            store(grad_up + at + i, d * x * s);
            store(grad_gate + at + i, d * load(up + at + i) * s * (1.0f + x * (1.0f - s)));
        }
        for (; i < I; ++i) {
            float x = one(gate + at + i), d = one(grad + l * I + i), s = logistic(all(x))[0];
            put(grad_up + at + i, d * x * s);
            put(grad_gate + at + i, d * one(up + at + i) * s * (1.0f + x * (1.0f - s)));
        }
    }
}

// Rotary embedding of `heads` heads of each row, rows `stride` apart, by its own cos and sin [L, D]; `sign` -1 turns back. What is
// read in one half belongs to the other: halves are taken together.
void rb_rotate(const bf16* x, const float* cos, const float* sin, bf16* out, int64_t L, int64_t heads, int64_t D, int64_t stride,
               float sign) {
    const int64_t half = D / 2;
#pragma omp parallel for schedule(static)
    for (int64_t l = 0; l < L; ++l) {
        const float* c = cos + l * D;
        const float* s = sin + l * D;
        for (int64_t h = 0; h < heads; ++h) {
            const bf16* from = x + l * stride + h * D;
            bf16* to = out + (l * heads + h) * D;
            int64_t i = 0;
            for (; i + LANES <= half; i += LANES) {
                vf a = load(from + i), b = load(from + half + i);
                store(to + i, a * load(c + i) - sign * b * load(s + i));
                store(to + half + i, b * load(c + half + i) + sign * a * load(s + half + i));
            }
            for (; i < half; ++i) {
                float a = one(from + i), b = one(from + half + i);
                put(to + i, a * c[i] - sign * b * s[i]);
                put(to + half + i, b * c[half + i] + sign * a * s[half + i]);
            }
        }
    }
}

// Rows of x [L, heads, D], `stride` apart, laid out as [B, heads, M, D]: place m of row b is position slots[b, m].
void rb_gather(const bf16* x, const int64_t* slots, bf16* out, int64_t B, int64_t M, int64_t heads, int64_t D, int64_t stride) {
#pragma omp parallel for schedule(static)
    for (int64_t task = 0; task < B * heads; ++task) {
        const int64_t b = task / heads, h = task % heads;
        for (int64_t m = 0; m < M; ++m)
            std::memcpy(out + (task * M + m) * D, x + slots[b * M + m] * stride + h * D, D * sizeof(bf16));
    }
}

// The way back: position l is the sum, in fp32 and in order, of the places that were taken from it in two such layouts,
// places[start[l] .. start[l + 1]] of each, a place being b M + m. -> out [L, heads, D].
void rb_collect(const bf16* one_of, const int64_t* one_start, const int64_t* one_places, int64_t one_M, const bf16* two_of,
                const int64_t* two_start, const int64_t* two_places, int64_t two_M, bf16* out, int64_t L, int64_t heads, int64_t D) {
#pragma omp parallel for schedule(static)
    for (int64_t l = 0; l < L; ++l) {
        const int64_t several = one_start[l + 1] - one_start[l] + two_start[l + 1] - two_start[l];
        for (int64_t h = 0; h < heads; ++h) {
            bf16* to = out + (l * heads + h) * D;
            float sums[256] = {};
            for (int side = 0; side < 2; ++side) {
                const bf16* of = side ? two_of : one_of;
                const int64_t* start = side ? two_start : one_start;
                const int64_t* places = side ? two_places : one_places;
                const int64_t M = side ? two_M : one_M;
                for (int64_t i = start[l]; i < start[l + 1]; ++i) {
                    const bf16* from = of + ((places[i] / M * heads + h) * M + places[i] % M) * D;
                    if (several == 1) { std::memcpy(to, from, D * sizeof(bf16)); continue; }
                    for (int64_t d = 0; d < D; d += LANES) store(sums + d, load(sums + d) + load(from + d));
                }
            }
            if (several != 1) for (int64_t d = 0; d < D; d += LANES) store(to + d, load(sums + d));
        }
    }
}

// Softmax of scores bf16 [B, heads, Q, M] times `scale`, written over them, where query (b, q) sees the places from seen[b, q, 0] to
// seen[b, q, 1] and from seen[b, q, 2] to seen[b, q, 3]; 0 elsewhere. A query that sees nothing has no weights.
void rb_weights(bf16* score, const int32_t* seen, float scale, int64_t B, int64_t heads, int64_t Q, int64_t M) {
#pragma omp parallel for schedule(static)
    for (int64_t task = 0; task < B * heads; ++task) {
        float e[4096];
        for (int64_t q = 0; q < Q; ++q) {
            bf16* row = score + (task * Q + q) * M;
            const int32_t* s = seen + (task / heads * Q + q) * 4;
            const int64_t from[2] = {s[0], s[2]}, end[2] = {s[1], s[3]};
            vf tops = all(-std::numeric_limits<float>::infinity());
            for (int side = 0; side < 2; ++side) {
                int64_t m = from[side];
                for (; m + LANES <= end[side]; m += LANES) { vf x = load(row + m); tops = x > tops || x != x ? x : tops; }
                for (; m < end[side]; ++m) { vf x = all(one(row + m)); tops = x > tops || x != x ? x : tops; }
            }
            const float top = largest(tops) * scale;
            vf mass = {};
            float rest = 0.0f;
            for (int side = 0; side < 2; ++side) {
                int64_t m = from[side];
                for (; m + LANES <= end[side]; m += LANES) {
                    vf x = exponential(load(row + m) * scale - top);
                    store(e + m, x);
                    mass += x;
                }
                for (; m < end[side]; ++m) { e[m] = exponential(all(one(row + m) * scale - top))[0]; rest += e[m]; }
            }
            const float total = sum(mass) + rest;
            int64_t done = 0;
            for (int side = 0; side < 2; ++side) {
                if (from[side] >= end[side]) continue;
                std::memset(row + done, 0, (from[side] - done) * sizeof(bf16));
                int64_t m = from[side];
                for (; m + LANES <= end[side]; m += LANES) store(row + m, load(e + m) / total);
                for (; m < end[side]; ++m) put(row + m, e[m] / total);
                done = end[side];
            }
            std::memset(row + done, 0, (M - done) * sizeof(bf16));
        }
    }
}

// The slope by the scores, written over `grad`: weight (grad - sum of weight grad) scale.
void rb_weights_backward(const bf16* weight, bf16* grad, float scale, int64_t rows, int64_t M) {
#pragma omp parallel for schedule(static)
    for (int64_t l = 0; l < rows; ++l) {
        const bf16* w = weight + l * M;
        bf16* g = grad + l * M;
        vf along = {};
        float rest = 0.0f;
        int64_t m = 0;
        for (; m + LANES <= M; m += LANES) along += load(w + m) * load(g + m);
        for (; m < M; ++m) rest += one(w + m) * one(g + m);
        const float mean = sum(along) + rest;
        m = 0;
        for (; m + LANES <= M; m += LANES) store(g + m, load(w + m) * (load(g + m) - mean) * scale);
        for (; m < M; ++m) put(g + m, one(w + m) * (one(g + m) - mean) * scale);
    }
}

// One more token of B rows: mixed [B, (N + 2 K) D] is what the projection gave; keys are rotated and written to the cache beside the
// values, and the queries attend to what their row holds -> out [B, N D]. Heads are normed where q_norm and k_norm [D] are not null. Rows of the cache are `row` apart, heads `head`, places D;
// `at` counts what a row held before. `scores` is room for B K `width` floats, `width` at least the places rounded up to 16.
// Returns 0, or 1 where the head size has no kernel.
int rb_attend(bf16* key, bf16* value, const int64_t* at, const bf16* mixed, const float* cos, const float* sin, const float* q_norm,
              const float* k_norm, float eps, bf16* out, float* scores, int64_t width, int64_t B, int64_t N, int64_t K, int64_t D,
              int64_t row, int64_t head, int64_t places, int64_t window) {
    const Attention a{key, value, at, mixed, cos, sin, q_norm, k_norm, out, row, head, places, window, N, K,
                      1.0f / std::sqrt(float(D)), eps};
    switch (D) {
        case 16: attend_all<1>(a, B, scores, width); return 0;
        case 32: attend_all<2>(a, B, scores, width); return 0;
        case 64: attend_all<4>(a, B, scores, width); return 0;
        case 96: attend_all<6>(a, B, scores, width); return 0;
        case 128: attend_all<8>(a, B, scores, width); return 0;
        default: return 1;
    }
}

// Draws from the softmax of logits bf16 [B, V] divided by `temperature` (0: the most likely, its log-prob at temperature 1) by one
// uniform a row. Mass is summed in fp32 over blocks of `BLOCK` places and in fp64 over the blocks.
// -> token, logp, and whether the row's mass is finite.
void rb_draw(const bf16* logits, const double* uniform, double temperature, int64_t* token, float* logp, uint8_t* sound, float* mass,
             double* sums, int64_t B, int64_t V) {
    constexpr int64_t BLOCK = 256;
    const int64_t blocks = (V + BLOCK - 1) / BLOCK;
    const float divisor = temperature == 0.0 ? 1.0f : float(temperature);
#pragma omp parallel for schedule(static)
    for (int64_t b = 0; b < B; ++b) {
        const bf16* row = logits + b * V;
        float* own = mass + b * blocks * BLOCK;
        double* until = sums + b * blocks;
        const int64_t whole = V / LANES * LANES;
        vf tops = all(-std::numeric_limits<float>::infinity());
        for (int64_t i = 0; i < whole; i += LANES) tops = larger(load(row + i) / divisor, tops);
        float top = largest(tops);
        for (int64_t i = whole; i < V; ++i) top = std::max(top, one(row + i) / divisor);
        double total = 0.0;
        for (int64_t n = 0; n < blocks; ++n) {
            vf part = {};
            float rest = 0.0f;
            const int64_t end = std::min(V, (n + 1) * BLOCK);
            int64_t i = n * BLOCK;
            for (; i + LANES <= end; i += LANES) {
                vf e = exponential(load(row + i) / divisor - top);
                store(own + i, e);
                part += e;
            }
            for (; i < end; ++i) { own[i] = exponential(all(one(row + i) / divisor - top))[0]; rest += own[i]; }
            total += double(sum(part) + rest);
            until[n] = total;
        }
        sound[b] = std::isfinite(total);                          // a NaN or +inf among the logits makes it NaN
        token[b] = 0;
        logp[b] = std::numeric_limits<float>::quiet_NaN();
        if (!sound[b]) continue;
        int64_t place = 0;
        if (temperature == 0.0) {
            while (place < V && one(row + place) != top) ++place;
        } else {
            const double aim = std::min(uniform[b] * total, std::nextafter(total, 0.0));
            const int64_t n = std::min<int64_t>(std::upper_bound(until, until + blocks, aim) - until, blocks - 1);
            double reached = n ? until[n - 1] : 0.0;
            const int64_t end = std::min(V, (n + 1) * BLOCK);
            int64_t last = n * BLOCK;
            for (place = n * BLOCK; place < end; ++place) {
                if (own[place] > 0.0f) last = place;
                reached += double(own[place]);
                if (reached > aim) break;
            }
            if (place == end) place = last;                       // where rounding left none above the aim
        }
        token[b] = place;
        logp[b] = float(std::log(double(own[place]) / total));
    }
}

// Of logits bf16 [L, V] times `inverse` temperature: log-prob of the target, entropy (nats) and log of the normaliser of each row.
void rb_softmax(const bf16* logits, const int64_t* target, float inverse, float* logp, float* entropy, float* normalizer, int64_t L,
                int64_t V) {
    const int64_t whole = V / LANES * LANES;
#pragma omp parallel for schedule(static)
    for (int64_t l = 0; l < L; ++l) {
        const bf16* row = logits + l * V;
        vf tops = all(-std::numeric_limits<float>::infinity());
        for (int64_t i = 0; i < whole; i += LANES) tops = larger(load(row + i) * inverse, tops);
        float top = largest(tops);
        for (int64_t i = whole; i < V; ++i) top = std::max(top, one(row + i) * inverse);
        double total = 0.0, weighted = 0.0;
        for (int64_t from = 0; from < V; from += 1024) {
            const int64_t end = std::min(V, from + 1024);
            vf part = {}, drawn = {};
            int64_t i = from;
            for (; i + LANES <= end; i += LANES) {
                vf shifted = load(row + i) * inverse - top, e = exponential(shifted);
                part += e;
                drawn += e == 0.0f ? all(0.0f) : e * shifted;
            }
            float rest = 0.0f, rest_drawn = 0.0f;
            for (; i < end; ++i) {
                float shifted = one(row + i) * inverse - top, e = exponential(all(shifted))[0];
                rest += e;
                rest_drawn += e == 0.0f ? 0.0f : e * shifted;
            }
            total += double(sum(part) + rest);
            weighted += double(sum(drawn) + rest_drawn);
        }
        const double log_total = std::log(total);
        normalizer[l] = float(double(top) + log_total);
        logp[l] = float(double(one(row + target[l]) * inverse) - double(top) - log_total);
        entropy[l] = float(log_total - weighted / total);
    }
}

// The slope of a loss by those logits, written over them: scale (onehot(target) - p), less toward p (log p + entropy) where `toward` is
// given; scale and toward hold the division by temperature.
void rb_softmax_backward(bf16* logits, const int64_t* target, float inverse, const float* normalizer, const float* scale,
                         const float* entropy, const float* toward, int64_t L, int64_t V) {
    const int64_t whole = V / LANES * LANES;
#pragma omp parallel for schedule(static)
    for (int64_t l = 0; l < L; ++l) {
        bf16* row = logits + l * V;
        const float down = -scale[l], norm = normalizer[l];
        const float aside = toward ? -toward[l] : 0.0f, level = toward ? entropy[l] : 0.0f;
        const float log_target = one(row + target[l]) * inverse - norm;
        const float p_target = exponential(all(log_target))[0];
        if (toward) {
            for (int64_t i = 0; i < whole; i += LANES) {
                vf logp = load(row + i) * inverse - norm, p = exponential(logp);
                store(row + i, p == 0.0f ? all(0.0f) : p * (down + aside * (logp + level)));
            }
        } else {
            for (int64_t i = 0; i < whole; i += LANES) store(row + i, exponential(load(row + i) * inverse - norm) * down);
        }
        for (int64_t i = whole; i < V; ++i) {
            float logp = one(row + i) * inverse - norm, p = exponential(all(logp))[0];
            put(row + i, p == 0.0f ? 0.0f : p * (toward ? down + aside * (logp + level) : down));
        }
        float at = p_target == 0.0f ? 0.0f : p_target * (toward ? down + aside * (log_target + level) : down);
        put(row + target[l], at + scale[l]);
    }
}

}  // extern "C"
