"""SVG drawings, whatever they show: markup, axes, lines, rows of bars."""
