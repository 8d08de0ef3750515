"""Several parts of one module become one module."""

from petra_graph_authoring.new_package import merge_modules

FIRST = """import torch
from attrs import frozen
from mine.declared import B

A = 1
"""
SECOND = """from typing import Any

import numpy as np
from attrs import field, frozen
from mine.declared import A


def f():
    pass
"""


def test_imports_are_together_and_once():
    assert merge_modules([FIRST, SECOND, "C = 3\n"], "Two parts.", own="mine") == (
        '''\
"""Two parts."""

from typing import Any

import numpy as np
import torch
from attrs import field, frozen

from mine.declared import A, B


A = 1


def f():
    pass


C = 3
'''
    )


def test_a_long_import_has_a_line_a_name():
    names = [f"name_{number:02}" for number in range(12)]
    text = merge_modules([f"from somewhere import {', '.join(names)}\n"], "Long.", own="mine")
    assert text == '"""Long."""\n\nfrom somewhere import (\n' + "".join(f"    {name},\n" for name in names) + ")\n"
