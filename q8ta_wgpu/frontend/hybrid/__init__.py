"""Hybrids: programs that are only partly supported. They are cut into pieces, each of which a session or torch runs.

Comes in: a quantized program. Goes out: a torch module. May use: importer, export, passes, session.
"""
