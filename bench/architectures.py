"""Architectures that people bring, with random weights: of torchvision, timm and transformers. And their inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

SIZES = (64, 96, 128, 224)
"""Sides of the images that are tried, before a network's own."""

TORCHVISION = """
    alexnet convnext_tiny densenet121 efficientnet_b0 efficientnet_v2_s googlenet inception_v3 maxvit_t mnasnet0_5
    mobilenet_v2 mobilenet_v3_small regnet_x_400mf regnet_y_400mf resnet18 resnet50 resnext50_32x4d shufflenet_v2_x0_5
    squeezenet1_0 swin_t swin_v2_t vgg11_bn vit_b_16 segmentation.fcn_resnet50
    segmentation.deeplabv3_mobilenet_v3_large segmentation.lraspp_mobilenet_v3_large
"""

TIMM = """
    beit_base_patch16_224 botnet26t_256 cait_xxs24_224 coat_lite_tiny coatnet_nano_rw_224 convit_tiny convmixer_768_32
    convnext_atto convnextv2_atto crossvit_tiny_240 cs3darknet_s cspresnet50 darknet53 davit_tiny
    deit_tiny_patch16_224 deit3_small_patch16_224 dla34 dm_nfnet_f0 dpn68 eca_resnet33ts edgenext_xx_small
    efficientformer_l1 efficientformerv2_s0 efficientvit_b0 efficientvit_m0 eva02_tiny_patch14_224 fastvit_t8
    fbnetc_100 focalnet_tiny_srf gcresnet33ts gcvit_xxtiny ghostnet_100 ghostnetv2_100 gmixer_12_224 gmlp_ti16_224
    halonet26t hardcorenas_a hgnetv2_b0 hiera_tiny_224 hrnet_w18_small inception_next_atto inception_v4
    lambda_resnet26t lcnet_050 levit_128s mambaout_femto maxvit_nano_rw_256 mixer_s32_224 mixnet_s
    mobilenetv1_100 mobilenetv4_conv_small mobileone_s0 mobilevit_xxs mobilevitv2_050 mvitv2_tiny nest_tiny
    nextvit_small nf_resnet50 pit_ti_224 poolformer_s12 pvt_v2_b0 regnety_002 repghostnet_050 repvgg_a0 repvit_m0_9
    res2net50_14w_8s resmlp_12_224 resnest14d resnetv2_50 rexnet_100 sebotnet33ts_256 selecsls42 sequencer2d_s
    shvit_s1 skresnet18 starnet_s1 swinv2_tiny_window8_256 tf_efficientnet_lite0 tiny_vit_5m_224 tinynet_e
    tnt_s_patch16_224 tresnet_m twins_pcpvt_small twins_svt_small visformer_tiny vit_small_patch14_dinov2
    vit_relpos_small_patch16_224 volo_d1_224 vovnet39a xception41 xcit_nano_12_p16_224
"""

