"""One HTML file with every table and plot of a comparison, readable on a phone, that loads nothing."""

from looseleaf.replay.report.document import Comparison, as_document
from looseleaf.replay.report.html import render

__all__ = ["Comparison", "as_document", "render"]
