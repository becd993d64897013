"""A run as one HTML page: no network, no second file, no foreign scripts.

``document.page`` assembles it from the parts. The scripts (``*.js``) and the style (``page.css``)
are inlined; plotly draws.
"""

from reports.page.document import page, still_page

__all__ = ["page", "still_page"]
