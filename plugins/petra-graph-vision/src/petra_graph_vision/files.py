"""The files of a data set below `root`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from hashlib import file_digest, md5
from pathlib import Path

from petra_graph.errors import Problem, SpecError
from petra_graph.units import listed

ROOT = ("root",)
"""The path of the option `root`, for problems."""
_LEAST_CLASSES = 2


def expanded(root: str) -> Path:
    """Return `root` as an absolute path, with ~ and $NAME expanded.

    Raises:
        SpecError: no home directory is known for ~, or no file can have this path.
    """
    try:
        path = Path(os.path.expandvars(root)).expanduser().absolute()
        path.exists()
    except OSError as error:
        raise file_error(f"{root} cannot be read: {error.strerror}", "name the folder of the data set") from None
    except RuntimeError:
        message = f"no home directory is known for {root!r}"
        raise file_error(message, "write the whole path, or set HOME") from None
    else:
        return path


def file_error(message: str, hint: str) -> SpecError:
    return SpecError(Problem(message=message, hint=hint, path=ROOT))


def class_folders(folder: Path, *, classes: int | None, hint: str) -> tuple[str, ...]:
    """Return the names of the class folders in a folder, in the order of their numbers.

    Args:
        folder: their parent.
        classes: the required number of class folders; None: at least two.
        hint: the layout, for messages.

    Raises:
        SpecError: the folder does not exist, cannot be read, or has another number of classes.
    """
    try:
        names = tuple(sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and entry.name[0] != "."))
    except OSError as error:
        if not isinstance(error, FileNotFoundError | NotADirectoryError):
            raise file_error(f"{folder} cannot be read: {error.strerror}", hint) from None
        absent = next(one for one in (*reversed(folder.parents), folder) if not one.is_dir())
        raise file_error(f"{absent} is not a folder", hint) from None
    if len(names) != classes if classes else len(names) < _LEAST_CLASSES:
        required = f"{classes or 'at least two'} class folders"
        found = f"{len(names)}: {listed(names)}" if names else "none"
        raise file_error(f"{folder} must hold {required} (got {found})", hint)
    return names


def find_folder(name: str, candidates: Iterable[Path], needs: Iterable[str], *, hint: str) -> Path:
    """Return the first candidate that has all the files `needs`.

    Args:
        name: the data set's name, for the message.
        candidates: folders to search, in order.
        needs: names of files that the folder must have.
        hint: the layout and the source of the files.

    Raises:
        SpecError: no candidate has them; the message names the missing files of each.
    """
    needed, candidates = tuple(needs), tuple(candidates)
    lacks: list[str] = []
    if not any(folder.is_dir() for folder in candidates):
        root = min(candidates, key=lambda folder: len(folder.parts))
        raise file_error(f"the files of {name} are not there: {root} is not a folder", hint)
    for folder in candidates:
        missing = [file for file in needed if not (folder / file).is_file()]
        if not missing:
            return folder
        if not folder.is_dir():
            lacks.append(f"{folder} is not a folder")
        elif len(missing) == len(needed):
            lacks.append(f"{folder} has none of {listed(needed)}")
        else:
            lacks.append(f"{folder} lacks {listed(missing)}")
    raise file_error(f"the files of {name} are not there: {'; '.join(lacks)}", hint)


def check_official(folder: Path, published: Mapping[str, str], *, hint: str) -> None:
    """Refuse a damaged copy of published files.

    Files with the names of published ones may be anyone's own. Where one of them is the published one by its digest, the others
    must be, too.

    Args:
        published: the MD5 digest of each file, by its name.
        hint: the source of the files.

    Raises:
        SpecError: some files are the published ones, and another one is not.
    """
    found = {name: _md5(folder / name) for name in published if (folder / name).is_file()}
    wrong = [name for name, digest in found.items() if digest != published[name]]
    if wrong and len(wrong) < len(found):
        message = (
            f"{folder / wrong[0]} is damaged: its MD5 digest is {found[wrong[0]]}, and that of the published file is "
        )
        right = f"{len(found) - len(wrong)} of {len(found)} files are right"
        raise file_error(f"{message}{published[wrong[0]]}; {right}", hint)


def _md5(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file_digest(file, lambda: md5(usedforsecurity=False)).hexdigest()
    except OSError:  # whoever reads the file says so
        return ""
