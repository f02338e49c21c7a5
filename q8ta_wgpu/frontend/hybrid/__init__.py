"""Programs of which torch runs what is not supported: cut into pieces, each a session or torch's own operators.

Comes in: a quantized program. Goes out: a torch module. May use: importer, export, passes, session.
"""
