"""The page's charts, one file each: ``chart(details, …)`` gives it, or None without evidence.

Colours of the text, of lines and of the background are the page's, set when it is drawn.
"""
