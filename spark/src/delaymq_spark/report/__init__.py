"""The HTML report, its plots, and the summary as text. Pure: made from the summary alone."""
