"""Sets of memory layouts that a tensor may have: ExecuTorch Vulkan's layout algebra.

A representation is a storage (buffer or texture) and a layout. A `TensorRepSet` holds the layouts allowed in a buffer
and those allowed in a texture. Names and meaning are those of `backends/vulkan/utils.py` in ExecuTorch. Here sets are
immutable and hashable, and `LAYOUT_ORDER` defines their first element, where upstream depends on the order of a Python
set. No kernel reads textures.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Generic, TypeVar

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.layout import PACKINGS, Layout, Shape, canonical

T = TypeVar("T")

_WIDTH, _HEIGHT, _CHANNELS = (
    Layout.TENSOR_WIDTH_PACKED,
    Layout.TENSOR_HEIGHT_PACKED,
    Layout.TENSOR_CHANNELS_PACKED,
)
FLOAT_LAYOUTS = frozenset({_WIDTH, _HEIGHT, _CHANNELS})

# The preference among layouts when nothing else decides. 4C is the first of the packed ones: matrix products read and
# write it, and upstream replaces CONV2D by it for such kernels.
LAYOUT_ORDER = (
    _WIDTH,
    _HEIGHT,
    _CHANNELS,
    Layout.PACKED_INT8_4C,
    Layout.PACKED_INT8_4C1W,
    Layout.PACKED_INT8_4W4C,
    Layout.PACKED_INT8_4W,
    Layout.PACKED_INT8_4H4W,
    Layout.PACKED_INT8_CONV2D,
    Layout.DEFAULT,
)
_RANK = {layout: rank for rank, layout in enumerate(LAYOUT_ORDER)}

TextureLimits = tuple[int, int, int]
DEFAULT_TEXTURE_LIMITS: TextureLimits = (16384, 16384, 2048)


class StorageType(enum.Enum):
    """Kind of memory, with the names of ExecuTorch's `VkStorageType`."""

    BUFFER = 0
    TEXTURE_3D = 1
    DEFAULT = 255

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True)
class TensorRepr:
    """How one tensor is stored."""

    storage_type: StorageType = StorageType.DEFAULT
    memory_layout: Layout = Layout.DEFAULT

    def __str__(self) -> str:
        return f"{self.storage_type.name}/{self.memory_layout.short}"


@dataclass(frozen=True)
class PackedDimInfo:
    """The property of layouts that must agree between the operands of an elementwise kernel.

    It leaves out the outer packing on purpose: 4W4C, 4C, 4C1W and CONV2D are interchangeable.

    Attributes:
        packed_dim: the dimension whose neighbours share a word or texel, counted from the fastest (0=W 1=H 2=C).
        packed_dim_block_size: how many neighbours share one.
    """

    packed_dim: int
    packed_dim_block_size: int

    @classmethod
    def from_repr(cls, tensor_repr: TensorRepr) -> PackedDimInfo:
        """The info of a representation. Raises GraphError for a DEFAULT storage or layout."""
        return _packed_dim_info(tensor_repr.memory_layout, tensor_repr.storage_type)


@cache
def _packed_dim_info(layout: Layout, storage: StorageType) -> PackedDimInfo:
    texture = storage is StorageType.TEXTURE_3D
    if storage is StorageType.DEFAULT or layout is Layout.DEFAULT:
        raise GraphError(f"{storage.name}/{layout.name} has no packed dimension: give a concrete storage and layout")
    if layout in FLOAT_LAYOUTS:  # their enum values happen to be the dimensions 0=W 1=H 2=C
        return PackedDimInfo(layout.value, 4 if texture else 1)
    if layout is Layout.PACKED_INT8_CONV2D:
        return PackedDimInfo(2, 4)
    block = 16 if texture and layout in (Layout.PACKED_INT8_4C, Layout.PACKED_INT8_4C1W) else 4
    return PackedDimInfo(3 - PACKINGS[layout].packed, block)


