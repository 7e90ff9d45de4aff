"""Which operations a model file may name: those that pathx has rules for, and those listed here.

Everything else is refused by name before anything of the file runs: printing, files, profilers, random seeds, other
processes, and what looks beyond the memory of a tensor. An operation that is listed here without a rule computes from
tensors or sizes and does nothing else; whether it can be explained is for the engine to say.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import torch

from pathx.engine.rules.table import OPERATIONS


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


class Unsafe(ValueError):
    """What a file holds that would run code, or that no file of a plain network holds."""


def check_operations(names: Iterable[str]) -> None:
    """Raise Unsafe for an operation such as `aten::add_` or `prim::If` that no model file may name."""
    for name in names:
        if not _is_allowed(name):
            raise Unsafe(f"the operation {name[:80]!r} is not one that pathx allows in a file")


@cache
def _is_allowed(name: str) -> bool:
    family, _, operation = name.partition("::")
    if family == "prim":
        return operation in _CONTROL
    if family != "aten" or operation in _BEYOND:
        return False
    base = operation if operation.startswith("__") else operation.removesuffix("_")  # in place
    return base in OPERATIONS or base in _TENSORS or operation in _VALUES or _is_elementwise(operation)


def _is_elementwise(operation: str) -> bool:
    packet: Any = getattr(torch.ops.aten, operation, None)
    return isinstance(packet, torch._ops.OpOverloadPacket) and any(
        torch.Tag.pointwise in getattr(packet, overload).tags for overload in packet.overloads()
    )


_BEYOND = {"as_strided", "as_strided_"}
"""Have rules, and show memory that is not the tensor's."""

_TENSORS = _words(
    """
    _convolution _convolution_mode _safe_softmax _shape_as_tensor _upsample_lanczos2d_aa
    _upsample_nearest_exact3d _weight_norm absolute adaptive_avg_pool3d adaptive_max_pool1d addbmm addr adjoint
    affine_grid_generator alpha_dropout amax amin aminmax arange batch_norm bernoulli bilinear block_diag
    broadcast_tensors broadcast_to bucketize cartesian_prod column_stack concat concatenate conj conv1d conv2d
    conv3d conv_transpose1d conv_transpose2d conv_transpose3d cosine_similarity count_nonzero cross cummax
    cummin detach_copy diag diagflat diagonal diff dist divide dot dsplit dstack einsum embedding empty
    expand_as expand_copy eye feature_alpha_dropout feature_dropout fft_fft fft_fft2 fft_fftfreq fft_fftn
    fft_fftshift fft_hfft fft_ifft fft_ifft2 fft_ifftn fft_ifftshift fft_ihfft fft_irfft fft_irfft2 fft_irfftn
    fft_rfft fft_rfft2 fft_rfftfreq fft_rfftn fliplr flipud floor_divide fractional_max_pool2d
    fractional_max_pool3d frobenius_norm full greater greater_equal grid_sampler grid_sampler_3d group_norm
    gru_cell hsplit hstack imag index_copy index_fill inner instance_norm isclose isin isreal kron kthvalue
    layer_norm less less_equal lift lift_fresh linalg_cross linalg_matmul linalg_matrix_norm linalg_multi_dot
    linalg_norm linspace log_sigmoid logspace lstm_cell mH mT masked_scatter masked_select matrix_H max_pool1d
    max_pool1d_with_indices max_pool2d max_pool3d meshgrid mode moveaxis movedim msort
    multiply nanmean nanmedian nanquantile nansum narrow narrow_copy native_dropout negative nonzero
    nonzero_numpy norm norm_except_dim normal not_equal numpy_T one_hot ones outer pad pairwise_distance pdist
    permute_copy polar prelu quantile rand rand_like randint randint_like randn randn_like randperm ravel real
    reflection_pad3d repeat_interleave replication_pad3d reshape_as rnn_relu rnn_relu_cell rnn_tanh
    rnn_tanh_cell rot90 scaled_dot_product_attention scatter_reduce searchsorted select_copy slice_copy
    special_erf special_expit special_log_softmax special_logsumexp special_softmax split_copy
    split_with_sizes_copy squeeze_copy subtract sum_to_size swapaxes swapdims t_copy take take_along_dim
    tensor_split tensordot tile trace transpose_copy tril tril_indices triu triu_indices type_as unbind_copy
    uniform unsafe_chunk unsqueeze_copy upsample_nearest3d upsample_trilinear3d vdot view_as view_copy vsplit
    vstack zeros
    """
)
"""Functions of tensors that torch takes apart into others, or that pathx has no rule for (yet)."""

_VALUES = _words(
    """
    Bool Complex ComplexImplicit Delete Float FloatImplicit Int IntImplicit ScalarImplicit Size __and__ __contains__
    __derive_index __getitem__ __is__ __isnot__ __lshift__ __not__ __or__ __range_length __round_to_zero_floordiv
    __rshift__ __xor__ _assert_async _assert_scalar _assert_tensor_metadata _functional_assert_async _get_tracing_state
    _infer_size _list_to_tensor _set_item _size_if_not_equal _tensor_to_list _unwrap_optional append as_tensor
    broadcast_shapes can_cast capitalize chr clear copy count cpu data degrees device dict dim divmod element_size
    endswith extend fabs factorial find floordiv format get get_device insert is_autocast_cpu_enabled
    is_autocast_enabled is_complex is_conj is_contiguous is_floating_point is_grad_enabled is_inference is_leaf is_neg
    is_nonzero is_same_size is_scripting is_signed isalnum isalpha isdecimal isdigit isidentifier islower isnumeric
    isprintable isspace istitle isupper item items join keys len list ljust lower lstrip mathremainder numel ord
    percentFormat pop popitem promote_types radians range remove replace requires_grad_ result_type reverse rfind rindex
    rjust rsplit rstrip scalar_tensor set_grad_enabled setdefault size sorted splitlines startswith storage_offset str
    stride strip swapcase sym_constrain_range sym_constrain_range_for_size sym_is_contiguous sym_numel sym_size
    sym_storage_offset sym_stride tensor title to update upper values zfill
    """
)
"""Numbers, sizes, types, texts and containers."""

_CONTROL = _words(
    """
    CallFunction CallMethod Constant CreateObject DictConstruct Enter EnumName EnumValue Exit GetAttr If ListConstruct
    ListUnpack Loop NumToTensor RaiseException SetAttr TupleConstruct TupleIndex TupleSlice TupleUnpack Uninitialized abs
    data device dtype hasattr index is_cpu is_cuda is_meta is_mkldnn is_mps is_nested is_quantized is_sparse is_xla
    isinstance itemsize layout max min name nbytes rangelist requires_grad tolist type unchecked_cast
    unchecked_unwrap_optional
    """
)
"""What the language of TorchScript is made of."""
