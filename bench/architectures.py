"""Architectures of popular libraries, with random weights, and their inputs: a table for each library.

Here text inputs are embeddings, a timestep is a float (0 to 1000, or 0 to 1 if the network scales it), and lengths and
positions are constants; `bench.texts` has networks with integer inputs. Of networks that end in a log_softmax, or pack
sequences, only a submodule is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bench.diffusers_networks import DIFFUSERS
from bench.texts import TEXTS, TIMESTEPS
from bench.torchaudio_networks import TORCHAUDIO

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

SEGMENTATION = """
    Unet.resnet18 Unet.mit_b0 UnetPlusPlus.mobilenet_v2 MAnet.resnet18 Linknet.efficientnet-b0 FPN.timm-regnetx_002
    PSPNet.resnet18 DeepLabV3.resnet18 DeepLabV3Plus.mobilenet_v2 PAN.resnet18 UPerNet.tu-convnext_atto
    Segformer.mit_b0 DPT.tu-vit_tiny_patch16_224
"""
"""Architectures of segmentation_models_pytorch, and the encoder of each."""


def names() -> list[str]:
    """Every architecture, as library:name."""
    listed: Mapping[str, Iterable[str]] = {
        "torchvision": TORCHVISION.split(),
        "timm": TIMM.split(),
        "transformers": [*TRANSFORMERS, *TEXTS],
        "segmentation_models_pytorch": SEGMENTATION.split(),
        "diffusers": [*DIFFUSERS, *(f"{name}.integer" for name in TIMESTEPS)],
        "torchaudio": TORCHAUDIO,
        "recommenders": ["DLRM"],
    }
    return [f"{library}:{name}" for library, found in listed.items() for name in found]
