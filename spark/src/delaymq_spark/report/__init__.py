"""The HTML report, its plots, and the summary as text. Pure: derived from the summary only."""
