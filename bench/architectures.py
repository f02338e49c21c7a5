"""Architectures of popular libraries, with random weights, and their inputs: a table for each library.

Here text inputs are embeddings, a timestep is a float (0 to 1000, or 0 to 1 if the network scales it), and lengths and
positions are constants; `bench.texts` has networks with integer inputs. Of networks that end in a log_softmax, or pack
sequences, only a submodule is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bench.texts import TEXTS, TIMESTEPS

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

IMAGE = {"sample": (1, 3, 32, 32)}
LATENTS = {"hidden_states": (1, 4, 16, 16)}
TEXT = {"timestep": range(1000), "encoder_hidden_states": (1, 8, 32)}
BLOCKS = {"block_out_channels": (32, 64), "norm_num_groups": 8}
CODERS = {"down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2}
CONDITIONED = {**BLOCKS, "cross_attention_dim": 32, "layers_per_block": 1}
TRANSFORMER = {"num_attention_heads": 4, "attention_head_dim": 16, "num_layers": 2}
DIT = {**TRANSFORMER, "in_channels": 4, "out_channels": 4}

DIFFUSERS: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
    # network: options that make it small, arguments of forward (`bench.builders.positional` says which are inputs)
    "AutoencoderKL": ({**BLOCKS, **CODERS}, IMAGE),
    "AutoencoderTiny": ({}, IMAGE),
    "VQModel": ({**BLOCKS, **CODERS}, IMAGE),
    "AsymmetricAutoencoderKL": (
        {**CODERS, "down_block_out_channels": (32, 64), "up_block_out_channels": (32, 64), "norm_num_groups": 8},
        IMAGE,
    ),
    "AutoencoderKLTemporalDecoder": (
        {"down_block_types": ("DownEncoderBlock2D",) * 2, "block_out_channels": (32, 64)},
        {"sample": (2, 3, 32, 32), "num_frames": 2},
    ),
    "AutoencoderDC": (
        {
            "attention_head_dim": 8,
            "encoder_block_types": ("ResBlock", "EfficientViTBlock"),
            "decoder_block_types": ("ResBlock", "EfficientViTBlock"),
            "encoder_block_out_channels": (32, 64),
            "decoder_block_out_channels": (32, 64),
            "encoder_layers_per_block": (1, 1),
            "decoder_layers_per_block": (1, 1),
            "encoder_qkv_multiscales": ((), (5,)),
            "decoder_qkv_multiscales": ((), (5,)),
            "latent_channels": 8,
        },
        IMAGE,
    ),
    "AutoencoderOobleck": (
        {
            "encoder_hidden_size": 16,
            "downsampling_ratios": [2, 4],
            "channel_multiples": [1, 2],
            "decoder_channels": 16,
            "decoder_input_channels": 8,
        },
        {"sample": (1, 2, 256)},
    ),
    "UNet1DModel": (
        {"sample_size": 64, "extra_in_channels": 64, "block_out_channels": (32, 32, 64)},
        {"sample": (1, 2, 64), "timestep": range(1)},
    ),
    "UNet2DModel": (
        {
            **BLOCKS,
            "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
            "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
        },
        {**IMAGE, "timestep": range(1000)},
    ),
    "UNet2DConditionModel": (
        {
            **CONDITIONED,
            "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
            "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
        },
        {"sample": (1, 4, 32, 32), **TEXT},
    ),
    "UNet3DConditionModel": (
        {
            **CONDITIONED,
            "attention_head_dim": 8,
            "down_block_types": ("CrossAttnDownBlock3D", "DownBlock3D"),
            "up_block_types": ("UpBlock3D", "CrossAttnUpBlock3D"),
        },
        {"sample": (1, 4, 4, 16, 16), **TEXT},
    ),
    "UNetMotionModel": (
        {
            **CONDITIONED,
            "down_block_types": ("CrossAttnDownBlockMotion", "DownBlockMotion"),
            "up_block_types": ("UpBlockMotion", "CrossAttnUpBlockMotion"),
        },
        {"sample": (1, 4, 4, 16, 16), "timestep": range(1000), "encoder_hidden_states": (4, 8, 32)},
    ),
    "StableCascadeUNet": (
        {
            "in_channels": 4,
            "out_channels": 4,
            "conditioning_dim": 32,
            "block_out_channels": (32, 64),
            "num_attention_heads": (4, 4),
            "down_num_layers_per_block": (1, 1),
            "up_num_layers_per_block": (1, 1),
            "clip_text_pooled_in_channels": 32,
        },
        {"sample": (1, 4, 16, 16), "timestep_ratio": range(1), "clip_text_pooled": (1, 1, 32)},
    ),
    "ControlNetModel": (
        {**CONDITIONED, "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D")},
        {"sample": (1, 4, 16, 16), **TEXT, "controlnet_cond": (1, 3, 128, 128)},
    ),
    "T2IAdapter": ({"channels": [32, 64], "num_res_blocks": 1}, {"x": (1, 3, 64, 64)}),
    "SD3Transformer2DModel": (
        {
            **DIT,
            "sample_size": 16,
            "pos_embed_max_size": 16,
            "joint_attention_dim": 32,
            "caption_projection_dim": 64,
            "pooled_projection_dim": 32,
            "qk_norm": "rms_norm",
        },
        {**LATENTS, **TEXT, "pooled_projections": (1, 32)},
    ),
    "FluxTransformer2DModel": (
        {
            **DIT,
            "num_single_layers": 2,
            "joint_attention_dim": 32,
            "pooled_projection_dim": 32,
            "axes_dims_rope": (4, 6, 6),
        },
        {
            **TEXT,
            "timestep": range(1),
            "hidden_states": (1, 16, 4),
            "pooled_projections": (1, 32),
            "img_ids": [[0, row, column] for row in range(4) for column in range(4)],
            "txt_ids": [[0, 0, 0]] * 8,
        },
    ),
    "PixArtTransformer2DModel": (
        {**DIT, "sample_size": 16, "cross_attention_dim": 64, "caption_channels": 32, "norm_type": "ada_norm_single"},
        {**LATENTS, **TEXT, "added_cond_kwargs": {"resolution": None, "aspect_ratio": None}},
    ),
    "SanaTransformer2DModel": (
        {
            **DIT,
            "num_cross_attention_heads": 4,
            "cross_attention_head_dim": 16,
            "cross_attention_dim": 64,
            "caption_channels": 32,
            "sample_size": 16,
        },
        {**LATENTS, **TEXT},
    ),
    "AuraFlowTransformer2DModel": (
        {
            "sample_size": 16,
            "num_mmdit_layers": 1,
            "num_single_dit_layers": 1,
            "num_attention_heads": 4,
            "attention_head_dim": 16,
            "joint_attention_dim": 32,
            "caption_projection_dim": 64,
            "pos_embed_max_size": 64,
        },
        {**LATENTS, **TEXT, "timestep": range(1)},
    ),
    "PriorTransformer": (
        {**TRANSFORMER, "embedding_dim": 32, "num_embeddings": 8},
        {"hidden_states": (1, 32), "proj_embedding": (1, 32), **TEXT},
    ),
    "WanTransformer3DModel": (
        {**DIT, "text_dim": 32, "freq_dim": 32, "ffn_dim": 128, "rope_max_seq_len": 32},
        {"hidden_states": (1, 4, 2, 16, 16), **TEXT},
    ),
    "CogVideoXTransformer3DModel": (
        {
            **DIT,
            "text_embed_dim": 32,
            "time_embed_dim": 32,
            "sample_width": 16,
            "sample_height": 16,
            "sample_frames": 5,
            "max_text_seq_length": 8,
        },
        {"hidden_states": (1, 2, 4, 16, 16), **TEXT},
    ),
    "LTXVideoTransformer3DModel": (
        {**DIT, "cross_attention_dim": 64, "caption_channels": 32},
        {
            **TEXT,
            "hidden_states": (1, 32, 4),
            "encoder_attention_mask": [[1] * 8],
            "num_frames": 2,
            "height": 4,
            "width": 4,
        },
    ),
}

SPEECH = {
    "extractor_mode": "group_norm",
    "extractor_conv_layer_config": [(32, 10, 5), (32, 3, 2), (32, 2, 2)],
    "extractor_conv_bias": False,
    "encoder_embed_dim": 64,
    "encoder_projection_dropout": 0.1,
    "encoder_pos_conv_kernel": 16,
    "encoder_pos_conv_groups": 4,
    "encoder_num_layers": 2,
    "encoder_num_heads": 4,
    "encoder_attention_dropout": 0.1,
    "encoder_ff_interm_features": 128,
    "encoder_ff_interm_dropout": 0.1,
    "encoder_dropout": 0.1,
    "encoder_layer_norm_first": False,
    "encoder_layer_drop": 0.1,
    "aux_num_out": 32,
}
HUBERT = {**SPEECH, "extractor_mode": "layer_norm", "encoder_layer_norm_first": True}
WAVE = {"waveforms": (1, 1600)}
SEPARATION = {"enc_num_feats": 64, "msk_num_feats": 32, "msk_num_hidden_feats": 64, "msk_num_layers": 4}
ATTENTION = {"input_dim": 64, "num_heads": 4, "ffn_dim": 128, "num_layers": 2}
DEMUCS = {"channels": 8, "nfft": 256, "depth": 3, "norm_starts": 2}
OBJECTIVE = {
    "feat_dim": 32,
    "win_len": 16,
    "d_model": 32,
    "nhead": 4,
    "hidden_dim": 32,
    "num_blocks": 2,
    "rnn_type": "LSTM",
    "chunk_size": 16,
}
TACOTRON = {"encoder_embedding_dim": 64, "postnet_embedding_dim": 64, "n_mels": 20}
UPSAMPLED = {"upsample_scales": [4, 4], "n_classes": 32, "hop_length": 16, "n_freq": 20, "n_res_block": 2}
RNNT = {
    "input_dim": 20,
    "encoding_dim": 64,
    "num_symbols": 32,
    "segment_length": 16,
    "right_context_length": 4,
    "time_reduction_input_dim": 16,
    "time_reduction_stride": 4,
    "transformer_num_heads": 4,
    "transformer_ffn_dim": 128,
    "transformer_num_layers": 2,
    "transformer_dropout": 0.1,
    "transformer_activation": "gelu",
    "transformer_left_context_length": 4,
    "transformer_max_memory_size": 0,
    "transformer_weight_init_scale_strategy": "depthwise",
    "transformer_tanh_on_mem": True,
    "symbol_embedding_dim": 32,
    "num_lstm_layers": 1,
    "lstm_layer_norm": True,
    "lstm_layer_norm_epsilon": 1e-3,
    "lstm_dropout": 0.1,
}

TORCHAUDIO: Mapping[str, tuple[str, Mapping[str, Any], Mapping[str, Any]]] = {
    # name, after a dot the submodule that is used: network, options that make it small, arguments of forward
    "Wav2Letter.acoustic_model": ("Wav2Letter", {}, {"input": (1, 1, 16000)}),
    "Wav2LetterMFCC.acoustic_model": (
        "Wav2Letter",
        {"input_type": "mfcc", "num_features": 13},
        {"input": (1, 13, 100)},
    ),
    "ConvTasNet": ("ConvTasNet", {**SEPARATION, "msk_num_stacks": 2}, {"input": (1, 1, 1600)}),
    "Conformer": (
        "Conformer",
        {**ATTENTION, "depthwise_conv_kernel_size": 7},
        {"input": (1, 32, 64), "lengths": [32]},
    ),
    "Emformer": (
        "Emformer",
        {**ATTENTION, "segment_length": 8, "right_context_length": 2},
        {"input": (1, 34, 64), "lengths": [32]},
    ),
    "Wav2Vec2": ("wav2vec2_model", SPEECH, WAVE),
    "HuBERT": ("wav2vec2_model", HUBERT, WAVE),
    "WavLM": ("wavlm_model", {**SPEECH, "encoder_num_buckets": 32, "encoder_max_distance": 80}, WAVE),
    "HDemucs": ("HDemucs", {**DEMUCS, "sources": ["drums", "vocals"]}, {"input": (1, 2, 2048)}),
    "SquimObjective.dprnn": ("squim_objective_model", OBJECTIVE, {"x": (1, 32, 64)}),
    "Tacotron2.postnet": ("Tacotron2", TACOTRON, {"x": (1, 20, 32)}),
    "WaveRNN": (
        "WaveRNN",
        {**UPSAMPLED, "n_rnn": 64, "n_fc": 64, "n_hidden": 32, "n_output": 32},
        {"waveform": (1, 1, 64), "specgram": (1, 1, 20, 8)},
    ),
    "WaveRNN.upsample": ("WaveRNN", UPSAMPLED, {"specgram": (1, 20, 16)}),
    "RNNT.transcriber": ("emformer_rnnt_model", RNNT, {"input": (1, 68, 20), "lengths": [64]}),
}


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
