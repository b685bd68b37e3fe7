"""Linear layers over weights packed for the native kernels: y = x · Wᵀ + bias.

Weights are float32, bfloat16, int8 or int4; activations float32. int8 and int4 have a scale for every 32 inputs of an
output, as GGUF's Q8_0, Q4_0, Q4_1 and Q4_K have, whose blocks are taken over unchanged. A row's result is bitwise the
same whatever other rows there are and however many threads work.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NoReturn, get_args

import torch
from torch import Tensor

from looseleaf.kernels import native

WeightType = Literal["float32", "bfloat16", "int8", "int4"]
GgufFormat = Literal["Q8_0", "Q4_0", "Q4_1", "Q4_K"]

_PANEL = 16  # outputs
_GROUP = 32  # inputs
_BITS = {"float32": 32, "bfloat16": 16, "int8": 8, "int4": 4}
_GGUF_TYPES: dict[GgufFormat, WeightType] = {"Q8_0": "int8", "Q4_0": "int4", "Q4_1": "int4", "Q4_K": "int4"}
_GGUF_BLOCKS = {"Q8_0": (32, 34), "Q4_0": (32, 18), "Q4_1": (32, 20), "Q4_K": (256, 144)}  # (values, bytes)


@dataclass(frozen=True)
class PackedLinear:
    """A weight `[out_features, in_features]`, packed. `paired`: gate and up, of `out_features // 2` each."""

    type: WeightType
    out_features: int
    in_features: int
    weight: Tensor
    """uint8, in panels of 16 outputs as csrc/linear/packed_linear.h describes."""
    scales: Tensor | None = None
    """Of int8 and int4: float16 (float32 where Q4_K's products need it), one per 32 inputs and output."""
    minima: Tensor | None = None
    """Of int4 with minima: typed and ordered as the scales."""
    bias: Tensor | None = None
    """float32 `[panels · 16]`, in the panels' order."""
    paired: bool = False

    @property
    def columns(self) -> int:
        """Columns of the result."""
        return self.out_features // 2 if self.paired else self.out_features

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in (self.weight, self.scales, self.minima, self.bias) if t is not None)

    def __call__(self, x: Tensor, out: Tensor | None = None, *, add: bool = False) -> Tensor:
        """`x` `[rows, in_features]` (float32; bfloat16 is widened) to float32 `[rows, columns]`.

        The result goes to `out`, or is added to it with `add`. A pair gives silu(x · gateᵀ) · (x · upᵀ). Raises
        ValueError for shapes, strides or dtypes that do not fit.
        """
        if x.dtype == torch.bfloat16:
            x = x.float()
        if out is None:
            if add:
                raise ValueError("add needs the tensor to add to")
            out = torch.empty(x.shape[0] if x.dim() else 0, self.columns)
        if add and self.paired:
            raise ValueError("a pair of gate and up cannot add to its result")
        epilogue = "silu_mul" if self.paired else "add" if add else "store"
        try:
            torch.ops.looseleaf.linear(
                x,
                self.weight,
                self.scales,
                self.minima,
                self.bias,
                self.type,
                self.out_features,
                self.in_features,
                self.paired,
                out,
                epilogue,
            )
        except RuntimeError as error:
            _refuse(error)
        return out

    def rows(self, indices: Tensor) -> Tensor:
        """The rows of the weight that int64 `indices` name, as float32: an embedding lookup.

        Of a pair, gate's come first. Raises IndexError for one that is not there.
        """
        if indices.numel() and not 0 <= int(indices.min()) <= int(indices.max()) < self.out_features:
            raise IndexError(f"row {int(indices.min())} or {int(indices.max())} is outside {self.out_features} rows")
        out = torch.empty(indices.numel(), self.in_features)
        try:
            torch.ops.looseleaf.unpack_linear(
                self.weight,
                self.scales,
                self.minima,
                self.type,
                self.out_features,
                self.in_features,
                self.paired,
                indices,
                out,
            )
        except RuntimeError as error:
            _refuse(error)
        return out

    def dequantize(self) -> Tensor:
        """The float32 matrix that the packed weight stands for, exactly."""
        return self.rows(torch.arange(self.out_features))


def pack(weight: Tensor, type: WeightType, bias: Tensor | None = None) -> PackedLinear:
    """Pack a float32 or bfloat16 weight `[out_features, in_features]`; its rows may be apart, not their elements.

    "bfloat16" rounds float32 to nearest even, "int8" rounds each group of 32 to 127ths of its largest: at most half a
    scale per weight. Raises ValueError for shapes, dtypes or strides that do not fit, and where int8 meets a number
    that is not finite.
    """
    packed = _empty(type, weight, _matrix_shape(weight)[1], (bias,), wide=False, minima=False)
    _pack(packed, weight, -1)
    return packed


