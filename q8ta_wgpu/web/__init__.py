"""A model in a web page: its program, weights and an ES module that runs them on the browser's WebGPU.

Comes in: a Model. Goes out: a folder for any static server. May use: program, passes, model, kernels, ir, and of
runtime Dawn's compiler, where it is installed.

`q8ta.js` is what runs there, `q8ta.d.ts` its types, `export.py` what writes the files it reads, `pixels.py` the shaders
between images and tensors.
"""
