"""What a model says about given tokens: log-probabilities and entropy, without ever holding the full logits.

The model's own forward is used for both halves: its backbone gives the hidden states of all tokens, and its head (scales, soft
caps, tied weights included) runs over the tokens that are scored, some hundred at a time. The backward pass repeats each piece.

Shapes: B rows, L tokens of a right-padded row, T = L - 1 predicted tokens (position t predicts token t + 1), N scored tokens,
or N tokens of packed rows of which S are scored; D hidden size, V vocabulary; experts M layers, K per token.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from contracts.errors import WeightsRefused
from policy.compiled import compiled_layers
from policy.load import avoid_planned_attention
from policy.narrow_head import narrow_head
from policy.packing import packed_states
from policy.routing import ExpertReplay, replace_forward, within

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from policy.packing import Packing

MAX_LOGITS = 2**22
"""Logits held at once (16 MB in float32) ..."""
MIN_PIECE = 256
"""... but never fewer tokens than this: below, a matmul of a large vocabulary is slow."""
_GPU_LOGITS, _GPU_PIECE = 2**28, 2048
"""The same off the CPU (1 GB in float32): each piece reads the head's weights, and adds to their gradient, once more."""

_KEPT = 0.5
"""Of what compiled layers hold, where less must be held: below, products with weights are computed again. A layer of Qwen3's shape holds 22
bytes per token and unit of width instead of 37, for 1% more operations; whole layers computed again hold 5, for a third more."""
_FAR = 0.05
"""Of the largest logit: more than rounding in any dtype, less than any other head."""


@dataclass(frozen=True)
class TokenScores:
    """Per predicted token, zero where the mask is: natural logarithms, nats."""

    log_probs_BT: torch.Tensor
    entropy_BT: torch.Tensor


