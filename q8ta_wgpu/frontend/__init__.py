"""From torch to a model: quantize a module, import an exported program, compile it. Torch ends here.

Comes in: an nn.Module or an ExportedProgram. Goes out: a Model. May use: passes, model, kernels, ir, and
for what runs in part on the GPU (hybrid.py) session.
"""