@cache
def _infos(layouts: frozenset[Layout], storage: StorageType) -> frozenset[PackedDimInfo]:
    return frozenset(_packed_dim_info(layout, storage) for layout in layouts)


def _sharing_info(layouts: frozenset[Layout], others: frozenset[Layout], storage: StorageType) -> frozenset[Layout]:
    infos = _infos(others, storage)
    return frozenset(layout for layout in layouts if _packed_dim_info(layout, storage) in infos)


@dataclass(frozen=True, init=False)
class TensorRepSet:
    """The layouts that a tensor may have as a buffer, and those that it may have as a texture.

    Every operation treats buffers and textures separately and returns a new set.
    """

    buffer_layouts: frozenset[Layout]
    texture_layouts: frozenset[Layout]

    def __init__(self, buffer_layouts: Iterable[Layout] = (), texture_layouts: Iterable[Layout] = ()) -> None:
        object.__setattr__(self, "buffer_layouts", frozenset(buffer_layouts))
        object.__setattr__(self, "texture_layouts", frozenset(texture_layouts))

    def layouts(self, storage: StorageType) -> frozenset[Layout]:
        """The layouts allowed in `storage`. Raises GraphError if it is neither BUFFER nor TEXTURE_3D."""
        match storage:
            case StorageType.BUFFER:
                return self.buffer_layouts
            case StorageType.TEXTURE_3D:
                return self.texture_layouts
        raise GraphError(f"a storage must be BUFFER or TEXTURE_3D, found {storage.name}: resolve it first")

    def reprs(self) -> list[TensorRepr]:
        """All members, most preferred first: textures before buffers as upstream, then `LAYOUT_ORDER`."""
        return [
            TensorRepr(storage, layout)
            for storage in (StorageType.TEXTURE_3D, StorageType.BUFFER)
            for layout in sorted(self.layouts(storage), key=_RANK.__getitem__)
        ]

    def is_empty(self) -> bool:
        """Whether no representation is left."""
        return not self.buffer_layouts and not self.texture_layouts

    def copy(self) -> TensorRepSet:
        """An equal set; sets never change, so this is for readers of upstream's code."""
        return TensorRepSet(self.buffer_layouts, self.texture_layouts)

    def make_intersect(self, other: TensorRepSet) -> TensorRepSet:
        """The representations in both."""
        return TensorRepSet(self.buffer_layouts & other.buffer_layouts, self.texture_layouts & other.texture_layouts)

    def make_union(self, other: TensorRepSet) -> TensorRepSet:
        """The representations in either."""
        return TensorRepSet(self.buffer_layouts | other.buffer_layouts, self.texture_layouts | other.texture_layouts)

    def is_compatible(self, tensor_repr: TensorRepr) -> bool:
        """Whether `tensor_repr` is a member. Raises GraphError for a DEFAULT storage."""
        return tensor_repr.memory_layout in self.layouts(tensor_repr.storage_type)

    def any_in_common(self, other: TensorRepSet) -> bool:
        """Whether some representation is in both."""
        return not self.make_intersect(other).is_empty()

    def is_constrained(self) -> bool:
        """Whether it has at most one member."""
        return len(self.buffer_layouts) + len(self.texture_layouts) <= 1

    def is_ambiguous(self) -> bool:
        """Whether it has two members or more."""
        return not self.is_constrained()

    def make_tensor_repr(self) -> TensorRepr:
        """The most preferred member (see `reprs`); DEFAULT/DEFAULT for the empty set."""
        return next(iter(self.reprs()), TensorRepr())

    def packed_dim_infos(self, storage: StorageType) -> frozenset[PackedDimInfo]:
        """The packed-dim infos that occur in `storage`."""
        return _infos(self.layouts(storage), storage)

    def has_same_packed_dim_info_set(self, other: TensorRepSet) -> bool:
        """Whether both have the same infos as buffers and as textures. An empty set agrees with every set."""
        if self.is_empty() or other.is_empty():
            return True
        return self.has_compatible_packed_dim_info_set(other) and other.has_compatible_packed_dim_info_set(self)

    def has_compatible_packed_dim_info_set(self, other: TensorRepSet) -> bool:
        """Whether self has every info of `other` in the same storage: it is the superset."""
        storages = (StorageType.BUFFER, StorageType.TEXTURE_3D)
        return all(other.packed_dim_infos(storage) <= self.packed_dim_infos(storage) for storage in storages)

    def constrain_to_compatible_packed_dim(self, other: TensorRepSet) -> TensorRepSet:
        """The members whose info occurs in `other` in the same storage; all of them if `other` is empty."""
        if other.is_empty():
            return self
        return TensorRepSet(
            _sharing_info(self.buffer_layouts, other.buffer_layouts, StorageType.BUFFER),
            _sharing_info(self.texture_layouts, other.texture_layouts, StorageType.TEXTURE_3D),
        )

    filter_for_compatible_packed_dim_infos = constrain_to_compatible_packed_dim
    """The name of the upstream pull request that introduced the operation."""

    def __str__(self) -> str:
        return "{" + ", ".join(map(str, self.reprs())) + "}"


