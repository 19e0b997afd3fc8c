"""The command line: each command parses, calls one public function, and prints.

In: words.
Out: models, tables, figures and pages; one line on standard error and exit code 2 for bad input.
"""
