"""Networks of diffusers, made small, and the arguments of their `forward`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
