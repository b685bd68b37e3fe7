// torch.ops.looseleaf.linear and those that pack and unpack. All that a kernel would read or write is checked here.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/util/Exception.h>

#include <string>

#include "../parallel.h"
#include "linear_tensors.h"
#include "pack.h"

namespace looseleaf {
namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using OptionalTensor = std::optional<Tensor>;

WeightType weight_type(const std::string& name) {
  if (name == "float32") return WeightType::float32;
  if (name == "bfloat16") return WeightType::bfloat16;
  if (name == "int8") return WeightType::int8;
  STD_TORCH_CHECK(name == "int4", "there is no weight type '", name, "'");
  return WeightType::int4;
}

void check_flat(const Tensor& tensor, const char* name, ScalarType type, int64_t numbers) {
  STD_TORCH_CHECK(tensor.is_cpu() && tensor.scalar_type() == type, "linear: ", name, " has the wrong dtype or device");
  STD_TORCH_CHECK(tensor.dim() == 1 && tensor.is_contiguous() && tensor.numel() == numbers, "linear: ", name,
                  " must be a contiguous vector of ", numbers, " numbers");
  STD_TORCH_CHECK(reinterpret_cast<uintptr_t>(tensor.data_ptr()) % 64 == 0, "linear: ", name,
                  " must be aligned to 64 bytes");
}

// [rows, columns] with a free stride between rows.
void check_rows(const Tensor& tensor, const char* name, ScalarType type) {
  STD_TORCH_CHECK(tensor.is_cpu() && tensor.scalar_type() == type, "linear: ", name, " has the wrong dtype or device");
  STD_TORCH_CHECK(tensor.dim() == 2, "linear: ", name, " must have two dimensions");
  STD_TORCH_CHECK(tensor.size(1) <= 1 || tensor.stride(1) == 1, "linear: the rows of ", name, " must be contiguous");
  STD_TORCH_CHECK(tensor.size(0) <= 1 || tensor.stride(0) >= tensor.size(1), "linear: the rows of ", name, " overlap");
}

Epilogue epilogue_named(const std::string& name) {
  if (name == "store") return Epilogue::store;
  if (name == "add") return Epilogue::add;
  STD_TORCH_CHECK(name == "silu_mul", "there is no epilogue '", name, "'");
  return Epilogue::silu_mul;
}

void linear_operator(Tensor x, Tensor weight, OptionalTensor scales, OptionalTensor minima, OptionalTensor bias,
                     std::string type, int64_t out_features, int64_t in_features, bool paired, Tensor y,
                     std::string epilogue) {
  const PackedLinear packed = packed_linear(weight, scales, minima, bias, type, out_features, in_features, paired);
  const Epilogue what = epilogue_named(epilogue);
  STD_TORCH_CHECK(paired == (what == Epilogue::silu_mul), "linear: silu_mul is for pairs of gate and up, and only it");
  check_rows(x, "x", ScalarType::Float);
  check_rows(y, "y", ScalarType::Float);
  const int64_t columns = paired ? out_features / 2 : out_features;
  STD_TORCH_CHECK(x.size(1) == in_features, "linear: x has ", x.size(1), " columns, the weight ", in_features);
  STD_TORCH_CHECK(y.size(0) == x.size(0) && y.size(1) == columns, "linear: y must be [", x.size(0), ", ", columns, "]");
  linear(packed, static_cast<const float*>(x.data_ptr()), x.stride(0), x.size(0), static_cast<float*>(y.data_ptr()),
         y.stride(0), what);
}

// `paired_half`: -1, or 0 (gate) or 1 (up): the half of a pair that this weight is.
PackTarget pack_target(const Tensor& weight, const OptionalTensor& scales, const OptionalTensor& minima,
                       const std::string& type, int64_t out_features, int64_t in_features, int64_t paired_half) {
  STD_TORCH_CHECK(paired_half >= -1 && paired_half <= 1, "linear: paired_half is -1, 0 or 1");
  const bool paired = paired_half >= 0;
  const PackedLinear packed = packed_linear(weight, scales, minima, {}, type, paired ? 2 * out_features : out_features,
                                            in_features, paired);
  return {packed.type,
          out_features,
          in_features,
          static_cast<char*>(weight.data_ptr()),
          scales ? scales->data_ptr() : nullptr,
          minima ? minima->data_ptr() : nullptr,
          paired ? paired_half : 0,
          paired ? 2 : 1,
          packed.wide_scales};
}

void pack_operator(Tensor source, Tensor weight, OptionalTensor scales, std::string type, int64_t paired_half) {
  const bool wide = source.scalar_type() == ScalarType::Float;
  check_rows(source, "source", wide ? ScalarType::Float : ScalarType::BFloat16);
  const PackTarget target = pack_target(weight, scales, {}, type, source.size(0), source.size(1), paired_half);
  STD_TORCH_CHECK(target.type != WeightType::int4, "linear: int4 is packed from GGUF blocks only");
  STD_TORCH_CHECK(!target.wide_scales, "linear: packed int8 has scales in half precision");
  const bool fits = wide ? pack_float32(target, static_cast<const float*>(source.data_ptr()), source.stride(0))
                         : pack_bfloat16(target, static_cast<const uint16_t*>(source.data_ptr()), source.stride(0));
  STD_TORCH_CHECK(fits, "linear: int8 needs finite weights below 127 · 65504");
}

void pack_gguf_operator(Tensor source, std::string format, Tensor weight, OptionalTensor scales, OptionalTensor minima,
                        int64_t paired_half, int64_t in_features) {
  GgufType type = GgufType::q8_0;
  if (format == "Q4_0") {
    type = GgufType::q4_0;
  } else if (format == "Q4_1") {
    type = GgufType::q4_1;
  } else if (format == "Q4_K") {
    type = GgufType::q4_k;
  } else {
    STD_TORCH_CHECK(format == "Q8_0", "linear: GGUF type '", format, "' is not packed");
  }
  const GgufBlock block = gguf_block(type);
  check_rows(source, "source", ScalarType::Byte);
  STD_TORCH_CHECK(source.is_contiguous(), "linear: source must be contiguous");
  STD_TORCH_CHECK(in_features > 0 && in_features % block.numbers == 0 &&
                      source.size(1) == in_features / block.numbers * block.bytes,
                  "linear: rows of ", source.size(1), " bytes do not hold ", in_features, " numbers of ", format);
  const PackTarget target = pack_target(weight, scales, minima, type == GgufType::q8_0 ? "int8" : "int4",
                                        source.size(0), in_features, paired_half);
  STD_TORCH_CHECK(target.wide_scales == (type == GgufType::q4_k), "linear: scales have the wrong dtype for ", format);
  STD_TORCH_CHECK(bool(minima) == (type == GgufType::q4_1 || type == GgufType::q4_k), "linear: ", format,
                  (minima ? " has no minima" : " has minima"));
  pack_gguf(target, type, static_cast<const uint8_t*>(source.data_ptr()));
}

void unpack_operator(Tensor weight, OptionalTensor scales, OptionalTensor minima, std::string type,
                     int64_t out_features, int64_t in_features, bool paired, Tensor indices, Tensor out) {
  const PackedLinear packed = packed_linear(weight, scales, minima, {}, type, out_features, in_features, paired);
  check_rows(out, "out", ScalarType::Float);
  STD_TORCH_CHECK(indices.is_cpu() && indices.scalar_type() == ScalarType::Long && indices.dim() == 1 &&
                      indices.is_contiguous(),
                  "linear: indices must be a contiguous int64 vector");
  STD_TORCH_CHECK(out.size(0) == indices.numel() && out.size(1) == in_features, "linear: out must be [",
                  indices.numel(), ", ", in_features, "]");
  const auto* index = static_cast<const int64_t*>(indices.data_ptr());
  for (int64_t i = 0; i < indices.numel(); ++i)
    STD_TORCH_CHECK(index[i] >= 0 && index[i] < out_features, "linear: row ", index[i], " is outside the ",
                    out_features, " rows of the weight");
  auto* to = static_cast<float*>(out.data_ptr());
  const int64_t stride = out.stride(0), at_once = 16;
  parallel_items((indices.numel() + at_once - 1) / at_once, [&](int64_t item, int64_t) {
    for (int64_t i = item * at_once; i < indices.numel() && i < (item + 1) * at_once; ++i)
      unpack_row(packed, index[i], to + i * stride);
  });
}

}  // namespace