class TokenScorer:
    """Scores tokens under one causal language model, at the temperatures they were sampled with.

    The module itself is called, so its hooks keep working.
    """

    def __init__(self, model: Any) -> None:
        """`model` is of transformers.

        Raises WeightsRefused: `unknown_head`: the model's logits do not follow from the hidden states of its backbone.
        """
        avoid_planned_attention(next(model.parameters()).device)
        self._model = model
        self._plain_forward = model.forward
        self._replay = ExpertReplay(model)
        self.recomputes = False
        """The layers run again in the backward pass: see `recomputed`. Of compiled ones only the cheap part, until `recompute_more`."""
        self._compiled: dict[Any, Callable[..., Any]] = {}
        self._leaner: dict[Any, Callable[..., Any]] = {}
        """Those that hold less for the backward pass."""
        self._softmax = _Softmax(_scores_of, _slope_of)
        with torch.no_grad():
            within(model, self._check_head)

    def compile_layers(self, backend: str | Callable[..., Any] = "inductor") -> None:
        """Let all forward passes from now on run compiled layers: see `compiled_layers`. What follows the head is compiled with them."""
        self._compiled = compiled_layers(self._model, backend)
        if self._compiled:
            self._leaner = compiled_layers(self._model, backend, kept=_KEPT)
            fused: list[Any] = [torch.compile(each, dynamic=True, backend=backend) for each in (_scores_of, _slope_of)]
            self._softmax = _Softmax(*fused)

    def recompute_more(self) -> bool:
        """Let whole layers run again where only a part of them does; False if there is none."""
        found, self._leaner = bool(self._leaner), {}
        return found

    def __call__(
        self,
        input_ids_BL: torch.Tensor,
        attention_mask_BL: torch.Tensor,
        mask_BT: torch.Tensor,
        temperature_B: torch.Tensor | float,
        experts_BLMK: torch.Tensor | None = None,
        *,
        support_NK: torch.Tensor | None = None,
        scored_N: torch.Tensor | None = None,
    ) -> TokenScores:
        """Score the tokens that `mask_BT` selects, under softmax(logits / temperature), over the support of each.

        Args:
            input_ids_BL: right-padded.
            attention_mask_BL: 1 where a token is, 0 where padding is.
            mask_BT: True where a token is scored.
            temperature_B: one per row, or one for all.
            experts_BLMK: the experts that the engine chose, `routing.ABSENT` where unknown; None: the model chooses.
            support_NK: up to K ids that each of the N selected tokens was drawn from, row after row, -1 where there are fewer; a
                row of -1, or None: every id.
            scored_N: where the mask is True, counted row after row; None: to be found, which waits for the device.

        Raises ExpertsNotReplayed: the model cannot take given experts.
        """
        scored_N = mask_BT.flatten().nonzero()[:, 0] if scored_N is None else scored_N
        arguments = input_ids_BL, attention_mask_BL, mask_BT.shape, temperature_B, support_NK, scored_N
        return self._called(self._scores, arguments, experts_BLMK)

    def score_packed(
        self,
        packing: Packing,
        states_S: torch.Tensor,
        labels_S: torch.Tensor,
        temperature_S: torch.Tensor,
        experts_NMK: torch.Tensor | None = None,
        *,
        support_SK: torch.Tensor | None = None,
    ) -> TokenScores:
        """Score single tokens (`labels_S`) of packed rows; the model must be packable. The scores are [S, 1].

        `states_S`: the place among the N from whose state each token is predicted. `experts_NMK`, `support_SK`: as for padded rows.
        """
        experts = None if experts_NMK is None else experts_NMK[None]
        return self._called(self._packed_scores, (packing, states_S, labels_S, temperature_S, support_SK), experts)

    def _called(self, forward: Any, arguments: tuple[Any, ...], experts_BLMK: torch.Tensor | None) -> TokenScores:
        """What the model returns with this forward, through the experts."""
        recomputes = self.recomputes and torch.is_grad_enabled()
        leaner = self._leaner if recomputes else {}
        self._replay.use(experts_BLMK)
        with (
            _forward_of(self._model, forward),
            _layers_of(leaner or self._compiled),
            recomputed(self._model) if recomputes and not leaner else nullcontext(),
        ):
            scores: TokenScores = self._model(*arguments)
        # The backward pass may need the given experts again.
        if not (recomputes or (torch.is_grad_enabled() and getattr(self._model, "is_activation_checkpointing", False))):
            self._replay.use(None)
        return scores

    def _check_head(self) -> None:
        """Compare both halves with the whole, on three tokens."""
        ids_BL = torch.arange(3, device=next(self._model.parameters()).device)[None]
        expected = self._plain_forward(input_ids=ids_BL, use_cache=False).logits[0].float()
        output = self._model.base_model(input_ids=ids_BL, use_cache=False)
        logits = self._logits(output, None, None, output.last_hidden_state[0])
        if logits.shape != expected.shape or (logits - expected).abs().max() > _FAR * expected.abs().max():
            problem = f"{type(self._model).__name__} cannot be trained: its logits need more than its hidden states"
            raise WeightsRefused("unknown_head", problem)

    def _scores(  # noqa: PLR0917 called by position, in the place of the model's own forward
        self,
        input_ids_BL: torch.Tensor,
        attention_mask_BL: torch.Tensor,
        shape: torch.Size,
        temperature_B: torch.Tensor | float,
        support_NK: torch.Tensor | None,
        scored_N: torch.Tensor,
    ) -> TokenScores:
        output = self._model.base_model(input_ids=input_ids_BL, attention_mask=attention_mask_BL, use_cache=False)
        row_N = scored_N // shape[1]
        states_N = scored_N + row_N  # rows of states have one more
        states_ND = output.last_hidden_state.flatten(0, 1).index_select(0, states_N)
        labels_N = input_ids_BL.flatten()[states_N + 1]
        temperature_B = torch.as_tensor(temperature_B, dtype=torch.float32, device=states_ND.device)
        temperature_N = temperature_B.expand(shape[0])[row_N]
        found = self._of_states(output, states_ND, labels_N, temperature_N, support_NK)
        zeros = torch.zeros(shape.numel(), device=states_ND.device)
        return TokenScores(*(zeros.index_copy(0, scored_N, each).view(shape) for each in found))

    def _packed_scores(
        self,
        packing: Packing,
        states_S: torch.Tensor,
        labels_S: torch.Tensor,
        temperature_S: torch.Tensor,
        support_SK: torch.Tensor | None,
    ) -> TokenScores:
        output = packed_states(self._model, packing)
        found = self._of_states(
            output, output.last_hidden_state[0].index_select(0, states_S), labels_S, temperature_S, support_SK
        )
        return TokenScores(*(each[:, None] for each in found))

    def _of_states(
        self,
        output: Any,
        states_ND: torch.Tensor,
        labels_N: torch.Tensor,
        temperature_N: torch.Tensor,
        support_NK: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-prob and entropy of each label, in pieces."""
        is_small = states_ND.device.type == "cpu"
        most, least = (MAX_LOGITS, MIN_PIECE) if is_small else (_GPU_LOGITS, _GPU_PIECE)
        size = max(least, most // self._model.config.get_text_config().vocab_size)
        narrow = narrow_head(self._model.get_output_embeddings(), states_ND)
        columns = [torch.split(each, size) for each in (states_ND, labels_N, temperature_N)]
        supports = repeat(None, len(columns[0])) if support_NK is None else torch.split(support_NK, size)
        found = [
            _scored_piece(self._softmax, partial(self._logits, output, support, narrow), *piece)
            for support, *piece in zip(supports, *columns, strict=True)
        ]
        empty = states_ND.flatten()[:0].float()  # keeps an empty micro-batch differentiable
        log_probs_N, entropy_N = (
            torch.cat([empty, *each]) for each in (zip(*found, strict=True) if found else ([], []))
        )
        return log_probs_N, entropy_N

    def _logits(
        self,
        output: Any,
        support_NK: torch.Tensor | None,
        narrow: Callable[[torch.Tensor], torch.Tensor] | None,
        states_ND: torch.Tensor,
    ) -> torch.Tensor:
        """New float32 logits [N, V] by the model's own forward, over a backbone that returns these hidden states.

        `narrow`: the forward of its last layer, if not its own.
        """
        if narrow is None and torch.is_autocast_enabled(states_ND.device.type):
            states_ND = states_ND.to(self._model.get_output_embeddings().weight.dtype)
        made = type(output)(**{**output, "last_hidden_state": states_ND[None]})
        with ExitStack() as stack:
            stack.enter_context(_forward_of(self._model.base_model, lambda *_args, **_kwargs: made))
            if narrow is not None:
                stack.enter_context(_forward_of(self._model.get_output_embeddings(), narrow))
            # Autocast would round the logits to 8 bits: log-probs would be off by hundredths.
            stack.enter_context(torch.autocast(states_ND.device.type, enabled=False))
            ids = torch.zeros((1, 1), dtype=torch.long, device=states_ND.device)
            logits: torch.Tensor = self._plain_forward(input_ids=ids, use_cache=False).logits
        return logits[0].float() if support_NK is None else _over_support(logits[0].float(), support_NK)


def _over_support(scores_NV: torch.Tensor, support_NK: torch.Tensor) -> torch.Tensor:
    """The scores without the ids outside each token's support; a support of -1 alone leaves out none."""
    is_in_NV = torch.zeros(
        (len(scores_NV), scores_NV.shape[1] + 1), dtype=torch.bool, device=scores_NV.device
    ).scatter_(1, torch.where(support_NK < 0, scores_NV.shape[1], support_NK), value=True)[:, :-1]
    is_any_N = (support_NK < 0).all(-1)
    return scores_NV.masked_fill(~(is_in_NV | is_any_N[:, None]), -torch.inf)


@contextmanager
def _forward_of(module: Any, forward: Any) -> Iterator[None]:
    """A block in which a module has another forward."""
    undo = replace_forward(module, forward)
    try:
        yield
    finally:
        undo()


@contextmanager
def _layers_of(forwards: Mapping[Any, Callable[..., Any]]) -> Iterator[None]:
    """A block in which these modules have these forwards."""
    with ExitStack() as stack:
        for module, forward in forwards.items():
            stack.enter_context(_forward_of(module, forward))
        yield


@contextmanager
def recomputed(model: Any) -> Iterator[None]:
    """A block in which forward passes hold only the inputs of the model's layers; the backward pass computes the layers again.

    D floats per token and layer instead of about 20 D. What the layers read must stay until then. transformers' own switch works in
    train mode only, where layers also drop activations at random.
    """
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    again = partial(partial, checkpoint, use_reentrant=False, preserve_rng_state=False)
    with _layers_of({layer: again(layer.forward) for layer in layers}):
        yield


def _scores_of(
    logits_NV: torch.Tensor, labels_N: torch.Tensor, temperature_N: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Natural log-prob, entropy in nats, and logarithm of the denominator. Overwrites the logits."""
    logits_NV.div_(temperature_N[:, None])
    highest_N1 = logits_NV.amax(-1, keepdim=True)
    weights_NV = logits_NV.sub_(highest_N1).exp()
    total_N = weights_NV.sum(-1)
    log_probs_N = logits_NV.gather(1, labels_N[:, None])[:, 0] - total_N.log()
    # A logit of -inf has weight 0, and 0 times -inf would be no number.
    mean_N = torch.linalg.vecdot(weights_NV, logits_NV.clamp_(min=torch.finfo(torch.float32).min)) / total_N
    return log_probs_N, total_N.log() - mean_N, highest_N1[:, 0] + total_N.log()


def _slope_of(
    logits_NV: torch.Tensor,
    labels_N: torch.Tensor,
    temperature_N: torch.Tensor,
    denominator_N: torch.Tensor,
    slope_N: torch.Tensor,
) -> torch.Tensor:
    """Of the logits, from that of their log-probs."""
    scale_N1 = (slope_N / temperature_N)[:, None]
    slope_NV = logits_NV / temperature_N[:, None]
    slope_NV.sub_(denominator_N[:, None]).exp_().mul_(-scale_N1)
    return slope_NV.scatter_add_(1, labels_N[:, None], scale_N1)


class _Softmax(NamedTuple):
    """The two functions above, as they are or compiled."""

    scores: Callable[..., tuple[torch.Tensor, torch.Tensor, torch.Tensor]]
    slope: Callable[..., torch.Tensor]


def _scored_piece(
    softmax: _Softmax,
    head: Callable[[torch.Tensor], torch.Tensor],
    states_ND: torch.Tensor,
    labels_N: torch.Tensor,
    temperature_N: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Natural log-prob (with gradient, of the head too) and entropy in nats (without), of softmax(logits / temperature).

    Autograd would keep, or compute again, each step from logits to log-probability: five tensors of the logits' size. Their derivative is
    known, (one-hot - softmax) / temperature, so the backward pass computes the logits again and turns them into their slope.
    """
    # The parameters are hidden in `head`: without an input that needs a gradient, autograd would not come back here.
    needs = torch.empty(0, requires_grad=True)
    log_probs_N, entropy_N = _ScoredPiece.apply(softmax, head, states_ND, labels_N, temperature_N, needs)  # type: ignore[no-untyped-call]
    return log_probs_N, entropy_N


class _ScoredPiece(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917 autograd passes by position
        ctx: Any,
        softmax: _Softmax,
        head: Callable[[torch.Tensor], torch.Tensor],
        states_ND: torch.Tensor,
        labels_N: torch.Tensor,
        temperature_N: torch.Tensor,
        _needs: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        log_probs_N, entropy_N, denominator_N = softmax.scores(head(states_ND), labels_N, temperature_N)
        ctx.save_for_backward(states_ND, labels_N, temperature_N, denominator_N)
        ctx.head, ctx.softmax, ctx.device_type = head, softmax, states_ND.device.type
        ctx.autocast = torch.is_autocast_enabled(ctx.device_type), torch.get_autocast_dtype(ctx.device_type)
        ctx.mark_non_differentiable(entropy_N)
        return log_probs_N, entropy_N

    @staticmethod
    def backward(ctx: Any, slope_N: torch.Tensor, _entropy: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        states_ND, *rest = ctx.saved_tensors
        states_ND = states_ND.detach().requires_grad_()
        enabled, dtype = ctx.autocast
        with torch.enable_grad(), torch.autocast(ctx.device_type, dtype, enabled=enabled):
            logits_NV = ctx.head(states_ND)
        torch.autograd.backward(logits_NV, ctx.softmax.slope(logits_NV.detach(), *rest, slope_N))
        return None, None, states_ND.grad, None, None, None
