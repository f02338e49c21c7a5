"""The command line's commands, a file each; q8ta_wgpu/__main__.py reads the arguments.

Comes in: parsed arguments. Goes out: text on stdout, files, or an error of q8ta_wgpu. May use: every room but frontend.
"""