PackedLinear packed_linear(const Tensor& weight, const OptionalTensor& scales, const OptionalTensor& minima,
                           const OptionalTensor& bias, const std::string& type, int64_t out_features,
                           int64_t in_features, bool paired) {
  constexpr int64_t most = int64_t(1) << 30;  // keeps every product below in 64 bits
  STD_TORCH_CHECK(out_features > 0 && in_features > 0 && out_features < most && in_features < most,
                  "linear: a weight of [", out_features, ", ", in_features, "]");
  STD_TORCH_CHECK(!paired || out_features % 2 == 0, "linear: gate and up must be equally many");
  PackedLinear packed = {weight_type(type), out_features, in_features, weight.data_ptr(), nullptr, nullptr, nullptr};
  packed.paired = paired;
  check_flat(weight, "weight", ScalarType::Byte, packed.panels() * packed.panel_bytes());

  const bool quantized = packed.type == WeightType::int8 || packed.type == WeightType::int4;
  STD_TORCH_CHECK(bool(scales) == quantized, "linear: ", type, (quantized ? " needs scales" : " has no scales"));
  STD_TORCH_CHECK(!minima || packed.type == WeightType::int4, "linear: only int4 has minima");
  const int64_t groups = packed.panels() * packed.padded_in() / 32 * 16;
  if (scales) {
    packed.wide_scales = scales->scalar_type() == ScalarType::Float;
    // The other combinations do not occur: they would be kernels that nothing uses.
    STD_TORCH_CHECK(!packed.wide_scales || minima, "linear: float32 scales go with minima");
    const ScalarType kind = packed.wide_scales ? ScalarType::Float : ScalarType::Half;
    check_flat(*scales, "scales", kind, groups);
    packed.scales = scales->data_ptr();
    if (minima) {
      check_flat(*minima, "minima", kind, groups);
      packed.minima = minima->data_ptr();
    }
  }
  if (bias) {
    check_flat(*bias, "bias", ScalarType::Float, packed.panels() * 16);
    packed.bias = static_cast<const float*>(bias->data_ptr());
  }
  return packed;
}

STABLE_TORCH_LIBRARY_FRAGMENT(looseleaf, library) {
  library.def(
      "linear(Tensor x, Tensor weight, Tensor? scales, Tensor? minima, Tensor? bias, str type, int out_features, "
      "int in_features, bool paired, Tensor(a!) y, str epilogue) -> ()");
  library.def(
      "pack_linear(Tensor source, Tensor(a!) weight, Tensor(b!)? scales, str type, int paired_half) -> ()");
  library.def(
      "pack_gguf(Tensor source, str format, Tensor(a!) weight, Tensor(b!)? scales, Tensor(c!)? minima, "
      "int paired_half, int in_features) -> ()");
  library.def(
      "unpack_linear(Tensor weight, Tensor? scales, Tensor? minima, str type, int out_features, int in_features, "
      "bool paired, Tensor indices, Tensor(a!) out) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(looseleaf, CompositeExplicitAutograd, library) {
  library.impl("linear", TORCH_BOX(&linear_operator));
  library.impl("pack_linear", TORCH_BOX(&pack_operator));
  library.impl("pack_gguf", TORCH_BOX(&pack_gguf_operator));
  library.impl("unpack_linear", TORCH_BOX(&unpack_operator));
}

}  // namespace looseleaf
