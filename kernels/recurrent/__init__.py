"""Recurrent layers: lstm and gru, a dispatch for all steps of a direction."""
