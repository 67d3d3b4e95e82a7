"""The page's charts, one file each: ``chart(evidence)`` gives it, or None.

Colours of the text, of lines and of the background are the page's, set when it is drawn.
"""
