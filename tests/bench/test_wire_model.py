# SPDX-License-Identifier: Apache-2.0
"""The model of the wire: its formulas against its simulation, and the tables in the documentation against both."""

import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
import wire_model as model  # noqa: E402


@pytest.mark.parametrize("wire", model.WIRES, ids=lambda wire: wire.name)
@pytest.mark.parametrize("ranks", [2, 3, 8, 17])
def test_the_simulation_takes_as_long_as_the_formulas_say(wire, ranks):
    for size in (100.0, 1e6):
        for name, way in model.GATHERS.items():
            assert model.simulate_gather(wire, ranks, size, name) == pytest.approx(way(wire, ranks, size), rel=1e-9)
        for name, way in model.REDUCES.items():
            assert model.simulate_reduce(wire, ranks, size, name) == pytest.approx(way(wire, ranks, size), rel=1e-9)


def test_a_late_rank_delays_the_others():
    wire = model.WIRES[0]
    for form in model.GATHERS:
        late = model.simulate_gather(wire, 4, 1000, form, starts=[0, 0, 1e-3, 0])
        assert 1e-3 < late < 1e-3 + 2 * model.ring_gather(wire, 4, 1000)
        assert model.simulate_gather(wire, 4, 1000, form, jitter=0.5) > model.simulate_gather(wire, 4, 1000, form)


def test_the_volumes_of_both_forms():
    for shape, ratio in zip(model.SHAPES, (1.5, 1.625)):
        assert model.volume_ratio(shape) == ratio
        cut, row = model.output_cut(shape, 3, 2), model.row_parallel(shape, 3, 2)
        assert len(cut) == 4 and len(row) == 2 and all(size == 3 * shape.hidden * 2 for size in row)


def test_the_documentation_has_the_tables():
    page = (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8")
    for shape in model.SHAPES:
        assert model.table(shape, 2) in page, "run bench/wire_model.py and copy its tables into docs/scaling.md"
