"""Recurrent layers: lstm and gru, one dispatch for all steps of a direction."""
