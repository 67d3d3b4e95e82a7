"""The rates of devices from their manufacturers' data sheets, because tdiag does not measure them.

They are upper bounds: no program reaches all of them, so a step looks less efficient than it is,
never more.
"""

from __future__ import annotations

from dataclasses import dataclass

from tdiag.evidence.roofline import WITHOUT_TF32, Roof


@dataclass(frozen=True)
class _Sheet:
    """Dense rates in 10¹² operations per second, without sparsity. ``gb_per_s``: the device
    memory's bandwidth. ``float32``: matrix products, on matrix units (TF32) if the device has them;
    ``ordinary``: on its other units, where that is less and known.
    ``half``: float16, and bfloat16 if ``bfloat16``, with float32 sums."""

    float32: float
    half: float
    gb_per_s: float
    float64: float = 0.0
    bfloat16: bool = True
    ordinary: float = 0.0


# NVIDIA: the data sheets of H200 (2024), H100 (2023), A100 (2021), V100 (2020), T4 (2019), L4 and
# L40S (2023), A10, A40 and RTX A6000 (2021), HGX B200 (2024), and the white papers "Ampere GA102",
# "Ada" and "RTX Blackwell" for GeForce. AMD: the data sheets of Instinct MI300X (2023), MI250X and
# MI210 (2021); one device of an MI250 is half of the module.
_H100 = _Sheet(494.7, 989.4, 3350, 67, ordinary=67)
_A100 = _Sheet(156, 312, 1555, 19.5, ordinary=19.5)
_V100 = _Sheet(15.7, 125, 900, 7.8, bfloat16=False)
_V100_PCIE = _Sheet(14, 112, 900, 7, bfloat16=False)
_MI250X = _Sheet(47.9, 191.5, 1638, 47.9)
_SHEETS = {
    "B200": _Sheet(1125, 2250, 8000, 40),
    "H200": _Sheet(494.7, 989.4, 4800, 67, ordinary=67),
    "H100 80GB HBM3": _H100,
    "H100 PCIe": _Sheet(378, 756, 2000, 51, ordinary=51),
    "H100 NVL": _Sheet(417.5, 835.5, 3900, 60, ordinary=60),
    "A100-SXM4-80GB": _Sheet(156, 312, 2039, 19.5, ordinary=19.5),
    "A100 80GB PCIe": _Sheet(156, 312, 1935, 19.5, ordinary=19.5),
    "A100-SXM4-40GB": _A100,
    "A100-PCIE-40GB": _A100,
    "Tesla V100-SXM2-16GB": _V100,
    "Tesla V100-SXM2-32GB": _V100,
    "Tesla V100-DGXS-16GB": _V100,
    "Tesla V100-DGXS-32GB": _V100,
    "Tesla V100-PCIE-16GB": _V100_PCIE,
    "Tesla V100-PCIE-32GB": _V100_PCIE,
    "Tesla T4": _Sheet(8.1, 65, 320, bfloat16=False),
    "L4": _Sheet(60, 121, 300),
    "L40": _Sheet(90.5, 181, 864),
    "L40S": _Sheet(183, 362, 864),
    "A10": _Sheet(62.5, 125, 600),
    "A10G": _Sheet(35, 70, 600),
    "A40": _Sheet(74.8, 149.7, 696),
    "RTX A6000": _Sheet(77.4, 154.8, 768),
    "RTX 6000 Ada Generation": _Sheet(182.1, 364.2, 960),
    "GeForce RTX 3090": _Sheet(35.6, 71.2, 936),
    "GeForce RTX 4090": _Sheet(82.6, 165.2, 1008),
    "GeForce RTX 5090": _Sheet(104.8, 209.5, 1792),
    "AMD Instinct MI300X": _Sheet(163.4, 1307.4, 5300, 163.4),
    "AMD Instinct MI250X": _MI250X,
    "AMD Instinct MI250": _Sheet(45.3, 181, 1638, 45.3),
    "AMD Instinct MI210": _Sheet(45.3, 181, 1638, 45.3),
}


def roof_of(device: str) -> Roof | None:
    """The rates of the device with this torch name; None if its data sheet is not listed. A part of
    a device (MIG) has another name and is not listed."""
    sheet = _SHEETS.get(device.removeprefix("NVIDIA "))
    if sheet is None:
        return None
    tera = {"float32": sheet.float32, "float16": sheet.half, "float64": sheet.float64}
    if sheet.bfloat16:
        tera["bfloat16"] = sheet.half
    if sheet.ordinary:
        tera[WITHOUT_TF32] = sheet.ordinary
    return Roof(
        flops_per_s={dtype: rate * 1e12 for dtype, rate in tera.items() if rate},
        bytes_per_s=((1 << 62, sheet.gb_per_s * 1e9),),
        source=f"data sheet of {device}",
    )
