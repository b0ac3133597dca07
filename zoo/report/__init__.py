"""One look for all results: numbers, Markdown, pages, plots, the terminal, files, the machine.

Nothing is imported before a function here needs it: matplotlib and rich belong to the extra `report`.
"""
