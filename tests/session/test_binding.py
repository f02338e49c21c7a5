"""Runs between an application's own buffers and textures: the bytes of a call, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import wgpu

from q8ta_wgpu import Session
from q8ta_wgpu.errors import DeviceError, InputError
from q8ta_wgpu.ir.graph import DTYPES, INT8X4, INT16X4, UINT8, Array, Graph, Node, QParams, TensorType
from q8ta_wgpu.ir.layout import INT8_LAYOUTS, pack
from q8ta_wgpu.model.model import Model
from q8ta_wgpu.model.structure import Structure
from q8ta_wgpu.program.program import Port
from q8ta_wgpu.program.textures import read_texture
from q8ta_wgpu.runtime.adapters import open_device
from q8ta_wgpu.runtime.binding import Binding
from q8ta_wgpu.runtime.device import Device
from q8ta_wgpu.session import inputs
from testbed.small import SHAPE, small_input, small_model

STORAGE = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST
TEXTURE = (
    wgpu.TextureUsage.TEXTURE_BINDING
    | wgpu.TextureUsage.STORAGE_BINDING
    | wgpu.TextureUsage.COPY_SRC
    | wgpu.TextureUsage.COPY_DST
)
HEIGHT, WIDTH = 5, 7


def picture(channels: int, uint8: bool = False) -> Model:
    """y = relu(x) on an image, which a texture can hold; of a uint8 image its real values."""
    shape = (1, channels, HEIGHT, WIDTH)
    graph = Graph(["x"], ["y"], [Node("dequantize" if uint8 else "relu", ("x",), "y")])
    graph.types = {"x": TensorType(shape, INT8X4, UINT8) if uint8 else TensorType(shape), "y": TensorType(shape)}
    graph.values.set("x", given="uint8" if uint8 else "")
    return Model(graph, Structure(0))


def texture(device: Device, format: str, pixels: Array | None = None, usage: int = TEXTURE, width: int = WIDTH) -> Any:
    made = device.wgpu.create_texture(size=(width, HEIGHT, 1), format=format, usage=usage)
    if pixels is not None:
        layout = {"bytes_per_row": pixels.strides[0], "rows_per_image": HEIGHT}
        device.wgpu.queue.write_texture({"texture": made}, pixels, layout, (width, HEIGHT, 1))
    return made


def pixels_of(device: Device, image: Any, item: type[np.generic]) -> Array:
    """What a texture of four channels holds, (h, w, 4)."""
    row = 256
    buffer = device.wgpu.create_buffer(size=row * HEIGHT, usage=STORAGE)
    encoder = device.wgpu.create_command_encoder()
    target = {"buffer": buffer, "bytes_per_row": row, "rows_per_image": HEIGHT}
    encoder.copy_texture_to_buffer({"texture": image}, target, (WIDTH, HEIGHT, 1))
    device.wgpu.queue.submit([encoder.finish()])
    data = np.frombuffer(device.read(buffer, row * HEIGHT), item).reshape(HEIGHT, -1)
    return data[:, : 4 * WIDTH].reshape(HEIGHT, WIDTH, 4)


def floats_of(device: Device, buffer: Any, shape: tuple[int, ...]) -> Array:
    return np.frombuffer(device.read(buffer, 4 * int(np.prod(shape))), np.float32).reshape(shape)


def test_buffers_in_and_out(device: Device) -> None:
    """By a submission of its own and in the application's commands, beside ordinary calls, with new contents."""
    model = small_model()
    with Session(model, device) as session:
        source = device.wgpu.create_buffer(size=small_input().nbytes, usage=STORAGE)
        result = (SHAPE[0], 6, *SHAPE[2:])
        mine = device.wgpu.create_buffer(size=4 * int(np.prod(result)) + 64, usage=STORAGE)
        binding = session.bind(source, outputs=[mine, None])
        assert binding.outputs[0] is mine
        for seed in range(3):
            x = small_input(seed)
            expected = Session(model, "reference")(x)
            device.wgpu.queue.write_buffer(source, 0, x)
            if seed:
                binding.run()
            else:
                encoder = device.wgpu.create_command_encoder()
                binding.record(encoder)
                device.wgpu.queue.submit([encoder.finish()])
            np.testing.assert_array_equal(session(small_input(9))["y"].shape, result)
            found = [floats_of(device, buffer, result) for buffer in binding.outputs]
            np.testing.assert_array_equal(found[0], expected["y"])
            np.testing.assert_array_equal(found[1], expected["parts"][0])
    with pytest.raises(DeviceError, match="closed"):
        binding.run()
    with pytest.raises(DeviceError, match="closed"):
        binding.record(None)  # nothing is recorded: to submit what uses freed buffers ends the process


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_textures_in_and_out(channels: int, device: Device) -> None:
    pixels = np.random.default_rng(channels).integers(0, 256, (HEIGHT, WIDTH, 4), np.uint8)
    with Session(picture(channels), device) as session:
        source, target = texture(device, "rgba8unorm", pixels), texture(device, "rgba8unorm")
        binding = session.bind(x=source, outputs=[target])
        binding.run()
        found = pixels_of(device, target, np.uint8)
    expected = pixels.copy()
    if channels == 1:
        expected[:, :, 1:3] = pixels[:, :, :1]
    if channels < 4:
        expected[:, :, 3] = 255
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(("format", "item"), [("rgba32float", np.float32), ("rgba16float", np.float16)])
def test_textures_of_floats_pass_zero_and_one(format: str, item: type[np.generic], vulkan: Device) -> None:
    pixels = np.random.default_rng(0).normal(0, 3, (HEIGHT, WIDTH, 4)).astype(item)
    with Session(picture(4), vulkan) as session:
        target = texture(vulkan, format)
        session.bind(texture(vulkan, format, pixels), outputs=[target]).run()
        np.testing.assert_array_equal(pixels_of(vulkan, target, item), np.maximum(pixels, item(0)))


