"""What torch's compiler needs is found, or named where it is missing."""

from __future__ import annotations

from petra_graph.planning import cpp_compiler


def test_a_compiler_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setenv("CXX", "/nowhere/c++ -O1")
    assert cpp_compiler.lacking() == "a C++ compiler (/nowhere/c++ -O1)"


def test_without_a_name_it_is_gcc(monkeypatch, tmp_path):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert cpp_compiler.lacking() == "a C++ compiler (g++)"


def test_pythons_headers(monkeypatch, tmp_path):
    (tmp_path / "c++").touch(mode=0o755)
    monkeypatch.setenv("CXX", str(tmp_path / "c++"))
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
    assert cpp_compiler.lacking() == f"Python's headers ({tmp_path}/Python.h)"
    (tmp_path / "Python.h").touch()
    assert cpp_compiler.lacking() == ""
