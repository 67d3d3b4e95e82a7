"""Device work by kernel, op, module and user function; matrix shapes; allocator peaks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tdiag.evidence.device import Chains, DevicePart, DeviceParts, KernelFamily, Kernels
from tdiag.evidence.memory import DeviceMemory
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import MatrixOps
from tests.trace.making import (
    AUTOGRAD,
    Event,
    call,
    evidence_of,
    kernel,
    launched,
    note,
    op,
    span,
    step,
)

US = 1000


def parts(evidence: Evidence) -> DeviceParts:
    found = evidence.get(DeviceParts)
    assert found is not None
    return found


def times(some: tuple[DevicePart, ...]) -> dict[str, float]:
    return {part.name: part.device_ns / US for part in some}


def python(name: str, ts: float, dur: float) -> Event:
    return span("python_function", name, ts, dur)


EVENTS = [
    step(1, 0, 1000),
    python("train.py(9): train", 0, 900),
    python("nn.Module: Net_0", 10, 400),
    python("nn.Module: Linear_0", 20, 100),
    op("aten::linear", 30, 60), op("aten::addmm", 35, 50), *launched("gemm", 40, 100, 70, 1),
    python("nn.Module: ReLU_0", 200, 100),
    op("aten::relu", 210, 60), *launched("relu", 220, 250, 10, 2),
    span("cpu_op", "ReluBackward0", 500, 60, tid=AUTOGRAD),
    {**call("cudaLaunchKernel", 510, 5, 3), "tid": AUTOGRAD}, kernel("relu", 600, 20, 3),
    kernel("launched elsewhere", 700, 5),
]  # fmt: skip


def test_device_work_by_origin(tmp_path: Path) -> None:
    found = parts(evidence_of(tmp_path, EVENTS))
    assert times(found.kernels) == {"gemm": 70, "relu": 30, "launched elsewhere": 5}
    assert times(found.ops) == {"aten::addmm": 70, "ReluBackward0": 20, "aten::relu": 10}
    assert times(found.modules) == {"Linear_0": 70, "ReLU_0": 10}  # backward has no module
    assert times(found.functions) == {"train (train.py)": 80}
    assert found.functions[0].at is not None
    assert (found.functions[0].at.file, found.functions[0].at.line) == ("train.py", 9)
    assert [part.count for part in found.kernels] == [1, 2, 1]


def test_without_python_there_are_no_modules(tmp_path: Path) -> None:
    found = parts(evidence_of(tmp_path, [step(1, 0, 100), op("aten::mm", 0, 50),
                                         *launched("gemm", 10, 20, 30, 1)]))  # fmt: skip
    assert found.modules == found.functions == ()
    assert times(found.ops) == {"aten::mm": 30}


def shaped(name: str, ts: float, dims: list, types: list[str], dur: float = 20) -> Event:
    return op(name, ts, dur, **{"Input Dims": dims, "Input type": types})


def test_matrix_ops_by_shape(tmp_path: Path) -> None:
    addmm = [[4], [8, 16], [16, 4], [], []]
    types = ["float", "float", "float", "Scalar", "Scalar"]
    events = [
        step(1, 0, 1000),
        shaped("aten::linear", 0, [[8, 16], [4, 16], [4]], ["float"] * 3, 60),
        shaped("aten::addmm", 10, addmm, types), *launched("gemm", 12, 40, 100, 1),
        shaped("aten::addmm", 200, addmm, types), *launched("gemm", 202, 240, 50, 2),
        shaped("aten::bmm", 400, [[2, 3, 5], [2, 5, 7]], ["c10::Half", "c10::Half"]),
    ]  # fmt: skip
    found = evidence_of(tmp_path, events).get(MatrixOps)
    assert found is not None
    addmm_op, bmm = found.ops
    assert (addmm_op.name, addmm_op.count, addmm_op.device_ns) == ("aten::addmm", 2, 150 * US)
    assert addmm_op.dims == ((4,), (8, 16), (16, 4))
    assert addmm_op.dtypes == ("float",) * 3
    assert (bmm.dims, bmm.dtypes) == (((2, 3, 5), (2, 5, 7)), ("c10::Half",) * 2)
    assert bmm.device_ns == 0


def test_matrix_ops_of_a_host_trace_have_no_device_time(tmp_path: Path) -> None:
    events = [step(1, 0, 100), shaped("aten::mm", 0, [[2, 2], [2, 2]], ["double", "double"])]
    found = evidence_of(tmp_path, events).get(MatrixOps)
    assert found is not None
    assert found.ops[0].device_ns is None
    assert found.ops[0].host_ns == 20 * US


def test_without_shapes_the_reason_is_said(tmp_path: Path) -> None:
    evidence = evidence_of(tmp_path, [step(1, 0, 100), op("aten::mm", 0, 50)])
    assert evidence.get(MatrixOps) is None
    assert "record_shapes" in evidence.missing[MatrixOps]


def memory(ts: float, allocated: int, reserved: int, device_type: int, device: int) -> Event:
    return {
        "ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "ts": ts, "pid": 1, "tid": 1,
        "args": {"Bytes": 1, "Total Allocated": allocated, "Total Reserved": reserved,
                 "Device Type": device_type, "Device Id": device},
    }  # fmt: skip


def test_allocator_peaks_within_the_steps(tmp_path: Path) -> None:
    events = [
        step(1, 100, 1000), kernel("k", 200, 10),
        memory(50, 900, 950, 1, 0),  # before the first step
        memory(300, 400, 600, 1, 0), memory(400, 500, 600, 1, 0), memory(500, 7000, 7000, 0, -1),
    ]  # fmt: skip
    devices = [{"id": 0, "name": "A100", "totalGlobalMem": 1000}]
    found = evidence_of(tmp_path, events, deviceProperties=devices).get(DeviceMemory)
    assert found == DeviceMemory(
        peak_allocated_bytes=500, peak_reserved_bytes=600, capacity_bytes=1000
    )


def test_host_memory_alone_is_no_device_memory(tmp_path: Path) -> None:
    evidence = evidence_of(tmp_path, [step(1, 0, 9), kernel("k", 1, 1), memory(2, 9, 9, 0, -1)])
    assert evidence.get(DeviceMemory) is None
    assert "profile_memory" in evidence.missing[DeviceMemory]


@pytest.mark.parametrize(
    ("name", "family", "float32", "units"),
    [
        ("ampere_sgemm_128x64_tn", "gemm", True, False),
        # cuBLAS on an H100, without TF32 and with it
        ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128_ffma_cublas", "gemm", True, False),
        ("sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x16_cublas", "gemm", True, True),
        ("volta_h884gemm_64x64_ldg8_nn", "gemm", False, True),
        ("cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x64", "gemm", False, True),
        ("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_TNT", "gemm", False, True),
        ("Cijk_Alik_Bljk_HHS_BH_MT64x32x64_MI16x16x16x1_SN", "gemm", False, True),
        ("volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1", "conv", True, False),
        ("volta_scudnn_128x64_relu_interior_nn_v1", "conv", True, False),
        ("sm80_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc", "conv", False, True),
        ("void pytorch_flash::flash_fwd_kernel<cutlass::bfloat16_t>", "attention", False, True),
        ("void cudnn::ops::nchwToNhwcKernel<float, float>", "layout", True, None),
        ("void at::native::batch_norm_backward_kernel<c10::BFloat16>", "norm", False, None),
        ("void at::native::reduce_kernel<512, 1, ReduceOp<float>>", "reduction", True, None),
        ("void at::native::vectorized_elementwise_kernel<4, AddFunctor<float>>", "elementwise",
         True, None),
        ("multi_tensor_apply_kernel<AdamFunctor<float>>", "optimizer", True, None),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "comm", True, None),
        ("my_own_kernel", "other", False, None),
    ],
)  # fmt: skip
def test_kernel_names_tell_family_dtype_and_matrix_units(
    tmp_path: Path, name: str, family: str, float32: bool, units: bool | None
) -> None:
    found = evidence_of(tmp_path, [step(1, 0, 100), kernel(name, 1, 10)]).get(Kernels)
    assert found is not None
    ns = 10 * US
    assert found.families == (
        KernelFamily(
            family=family,
            count=1,
            device_ns=ns,
            float32_ns=ns if float32 else 0,
            tensor_core_ns=None if units is None else ns if units else 0,
        ),
    )


def chains_of(tmp_path: Path, *events: Event) -> Chains | None:
    found = evidence_of(tmp_path, [step(1, 0, 1000), *events]).get(Kernels)
    assert found is not None
    return found.chains


def test_elementwise_kernels_that_follow_one_another_are_a_chain(tmp_path: Path) -> None:
    """Two chains: of three, with a copy between them, and of one."""
    small, other = "vectorized_elementwise_kernel", "ampere_sgemm_128x64"
    names = [small, small, "direct_copy_kernel", small, other, small]
    lasting = [10, 30, 50, 20, 100, 7]
    events = [kernel(n, 100 * i, d) for i, (n, d) in enumerate(zip(names, lasting, strict=True))]
    found = chains_of(tmp_path, *events)
    assert found == Chains(kernels=4.0, device_ns=67_000.0, longest_ns=37_000.0)


def test_other_streams_and_the_optimizer_have_chains_of_their_own(tmp_path: Path) -> None:
    beside = kernel("elementwise_kernel", 40, 10, stream=9)
    update = [
        note("Optimizer.step#SGD.step", 300, 200),
        *launched("elementwise_kernel", 310, 320, 40, 5),
    ]
    mine = [kernel("elementwise_kernel", 20, 10), kernel("elementwise_kernel", 60, 10)]
    found = chains_of(tmp_path, *mine, beside, *update)
    assert found == Chains(kernels=3.0, device_ns=30_000.0, longest_ns=20_000.0)
    assert chains_of(tmp_path, *update) is None
