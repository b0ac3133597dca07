"""A mixer and a task that the project does not have: what CONTRIBUTING's steps ask for, written out.

tests/project/test_additions.py puts them into a copy of the project, and runs there what it says of any mixer and
any task.
"""
