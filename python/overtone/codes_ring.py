"""Codes of many frames, collected where they are made and fetched with one wait.

For a talker whose steps are one captured graph: the host needs the codes now and then, not after each frame.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from overtone._core import Tensor
from overtone.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from overtone._typing import Executor

__all__ = ["CodesRing"]


class CodesRing:
    """A ring of the codes of up to M frames; made by :meth:`CodePredictor.codes_ring`, one for each loop of frames.

    A frame whose plan names it puts its codes [B, C] into slot ``slot % M`` and adds one to ``slot``, both in the
    executor's memory: so the replays of a captured graph fill one slot after another.

    Attributes:
        codes: [M, B, C] int32.
        slot: [1] int64: frames that went into the ring so far.
    """

    def __init__(self, executor: Executor, frames: int, batch: int) -> None:
        self._executor = executor
        self._drained = 0
        codes_per_frame = executor.spec.codes_per_frame
        self.codes = Tensor.zeros([frames, batch, codes_per_frame], "int32", executor.device)
        self.slot = Tensor.zeros([1], "int64", executor.device)

    def drain(self, stream: object = None) -> NDArray[np.int32]:
        """Wait for the frames that were given so far, and take their codes out.

        Args:
            stream: The stream that the frames, or the graphs that hold them, were given to; None is torch's current.

        Returns:
            Codes [n, B, C] of the n frames since the last drain, in order.

        Raises:
            InputError: More than M frames ran since the last drain, and the oldest are lost. The ring is empty then,
                and goes on.
        """
        self._executor.synchronize(stream)
        first, last = self._drained, int(self.slot.numpy()[0])
        self._drained = last
        slots = self.codes.shape[0]
        if last - first > slots:
            expected = f"at most {slots} between two drains"
            raise InputError(
                f"codes_ring: found {last - first} frames, expected {expected}: the oldest are lost",
                key="codes_ring",
                found=f"{last - first} frames",
                expected=expected,
            )
        return self.codes.numpy()[np.arange(first, last) % slots]
