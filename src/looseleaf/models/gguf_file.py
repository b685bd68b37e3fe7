"""Opens a GGUF file: metadata, and where each tensor lies.

The header is read here and not by `gguf.GGUFReader`, which trusts it: there, a damaged count makes a loop of
years, and the 100,000 strings of an ordinary vocabulary take seconds. Every length is checked against the
file before it is used. The tensors' encodings stay the `gguf` package's business.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGUF_DEFAULT_ALIGNMENT, GGMLQuantizationType, GGUFValueType
from gguf.quants import dequantize
from numpy.typing import NDArray

from looseleaf.models.errors import CorruptModelFile, ModelNotFound, UnsupportedModel

if TYPE_CHECKING:
    from torch import Tensor

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_SCALARS = {
    GGUFValueType.UINT8: "<u1",
    GGUFValueType.INT8: "<i1",
    GGUFValueType.UINT16: "<u2",
    GGUFValueType.INT16: "<i2",
    GGUFValueType.UINT32: "<u4",
    GGUFValueType.INT32: "<i4",
    GGUFValueType.FLOAT32: "<f4",
    GGUFValueType.BOOL: "?",
    GGUFValueType.UINT64: "<u8",
    GGUFValueType.INT64: "<i8",
    GGUFValueType.FLOAT64: "<f8",
}
_PLAIN: dict[GGMLQuantizationType, np.dtype[Any]] = {
    GGMLQuantizationType.F32: np.dtype("<f4"),
    GGMLQuantizationType.F16: np.dtype("<f2"),
    GGMLQuantizationType.F64: np.dtype("<f8"),
}
_MAX_DIMENSIONS = 4
_UINT32 = struct.Struct("<I")
_UINT64 = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """One tensor as it lies in the file."""

    name: str
    shape: tuple[int, ...]
    """Row-major, as NumPy and torch count (GGUF itself counts the other way)."""
    encoding: GGMLQuantizationType
    data: NDArray[Any]
    """A view into the mapped file: `[rows, bytes of a row]` uint8, nothing is read until it is used."""

    @property
    def is_quantised(self) -> bool:
        return self.encoding not in (*_PLAIN, GGMLQuantizationType.BF16)

    def rows(self, start: int, stop: int) -> NDArray[np.float32]:
        """Rows `start` to `stop`, decoded to float32: `[stop - start, shape[-1]]`."""
        encoded = self.data[start:stop]
        if self.encoding in _PLAIN:
            return np.asarray(encoded.view(_PLAIN[self.encoding]), dtype=np.float32)
        return np.asarray(dequantize(encoded, self.encoding), dtype=np.float32)

    def rounded_rows(self, start: int, stop: int) -> Tensor:
        """Rows `start` to `stop`, decoded to float32 and rounded to bfloat16: `[stop - start, shape[-1]]`."""
        import torch  # only here: a file's metadata is read without it

        from looseleaf.kernels import gguf as native_gguf

        if not native_gguf.can_decode(self.encoding.name):
            return torch.from_numpy(self.rows(start, stop)).bfloat16()
        encoded = torch.from_numpy(self.data[start:stop])
        decoded = torch.empty(encoded.shape[0], self.shape[-1], dtype=torch.bfloat16)
        native_gguf.decode(encoded, self.encoding.name, decoded)
        return decoded


class GGUFFile:
    """`metadata` by key (scalars, strings, lists) and `tensors` by name.

    Raises `ModelNotFound`, `CorruptModelFile` (truncated, or lengths that contradict the file), and
    `UnsupportedModel` (another version, byte order or tensor encoding).
    """

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise ModelNotFound(f"There is no file {path}.")
        self.path = path
        self.metadata: dict[str, Any] = {}
        self.tensors: dict[str, GGUFTensor] = {}
        if path.stat().st_size < len(_MAGIC):
            raise CorruptModelFile(f"{path} is not a GGUF file: it has {path.stat().st_size} bytes.")
        # Copy-on-write, for torch takes writable memory only; nothing here writes.
        try:
            self._bytes = np.memmap(path, mode="c", dtype=np.uint8)
        except OSError as error:
            raise CorruptModelFile(f"{path} cannot be read: {error}.") from error
        cursor = _Cursor(self._bytes.data, path)
        tensor_count, metadata_count = self._read_preamble(cursor)
        for _ in range(metadata_count):
            key = cursor.text()
            self.metadata[key] = cursor.value(cursor.uint32())
        entries = [self._read_tensor_entry(cursor) for _ in range(tensor_count)]
        alignment = self.metadata.get("general.alignment", GGUF_DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise CorruptModelFile(f"{path} asks for an alignment of {alignment!r}; a power of two is expected.")
        data_start = -(-cursor.offset // alignment) * alignment
        for name, shape, encoding, offset in entries:
            if name in self.tensors:
                raise CorruptModelFile(f"{path} holds the tensor {name!r} twice.")
            self.tensors[name] = self._locate(name, shape, encoding, data_start + offset)

    def _read_preamble(self, cursor: _Cursor) -> tuple[int, int]:
        if cursor.take(len(_MAGIC)) != _MAGIC:
            raise CorruptModelFile(f"{self.path} is not a GGUF file.")
        version = cursor.uint32()
        if version not in _VERSIONS:
            raise UnsupportedModel(
                f"{self.path} says GGUF version {version}.", hint="Known: versions 2 and 3, little-endian."
            )
        return cursor.uint64(), cursor.uint64()

    def _read_tensor_entry(self, cursor: _Cursor) -> tuple[str, tuple[int, ...], GGMLQuantizationType, int]:
        name = cursor.text()
        dimensions = cursor.uint32()
        if not 1 <= dimensions <= _MAX_DIMENSIONS:
            raise CorruptModelFile(f"{self.path} gives the tensor {name!r} {dimensions} dimensions.")
        shape = tuple(cursor.uint64() for _ in range(dimensions))[::-1]
        encoding_number = cursor.uint32()
        try:
            encoding = GGMLQuantizationType(encoding_number)
        except ValueError:
            raise UnsupportedModel(
                f"The tensor {name!r} has the unknown encoding {encoding_number}.",
                hint="Update the gguf package, or use another quantisation of the model.",
            ) from None
        return name, shape, encoding, cursor.uint64()

    def _locate(self, name: str, shape: tuple[int, ...], encoding: GGMLQuantizationType, start: int) -> GGUFTensor:
        values_per_block, bytes_per_block = GGML_QUANT_SIZES[encoding]
        *outer, width = shape
        rows = 1
        for extent in outer:
            rows *= extent
        if width % values_per_block or not width or not rows:
            raise CorruptModelFile(f"The tensor {name!r} of shape {list(shape)} cannot be {encoding.name}.")
        row_bytes = width // values_per_block * bytes_per_block
        end = start + rows * row_bytes
        if end > self._bytes.size:
            raise CorruptModelFile(
                f"{self.path} is truncated: {name!r} should end at byte {end}, the file has {self._bytes.size}.",
                hint="Download it again.",
            )
        return GGUFTensor(name, shape, encoding, self._bytes[start:end].reshape(rows, row_bytes))


class _Cursor:
    """Reads forward through the header, and never past the end of the file."""

    def __init__(self, buffer: memoryview, path: Path) -> None:
        self._buffer = buffer
        self._path = path
        self.offset = 0

    def take(self, count: int) -> bytes:
        end = self.offset + count
        if end > len(self._buffer):
            raise CorruptModelFile(
                f"{self._path} is truncated: its header reads to byte {end}, the file has {len(self._buffer)}.",
                hint="Download it again.",
            )
        taken = self._buffer[self.offset : end].tobytes()
        self.offset = end
        return taken

    def uint32(self) -> int:
        return int(_UINT32.unpack(self.take(4))[0])

    def uint64(self) -> int:
        return int(_UINT64.unpack(self.take(8))[0])

    def text(self) -> str:
        encoded = self.take(self.uint64())
        try:
            return encoded.decode()
        except UnicodeDecodeError:
            raise CorruptModelFile(f"{self._path} holds text that is not UTF-8 before byte {self.offset}.") from None

    def value(self, kind: int) -> Any:
        if kind == GGUFValueType.STRING:
            return self.text()
        if kind == GGUFValueType.ARRAY:
            return self._array(self.uint32(), self.uint64())
        return self._scalars(kind, 1)[0]

    def _array(self, kind: int, count: int) -> list[Any]:
        if kind == GGUFValueType.ARRAY:
            raise UnsupportedModel(f"{self._path} holds nested arrays in its metadata.")
        if kind != GGUFValueType.STRING:
            return self._scalars(kind, count)
        return self._texts(count)

    def _texts(self, count: int) -> list[Any]:
        """What `count` calls of `text` give; a vocabulary has 100,000, and calls would be half the time of a load."""
        buffer, end, length_at = self._buffer, len(self._buffer), _UINT64.unpack_from
        offset, texts = self.offset, []
        for _ in range(count):
            begin = offset + _UINT64.size
            stop = begin + length_at(buffer, offset)[0] if begin <= end else begin
            self.offset = offset
            if stop > end:
                return [self.text()]  # raises, naming the place
            try:
                texts.append(str(buffer[begin:stop], "utf-8"))
            except UnicodeDecodeError:
                return [self.text()]
            offset = stop
        self.offset = offset
        return texts

    def _scalars(self, kind: int, count: int) -> list[Any]:
        if kind not in _SCALARS:
            raise CorruptModelFile(f"{self._path} holds a metadata value of the unknown kind {kind}.")
        number = np.dtype(_SCALARS[GGUFValueType(kind)])
        values: list[Any] = np.frombuffer(self.take(count * number.itemsize), number).tolist()
        return values