VIT = {
    "image_size": 64,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
}
SWIN = {"image_size": 64, "embed_dim": 32, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4}
DPT = {
    "num_hidden_layers": 4,
    "backbone_out_indices": [0, 1, 2, 3],
    "neck_hidden_sizes": [16, 16, 32, 32],
    "fusion_hidden_size": 32,
}
DISTILLED = {"dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 128}
DETR = {
    "backbone": {"embedding_size": 16, "hidden_sizes": [32, 32, 64, 64], "depths": [1, 1, 1, 1]},
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
    "num_queries": 20,
}

TRANSFORMERS: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {
    # family: configuration, network, options that make it small
    "ViT": ("ViTConfig", "ViTModel", VIT),
    "DeiT": ("DeiTConfig", "DeiTModel", VIT),
    "Beit": ("BeitConfig", "BeitModel", VIT),
    "Dinov2": ("Dinov2Config", "Dinov2Model", VIT),
    "CLIPVision": ("CLIPVisionConfig", "CLIPVisionModel", VIT),
    "Siglip": ("SiglipVisionConfig", "SiglipVisionModel", VIT),
    "Swin": ("SwinConfig", "SwinModel", SWIN),
    "Swinv2": ("Swinv2Config", "Swinv2Model", SWIN),
    "Segformer": ("SegformerConfig", "SegformerForSemanticSegmentation", {}),
    "DPT": ("DPTConfig", "DPTForDepthEstimation", {**VIT, **DPT}),
    "MobileViT": ("MobileViTConfig", "MobileViTModel", {}),
    "ConvNext": ("ConvNextConfig", "ConvNextModel", {}),
    "Levit": ("LevitConfig", "LevitForImageClassification", {}),
    "PoolFormer": ("PoolFormerConfig", "PoolFormerModel", {}),
    "Bert": ("BertConfig", "BertModel", VIT),
    "DistilBert": ("DistilBertConfig", "DistilBertModel", DISTILLED),
    "BertBase": ("BertConfig", "BertModel", {}),
    "Detr": ("DetrConfig", "DetrForObjectDetection", DETR),
}


def names() -> list[str]:
    """Every architecture, as library:name."""
    listed = {"torchvision": TORCHVISION.split(), "timm": TIMM.split(), "transformers": TRANSFORMERS}
    return [f"{library}:{name}" for library, found in listed.items() for name in found]


def _torchvision(name: str) -> Any:
    import torchvision

    family, _, short = name.rpartition(".")
    models = getattr(torchvision.models, family) if family else torchvision.models
    options = {"weights_backbone": None} if family else {}
    return getattr(models, short)(weights=None, **options)


def _timm(name: str) -> Any:
    import timm

    return timm.create_model(name, pretrained=False)


def _transformers(name: str) -> Any:
    """A small network of the family: the shape of its blocks is what is tested."""
    import torch
    import transformers

    class First(torch.nn.Module):
        """The network's first output, from pixels or embeddings."""

        def __init__(self, network: Any, argument: str) -> None:
            super().__init__()
            self.network, self.argument = network, argument

        def forward(self, x: torch.Tensor) -> Any:
            return self.network(**{self.argument: x}, return_dict=False)[0]

    configuration, network, given = TRANSFORMERS[name]
    options = dict(given)
    if backbone := options.pop("backbone", None):
        inner = transformers.ResNetConfig(**backbone, out_features=["stage4"])
        options |= {"backbone": None, "use_timm_backbone": False, "backbone_config": inner}
    config = getattr(transformers, configuration)(**options)
    return First(getattr(transformers, network)(config), "inputs_embeds" if "Bert" in name else "pixel_values")


BUILDERS: Mapping[str, Callable[[str], Any]] = {
    "torchvision": _torchvision,
    "timm": _timm,
    "transformers": _transformers,
}


def example_input(module: Any, torch: Any) -> Any:
    """A random input of the smallest size that the network takes."""
    own = (getattr(module, "pretrained_cfg", None) or {}).get("input_size", (3, 224, 224))[-1]
    generator = torch.Generator().manual_seed(0)
    shapes: list[tuple[int, ...]] = [(1, 3, side, side) for side in (*(s for s in SIZES if s < own), own, 299)]
    if getattr(module, "argument", "") == "inputs_embeds":
        shapes = [(1, 16, module.network.config.hidden_size)]
    for shape in shapes:
        x = torch.randn(shape, generator=generator)
        try:
            with torch.no_grad():
                module(x)
        except Exception:  # whatever a network says about a size that it does not take
            continue
        return x
    raise ValueError(f"no input size among {SIZES} and {own} fits")


LEAST = 0.01
"""By how much the outputs of two inputs differ at least in a network that says something of int8."""


def is_idle(module: Any, x: Any, torch: Any) -> bool:
    """Whether what a network gives hardly depends on its input: many do before they are trained, since batch norms
    that know no statistics let values shrink from layer to layer, and heads and scales of layers begin at zero."""
    other = torch.randn(x.shape, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        first, second = (_first(module(value)) for value in (x, other))
    return not float((first - second).abs().max()) >= LEAST


def wake(module: Any, x: Any, torch: Any) -> None:
    """Gives the weights of an idle network that are zero, or nearly so, usual sizes, factors of channels (which a
    library draws around zero as it does weights) too, and its batch norms the statistics of random inputs."""
    norms = [m for m in module.modules() if isinstance(m, torch.nn.modules.batchnorm._BatchNorm)]
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            factors = parameter.dim() == 1
            if not name.endswith("bias") and parameter.abs().max() < (0.1 if factors else 1e-3):
                torch.nn.init.trunc_normal_(parameter, 0.5 if factors else 0.0, 0.05)
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # the mean of what is met
            norm.train()
        module(torch.randn(8, *x.shape[1:], generator=torch.Generator().manual_seed(2)))
        for norm in norms:
            norm.eval()


def _first(outputs: Any) -> Any:
    """The first tensor of a network's outputs."""
    while not hasattr(outputs, "shape"):
        outputs = next(iter(outputs.values() if isinstance(outputs, dict) else outputs))
    return outputs
