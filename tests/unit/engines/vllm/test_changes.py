from __future__ import annotations

import numpy as np
import pytest

from contracts.errors import WeightsRefused
from engines.vllm.server.staging import changed_elements
from tests.unit.weights.awkward_weights import MINUS_ZERO, NAN, bf16, tensor, version


class TestChanges:
    def test_only_what_changed_and_its_new_bits(self) -> None:
        changes = {change.name: change for change in changed_elements(version(0), version(1))}
        assert sorted(changes) == ["embed.weight", "layer.0.query"]
        query = changes["layer.0.query"]
        assert (query.dtype, query.shape) == ("BF16", (32, 32))
        assert query.indices.tolist() == [0, 1, 2, 3]
        assert query.words[1] == MINUS_ZERO
        patched = version(0)["layer.0.query"].data.view("<u2").copy()
        patched[query.indices] = query.words
        assert np.array_equal(patched.view(np.uint8), version(1)["layer.0.query"].data)

    @pytest.mark.parametrize(
        ("dtype", "nan", "infinity"),
        [("BF16", 0xFF81, 0xFF80), ("F16", 0x7C01, 0x7C00), ("F32", 0x7F800001, 0x7F800000)],
    )
    def test_nan_is_refused_by_name_and_infinity_is_not(self, dtype: str, nan: int, infinity: int) -> None:
        kind = "<u4" if dtype == "F32" else "<u2"
        base = {"w": tensor(dtype, np.zeros(4, dtype=kind))}
        [change] = changed_elements(base, {"w": tensor(dtype, np.array([0, infinity, 0, 0], dtype=kind))})
        assert change.words.tolist() == [infinity]
        with pytest.raises(WeightsRefused, match="element 2 of w becomes NaN") as caught:
            list(changed_elements(base, {"w": tensor(dtype, np.array([0, infinity, nan, 0], dtype=kind))}))
        assert caught.value.code == "nan"

    def test_a_nan_that_was_there_before_is_no_change(self) -> None:
        base = {"w": tensor("BF16", np.array([NAN, 1], dtype="<u2"))}
        [change] = changed_elements(base, {"w": tensor("BF16", np.array([NAN, 2], dtype="<u2"))})
        assert change.indices.tolist() == [1]

    def test_only_floats_can_be_patched(self) -> None:
        base = {"w": tensor("I8", np.zeros(4, dtype=np.int8))}
        assert list(changed_elements(base, base)) == []
        with pytest.raises(WeightsRefused, match="w is I8") as caught:
            list(changed_elements(base, {"w": tensor("I8", np.ones(4, dtype=np.int8))}))
        assert caught.value.code == "unsupported_dtype"

    def test_another_set_of_tensors_is_refused(self) -> None:
        with pytest.raises(WeightsRefused) as caught:
            list(changed_elements(version(0), version(1) | {"head.weight": tensor("BF16", bf16(0, 2))}))
        assert caught.value.code == "unknown_tensor"