def make_tensor_repset(tensor_repr: TensorRepr) -> TensorRepSet:
    """The set with one member. Raises GraphError for a DEFAULT storage."""
    match tensor_repr.storage_type:
        case StorageType.BUFFER:
            return TensorRepSet(buffer_layouts={tensor_repr.memory_layout})
        case StorageType.TEXTURE_3D:
            return TensorRepSet(texture_layouts={tensor_repr.memory_layout})
    raise GraphError(f"a storage must be BUFFER or TEXTURE_3D, found {tensor_repr}: resolve it first")


class _Broadcast(Generic[T]):
    """A list in which a single element stands for every index, on reading and on assignment."""

    def __init__(self, vals: T | Iterable[T]) -> None:
        self.vals: list[T] = list(vals) if isinstance(vals, Iterable) else [vals]

    def _index(self, index: int) -> int:
        return 0 if len(self.vals) == 1 else index

    def __getitem__(self, index: int) -> T:
        return self.vals[self._index(index)]

    def __setitem__(self, index: int, value: T) -> None:
        self.vals[self._index(index)] = value

    def __len__(self) -> int:
        return len(self.vals)

    def __iter__(self) -> Iterator[T]:
        return iter(self.vals)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and isinstance(other, _Broadcast) and self.vals == other.vals

    __hash__ = None  # type: ignore[assignment]  # mutable

    def append(self, value: T) -> None:
        """Adds an element; from the second on, nothing is broadcast."""
        self.vals.append(value)

    def __str__(self) -> str:
        return "[" + ", ".join(map(str, self.vals)) + "]"


class TensorReprList(_Broadcast[TensorRepr]):
    """Representations of the arguments or outputs of an operator; a single one stands for all.

    Lists of unequal length differ, even where broadcasting would make them read the same.
    """

    def storage_type(self, index: int = 0) -> StorageType:
        """The storage at `index`."""
        return self[index].storage_type

    def memory_layout(self, index: int = 0) -> Layout:
        """The layout at `index`."""
        return self[index].memory_layout


class TensorRepSetList(_Broadcast[TensorRepSet]):
    """Representation sets of the arguments or outputs of an operator; a single one stands for all.

    Reading past the end of a list of several gives NO_STORAGE, an unconstrained operand (upstream: an empty Python set,
    which has no methods of a TensorRepSet). Assigning there raises IndexError.
    """

    def __getitem__(self, index: int) -> TensorRepSet:
        position = self._index(index)
        return self.vals[position] if position < len(self.vals) else NO_STORAGE

    def any_is_empty(self) -> bool:
        """Whether some set is empty, or there is none at all."""
        return not self.vals or any(repset.is_empty() for repset in self.vals)


