"""Short names of layouts and storage, for tables of them."""

from q8ta_wgpu.ir.layout import Layout
from q8ta_wgpu.passes.layout_sync.tensor_repr import StorageType

BUFFER, TEXTURE = StorageType.BUFFER, StorageType.TEXTURE_3D
WIDTH, HEIGHT, CHANNELS = (
    Layout.TENSOR_WIDTH_PACKED,
    Layout.TENSOR_HEIGHT_PACKED,
    Layout.TENSOR_CHANNELS_PACKED,
)
L4W, L4C, L4C1W = Layout.PACKED_INT8_4W, Layout.PACKED_INT8_4C, Layout.PACKED_INT8_4C1W
L4W4C, L4H4W, CONV2D = Layout.PACKED_INT8_4W4C, Layout.PACKED_INT8_4H4W, Layout.PACKED_INT8_CONV2D