def pack_gate_up(
    gate: Tensor,
    up: Tensor,
    type: WeightType,
    gate_bias: Tensor | None = None,
    up_bias: Tensor | None = None,
) -> PackedLinear:
    """Pack two weights of one shape, panel beside panel, so that the pair gives silu(x · gateᵀ) · (x · upᵀ)."""
    _same_shape(gate, up)
    packed = _empty(type, gate, _matrix_shape(gate)[1], (gate_bias, up_bias), wide=False, minima=False)
    _pack(packed, gate, 0)
    _pack(packed, up, 1)
    return packed


def pack_gguf(blocks: Tensor, format: GgufFormat, in_features: int, bias: Tensor | None = None) -> PackedLinear:
    """Pack GGUF blocks, uint8 `[out_features, bytes of a row]`: `dequantize` gives what the gguf package gives."""
    packed = _empty_gguf(blocks, format, in_features, (bias,))
    _pack_gguf(packed, blocks, format, -1)
    return packed


def pack_gguf_gate_up(gate: Tensor, up: Tensor, format: GgufFormat, in_features: int) -> PackedLinear:
    """As `pack_gate_up`, of GGUF blocks."""
    _same_shape(gate, up)
    packed = _empty_gguf(gate, format, in_features, (None, None))
    _pack_gguf(packed, gate, format, 0)
    _pack_gguf(packed, up, format, 1)
    return packed


def _refuse(error: RuntimeError) -> NoReturn:
    raise ValueError(str(error).partition("\n")[0]) from None


def _matrix_shape(weight: Tensor) -> tuple[int, int]:
    if weight.dim() != 2 or not weight.numel():
        raise ValueError(f"a weight has two dimensions, neither of them 0; this one is {list(weight.shape)}")
    return weight.shape[0], weight.shape[1]


def _same_shape(gate: Tensor, up: Tensor) -> None:
    if gate.shape != up.shape:
        raise ValueError(f"gate and up differ in shape: {list(gate.shape)} and {list(up.shape)}")


def _empty_gguf(
    blocks: Tensor, format: GgufFormat, in_features: int, biases: tuple[Tensor | None, ...]
) -> PackedLinear:
    if format not in _GGUF_TYPES:
        raise ValueError(f"GGUF type {format!r} cannot be packed; these can: {', '.join(_GGUF_TYPES)}")
    values, size = _GGUF_BLOCKS[format]
    expected = in_features // values * size
    if in_features % values or _matrix_shape(blocks)[1] != expected or blocks.dtype != torch.uint8:
        raise ValueError(
            f"{in_features} inputs in {format} are uint8 rows of {in_features / values * size:g} bytes; these are "
            f"{list(blocks.shape)} of {blocks.dtype}"
        )
    wide, minima = format == "Q4_K", format in ("Q4_1", "Q4_K")
    return _empty(_GGUF_TYPES[format], blocks, in_features, biases, wide=wide, minima=minima)


def _empty(
    type: WeightType, weight: Tensor, in_features: int, biases: tuple[Tensor | None, ...], *, wide: bool, minima: bool
) -> PackedLinear:
    """Room for `len(biases)` weights of the shape of `weight`, side by side panel by panel."""
    if type not in get_args(WeightType):
        raise ValueError(f"there is no weight type {type!r}; there are {', '.join(get_args(WeightType))}")
    if not native.is_available():
        raise ValueError("packed weights need the native extension")
    parts, out_features = len(biases), weight.shape[0]
    groups = -(-in_features // _GROUP)
    columns = -(-out_features // _PANEL) * parts * _PANEL
    scale_shape = columns * groups
    scale_dtype = torch.float32 if wide else torch.float16
    quantized = type in ("int8", "int4")
    packed_bias = None
    if any(bias is not None for bias in biases):
        by_panel = torch.zeros(columns // (parts * _PANEL), parts, _PANEL)
        for part, bias in enumerate(biases):
            if bias is None:
                continue
            if bias.shape != (out_features,):
                raise ValueError(f"the bias of {out_features} outputs has shape {list(bias.shape)}")
            padded = torch.zeros(columns // parts)
            padded[:out_features] = bias
            by_panel[:, part] = padded.view(-1, _PANEL)
        packed_bias = by_panel.flatten()
    return PackedLinear(
        type=type,
        out_features=out_features * parts,
        in_features=in_features,
        weight=torch.empty(columns * groups * _GROUP * _BITS[type] // 8, dtype=torch.uint8),
        scales=torch.empty(scale_shape, dtype=scale_dtype) if quantized else None,
        minima=torch.empty(scale_shape, dtype=scale_dtype) if minima else None,
        bias=packed_bias,
        paired=parts == 2,
    )


def _pack(packed: PackedLinear, weight: Tensor, half: int) -> None:
    try:
        torch.ops.looseleaf.pack_linear(weight, packed.weight, packed.scales, packed.type, half)
    except RuntimeError as error:
        _refuse(error)


def _pack_gguf(packed: PackedLinear, blocks: Tensor, format: GgufFormat, half: int) -> None:
    try:
        torch.ops.looseleaf.pack_gguf(
            blocks, format, packed.weight, packed.scales, packed.minima, half, packed.in_features
        )
    except RuntimeError as error:
        _refuse(error)
