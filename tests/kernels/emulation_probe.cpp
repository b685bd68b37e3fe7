// The emulated tile and bfloat16 instructions as C functions on memory, for test_emulation.py. Compiled with
// emulate/amx.h put before it or, on a processor that has them, for the instructions themselves.
#include <immintrin.h>

#include <cstdint>

namespace looseleaf {
namespace {

struct alignas(64) Config {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t colsb[16] = {};
  uint8_t rows[16] = {};
};

void configure(const Config& config) {
  __asm__ volatile("" ::: "memory");
  _tile_loadconfig(&config);
}

// Tiles 0 (m × n), 1 (m × k) and 2 (k × n) of four-byte units.
void shape(int m, int k, int n) {
  Config config;
  const int rows[3] = {m, m, k}, units[3] = {n, k, n};
  for (int i = 0; i < 3; ++i) {
    config.rows[i] = uint8_t(rows[i]);
    config.colsb[i] = uint16_t(4 * units[i]);
  }
  configure(config);
}

}  // namespace

// shapes: m, k, n. a: [m][k], b: [k][n], out: [m][n] (in and out), in four-byte units.
#define TILE_PRODUCT(name)                                                                        \
  extern "C" void probe_##name(const void* shapes, const void* a, const void* b, void* out) {     \
    const auto* s = static_cast<const int32_t*>(shapes);                                          \
    shape(s[0], s[1], s[2]);                                                                      \
    _tile_loadd(0, out, 4 * s[2]);                                                                \
    _tile_loadd(1, a, 4 * s[1]);                                                                  \
    _tile_stream_loadd(2, b, 4 * s[2]);                                                           \
    _tile_##name(0, 1, 2);                                                                        \
    _tile_stored(0, out, 4 * s[2]);                                                               \
    _tile_release();                                                                              \
  }
TILE_PRODUCT(dpbf16ps)
TILE_PRODUCT(dpbssd)
TILE_PRODUCT(dpbsud)
TILE_PRODUCT(dpbusd)
TILE_PRODUCT(dpbuud)

extern "C" void probe_dot_bf16(const void* acc, const void* a, const void* b, void* out) {
  const __m512i x = _mm512_loadu_si512(a), y = _mm512_loadu_si512(b);
  _mm512_storeu_ps(out, _mm512_dpbf16_ps(_mm512_loadu_ps(acc), (__m512bh)x, (__m512bh)y));
}
extern "C" void probe_round_bf16(const void* a, const void*, const void*, void* out) {
  const __m512bh both = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(static_cast<const float*>(a) + 16), _mm512_loadu_ps(a));
  _mm512_storeu_si512(out, (__m512i)both);
}
// Bytes past the mask are not touched, however the vector lies: `a` may be the end of a page.
extern "C" void probe_masked_copy(const void* a, const void* mask, const void*, void* out) {
  const __mmask16 k = *static_cast<const uint16_t*>(mask);
  _mm512_mask_storeu_ps(out, k, _mm512_maskz_loadu_ps(k, a));
}

// What the processor would refuse.
extern "C" void misuse_unconfigured() { _tile_zero(0); }
extern "C" void misuse_released() {
  shape(16, 16, 16);
  _tile_release();
  _tile_zero(0);
}
extern "C" void misuse_absent_tile() {
  shape(16, 16, 16);
  _tile_zero(5);
}
extern "C" void misuse_palette() {
  Config config;
  config.palette = 2;
  configure(config);
}
extern "C" void misuse_reserved() {
  Config config;
  config.reserved[3] = 1;
  configure(config);
}
extern "C" void misuse_rows() { shape(17, 16, 16); }
extern "C" void misuse_bytes() { shape(16, 17, 16); }
extern "C" void misuse_ninth_tile() {
  Config config;
  config.rows[8] = 16;
  config.colsb[8] = 64;
  configure(config);
}
extern "C" void misuse_same_tile() {
  shape(16, 16, 16);
  _tile_dpbf16ps(0, 1, 1);
}
extern "C" void misuse_shapes() {
  Config config;
  config.rows[0] = config.rows[1] = config.rows[2] = 16;
  config.colsb[0] = config.colsb[2] = 64;
  config.colsb[1] = 32;
  configure(config);
  _tile_dpbf16ps(0, 1, 2);
}
#if defined(LOOSELEAF_EMULATED)
extern "C" void misuse_alignment() {
  alignas(64) float numbers[17] = {};
  _mm512_store_ps(numbers + 1, _mm512_setzero_ps());
}
#endif

}  // namespace looseleaf
