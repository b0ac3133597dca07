"""What results look like, said once: numbers, Markdown, plots, the terminal, files, the machine.

Nothing is imported before a function here needs it: matplotlib and rich belong to the extra `report`.
"""
