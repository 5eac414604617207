// What the kernels share: vectors of 16 floats, bf16 as 16-bit words, sums, and exp.
//
// Every row, and every block of ROWS rows where a sum runs over rows, is computed by one thread in a fixed order: how many threads
// there are changes no bit.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace rb {

constexpr int LANES = 16;
constexpr int64_t ROWS = 64;                    // rows whose share of a weight's gradient is summed before the blocks are

using bf16 = uint16_t;
typedef float vf __attribute__((vector_size(4 * LANES)));
typedef int32_t vi __attribute__((vector_size(4 * LANES)));
typedef uint32_t vu __attribute__((vector_size(4 * LANES)));
typedef uint16_t vh __attribute__((vector_size(2 * LANES)));

inline vf load(const float* p) { vf x; std::memcpy(&x, p, sizeof x); return x; }
inline void store(float* p, vf x) { std::memcpy(p, &x, sizeof x); }
inline vf all(float x) { return vf{} + x; }

inline vf load(const bf16* p) {
    vh h; std::memcpy(&h, p, sizeof h);
    vu w = __builtin_convertvector(h, vu) << 16;
    return (vf)w;
}
// Rounded to the nearest, ties to even; NaN stays NaN.
inline void store(bf16* p, vf x) {
    vu w = (vu)x;
    vu rounded = (w + 0x7fffu + ((w >> 16) & 1u)) >> 16;
    vi sound = (x == x);
    vu kept = (rounded & (vu)sound) | (0x7fc0u & ~(vu)sound);
    vh h = __builtin_convertvector(kept, vh);
    std::memcpy(p, &h, sizeof h);
}
inline float one(const float* p) { return *p; }
inline float one(const bf16* p) { uint32_t w = uint32_t(*p) << 16; float x; std::memcpy(&x, &w, 4); return x; }
inline void put(float* p, float x) { *p = x; }
inline void put(bf16* p, float x) {
    if (x != x) { *p = 0x7fc0; return; }
    uint32_t w; std::memcpy(&w, &x, 4);
    *p = bf16((w + 0x7fffu + ((w >> 16) & 1u)) >> 16);
}

inline float sum(vf x) {
    float s[LANES]; std::memcpy(s, &x, sizeof s);
    for (int half = LANES / 2; half; half /= 2) for (int i = 0; i < half; ++i) s[i] += s[i + half];
    return s[0];
}
inline vf larger(vf a, vf b) { return a > b ? a : b; }
inline float largest(vf x) {
    float s[LANES]; std::memcpy(s, &x, sizeof s);
    return *std::max_element(s, s + LANES);
}

// e^x to about 2 units in the last place: 2^n times a polynomial of the rest. 0 below -87.3, +inf above 88.7, NaN of NaN.
inline vf exponential(vf x) {
    vf bounded = x < -87.3f ? all(-87.3f) : x;
    bounded = bounded > 88.72f ? all(88.72f) : bounded;
    vf shifted = bounded * 1.44269504088896341f + 12582912.0f;                  // rounds to the nearest whole number
    vi n = (vi)shifted - 0x4b400000;
    vf whole = shifted - 12582912.0f;
    vf rest = bounded - whole * 0.693359375f - whole * -2.12194440e-4f;
    vf p = all(1.9875691500e-4f);
    p = p * rest + 1.3981999507e-3f;
    p = p * rest + 8.3334519073e-3f;
    p = p * rest + 4.1665795894e-2f;
    p = p * rest + 1.6666665459e-1f;
    p = p * rest + 5.0000001201e-1f;
    p = p * rest * rest + rest + 1.0f;
    vi half = n >> 1;
    vf low = (vf)((half + 127) << 23), high = (vf)((n - half + 127) << 23);      // 2^n in two factors: n may be 128
    vf y = p * low * high;
    y = x < -87.3f ? all(0.0f) : y;
    y = x > 88.72f ? all(std::numeric_limits<float>::infinity()) : y;
    return x == x ? y : x;
}

inline vf logistic(vf x) { return 1.0f / (1.0f + exponential(-x)); }

}  // namespace rb
