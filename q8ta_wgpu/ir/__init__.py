"""The vocabulary: graphs, types, layouts, operators, targets, arithmetic. Data and rules, without operators and
devices.

Comes in: nothing. Goes out: the types that all other folders use. May use: `errors`.
"""
