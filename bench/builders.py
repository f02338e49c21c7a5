"""Builds the networks of `bench.architectures` with random weights, and their inputs.

Before training, the outputs of some networks hardly depend on the inputs: `wake` changes their weights."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from bench.architectures import TRANSFORMERS
from bench.diffusers_networks import DIFFUSERS
from bench.texts import BAGS, TEXTS, TIMESTEP, Integers
from bench.torchaudio_networks import TORCHAUDIO

SIZES = (64, 96, 128, 224)
"""Sizes of square images that are tried before a network's own size."""


def _torchvision(name: str) -> Any:
    import torchvision

    family, _, short = name.rpartition(".")
    models = getattr(torchvision.models, family) if family else torchvision.models
    options = {"weights_backbone": None} if family else {}
    return getattr(models, short)(weights=None, **options)


def _timm(name: str) -> Any:
    import timm

    return timm.create_model(name, pretrained=False)


def positional(network: Any, arguments: Mapping[str, Any], torch: Any) -> Any:
    """A module with positional inputs that returns a network's first output; all outputs if they are no tuple.

    Args:
        network: a module whose forward takes keywords.
        arguments: arguments of its forward. A tuple is the shape of an input; an empty one stands for an image.
            Integers are an int64 input. A range is an input of one element, a timestep within it. A list is a constant
            tensor. Other values are passed as they are.
        torch: the module.
    """
    inputs = [name for name, value in arguments.items() if isinstance(value, (tuple, range))]

    class Positional(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.network = network
            self.shapes = [arguments[name] for name in inputs if arguments[name]]

        def forward(self, *values: Any) -> Any:
            fixed = {n: torch.tensor(v) if isinstance(v, list) else v for n, v in arguments.items() if n not in inputs}
            outputs = self.network(**dict(zip(inputs, values, strict=True)), **fixed)
            return outputs[0] if isinstance(outputs, tuple) else outputs

    return Positional()


def _transformers(name: str) -> Any:
    """A small network of a family in transformers: its blocks are tested, not its size."""
    import torch
    import transformers

    if name in TEXTS:
        return _text(name)
    configuration, network, given_options = TRANSFORMERS[name]
    options = dict(given_options)
    if backbone := options.pop("backbone", None):
        inner = transformers.ResNetConfig(**backbone, out_features=["stage4"])
        options |= {"backbone": None, "use_timm_backbone": False, "backbone_config": inner}
    config = getattr(transformers, configuration)(**options)
    inputs = {"inputs_embeds": (1, 16, config.hidden_size)} if "Bert" in name else {"pixel_values": ()}
    return positional(getattr(transformers, network)(config), {**inputs, "return_dict": False}, torch)


def _text(name: str) -> Any:
    """A small network of transformers with integer inputs; it does not return a cache."""
    import torch
    import transformers

    options, arguments = TEXTS[name]
    network = getattr(transformers, name)
    module = network(network.config_class(**options))
    fixed = {"use_cache": False} if "use_cache" in inspect.signature(network.forward).parameters else {}
    return positional(module, {**arguments, **fixed, "return_dict": False}, torch)


def _segmentation(name: str) -> Any:
    import segmentation_models_pytorch

    architecture, _, encoder = name.partition(".")
    return getattr(segmentation_models_pytorch, architecture)(encoder, encoder_weights=None)


def _diffusers(name: str) -> Any:
    import diffusers
    import torch

    name, _, integer = name.partition(".")
    options, arguments = DIFFUSERS[name]
    fixed: dict[str, Any] = {} if name == "T2IAdapter" else {"return_dict": False}
    if integer:
        fixed["timestep"] = TIMESTEP
    return positional(getattr(diffusers, name)(**options), {**arguments, **fixed}, torch)


def _torchaudio(name: str) -> Any:
    """A network of torchaudio, or the submodule that the name has after a dot."""
    import torch
    import torchaudio

    network, options, arguments = TORCHAUDIO[name]
    whole = getattr(torchaudio.models, network, None) or getattr(torchaudio.models.rnnt, network)
    return positional(whole(**options).get_submodule(name.partition(".")[2]), arguments, torch)


def _recommender(name: str) -> Any:
    """DLRM (Naumov et al. 2019): bags of categories and dense features, their pairwise products, two MLPs."""
    import torch

    class Dlrm(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bags = torch.nn.ModuleList(torch.nn.EmbeddingBag(rows, 16, mode=mode) for rows, mode in BAGS)
            self.bottom = torch.nn.Sequential(torch.nn.Linear(13, 64), torch.nn.ReLU(), torch.nn.Linear(64, 16))
            self.top = torch.nn.Sequential(torch.nn.Linear(16 + 16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
            self.shapes = [(4, 13), *(Integers((4, 3), rows) for rows, _ in BAGS)]

        def forward(self, dense: Any, *bags: Any) -> Any:
            x = self.bottom(dense)
            rows = torch.stack([x, *(bag(ids) for bag, ids in zip(self.bags, bags, strict=True))], dim=1)
            pairs = (rows @ rows.transpose(1, 2)).flatten(1)
            return self.top(torch.cat([x, pairs], dim=1)).sigmoid()

    return Dlrm()


BUILDERS: Mapping[str, Callable[[str], Any]] = {
    "torchvision": _torchvision,
    "timm": _timm,
    "transformers": _transformers,
    "segmentation_models_pytorch": _segmentation,
    "diffusers": _diffusers,
    "torchaudio": _torchaudio,
    "recommenders": _recommender,
}


def drawn(shapes: Iterable[Any], seed: int, torch: Any, batch: int = 1) -> tuple[Any, ...]:
    """Random inputs: normal numbers of each shape, uniform ones in each range, integers below their limit."""
    generator = torch.Generator().manual_seed(seed)

    def one(shape: Any) -> Any:
        if isinstance(shape, Integers):
            sizes = (batch * shape.shape[0], *shape.shape[1:])
            return torch.randint(shape.below, sizes, generator=generator)
        if isinstance(shape, range):
            return shape.start + len(shape) * torch.rand(batch, generator=generator)
        return torch.randn((batch * shape[0], *shape[1:]), generator=generator)

    return tuple(map(one, shapes))


def example_inputs(module: Any, torch: Any) -> tuple[Any, ...]:
    """Random inputs of the network's shapes, or an image of the smallest size that it accepts."""
    if shapes := getattr(module, "shapes", None):
        return drawn(shapes, 0, torch)
    own = (getattr(module, "pretrained_cfg", None) or {}).get("input_size", (3, 224, 224))[-1]
    for side in (*(s for s in SIZES if s < own), own, 299):
        inputs = drawn([(1, 3, side, side)], 0, torch)
        try:
            with torch.no_grad():
                module(*inputs)
        except Exception:  # networks raise various errors for unsupported sizes
            continue
        return inputs
    raise ValueError(f"no input size among {SIZES} and {own} fits")


def other_inputs(module: Any, inputs: tuple[Any, ...], seed: int, torch: Any, batch: int = 1) -> tuple[Any, ...]:
    """Other random inputs of the same shapes."""
    return drawn(getattr(module, "shapes", None) or [x.shape for x in inputs], seed, torch, batch)


LEAST = 0.01
"""The outputs for two inputs must differ by so much, or a network is idle, and quantizing it would prove nothing."""


def is_idle(module: Any, inputs: tuple[Any, ...], torch: Any) -> bool:
    """Whether a network's output hardly depends on its inputs. Many untrained networks are so: batch norms without
    statistics let values shrink from layer to layer, and some heads and layer scales are initialized with zeros."""
    with torch.no_grad():
        first, second = (_first(module(*values)) for values in (inputs, other_inputs(module, inputs, 1, torch)))
    return not float((first - second).abs().max()) >= LEAST


def wake(module: Any, inputs: tuple[Any, ...], torch: Any) -> None:
    """Reinitializes weights of an idle network that are almost zero, and sets its batch norms' statistics from random
    inputs. Factors of channels become 0.5 on average, since a library initializes them around zero, as weights."""
    norms = [m for m in module.modules() if isinstance(m, torch.nn.modules.batchnorm._BatchNorm)]
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            factors = parameter.dim() == 1
            if not name.endswith("bias") and parameter.abs().max() < (0.1 if factors else 1e-3):
                torch.nn.init.trunc_normal_(parameter, 0.5 if factors else 0.0, 0.05)
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # statistics are then the mean over all batches
            norm.train()
        if norms:
            module(*other_inputs(module, inputs, 2, torch, batch=8))
        for norm in norms:
            norm.eval()


def _first(outputs: Any) -> Any:
    """The first tensor of a network's outputs."""
    while not hasattr(outputs, "shape"):
        outputs = next(iter(outputs.values() if isinstance(outputs, dict) else outputs))
    return outputs
