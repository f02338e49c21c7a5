"""Pictures: a scheduled model as an HTML page or SVG.

Comes in: a graph, its plan and program, times. Goes out: text. May use: model, layout_sync,
program, session. What arranges cards (fast_sugiyama) is the extra `show`.
"""
