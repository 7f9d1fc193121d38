"""What a talker lends to a predictor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from overtone._typing import TensorLike

__all__ = ["Binding"]


@dataclass(frozen=True, eq=False)
class Binding:
    """A talker's own tensors, borrowed for as long as frames run.

    Args:
        talker_hidden_size: Ht, checked against the artifacts.
        num_codes_per_frame: C = R + 1, likewise.
        max_batch_size: Rows of ``codec_hiddens``; at most the predictor's ``max_batch``.
        code_zero_embed_table: The talker's codec table E0 [V0, Ht], contiguous, with at least the rows of the
            checkpoint's; None takes the checkpoint's.
        codec_hiddens: [max_batch_size, C, Ht] in the type of the codec tables, written by every ``run_frame`` and bound
            frame; None leaves it to the predictor.
    """

    talker_hidden_size: int
    num_codes_per_frame: int
    max_batch_size: int
    code_zero_embed_table: TensorLike | None = None
    codec_hiddens: TensorLike | None = None
