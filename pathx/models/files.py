"""Model files: what a file is by its content, TorchScript files as networks, and which operations files may name.

No pickle is ever run, and each file is read by one reader alone, since two might disagree. A TorchScript file may compute
anything, but it cannot reach other files.
"""

from __future__ import annotations

import io
import os
import re
import warnings
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import IO, Any

import torch
from torch import nn

from pathx.compat import record_sizes
from pathx.engine.rules.table import OPERATIONS
from pathx.errors import PathxError, reason_of
from pathx.regular import file_errors, open_regular, path_problem

EMBEDDED = "pathx.json"
"""The sidecar inside a model file."""

_EXPANDED, _TIMES = 16 << 20, 4  # records may expand to this many bytes plus this many times the size of the file


class Unsafe(Exception):
    """A file would run code, or holds what no file of a plain network holds."""


class Archive:
    """The records of a file as torch's own reader sees them.

    Raises RuntimeError, OSError and others if that reader finds no valid archive.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        stream.seek(0)
        self._reader: Any = torch._C.PyTorchFileReader(stream)  # type: ignore[call-arg, arg-type, unused-ignore]
        self._room = stream.seek(0, io.SEEK_END)
        self.names: tuple[str, ...] = tuple(self._reader.get_all_records())
        self._size = record_sizes(self._reader, stream)

    def check_sizes(self) -> None:
        """Raise Unsafe if the records expand to far more than the file: torch compresses nothing but the text of programs."""
        if sum(map(self._size, self.names)) > _EXPANDED + _TIMES * self._room:
            raise Unsafe("expands to far more than its size, as no file that torch writes does")

    def read(self, name: str) -> bytes:
        """A record; one that claims to be much larger than the file is refused."""
        if name not in self.names:  # the reader ignores case
            raise Unsafe(f"it has no {name}")
        if self._size(name) > _EXPANDED + self._room:
            raise Unsafe(f"{name} claims to be larger than the file")
        content: bytes = self._reader.get_record(name)
        return content


def kind_of(path: Path) -> str:
    """The kind of a file, by its content: torchscript, export, old export, pickle, safetensors, onnx or unknown."""
    if path_problem(path) is None and not os.path.exists(path):
        raise PathxError(f"there is no model file {path}: check the path, or give a torchvision name", usage=True)
    try:
        with file_errors(path, usage=True), open_regular(path) as stream:
            found = _kind(stream)
    except Unsafe as error:
        raise PathxError(f"{path} {error}: save the model again with torch, uncompressed", usage=True) from error
    return "onnx" if found == "unknown" and path.suffix.lower() == ".onnx" else found


def _kind(stream: IO[bytes]) -> str:
    start = stream.read(64)
    if start.startswith(b"PK"):
        if b"serialized_exported_program.json" in start:
            return "old export"
        try:
            archive = Archive(stream)
            archive.check_sizes()
        except Unsafe:
            raise
        except Exception:  # mostly RuntimeError; OSError if damage leads beyond the end of the file; and others
            return "unknown"
        return _kind_of_archive(archive.names)
    if start.startswith(b"\x80"):
        return "pickle"
    if start[8:9] == b"{":
        return "safetensors"
    # Protocol buffers have no magic number. An ONNX file starts with its version (field 1) and, as all exporters of
    # frameworks write it, its producer (field 2, a short text). Others are known by their name.
    if len(start) > 4 and start[0] == 0x08 and start[1] < 0x20 and start[2] == 0x12 and start[3] < 0x40:
        return "onnx"
    return "unknown"


def _kind_of_archive(names: tuple[str, ...]) -> str:
    if "archive_format" in names:
        return "export"
    if "constants.pkl" in names and any(name.startswith("code/") for name in names):
        return "torchscript"
    return "pickle" if "data.pkl" in names else "unknown"


_REFUSALS = {
    "old export": "was exported by torch 2.8 or older, whose files pathx cannot read: export it again with torch 2.9 or newer, "
    "or save it with torch.jit.save",
    "pickle": "is a pickle, a program that pathx never runs: export the model with torch.export.save, or for a state dict use "
    "`model` NAME `weights` {0}",
    "safetensors": "holds weights only: use `model` NAME `weights` {0}",
    "python": "is Python code: name the function in it that builds the model, as {0}:build",
    "unknown": "is damaged or not a model file: save the model with torch.jit.save or torch.export.save",
}
_UNSAFE = {
    "torchscript": "the program in {0} is not run ({1}): trace the network alone with torch.jit.trace, or export it with "
    "torch.export.save",
    "export": "{0} holds what no export of a plain network holds ({1}): export the model with torch.export.save, with plain "
    "tensors as weights, inputs and results",
}


def load_network(path: Path) -> tuple[nn.Module, str]:
    """The network in a file, in eval mode and on the CPU, and the text of the sidecar inside the file."""
    kind = kind_of(path)
    if kind not in _UNSAFE:
        kind = "python" if kind == "unknown" and path.suffix == ".py" else kind
        raise PathxError(f"{path} {_REFUSALS[kind].format(path)}", usage=True)
    try:
        with open_regular(path) as stream, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # TorchScript is deprecated, but the file is what the user has
            if kind == "torchscript":
                return _load_torchscript(path, Archive(stream))
            from pathx.models.exported import load_export

            return load_export(Archive(stream))
    except PathxError:
        raise
    except Unsafe as error:
        raise PathxError(_UNSAFE[kind].format(path, error), usage=True) from error
    except Exception as error:  # mostly RuntimeError, but damage makes torch's readers raise anything
        problem = f"{path} cannot be loaded by torch {torch.__version__} ({reason_of(error)}): save it again with this version"
        if "required keyword attribute 'value' is undefined" in str(
            error
        ):  # constants of a layout that cannot be saved
            problem = f"{path} was made by torch.jit.optimize_for_inference and holds no weights"
            problem += ": save the module that it was made from"
        raise PathxError(problem, usage=True) from error


def _load_torchscript(path: Path, archive: Archive) -> tuple[nn.Module, str]:
    extra: dict[str, Any] = {EMBEDDED: ""}
    _check_text(archive)
    # As torch.jit.load does it, which keeps the compiled functions to itself.
    unit: Any = torch._C.CompilationUnit()
    load: Any = torch._C.import_ir_module
    loaded = load(unit, str(path), torch.device("cpu"), extra, False)
    _check_graphs(unit)
    module: nn.Module = torch.jit._recursive.wrap_cpp_module(loaded)
    module.eval()
    content = extra[EMBEDDED]
    return module, content.decode(errors="replace") if isinstance(content, bytes) else content


# The program in a TorchScript file. torch runs parts of a file while it loads it: `__setstate__` and default values. So the text
# may hold no `__setstate__`, and only plain literals as default values; patterns that must match a whole line check that. All
# other checks read torch's own compiled graphs, which are complete once the file is loaded.

_TEXT = r"\"[^\"\\\n()\[\]]*\""
_LITERAL = rf"(?:[ \w.,\[\]+-]|{_TEXT})"  # without round brackets, so that nothing is called
_NUMBER = r"[ \de.,+-]|True|False|None"
_TUPLE = rf"(?:{_NUMBER}|[()\[\]]|{_TEXT})"  # without names
_TYPE = r"[ \w.,\[\]]"
_DEFAULTS = {  # words after which torch evaluates values (a digit may precede them), and what follows in a plain file
    word: (re.compile(rf"(?<![A-Za-z_]){word}(?!\w)"), re.compile(word + pattern, re.ASCII))
    for word, pattern in {
        "def": rf" \w+\(((?:{_LITERAL}|[:=\n]|=\((?:{_NUMBER})*\)|=torch\.device\({_TEXT}\))*)\) ->",
        "Final": rf"(\[{_TYPE}+\] = (?:{_LITERAL}*|{_TUPLE}*))\n",
        "NamedTuple": rf"\):\n((?:  \w+ : {_TYPE}+(?: = {_LITERAL}+)?\n)+)(?=\S|\Z)",
    }.items()
}
_NATIVE_CLASS = re.compile(rb"[.\n]classes[.\n]")  # C++ code makes the objects of torch.classes


def _check_text(archive: Archive) -> None:
    """Raise Unsafe if loading a TorchScript archive would run a part of it."""
    for name in archive.names:
        lower = name.lower()  # torch's reader ignores case
        if lower == "model.json":
            raise Unsafe("it has the layout of an early version of torch")
        if lower.endswith(".pkl") and _NATIVE_CLASS.search(archive.read(name)):
            raise Unsafe("it holds an object that is no tensor")
        if not (lower.startswith("code/") and lower.endswith(".py")):
            continue
        text = archive.read(name).decode("latin-1")
        for word in ("__setstate__", "PythonOp"):  # runs while it is loaded; takes down torch's compiler
            if word in text:
                raise Unsafe(f"it names `{word}`")
        for start, plain in _DEFAULTS.values():
            if not all(_ends(plain.match(text, found.start())) for found in start.finditer(text)):
                raise Unsafe("it has a default value that is computed while it is loaded")


def _ends(found: re.Match[str] | None) -> bool:
    """Whether a plain value was found whose brackets are all closed."""
    return found is not None and all(found[1].count(pair[0]) == found[1].count(pair[1]) for pair in ("[]", "()"))


def _check_graphs(unit: Any) -> None:
    """Raise Unsafe if a loaded program names a forbidden operation; remove its warnings.

    Args:
        unit: the `torch._C.CompilationUnit` that the file was loaded into.
    """
    for function in unit.get_functions():
        for node in list(_nodes(function.graph)):
            kind = node.kind()
            if kind == "aten::warn":  # functions of torch itself warn; the text would be printed as it is
                node.destroy()
                continue
            check_operations([kind])
            if kind == "prim::CreateObject" and ".torch.classes." in str(node.output().type()):
                raise Unsafe("it makes an object that is no tensor")


def _nodes(block: Any) -> Iterator[Any]:
    for node in block.nodes():
        yield node
        for inner in node.blocks():
            yield from _nodes(inner)


# A model file may name the operations that pathx has rules for and those listed here. Everything else is refused by name before
# any part of the file runs: printing, files, profilers, random seeds, other processes, and access beyond the memory of a tensor.
# The operations listed here only compute from tensors or sizes; the engine decides whether it can explain them.


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
    if family != "aten":
        return False
    base = operation if operation.startswith("__") else operation.removesuffix("_")  # in place
    return base in OPERATIONS or base in _TENSORS or operation in _VALUES or _is_elementwise(operation)


def _is_elementwise(operation: str) -> bool:
    packet: Any = getattr(torch.ops.aten, operation, None)
    return isinstance(packet, torch._ops.OpOverloadPacket) and any(
        torch.Tag.pointwise in getattr(packet, overload).tags for overload in packet.overloads()
    )


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


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
"""Functions of tensors that torch decomposes into others, or that pathx has no rule for."""

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