def image_extents(shape: Shape, layout: Layout) -> TextureLimits:
    """Texels along (x, y, z) of a 3-D texture of `shape`: W, H and C*N. A texel holds four floats or 16 int8.

    Upstream raises for 4W and 4C1W; here every layout but DEFAULT has extents, CONV2D those of 4C1W.
    """
    extents = list(canonical(shape))
    if layout.is_int8:
        packing = PACKINGS[Layout.PACKED_INT8_4C1W if layout is Layout.PACKED_INT8_CONV2D else layout]
        texel = {packing.packed: 16} if packing.outer is None else {packing.packed: 4, packing.outer: 4}
    else:
        texel = {3 - _packed_dim_info(layout, StorageType.TEXTURE_3D).packed_dim: 4}
    for axis, block in texel.items():
        extents[axis] = -(-extents[axis] // block)
    n, c, h, w = extents
    return w, h, c * n


def filter_invalid_reprs(
    shape: Shape, repset: TensorRepSet, texture_limits: TextureLimits = DEFAULT_TEXTURE_LIMITS
) -> TensorRepSet:
    """`repset` without the textures that cannot hold `shape`: too many texels, or a rank above four."""
    fitting = (
        layout
        for layout in repset.texture_layouts
        if len(shape) <= 4
        and all(d <= limit for d, limit in zip(image_extents(shape, layout), texture_limits, strict=True))
    )
    return TensorRepSet(repset.buffer_layouts, fitting)


NO_STORAGE = TensorRepSet()  # of a weight or a non-tensor, which is unconstrained

CONTIGUOUS_ANY = TensorRepSet({_WIDTH}, {_WIDTH})
CONTIGUOUS_BUFFER = TensorRepSet({_WIDTH})
WIDTH_PACKED_TEXTURE = TensorRepSet((), {_WIDTH})
HEIGHT_PACKED_TEXTURE = TensorRepSet((), {_HEIGHT})
CHANNELS_PACKED_TEXTURE = TensorRepSet((), {_CHANNELS})
CHANNELS_PACKED_ANY = TensorRepSet({_CHANNELS}, {_CHANNELS})
CHANNELS_PACKED_TEXTURE_OR_CONTIGUOUS_BUFFER = TensorRepSet({_WIDTH}, {_CHANNELS})
ANY_TEXTURE = TensorRepSet((), FLOAT_LAYOUTS)
ANY_BUFFER = TensorRepSet(FLOAT_LAYOUTS)
ANY_STORAGE = TensorRepSet(FLOAT_LAYOUTS, FLOAT_LAYOUTS)

PACKED_INT8_4W_BUFFER = TensorRepSet({Layout.PACKED_INT8_4W})
PACKED_INT8_4C_BUFFER = TensorRepSet({Layout.PACKED_INT8_4C})
PACKED_INT8_4C1W_BUFFER = TensorRepSet({Layout.PACKED_INT8_4C1W})
PACKED_INT8_4W4C_BUFFER = TensorRepSet({Layout.PACKED_INT8_4W4C})
PACKED_INT8_4H4W_BUFFER = TensorRepSet({Layout.PACKED_INT8_4H4W})
PACKED_INT8_CONV2D_BUFFER = TensorRepSet({Layout.PACKED_INT8_CONV2D})
# Upstream's members exactly: 4C is in neither of the two sets below, nor in the universal one.
PACKED_INT8_CHANNELS_PACKED_BUFFER = TensorRepSet(
    {Layout.PACKED_INT8_4W4C, Layout.PACKED_INT8_4C1W, Layout.PACKED_INT8_CONV2D}
)
PACKED_INT8_BUFFER = PACKED_INT8_CHANNELS_PACKED_BUFFER.make_union(
    TensorRepSet({Layout.PACKED_INT8_4W, Layout.PACKED_INT8_4H4W})
)
ANY_STORAGE_INCL_PACKED_INT8 = ANY_STORAGE.make_union(PACKED_INT8_BUFFER)
