"""The page's charts, one file each: ``chart(evidence)`` returns it, or None.

Colours of text, lines and background come from the page when the chart is drawn.
"""
