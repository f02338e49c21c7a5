"""Chooses a layout for every value and a kernel for every node, for least total cost.

Comes in: a lowered graph (passes/lower.py) and its target. Goes out: a Plan. `problem` defines the optimization
problem, `optimal` and `greedy` solve it, `options` and `cost` read the operator table, `tensor_repr` and `op_repsets`
are ExecuTorch's layout algebra. May use: kernels, ir.
"""
