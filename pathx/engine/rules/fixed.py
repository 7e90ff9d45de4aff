"""Operations that bend or fix what they are given: constant around any input, last of a model, or not linear at all."""

from __future__ import annotations

from pathx.engine.rules.table import record

# Not linear, but constant around any input: what they say of it is frozen with the gates.
record(
    *("gt", "ge", "lt", "le", "eq", "ne", "argmax", "argmin", "argsort", "sign", "sgn", "isnan", "isinf", "isfinite"),
    *(
        "logical_not",
        "logical_and",
        "logical_or",
        "logical_xor",
        "bitwise_not",
        "bitwise_and",
        "bitwise_or",
        "any",
        "all",
    ),
    *("heaviside", "floor", "ceil", "round", "trunc"),
    frozen=True,
)

# They take no more than the shape of what they are given.
record(
    *("zeros_like", "ones_like", "full_like", "empty_like", "new_zeros", "new_ones", "new_full", "new_empty"),
    *("new_empty_strided", "fill", "zero"),
    shaped=True,
)

# What .item(), float() and `if` read.
record("_local_scalar_dense", decides=True)

# Stripped where they are the last operation of the model: the logits are what is explained.
record("_softmax", "softmax", "_log_softmax", "log_softmax", "sigmoid", "log_sigmoid_forward", final=True, bends=True)
record("log", "exp", after_final=True, bends=True)

# Known to be not linear for a given input, so that no rule could be written for them.
record(
    *("pow", "sqrt", "rsqrt", "reciprocal", "expm1", "log1p", "log2", "log10", "sin", "cos", "tan", "erf", "square"),
    *("tanh", "gelu", "silu", "mish", "elu", "celu", "selu", "softplus", "hardswish", "glu", "logit", "atan", "atan2"),
    *("native_layer_norm", "native_group_norm", "linalg_vector_norm", "var", "std", "var_mean", "std_mean", "prod"),
    *(
        "logsumexp",
        "cumprod",
        "logcumsumexp",
        "_fused_rms_norm",
        "rms_norm",
        "cdist",
        "_cdist_forward",
        "renorm",
        "_trilinear",
    ),
    *("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention"),
    *("_scaled_dot_product_efficient_attention", "_scaled_dot_product_attention_math", "_native_multi_head_attention"),
    *("_thnn_fused_lstm_cell", "_thnn_fused_gru_cell", "mkldnn_rnn_layer", "lstm", "gru"),
    bends=True,
)
