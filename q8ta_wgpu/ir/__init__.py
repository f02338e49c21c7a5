"""The vocabulary: graphs, types, layouts, operators, targets, arithmetic. Data and rules, no operator and no device.

Comes in: nothing. Goes out: what every other room speaks in. May use: `errors`.
"""
