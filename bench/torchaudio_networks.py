"""Networks of torchaudio, made small, and the arguments of their `forward`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
