"""A run as one HTML page that needs no network and no other file.

``document.page`` assembles it from the parts. The scripts (``*.js``), the style (``page.css``) and
plotly, which draws, are inlined.
"""

from reports.page.document import page, still_page

__all__ = ["page", "still_page"]
