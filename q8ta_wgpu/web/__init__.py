"""A model in a web page: its program, weights and an ES module that runs them on the browser's WebGPU.

Comes in: a Model. Goes out: a folder for any static server. May use: program, passes, model, kernels, ir.

`js/` holds the modules that run there, and their types; `bundle.py` joins them to one file, q8ta.js. `web_folder.py`
writes the files that q8ta.js reads. `pixels.py` has the shaders between images and tensors.
"""