def test_a_uint8_image_is_what_the_texture_holds(device: Device) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH, 4), np.uint8)
    model = picture(3, uint8=True)
    with Session(model, device) as session:
        binding = session.bind(texture(device, "rgba8unorm", pixels))
        binding.run()
        found = floats_of(device, binding.outputs[0], (1, 3, HEIGHT, WIDTH))
    image = np.ascontiguousarray(pixels[None, :, :, :3].transpose(0, 3, 1, 2))
    np.testing.assert_array_equal(found, Session(model, "reference")(image))
    np.testing.assert_array_equal(found, image)


@pytest.mark.parametrize("layout", INT8_LAYOUTS)
def test_a_uint8_image_in_every_layout(layout: Any, vulkan: Device) -> None:
    """The words are those of `pack`, but for padding."""
    pixels = np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH, 4), np.uint8)
    image = np.ascontiguousarray(pixels[None, :, :, :3].transpose(0, 3, 1, 2))
    inner = (image ^ np.uint8(128)).view(np.int8)
    words, held = pack(inner, layout), pack(np.full_like(inner, -1), layout)
    port = Port("x", image.shape, INT8X4, layout.short, ("slot", 0), words.nbytes)
    gpu = vulkan.wgpu
    buffer = gpu.create_buffer(size=words.nbytes, usage=STORAGE)

    class Only:
        program = type("Ports", (), {"inputs": (port,), "outputs": ()})
        device = vulkan

        def buffer(self, ref: object) -> Any:
            return buffer

        def check_open(self) -> None:
            pass

        def record(self, encoder: Any, before: Any, after: Any) -> None:
            compute = encoder.begin_compute_pass()
            for pipeline, group, grid in before:
                compute.set_pipeline(pipeline)
                compute.set_bind_group(0, group)
                compute.dispatch_workgroups(*grid)
            compute.end()

    Binding(Only(), [texture(vulkan, "rgba8unorm", pixels)], [], {"x"}).run()  # type: ignore[arg-type]
    found = np.frombuffer(vulkan.read(buffer, words.nbytes), np.uint32)
    np.testing.assert_array_equal(found & held, words & held)
    assert f"coord_{layout.short}" in read_texture(port)


def test_an_own_device_shares_its_textures() -> None:
    """As an application with a window has one: plain, without our features."""
    own = wgpu.gpu.enumerate_adapters_sync()[0].request_device_sync()
    device = open_device(own)
    pixels = np.full((HEIGHT, WIDTH, 4), 77, np.uint8)
    with Session(picture(3), own) as session:
        target = texture(device, "rgba8unorm")
        session.bind(texture(device, "rgba8unorm", pixels), outputs=[target]).run()
        assert (pixels_of(device, target, np.uint8)[:, :, :3] == 77).all()


