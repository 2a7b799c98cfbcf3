"""What was found in the checkpoint of a policy, before any process starts. `python -m policy.inspect` writes it, commands read it."""

from __future__ import annotations

import msgspec


class CheckpointProblem(msgspec.Struct, frozen=True):
    """Why a checkpoint cannot be used."""

    code: str
    message: str


class CheckpointReport(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint that Millrace can serve and train, unless `problems` says why not. Fields that a problem hides are empty."""

    architecture: str = ""
    """The class of transformers, for example `Qwen3MoeForCausalLM`."""
    num_tensors: int = 0
    """Of those that are published."""
    num_parameters: int = 0
    """Model parameters in the module: fused ones once."""
    num_weights: int = 0
    """Elements of all published tensors."""
    dtypes: dict[str, int] = msgspec.field(default_factory=dict)
    """Number of tensors of each dtype on disk; all are published as BF16."""
    published_as: dict[str, str] = msgspec.field(default_factory=dict)
    """Tensors on disk that are published under another name; under none, if it is empty: a tie or an unused tensor."""
    context: int | None = None
    """Tokens of prompt and answer together."""
    vocabulary: int = 0
    """Rows of the embedding."""
    is_paged: bool = True
    """True: the engine batches its requests over a paged cache. False: it has a recurrent state and is stepped."""
    num_expert_layers: int = 0
    """Layers whose choice of experts the engine records and the trainer replays."""
    is_mixture: bool = False
    """True if the configuration speaks of several experts. Without layers above, their choices are not recorded."""
    cache_elements_per_token: int = 0
    """Keys and values of all layers with attention."""
    problems: list[CheckpointProblem] = msgspec.field(default_factory=list)
