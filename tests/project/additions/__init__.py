"""A complete mixer and a complete task, as CONTRIBUTING's steps for additions ask for them.

tests/project/test_additions.py adds them to a copy of the project and runs the tests of any mixer and any task there.
"""
