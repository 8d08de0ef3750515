"""The benchmark of two processes: both train their part of a small network, and both are timed."""

from __future__ import annotations

import json

import pytest

from tests.support import ROOT
from tests.support.forks import ended, ranks

pytestmark = pytest.mark.processes
PATIENCE_SECONDS = 120
BENCH = ROOT / "tools" / "bench"
PROGRAM = f"""
import json, os, sys
from pathlib import Path
sys.path.insert(0, {str(BENCH)!r})
import torch
import parallel
from duel import Duel
from petra_graph.runtime.rank_info import rank_info_from
from petra_graph.runtime.stop_signals import hard_exit
from petra_graph.runtime.world import World

torch.set_num_threads(1)
world = World(rank_info_from(os.environ))
world.rendezvous()
world.connect()
folder = Path(sys.argv[1])
spec = folder / f"rank{{world.rank}}.toml"
spec.write_text(parallel.SPEC.format(side=4, half=4, blocks=2))
duel = Duel(world, str(spec), 8, 1)
cut = [list(duel.names[:2]), list(duel.names[2:])]
ready = {{"petra": duel.petra("petra", cut), "two independent processes": duel.alone("backprop", cut)}}
found = {{name: duel.timed(contestant) for name, contestant in ready.items()}}
found["peak"] = duel.peak(ready["petra"])
if world.rank == 0:
    (folder / "answer.json").write_text(json.dumps(found))
world.wait_for_all("measurements")
duel.watchdog.close()
world.wait_for_all("watchdogs")
hard_exit(0)
"""


@pytest.mark.thorough
def test_two_processes_are_timed(here, tmp_path):
    with ranks(*[[PROGRAM, str(tmp_path)]] * 2, program="python -c") as running:
        assert ended(running, PATIENCE_SECONDS) == [0, 0], running[0].said
    found = json.loads((tmp_path / "answer.json").read_text())
    for name in ("petra", "two independent processes"):
        assert {key: len(of_rank) for key, of_rank in found[name].items()} == {"seconds": 2, "waiting": 2, "steady": 2}
        assert all(seconds > 0 for seconds in found[name]["seconds"])
    assert all(size > 0 for size in found["peak"])
