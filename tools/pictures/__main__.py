"""Draw the pictures of README anew: `python -m tools.pictures [--output DIRECTORY]`."""

from __future__ import annotations

import argparse
from pathlib import Path

from tools.pictures.drawing import picture
from tools.pictures.kept_activations import simulated_training
from tools.pictures.memory_by_depth import memory_by_depth

METHODS = ("1f1b-flush", "petra")
MICRO_BATCHES = 8
HERE = Path(__file__).parent


def petra_svg() -> str:
    """Return README's picture of PETRA."""
    return picture([simulated_training(method, MICRO_BATCHES) for method in METHODS])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=HERE, help="the folder of the pictures")
    folder = parser.parse_args().output
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "petra.svg"
    path.write_text(petra_svg(), encoding="utf-8")
    print(path)
    memory_by_depth(folder / "memory_by_depth.png")
    print(folder / "memory_by_depth.png")


if __name__ == "__main__":
    main()