def test_what_does_not_fit_is_refused(vulkan: Device) -> None:
    gpu, other = vulkan.wgpu, wgpu.gpu.enumerate_adapters_sync()[0].request_device_sync()
    size = 4 * 3 * HEIGHT * WIDTH
    good = texture(vulkan, "rgba8unorm")
    unreadable = texture(vulkan, "rgba8unorm", usage=wgpu.TextureUsage.COPY_DST)
    with Session(picture(3), vulkan) as session, Session(small_model(), vulkan) as batch:
        for resource, told in (
            (np.zeros(3), "must be a buffer or a texture of wgpu, found ndarray"),
            (other.create_buffer(size=size, usage=STORAGE), "of another device"),
            (gpu.create_buffer(size=size - 4, usage=STORAGE), f"takes a buffer of {size} bytes, found {size - 4}"),
            (gpu.create_buffer(size=size, usage=wgpu.BufferUsage.STORAGE), "usage COPY_SRC"),
            (unreadable, "usage TEXTURE_BINDING"),
            (texture(vulkan, "rgba8unorm", width=WIDTH + 1), "takes a texture of 7 x 5, found 8 x 5"),
            (texture(vulkan, "rgba8uint"), "found rgba8uint"),
        ):
            with pytest.raises(InputError, match=told):
                session.bind(resource)
        for resource, told in (
            (gpu.create_buffer(size=size, usage=wgpu.BufferUsage.STORAGE), "usage COPY_DST"),
            (unreadable, "usage STORAGE_BINDING"),
            (texture(vulkan, "rgba8snorm"), "rgba8unorm, rgba16float, rgba32float, found rgba8snorm"),
        ):
            with pytest.raises(InputError, match=told):
                session.bind(good, outputs=[resource])
        with pytest.raises(InputError, match="outputs must be a list of buffers and textures, found int"):
            session.bind(good, outputs=3)  # type: ignore[arg-type]
        with pytest.raises(InputError, match="missing: x"):
            session.bind()
        with pytest.raises(InputError, match="1 output, found 2"):
            session.bind(good, outputs=[None, None])
        with pytest.raises(InputError, match="one image of 1, 3 or 4 channels"):
            batch.bind(good)
    with pytest.raises(InputError, match="reference has no device"):
        Session(picture(3), "reference").bind(good)


@pytest.mark.parametrize("dtype", [INT8X4, INT16X4])
def test_quantized_values_are_no_images(dtype: str, vulkan: Device) -> None:
    """Their scale is the model's: they pass through buffers alone, in and out, as words in a layout."""
    shape, q = (1, 3, HEIGHT, WIDTH), QParams(0.1, 3, dtype)
    graph = Graph(["x"], ["y"], [Node("permute", ("x",), "y", {"dims": (0, 1, 3, 2)})])
    graph.types = {"x": TensorType(shape, dtype, q), "y": TensorType((1, 3, WIDTH, HEIGHT), dtype, q)}
    model = Model(graph, Structure(0))
    value = np.random.default_rng(0).integers(*q.range, shape).astype(DTYPES[dtype])
    image = texture(vulkan, "rgba8unorm", width=WIDTH)
    with Session(model, vulkan) as session:
        (port,) = session.program.inputs
        (words,) = inputs.words([port], {"x": value})
        buffer = vulkan.wgpu.create_buffer_with_data(data=words, usage=STORAGE)
        with pytest.raises(InputError, match=f"{dtype}: only a float32 or uint8 image.* buffer of {port.size} bytes"):
            session.bind(image)
        turned = vulkan.wgpu.create_texture(size=(HEIGHT, WIDTH, 1), format="rgba8unorm", usage=TEXTURE)
        with pytest.raises(InputError, match=f"{dtype}: only a float32 image can be written"):
            session.bind(buffer, outputs=[turned])
        binding = session.bind(buffer)
        binding.run()
        found = np.frombuffer(vulkan.read(binding.outputs[0], session.program.outputs[0].size), np.uint32)
        array = inputs.from_words(session.program.outputs[0], found)
    np.testing.assert_array_equal(array, value.transpose(0, 1, 3, 2))
