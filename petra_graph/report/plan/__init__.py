"""A plan's JSON document as text for terminals.

Decision: every view reads the document alone, so that any plan that was ever saved can be shown again.
"""
