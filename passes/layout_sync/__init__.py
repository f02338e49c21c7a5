"""From a graph to a plan: a layout for every value and a kernel for every node, for least cost.

Comes in: a lowered graph (passes/lower.py) and its target. Goes out: a Plan. `problem` poses the question, `optimal`
and `greedy` answer it, `options` and `cost` read the operator table, `tensor_repr` and `op_repsets` are ExecuTorch's
algebra. May use: kernels, ir.
"""
