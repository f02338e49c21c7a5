"""Networks with integer inputs: token ids and masks, a timestep, categories. Weights are random, as in
`bench.architectures`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

VOCABULARY = 256
LENGTH = 16


class Integers(NamedTuple):
    """An int64 input: its shape, and the exclusive upper bound of its elements."""

    shape: tuple[int, ...]
    below: int


TIMESTEP = Integers((1,), 1000)
TIMESTEPS = (
    "UNet2DModel",
    "UNet2DConditionModel",
    "UNet3DConditionModel",
    "ControlNetModel",
    "PixArtTransformer2DModel",
    "SanaTransformer2DModel",
    "WanTransformer3DModel",
    "CogVideoXTransformer3DModel",
    "LTXVideoTransformer3DModel",
    "SD3Transformer2DModel",
)
"""Networks of `bench.diffusers_networks.DIFFUSERS` that also accept an integer timestep."""
BAGS = ((64, "sum"), (32, "mean"), (100, "max"))
"""Embedding tables of DLRM: number of rows, and how several rows are reduced."""

IDS = Integers((1, LENGTH), VOCABULARY)
ONLY_IDS = {"input_ids": IDS}
MASK = Integers((1, LENGTH), 2)
MASKED = {"input_ids": IDS, "attention_mask": MASK}
TRANSLATED = {"input_ids": IDS, "decoder_input_ids": Integers((1, 8), VOCABULARY)}

DECODER = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED = {**DECODER, "num_key_value_heads": 2, "head_dim": 16}
ENCODER = {**DECODER, "type_vocab_size": 2, "embedding_size": 64}
GPT = {"vocab_size": VOCABULARY, "n_positions": 64, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_inner": 128}
STARTS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
SEQ2SEQ = {
    "vocab_size": VOCABULARY,
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
    "max_position_embeddings": 64,
    "decoder_start_token_id": 1,
    "forced_eos_token_id": None,
    **STARTS,
}
T5 = {
    "vocab_size": VOCABULARY,
    "d_model": 64,
    "d_kv": 16,
    "d_ff": 128,
    "num_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
}
STATES = {**DECODER, "state_size": 8, "time_step_rank": 8}
EXPERTS = {**GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2, "experts_implementation": "batched_mm"}
"""Options that gather the weights of each token's experts, since transformers' default, a grouped matmul, is not
supported."""
WHISPER = {
    **{name: value for name, value in SEQ2SEQ.items() if name != "max_position_embeddings"},
    "num_mel_bins": 20,
    "max_source_positions": 32,
    "max_target_positions": 64,
}

TEXTS: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
    # network of transformers: options that make it small, arguments of forward
    "GPT2LMHeadModel": ({**GPT, **STARTS}, ONLY_IDS),
    "OpenAIGPTLMHeadModel": (GPT, ONLY_IDS),
    "OPTForCausalLM": (
        {**DECODER, "ffn_dim": 128, "word_embed_proj_dim": 64},
        ONLY_IDS,
    ),
    "LlamaForCausalLM": (GROUPED, ONLY_IDS),
    "Qwen2ForCausalLM": (GROUPED, ONLY_IDS),
    "Qwen3ForCausalLM": (GROUPED, ONLY_IDS),
    "GemmaForCausalLM": (GROUPED, ONLY_IDS),
    "Gemma2ForCausalLM": ({**GROUPED, "sliding_window": 8}, ONLY_IDS),
    "Gemma3ForCausalLM": ({**GROUPED, "sliding_window": 8}, ONLY_IDS),
    "PhiForCausalLM": (DECODER, ONLY_IDS),
    "Phi3ForCausalLM": (GROUPED, ONLY_IDS),
    "MistralForCausalLM": ({**GROUPED, "sliding_window": 8}, ONLY_IDS),
    "BloomForCausalLM": ({"vocab_size": VOCABULARY, "hidden_size": 64, "n_layer": 2, "n_head": 4}, ONLY_IDS),
    "GPTNeoXForCausalLM": (DECODER, ONLY_IDS),
    "GPTNeoForCausalLM": (
        {**DECODER, "num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]], "window_size": 8},
        ONLY_IDS,
    ),
    "GPTJForCausalLM": ({**GPT, "rotary_dim": 8}, ONLY_IDS),
    "CodeGenForCausalLM": ({**GPT, "rotary_dim": 8}, ONLY_IDS),
    "StableLmForCausalLM": (GROUPED, ONLY_IDS),
    "FalconForCausalLM": ({**DECODER, "alibi": False}, ONLY_IDS),
    "MptForCausalLM": (
        {"vocab_size": VOCABULARY, "d_model": 64, "n_layers": 2, "n_heads": 4, "max_seq_len": 64},
        ONLY_IDS,
    ),
    "OlmoForCausalLM": (GROUPED, ONLY_IDS),
    "Olmo2ForCausalLM": (GROUPED, ONLY_IDS),
    "CohereForCausalLM": (GROUPED, ONLY_IDS),
    "Starcoder2ForCausalLM": (GROUPED, ONLY_IDS),
    "SmolLM3ForCausalLM": (GROUPED, ONLY_IDS),
    "GraniteForCausalLM": (GROUPED, ONLY_IDS),
    "HeliumForCausalLM": (GROUPED, ONLY_IDS),
    "NemotronForCausalLM": (GROUPED, ONLY_IDS),
    "BioGptForCausalLM": (DECODER, ONLY_IDS),
    "MixtralForCausalLM": (EXPERTS, ONLY_IDS),
    "MambaForCausalLM": (STATES, ONLY_IDS),
    "BertForMaskedLM": (ENCODER, MASKED),
    "RobertaForMaskedLM": (ENCODER, MASKED),
    "XLMRobertaForMaskedLM": (ENCODER, ONLY_IDS),
    "DistilBertForMaskedLM": (
        {"vocab_size": VOCABULARY, "max_position_embeddings": 64, "dim": 64, "n_layers": 2, "n_heads": 4}
        | {"hidden_dim": 128},
        MASKED,
    ),
    "AlbertForMaskedLM": (ENCODER, MASKED),
    "ElectraForMaskedLM": (ENCODER, MASKED),
    "MPNetForMaskedLM": (ENCODER, MASKED),
    "DebertaForMaskedLM": ({**ENCODER, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]}, MASKED),
    "DebertaV2ForMaskedLM": ({**ENCODER, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]}, MASKED),
    "MobileBertForMaskedLM": ({**ENCODER, "intra_bottleneck_size": 32, "true_hidden_size": 32}, MASKED),
    "SqueezeBertForMaskedLM": (ENCODER, MASKED),
    "ConvBertForMaskedLM": (ENCODER, MASKED),
    "FNetForMaskedLM": (ENCODER, ONLY_IDS),
    "RoFormerForMaskedLM": (ENCODER, MASKED),
    "ModernBertForMaskedLM": ({**DECODER, "local_attention": 8}, ONLY_IDS),
    "ErnieForMaskedLM": (ENCODER, MASKED),
    "EsmForMaskedLM": ({**ENCODER, "mask_token_id": 3}, MASKED),
    "XLNetLMHeadModel": (
        {"vocab_size": VOCABULARY, "d_model": 64, "n_layer": 2, "n_head": 4, "d_inner": 128},
        ONLY_IDS,
    ),
    "LayoutLMForMaskedLM": (
        {**ENCODER, "max_2d_position_embeddings": 64},
        {"input_ids": IDS, "bbox": [[[2 * i, i, 2 * i + 9, i + 4] for i in range(LENGTH)]]},
    ),
    "T5ForConditionalGeneration": (T5, TRANSLATED),
    "T5EncoderModel": (T5, MASKED),
    "MT5ForConditionalGeneration": ({**T5, "feed_forward_proj": "gated-gelu"}, TRANSLATED),
    "BartForConditionalGeneration": (SEQ2SEQ, TRANSLATED),
    "MBartForConditionalGeneration": (SEQ2SEQ, TRANSLATED),
    "PegasusForConditionalGeneration": (SEQ2SEQ, TRANSLATED),
    "MarianMTModel": (SEQ2SEQ, TRANSLATED),
    "M2M100ForConditionalGeneration": (SEQ2SEQ, TRANSLATED),
    "WhisperForConditionalGeneration": (
        WHISPER,
        {"input_features": (1, 20, 64), "decoder_input_ids": Integers((1, 8), VOCABULARY)},
    ),
    "TrOCRForCausalLM": ({**SEQ2SEQ, "use_cache": False}, ONLY_IDS),
    "CLIPTextModel": (DECODER, ONLY_IDS),
    "SiglipTextModel": (DECODER, ONLY_IDS),
}
