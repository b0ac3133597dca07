"""Output of results in one style: numbers, Markdown, pages, plots, terminal, files.

matplotlib and rich belong to the extra `report` and are imported only when a function needs them.
"""
