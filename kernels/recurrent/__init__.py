"""Recurrent layers, lstm and gru: one dispatch for all steps of a layer in one direction."""
