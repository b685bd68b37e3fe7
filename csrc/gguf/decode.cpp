// torch.ops.looseleaf.decode_gguf: the rows of a quantised tensor, rounded to bfloat16 or in float32.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/util/Exception.h>

#include <cstdint>
#include <cstring>
#include <string>

#include "block_decoder.h"

namespace looseleaf {
namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

constexpr int64_t max_values = 256;
constexpr int64_t blocks_at_once = 64;

void store(const float* values, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = values[i];
}

void store(const float* values, int64_t count, uint16_t* out) {
  for (int64_t i = 0; i < count; ++i) {
    uint32_t bits;
    std::memcpy(&bits, &values[i], 4);
    const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    out[i] = uint16_t(values[i] == values[i] ? rounded : 0x7fc0);
  }
}

template <class T>
void decode_all(const BlockFormat& format, const uint8_t* encoded, int64_t blocks, T* out) {
  torch::stable::parallel_for(0, (blocks + blocks_at_once - 1) / blocks_at_once, 16, [&](int64_t begin, int64_t end) {
    float values[max_values];
    const int64_t last = end * blocks_at_once < blocks ? end * blocks_at_once : blocks;
    for (int64_t block = begin * blocks_at_once; block < last; ++block) {
      format.decode(encoded + block * format.bytes, values);
      store(values, format.values, out + block * format.values);
    }
  });
}

// encoded: uint8 [rows, bytes of a row]; out: bfloat16 or float32 [rows, values of a row]. Both contiguous.
void decode_gguf(Tensor encoded, std::string encoding, Tensor out) {
  const BlockFormat* format = block_format(encoding);
  STD_TORCH_CHECK(format, "decode_gguf: ", encoding, " is not known");
  STD_TORCH_CHECK(encoded.is_cpu() && out.is_cpu() && encoded.dim() == 2 && out.dim() == 2 && encoded.is_contiguous() &&
                      out.is_contiguous(),
                  "decode_gguf: encoded and out must be contiguous matrices on the CPU");
  STD_TORCH_CHECK(encoded.scalar_type() == ScalarType::Byte, "decode_gguf: encoded must be uint8");
  STD_TORCH_CHECK(encoded.size(0) == out.size(0) && out.size(1) % format->values == 0 &&
                      encoded.size(1) == out.size(1) / format->values * format->bytes,
                  "decode_gguf: ", encoded.size(0), " rows of ", encoded.size(1), " bytes are not ", out.size(0),
                  " rows of ", out.size(1), " values in ", encoding);
  const auto* bytes = static_cast<const uint8_t*>(encoded.data_ptr());
  const int64_t blocks = out.numel() / format->values;
  if (out.scalar_type() == ScalarType::BFloat16) {
    decode_all(*format, bytes, blocks, static_cast<uint16_t*>(out.data_ptr()));
  } else {
    STD_TORCH_CHECK(out.scalar_type() == ScalarType::Float, "decode_gguf: out must be bfloat16 or float32");
    decode_all(*format, bytes, blocks, static_cast<float*>(out.data_ptr()));
  }
}

STABLE_TORCH_LIBRARY_FRAGMENT(looseleaf, library) {
  library.def("decode_gguf(Tensor encoded, str encoding, Tensor(a!) out) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(looseleaf, CompositeExplicitAutograd, library) {
  library.impl("decode_gguf", TORCH_BOX(&decode_gguf));
}

}  // namespace
}  // namespace looseleaf
