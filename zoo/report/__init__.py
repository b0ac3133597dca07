"""What results look like, said once: numbers, Markdown, plots, the terminal, files. It knows no result of its own.

Nothing is imported before a function here needs it: matplotlib and rich belong to the extra `report`.
"""
