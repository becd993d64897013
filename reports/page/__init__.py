"""A run as one page for the browser: no network, no second file, nothing executed but our own.

``document.page`` puts it together; the parts say what they are for. The scripts (``*.js``) and the
style (``page.css``) beside them are inlined; plotly draws.
"""

from reports.page.document import page

__all__ = ["page"]
