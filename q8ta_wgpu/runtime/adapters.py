"""Opens the adapter that a user names. Each adapter is opened once and shared."""

from __future__ import annotations

import contextlib
import weakref
from typing import Any

from q8ta_wgpu.errors import DeviceError, shown
from q8ta_wgpu.runtime import engines
from q8ta_wgpu.runtime.device import Device
from q8ta_wgpu.runtime.engine import Engine
from q8ta_wgpu.runtime.locks import ProcessLock

_open: dict[tuple[str, int], Device] = {}
_adopted: weakref.WeakValueDictionary[int, Device] = weakref.WeakValueDictionary()
_open_lock = ProcessLock()


def open_device(device: Any = None, products: bool = False) -> Device:
    """The Device that a user's `device` argument means.

    Args:
        device: None (best adapter); a part of an adapter's name, backend or engine; an engine with such a part
            ('dawn:nvidia'); either with the number of one of several equal adapters ('nvidia#1'); the index of an
            adapter in `engines.listed()`; an adapter or a device of wgpu or wgpudawn; or a Device.
        products: whether the network has int8 products. Then Dawn is preferred where it has matrix units.

    Returns:
        A device. Devices opened here are shared: the same adapter gives the same Device, unless that one was lost.

    Raises:
        DeviceError: no adapter matches, or none that does can make a device.
    """
    if isinstance(device, Device):
        return device
    with _open_lock:
        if device is None or isinstance(device, str) or type(device) is int:
            return _by_name(device, products)
        engine = engines.engine_of(device)
        if engine is not None and not engine.is_device(device):
            return _from_adapter(engine, device, _number(engine, device))
        if engine is not None:
            known = _adopted.get(id(device))
            if known is None or known.wgpu is not device:
                known = _adopted[id(device)] = Device(device)
            return known
    raise DeviceError(
        "device must be None, 'reference', part of an adapter's name, its number, an adapter or a device of wgpu or "
        f"wgpudawn, found {type(device).__name__}"
    )


def _with_matrix_units(engine: Engine, adapter: Any) -> Device | None:
    """Dawn's device for an adapter, if Dawn has matrix units there that no trial has found wrong; else None.

    Engines tell only the model of a card. Several equal cards are told apart by their order, if both engines list
    equally many of them through the same backend, hence the same driver. Otherwise it is None.
    """
    if (dawn := engines.dawn()) is None:
        return None
    with contextlib.suppress(DeviceError):
        if (other := with_units_by(dawn, engine, adapter)) is not None:
            found = _from_adapter(dawn, other, _number(dawn, other))
            return found if found.target.matrix_units else None
    return None


def with_units_by(dawn: Engine, engine: Engine, adapter: Any) -> Any:
    """Dawn's adapter of the card that is another engine's adapter, if Dawn offers matrix units there; else None."""
    alike = [a for a in engine.adapters() if (_card(a), _backend(a)) == (_card(adapter), _backend(adapter))]
    offering = [a for a in dawn.adapters() if _card(a) == _card(adapter) and dawn.matrix_units(a)]
    others = [a for a in offering if _backend(a) == _backend(offering[0])]
    same_order = len(alike) == 1 or (others and _backend(others[0]) == _backend(adapter))
    return others[alike.index(adapter)] if len(alike) == len(others) and same_order else None


def _best_with_matrix_units() -> Device | None:
    """Dawn's best adapter, if it has matrix units that no trial has found wrong; else None. wgpu-native, which takes
    half a second to load, is not asked."""
    with contextlib.suppress(DeviceError):
        if (dawn := engines.dawn()) and (adapters := dawn.adapters()) and dawn.matrix_units(adapters[0]):
            found = _from_adapter(dawn, adapters[0], _number(dawn, adapters[0]))
            return found if found.target.matrix_units else None
    return None


def _card(adapter: Any) -> tuple[int, int]:
    return adapter.info["vendor_id"], adapter.info["device_id"]


def _backend(adapter: Any) -> str:
    return str(adapter.info["backend_type"])


def _named_engine(name: str) -> tuple[str, str]:
    """(engine, rest) of a user's text such as 'dawn:nvidia'; the engine is '' if none is named."""
    engine, _, rest = name.partition(":")
    return (engine.lower(), rest) if engine.lower() in engines.NAMES else ("", name)


def title(engine: Engine, name: str, number: int) -> str:
    """The name of an adapter, with its number if several have that name: 'NVIDIA H200 (Vulkan, dawn)#1'."""
    alike = sum(engine.describe(adapter) == name for adapter in engine.adapters())
    return f"{name}#{number}" if alike > 1 and number >= 0 else name


def titles() -> list[str]:
    """The titles of all adapters, in the order of `engines.listed`."""
    names = [(engine, engine.describe(adapter)) for engine, adapter in engines.listed()]
    return [title(engine, name, names[:i].count((engine, name))) for i, (engine, name) in enumerate(names)]


def _fits(text: str, name: str) -> bool:
    """Whether a user's text, such as 'nvidia' or 'nvidia#1', matches an adapter's title."""
    text, name = text.lower(), name.lower()
    part, _, wanted = text.rpartition("#")
    own, _, number = name.rpartition("#")
    return text in name or (wanted.isdecimal() and wanted == number and part in own)


def _by_name(name: str | int | None, products: bool) -> Device:
    engine, text = _named_engine(name) if isinstance(name, str) else ("", "")
    if name is None and products and (found := _best_with_matrix_units()):
        return found
    names: list[str] = []
    problems: list[str] = []
    for i, (owner, adapter) in enumerate(engines.listed(engines.named(engine) if engine else None)):
        names.append(owner.describe(adapter))
        number = names[:i].count(names[i])
        wanted = isinstance(name, str) and name and _fits(text, title(owner, names[i], number))
        if name is None or i == name or wanted:
            if products and not engine and type(name) is not int and (found := _with_matrix_units(owner, adapter)):
                return found
            try:
                return _from_adapter(owner, adapter, number)
            except DeviceError as error:
                problems.append(str(error))
    if problems:
        raise DeviceError("; ".join(problems))
    every = titles()
    if not every:
        raise DeviceError(engines.NO_ADAPTER)
    listed = ", ".join(f"{i}: {text}" for i, text in enumerate(every))
    if engine and not names:
        raise DeviceError(
            f"the engine {engine} is installed and takes no adapter of this machine (its messages are on stderr); "
            f"there are {listed}"
        )
    raise DeviceError(
        f"no adapter is called {shown(name)}; there are {listed}, and 'reference', which computes in numpy"
    )


def _number(engine: Engine, adapter: Any) -> int:
    """The index of an adapter among those of the same name. An adapter that wgpu does not list among several gets a
    negative number of its own."""
    equal = [a for a in engine.adapters() if engine.describe(a) == engine.describe(adapter)]
    return next((i for i, a in enumerate(equal) if a is adapter), 0 if len(equal) == 1 else -id(adapter))


def _from_adapter(engine: Engine, adapter: Any, number: int) -> Device:
    key = engine.describe(adapter), number
    known = _open.get(key)
    if known is None or not known.alive:
        opened = Device(engine.request(adapter))
        opened.name = title(engine, *key)
        _ = opened.target  # measured here, so that another adapter can take the place of one that fails
        known = _open[key] = opened
    return known
