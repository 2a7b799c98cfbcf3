"""Where the float32 masters of a whole model live: beside its weights, or in the host's memory if the device is too small.

Bytes per parameter with passes in bfloat16 (in float32 the weights are their own masters, or 4 bytes each):

    masters     on the device                                        in host memory
    "device"    weights 2 + masters 4 + moments 8 + gradients 4      0
    "host"      weights 2 + gradients 4, or 2 if it must be          masters 4 + moments 8

To these come 2 on the device for a reference policy, and 6 in host memory for the bits of the versions that the publisher holds.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from contracts.errors import InvalidSettings

REFERENCE, VERSIONS = 2, 6
_GB = 1e9


class Placement(NamedTuple):
    """Of masters and moments, and the type that gradients are summed in on the device."""

    masters: Literal["device", "host"] = "device"
    gradients: Literal["float32", "bfloat16"] = "float32"

    def bytes_per_parameter(self, *, is_reduced: bool = True) -> tuple[int, int]:
        """On the device and in host memory, without reference and versions. `is_reduced`: passes compute in bfloat16."""
        weights, gradients = 2 if is_reduced else 4, 4 if self.gradients == "float32" else 2
        if self.masters == "host":
            return weights + gradients, 12
        return weights + gradients + (12 if is_reduced else 8), 0


def placement(
    num_parameters: int,
    free_device_bytes: int,
    free_host_bytes: int,
    wanted: Literal["auto", "device", "host"] = "auto",
    *,
    activation_bytes: int = 0,
    is_reduced: bool = True,
    has_reference: bool = True,
) -> Placement:
    """The first that fits: on the device, in host memory, in host memory with gradients in bfloat16.

    Args:
        num_parameters: of the model.
        free_device_bytes: of the device.
        free_host_bytes: of the host's memory.
        wanted: as in `TrainingSettings.masters`.
        activation_bytes: what a forward and backward pass holds on the device besides.
        is_reduced: passes compute in bfloat16.
        has_reference: a frozen copy of the model is there as well.

    Raises InvalidSettings: none fits, with the settings that would.
    """
    offered = [Placement("device"), Placement("host"), *([Placement("host", "bfloat16")] if is_reduced else [])]
    offered = [each for each in offered if wanted in ("auto", each.masters)]

    def fits(each: Placement, beside: int) -> bool:
        on_device, in_host = each.bytes_per_parameter(is_reduced=is_reduced)
        return (
            num_parameters * (on_device + beside) + activation_bytes <= free_device_bytes
            and num_parameters * (in_host + VERSIONS) <= free_host_bytes
        )

    beside = REFERENCE if has_reference else 0
    for each in offered:
        if fits(each, beside):
            return each
    needs = "; ".join(
        f"{each.masters} masters with {each.gradients} gradients need "
        f"{(num_parameters * (each.bytes_per_parameter(is_reduced=is_reduced)[0] + beside) + activation_bytes) / _GB:.0f} GB there and "
        f"{num_parameters * (each.bytes_per_parameter(is_reduced=is_reduced)[1] + VERSIONS) / _GB:.0f} GB in host memory"
        for each in offered
    )
    lighter = "kl_coefficient = 0 with mismatch_samples = 0 would fit, or "
    raise InvalidSettings(
        f"[training] masters: {num_parameters / _GB:.1f} billion parameters do not fit into the {free_device_bytes / _GB:.0f} GB that are "
        f"free on the device and the {free_host_bytes / _GB:.0f} GB of host memory ({needs}): "
        f"{lighter if has_reference and any(fits(each, 0) for each in offered) else ''}"
        "train an adapter instead ([training] adapter = { rank = 8 }), or take a smaller policy"
    )
