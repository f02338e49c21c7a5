"""Pictures: a scheduled model as an HTML page or SVG, times as a trace, as JSON and as a plot.

Comes in: a graph, its plan and program, times. Goes out: text, or a figure's file. May use: model, layout_sync,
program, session. What draws (fast_sugiyama, matplotlib) is the extra `show`.
"""
