// Emulated AMX (TILE, BF16, INT8): eight tiles per thread, checked as the processor checks them (Intel's manual,
// volume 1, chapter 18, and the instructions' pages). What would be an exception there aborts here.
#pragma once
#include "bfloat16.h"

#undef _tile_loadd
#undef _tile_stream_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#undef _tile_dpbssd
#undef _tile_dpbsud
#undef _tile_dpbusd
#undef _tile_dpbuud

namespace looseleaf {
namespace {

namespace emulate {
struct Tile {
  int rows, colsb;
  alignas(64) uint8_t row[16][64];
};
// What ldtilecfg reads and sttilecfg writes.
struct TileConfig {
  uint8_t palette, start_row, reserved[14];
  uint16_t colsb[16];
  uint8_t rows[16];
};
static_assert(sizeof(TileConfig) == 64);

struct TileState {
  bool configured;
  TileConfig config;
  Tile tile[8];
};
thread_local TileState tile_state = {};

inline Tile& tile(int index) {
  if (!tile_state.configured) misuse("a tile is used but this thread has configured none");
  if (index < 0 || index > 7) misuse("there are tiles 0 to 7");
  Tile& t = tile_state.tile[index];
  if (t.rows == 0) misuse("a tile without rows is used");
  return t;
}
}  // namespace emulate

inline void _tile_release() { emulate::tile_state = {}; }
inline void _tile_loadconfig(const void* p) {
  const emulate::TileConfig c = emulate::read<emulate::TileConfig>(p);
  if (c.palette == 0) return _tile_release();
  if (c.palette != 1) emulate::misuse("ldtilecfg: only palettes 0 and 1 exist");
  if (c.start_row != 0) emulate::misuse("ldtilecfg: start_row is not 0");
  for (uint8_t byte : c.reserved)
    if (byte) emulate::misuse("ldtilecfg: a reserved byte is not 0");
  emulate::TileState next = {};
  for (int i = 0; i < 16; ++i) {
    if (i >= 8 && (c.rows[i] || c.colsb[i])) emulate::misuse("ldtilecfg: palette 1 has eight tiles");
    if (c.rows[i] > 16 || c.colsb[i] > 64) emulate::misuse("ldtilecfg: more than 16 rows or 64 bytes");
    if ((c.rows[i] == 0) != (c.colsb[i] == 0)) emulate::misuse("ldtilecfg: rows without bytes or bytes without rows");
    if (i < 8) next.tile[i].rows = c.rows[i], next.tile[i].colsb = c.colsb[i];
  }
  next.configured = true;
  next.config = c;
  emulate::tile_state = next;
}
inline void _tile_storeconfig(void* p) { emulate::write(p, emulate::tile_state.config); }

inline void _tile_zero(int t) { std::memset(emulate::tile(t).row, 0, sizeof(emulate::Tile::row)); }
inline void _tile_loadd(int t, const void* base, int64_t stride) {
  _tile_zero(t);
  emulate::Tile& to = emulate::tile(t);
  for (int r = 0; r < to.rows; ++r) std::memcpy(to.row[r], static_cast<const char*>(base) + r * stride, size_t(to.colsb));
}
inline void _tile_stream_loadd(int t, const void* base, int64_t stride) { _tile_loadd(t, base, stride); }
inline void _tile_stored(int t, void* base, int64_t stride) {
  const emulate::Tile& from = emulate::tile(t);
  for (int r = 0; r < from.rows; ++r) std::memcpy(static_cast<char*>(base) + r * stride, from.row[r], size_t(from.colsb));
}

namespace emulate {
// c (m × n) += a (m × k) · b (k × n), in units of four bytes.
struct Product {
  Tile &c, &a, &b;
  int m, k, n;
};
inline Product product(int c, int a, int b) {
  if (c == a || c == b || a == b) misuse("a tile product needs three different tiles");
  const Product p = {tile(c), tile(a), tile(b), tile(c).rows, tile(a).colsb / 4, tile(c).colsb / 4};
  if (p.c.colsb % 4 || p.a.colsb % 4 || p.b.colsb % 4) misuse("a tile product needs rows of whole four bytes");
  if (p.a.rows != p.m || p.b.rows != p.k || p.b.colsb != p.c.colsb) misuse("the shapes of a tile product do not fit");
  return p;
}
}  // namespace emulate

// Even and odd products in sums of their own, from zero; then their sum is added to c.
inline void _tile_dpbf16ps(int dst, int src1, int src2) {
  const emulate::Product p = emulate::product(dst, src1, src2);
  for (int m = 0; m < p.m; ++m) {
    __m256 even[2] = {}, odd[2] = {};
    for (int k = 0; k < p.k; ++k) {
      const __m256i pair = _mm256_set1_epi32(emulate::read<int32_t>(&p.a.row[m][4 * k]));
      for (int half = 0; half < 2; ++half) {
        const __m256i column = emulate::read<__m256i>(&p.b.row[k][32 * half]);
        even[half] = emulate::flushed(_mm256_fmadd_ps(emulate::even_bf16(pair), emulate::even_bf16(column), even[half]));
        odd[half] = emulate::flushed(_mm256_fmadd_ps(emulate::odd_bf16(pair), emulate::odd_bf16(column), odd[half]));
      }
    }
    alignas(64) uint8_t row[64];
    for (int half = 0; half < 2; ++half) {
      const __m256 sum = emulate::flushed(_mm256_add_ps(even[half], odd[half]));
      emulate::write(row + 32 * half, emulate::flushed(_mm256_add_ps(emulate::flushed(emulate::read<__m256>(&p.c.row[m][32 * half])), sum)));
    }
    std::memcpy(p.c.row[m], row, size_t(4 * p.n));
  }
}

namespace emulate {
template <class A, class B>
inline void byte_product(int dst, int src1, int src2) {
  const Product p = product(dst, src1, src2);
  for (int m = 0; m < p.m; ++m)
    for (int k = 0; k < p.k; ++k)
      for (int n = 0; n < p.n; ++n) {
        uint32_t sum = read<uint32_t>(&p.c.row[m][4 * n]);
        for (int i = 0; i < 4; ++i) sum += uint32_t(int32_t(A(p.a.row[m][4 * k + i])) * int32_t(B(p.b.row[k][4 * n + i])));
        write(&p.c.row[m][4 * n], sum);
      }
}
}  // namespace emulate

inline void _tile_dpbssd(int dst, int a, int b) { emulate::byte_product<int8_t, int8_t>(dst, a, b); }
inline void _tile_dpbsud(int dst, int a, int b) { emulate::byte_product<int8_t, uint8_t>(dst, a, b); }
inline void _tile_dpbusd(int dst, int a, int b) { emulate::byte_product<uint8_t, int8_t>(dst, a, b); }
inline void _tile_dpbuud(int dst, int a, int b) { emulate::byte_product<uint8_t, uint8_t>(dst, a, b); }

}  // namespace
}  // namespace looseleaf
