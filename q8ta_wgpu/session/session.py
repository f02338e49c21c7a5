"""Session: a model on a device, called like a function."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from q8ta_wgpu.errors import InputError, check_switch, shown
from q8ta_wgpu.ir.graph import Graph
from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.passes.layout_sync.layout_sync import POLICIES
from q8ta_wgpu.program.program import Program
from q8ta_wgpu.runtime.memory import Memory
from q8ta_wgpu.session import inputs
from q8ta_wgpu.session.by_shape import ByShape
from q8ta_wgpu.session.runner import Opening, Runner, is_reference
from q8ta_wgpu.session.state import SessionState
from q8ta_wgpu.session.streaming import Pending, run_many
from q8ta_wgpu.session.timing import Timing, check_counts

if TYPE_CHECKING:
    from q8ta_wgpu.model.model import Model
    from q8ta_wgpu.runtime.binding import Binding
    from q8ta_wgpu.runtime.device import Device
    from q8ta_wgpu.tuning.tuning_report import Tuning


def check_model(model: object) -> None:
    """Raises InputError unless this is a Model."""
    if not isinstance(getattr(model, "graph", None), Graph):
        raise InputError(
            f"a session takes a Model, found {type(model).__name__}: q8ta_wgpu.load reads a file, "
            "q8ta_wgpu.compile makes one of a quantized program"
        )


class Session:
    """Runs a model: numpy arrays or torch tensors in, numpy arrays out, in the structure of the module's own outputs.

    Examples:
        >>> session = q8.Session(model)                 # the best adapter
        >>> y = session(x)                              # x: (1, 3, h, w) float32, as the model was exported
        >>> exact = q8.Session(model, "reference")(x)   # numpy on the host: the same bytes

    Args:
        model: what `compile` or `load` returned.
        device: None for the best adapter; 'reference' for the numpy interpreter; a part of an adapter's name or
            backend, such as 'llvmpipe' or 'opengl'; an engine, alone or with such a part, as 'dawn' or
            'wgpu-native:vulkan'; a number in `python -m q8ta_wgpu devices`; or an adapter or a device of wgpu or
            wgpudawn. Without a named engine the session uses wgpu-native. It uses Dawn where that is installed, offers
            matrix units that compute right on this adapter, and the network has int8 products.
        layouts: how memory layouts and kernels are chosen: 'optimal' for the least estimated cost, or 'greedy', the
            forward sweep of ExecuTorch's Vulkan backend, for comparison. Results are the same bytes.
        tune: whether to choose kernels and layouts by measured times (`q8ta_wgpu.tuning`) instead of estimates. Times
            that are not in the user's cache are measured first. `print(session.tuning)` shows the result. Results are
            the same bytes.

    Attributes:
        model: the model.
        device: the opened device; None for the reference.
        opening: seconds that opening took, by step.
        tuning: what tuning found; None for a session that is not tuned.

    Raises:
        InputError: `layouts` is neither, `tune` is no bool, or the reference is to be tuned.
        DeviceError: no adapter fits; the model needs more than it offers; the model is int8 and the device computes
            other bytes than the reference, or ends loops early; or it is to be tuned and has no timestamp queries.

    Inputs are numpy arrays, torch tensors (on any device, with or without gradients), or anything numpy or DLPack can
    read, of the exact shape. A float32 input takes any floating dtype, float16 and bfloat16 too. It refuses integers
    and bools, because their scale is unknown. A bool input takes bools only. NaN quantizes to the zero point (the real
    value 0), and infinities saturate. Outputs are new arrays. They speak DLPack and the buffer protocol:
    `torch.from_dlpack(y)` shares the memory of `y`, and keeps it.

    A model with a dynamic batch or dynamic shapes takes inputs of any such size. The session plans and compiles it for
    the sizes that arrive, and keeps programs for the last 8 on the device, beside the model's own. Calls of other sizes
    go on meanwhile.

    Sessions on one device share the weights of a model, and the program too where they were made of the same Model: do
    not write to the arrays of `model.graph` meanwhile. Calls may come from several threads; the device runs them in
    order. Use the session as a context manager, or call `close()`, to free device memory.
    """

    model: Model
    device: Device | None
    opening: Opening
    tuning: Tuning | None

    def __init__(self, model: Model, device: Any = None, layouts: str = "optimal", tune: bool = False) -> None:
        check_model(model)
        if not isinstance(layouts, str) or layouts not in POLICIES:
            raise InputError(f"layouts must be one of {', '.join(map(repr, POLICIES))}, found {shown(layouts)}")
        check_switch("tune", tune)
        if tune and is_reference(device):
            raise InputError("the reference has no kernels to choose from: tune needs an adapter")
        self.model = model
        self._runner = Runner(model, device, layouts, tune)
        self._others = ByShape[tuple[Shape, ...], Runner]()
        self.device, self.opening, self.tuning = self._runner.device, self._runner.took, self._runner.tuning

    @property
    def program(self) -> Program:
        """The program on the device; for the reference, the program for a device with WebGPU's baseline limits."""
        return self._runner.program

    @property
    def name(self) -> str:
        """'adapter (backend, engine)', or 'reference'."""
        return self._runner.name

    @property
    def memory(self) -> Memory | None:
        """The most device memory that the session has held, without that for other input sizes; None for the
        reference."""
        executor = self._runner.executor
        return executor.memory if executor else None

    @property
    def state(self) -> SessionState:
        """The states that the model keeps from call to call, by the names of the module's buffers: arrays, to read and
        to set. Empty for a model without states. `dict(session.state)` saves all of them, `session.state.update(saved)`
        restores them. Raises InputError if the session was closed."""
        self._runner.check_open()
        return self._runner.state

    def reset(self) -> None:
        """Sets all states to their initial values, the module's buffers at the time of quantization.

        Raises InputError if the session was closed, DeviceError if the device fails.
        """
        self.state.reset()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the model.

        Examples:
            >>> y = session(x)                 # by position
            >>> (name,) = session.model.inputs
            >>> y = session(**{name: x})       # by name

        Args:
            args: an array for each input, in order, of the shapes in `session.model.inputs`.
            kwargs: or by name.

        Returns:
            A numpy array for each output, in the structure of the module's own outputs (one array, a tuple, a dict
            ...).

        Raises:
            InputError: an input is missing, or has another shape or dtype; names the input, what was expected and
                found.
            DeviceError: the device fails.
        """
        return self._begin(args, kwargs).result()

    async def run_async(self, *args: Any, **kwargs: Any) -> Any:
        """A call to await in asyncio. The event loop goes on while inputs are packed and the device works.

        Examples:
            >>> async def both():
            ...     return await asyncio.gather(session.run_async(x), session.run_async(x))

        The call runs in a thread of asyncio's pool, on every kind of device. Several may be awaited at a time. Do not
        change an input array before its call has finished. Cancelling stops the waiting, not the device. Arguments,
        results and errors are those of a call.
        """
        import asyncio  # a tenth of the time that importing this package takes

        return await asyncio.to_thread(self, *args, **kwargs)

    def run_many(self, items: Iterable[Any]) -> Iterator[Any]:
        """Yields the outputs of many calls, in order. Upload, computation and read-back overlap.

        Examples:
            >>> results = [y for y in session.run_many([x, x, x])]

        Args:
            items: arrays, tuples of arrays in the order of the inputs, or mappings from names to arrays. At most three
                items are taken ahead of the outputs. An item's arrays may change once the next item is taken.

        Yields:
            What a call returns, for each item.

        Raises:
            InputError: an item is wrong; raised at its turn, with its number.
            DeviceError: the device fails, likewise.

        Errors of `items` itself come through at their turn. The session stays usable after an error, and after leaving
        the iteration early. Other calls may run in between.
        """
        return run_many([self], items)

    def _begin(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Pending:
        """Starts a run on inputs of any size that the model takes."""
        with self._fitting(args, kwargs) as runner:
            return runner.begin(args, kwargs)

    @contextlib.contextmanager
    def _fitting(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Runner]:
        """What runs the model on arguments of these sizes, which stays open during the context."""
        shapes = inputs.shapes_of(self.model.graph, args, kwargs)
        if shapes is None:
            yield self._runner
            return
        with self._runner.staying_open():
            pass  # a thread that closes it has ended, or has not begun
        with self._others.using(shapes, self._runner.resized) as runner:
            yield runner

    def bind(self, *args: Any, outputs: Sequence[Any] | None = None, **kwargs: Any) -> Binding:
        """Binds the model to buffers and textures of `session.device.wgpu`, so that nothing passes through the host.

        Examples:
            >>> device = wgpu.gpu.request_adapter_sync().request_device_sync()
            >>> own = q8.Session(model, device)
            >>> usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC
            >>> binding = own.bind(device.create_buffer_with_data(data=np.asarray(x), usage=usage))
            >>> binding.run()    # or binding.record(encoder)

        Args:
            args: a resource for each input, by position. A buffer has the data that the program reads
                (`session.program.inputs`: float32 rows, or int8 words in a layout), and the usage COPY_SRC. A texture
                of w x h with the usage TEXTURE_BINDING fits a float32 or uint8 input of shape (1, 1 or 3 or 4, h, w). A
                float32 input is the value that a shader reads from the texture, a uint8 input 255 times that.
            kwargs: or by name.
            outputs: a resource for each output in order, as for inputs, with the usages COPY_DST and STORAGE_BINDING (a
                texture for a float32 output); None for a new buffer. An image of one channel is written grey.

        Returns:
            A binding. `binding.record(encoder)` adds a run to your own commands, `binding.run()` submits one, and
            `binding.outputs` are the resources written.

        Raises:
            InputError: a resource does not fit or is of another device, or the session is the reference.
            DeviceError: the device refuses.
        """
        return self._runner.bind(args, kwargs, outputs)

    def time(self, *args: Any, repeats: int = 20, warmup: int = 5, **kwargs: Any) -> Timing:
        """Measures the GPU time of every dispatch.

        On a GPU, runs without a pause precede it, since clocks rise only under load: until the medians of two windows
        of 0.4 seconds agree within 2 %. After 6 seconds no further window begins, and the result says so. Where one run
        takes longer than a window, none precedes it.

        Examples:
            >>> timing = session.time(x, repeats=2)
            >>> print(timing)                 # a table: kernel, layouts, time, rates
            >>> milliseconds = timing.run_ms

        Args:
            args: inputs as in a call, also of other sizes.
            repeats: number of measured runs, of which medians are taken.
            warmup: number of runs before them.
            kwargs: inputs by name.

        Returns:
            Times and rates of every dispatch, and the adapter's measured rates to compare with.

        Raises:
            DeviceError: the device has no timestamp queries.
            InputError: as a call does.
        """
        check_counts(repeats, warmup)
        with self._fitting(args, kwargs) as runner:
            return runner.time(args, kwargs, repeats, warmup)

    def warm_up(self) -> None:
        """Runs the model once on zeros, so that the next call does not pay for what drivers, caches and clocks do at
        the first run. States do not change, and calls of other threads go on from theirs. Raises DeviceError if the
        device fails."""
        self._runner.warm_up()

    def close(self) -> None:
        """Frees device memory; further calls raise InputError. Closing twice is harmless."""
        self._runner.close()
        self._others.close()

    def __repr__(self) -> str:
        return f"Session({self.model!r}, {self.name!r})"

    def __reduce__(self) -> NoReturn:
        """Raises InputError: copies would share the memory of the device, and the first one closed would free it."""
        raise InputError(
            "a session holds memory of a device, and can be neither copied nor pickled: copy or send `session.model`, "
            "or a file that it saves, and open a Session with it"
        )

    def __enter__(self) -> Session:
        self._runner.check_open()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
