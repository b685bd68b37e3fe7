// The shapes of the eight AMX tiles of a thread. Include only where LOOSELEAF_AMX is defined.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace looseleaf {
namespace {

// As ldtilecfg reads it: palette 1, rows (at most 16) and bytes of a row (at most 64) of each tile; both zero for a tile
// that is not used.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64);

// At the start of each work item that uses tiles: whatever else runs on the thread may have released them.
inline void load_tile_config(const TileConfig& config) {
  // GCC 12 takes only 8 of the 64 bytes for read: without this it may leave out the stores that filled the others.
  __asm__ volatile("" : : "r"(&config) : "memory");
  _tile_loadconfig(&config);
}

}  // namespace
}  // namespace looseleaf
