"""Pickles of arrays: those that numpy writes are read, and no other file harms the reader."""

from __future__ import annotations

import _codecs
import pickle
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
from petra_graph_vision.array_pickle import ArrayPickleError, read_array_pickle

from tests.support.processes import environment

DTYPES = ["u1", "i1", "<i2", ">i4", "i8", "u8", "f2", ">f4", "f8", "?"]
ARRAYS = {
    "a vector": np.arange(6),
    "planes": np.arange(24).reshape(2, 3, 4),
    "columns": np.asfortranarray(np.arange(12).reshape(3, 4)),
    "nothing": np.zeros((0, 3)),
    "a scalar": np.array(3),
}


@pytest.fixture
def read(tmp_path):
    def read_bytes(content: bytes):
        path = tmp_path / "batch"
        path.write_bytes(content)
        return read_array_pickle(path)

    return read_bytes


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_arrays_of_all_plain_types(protocol, read):
    expected = {f"{name} {dtype}": array.astype(dtype) for name, array in ARRAYS.items() for dtype in DTYPES}
    found = read(pickle.dumps(expected, protocol))
    assert list(found) == list(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_what_stands_beside_them(protocol, read):
    same = [1, 2]
    expected = {"labels": same, "again": same, "names": ["ä", ""], "number": 2**70, "none": (None, True, 1.5, ())}
    expected |= {"numpy's": [np.int64(3), np.float32(0.5)]}
    assert read(pickle.dumps(expected, protocol)) == expected


class Call:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize(
    ("message", "entry"),
    [
        ("names __builtin__.eval", Call(eval, "1")),
        ("names numpy.load", Call(np.load, "x")),
        ("not of plain numbers: 'O8'", np.array([None])),
        ("not of plain numbers: 'V", np.zeros(2, [("a", "u1")])),
        ("not of plain numbers: 'M8'", np.zeros(2, "M8[s]")),
        ("makes bytes of a value of type int", Call(bytearray, 10**12)),
        ("as 'unicode_escape'", Call(_codecs.encode, "x", "unicode_escape")),
    ],
)
def test_what_no_array_needs_is_refused(message, entry, read):
    with pytest.raises(ArrayPickleError, match=message):
        read(pickle.dumps({"data": entry}, 2))


def test_a_type_cannot_become_one_of_objects_afterwards(read):
    """numpy's own dtype can: a state with a chosen type over given memory made a pointer of the file's choice."""
    content = pickle.dumps({"data": np.zeros(1, "u8")}, 2)
    assert b"u8" in content
    with pytest.raises(ArrayPickleError, match="plain numbers"):
        read(content.replace(b"u8", b"O8"))


def test_an_array_has_the_bytes_that_are_in_the_file(read):
    shape = pickle.dumps({"data": np.zeros((2, 2), "u1")}, 2).replace(b"K\x02K\x02\x86", b"J\xff\xff\xff\x7fK\x02\x86")
    with pytest.raises(ArrayPickleError, match="damaged: cannot reshape array of size 4"):
        read(shape)


@pytest.mark.parametrize(
    "claim",
    [b"r\xff\xff\xff\x7f0", b"B\xff\xff\xff\x7f", b"\x96\xff\xff\xff\x7f\0\0\0\0"],
    ids=["memos", "bytes", "a bytearray"],
)
def test_no_memory_is_taken_for_a_claim(read, claim):
    tracemalloc.start()
    with pytest.raises(ArrayPickleError, match="cut short"):
        read(b"\x80\x02N" + claim)
    assert tracemalloc.get_traced_memory()[1] < 2**24
    tracemalloc.stop()


def test_what_the_file_may_call_takes_no_state(read):
    with pytest.raises(ArrayPickleError, match="sets the state of a function"):
        read(b"cnumpy\ndtype\n}X\x04\x00\x00\x00callX\x01\x00\x00\x00xsb.")


@pytest.mark.parametrize("content", [b"", b".", b"\x80\x02}", b"\x80\x02]."], ids=["empty", "stop", "no end", "a list"])
def test_what_is_no_dictionary_is_refused(content, read):
    with pytest.raises(ArrayPickleError):
        read(content)


MUTATIONS = """
import pickle, random, resource, sys, pathlib
import numpy as np
from petra_graph_vision.array_pickle import ArrayPickleError, read_array_pickle

resource.setrlimit(resource.RLIMIT_AS, (2**31, 2**31))
path, count, dice = pathlib.Path(sys.argv[1]), int(sys.argv[2]), random.Random(int(sys.argv[3]))
entry = {"data": np.arange(24, dtype=np.uint8).reshape(2, 12), "labels": [1, np.int64(2)], "mean": np.ones(3), "name": "x"}
whole = [pickle.dumps(entry, protocol) for protocol in range(6)]
read = 0
for _ in range(count):
    content = bytearray(dice.choice(whole))
    for _ in range(dice.choice((1, 1, 2, 4, 16))):
        at = dice.randrange(len(content))
        match dice.randrange(3):
            case 0:
                content[at] = dice.randrange(256)
            case 1:
                del content[at : at + dice.randrange(1, 9)]
            case 2:
                other = dice.choice(whole)
                start = dice.randrange(len(other))
                content[at:at] = other[start : start + dice.randrange(1, 40)]
        content = content or bytearray(b".")
    path.write_bytes(content)
    try:
        read_array_pickle(path)
        read += 1
    except (ArrayPickleError, MemoryError):
        pass
print(read, "of", count, "read")
"""


def test_damaged_files_are_refused_and_nothing_else(tmp_path):
    command = [sys.executable, "-c", MUTATIONS, str(tmp_path / "batch"), "3000", "0"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment(), timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("of 3000 read\n")
